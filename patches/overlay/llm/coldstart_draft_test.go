package llm

import "testing"

func TestColdStartDraft(t *testing.T) {
	for _, c := range []struct {
		name, value string
		tokens      int
		model       string
		wantTokens  int
		wantModel   string
	}{
		{"unset", "", 4, "draft.gguf", 4, "draft.gguf"},
		{"false", "0", 4, "", 4, ""},
		{"not a boolean", "mtp", 4, "draft.gguf", 4, "draft.gguf"},
		{"head inside the model", "1", 4, "", 0, ""},
		{"separate model", "1", 4, "draft.gguf", 0, ""},
		{"separate model, count already zero", "1", 0, "draft.gguf", 0, ""},
		{"nothing to disable", "1", -1, "", -1, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("OLLAMA_DISABLE_MTP", c.value)
			tokens, model := coldStartDraft(c.tokens, c.model)
			if tokens != c.wantTokens || model != c.wantModel {
				t.Errorf("got %d and %q, want %d and %q", tokens, model, c.wantTokens, c.wantModel)
			}
		})
	}
}
