package llm

import (
	"maps"
	"slices"
	"testing"
)

func TestColdStartProjector(t *testing.T) {
	files := []string{"mmproj.gguf"}
	inline := map[string]bool{"qwen35": true}
	for _, c := range []struct {
		name, value string
		kept        bool
	}{
		{"unset", "", true},
		{"false", "false", true},
		{"not a boolean", "mmproj", true},
		{"true", "1", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("OLLAMA_SKIP_MMPROJ", c.value)
			gotFiles, gotInline := coldStartProjector(files, inline)
			if c.kept && (!slices.Equal(gotFiles, files) || !maps.Equal(gotInline, inline)) {
				t.Errorf("got %v and %v, want them unchanged", gotFiles, gotInline)
			}
			if !c.kept && (len(gotFiles) > 0 || gotInline["qwen35"]) {
				t.Errorf("got %v and %v, want no projector from either", gotFiles, gotInline)
			}
		})
	}
	if len(files) != 1 || !inline["qwen35"] {
		t.Errorf("the caller's values were changed: %v and %v", files, inline)
	}
}
