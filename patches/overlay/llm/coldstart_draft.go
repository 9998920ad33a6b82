package llm

import (
	"log/slog"
	"os"
	"strconv"
)

// coldStartDraft returns how many tokens may be drafted ahead and the separate
// draft model, if any. OLLAMA_DISABLE_MTP makes it none and none: upstream adds
// no speculative flag for a count of zero, whichever kind of draft it found,
// and never opens a draft model without a path.
func coldStartDraft(tokens int, model string) (int, string) {
	disable, _ := strconv.ParseBool(os.Getenv("OLLAMA_DISABLE_MTP"))
	if !disable || (tokens <= 0 && model == "") {
		return tokens, model
	}
	slog.Info("speculative draft left out", "reason", "OLLAMA_DISABLE_MTP", "tokens", tokens, "model", model)
	return 0, ""
}
