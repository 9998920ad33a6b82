package llm

import (
	"slices"
	"testing"
)

func TestColdStartWarmup(t *testing.T) {
	plain := []string{"--model", "m.gguf", "-c", "4096"}
	added := append(slices.Clone(plain), "--no-warmup")
	for _, c := range []struct {
		name, value string
		args, want  []string
	}{
		{"unset", "", plain, plain},
		{"true", "1", plain, added},
		{"word", "true", plain, added},
		{"already there", "1", added, added},
		{"false", "0", plain, plain},
		{"not a boolean", "please", plain, plain},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("OLLAMA_SKIP_WARMUP", c.value)
			if got := coldStartWarmup(c.args); !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestColdStartWarmupLeavesTheCallersArrayAlone(t *testing.T) {
	t.Setenv("OLLAMA_SKIP_WARMUP", "1")
	backing := []string{"-c", "4096", "next"}
	coldStartWarmup(backing[:2])
	if backing[2] != "next" {
		t.Errorf("the array behind the arguments was overwritten: %q", backing)
	}
}
