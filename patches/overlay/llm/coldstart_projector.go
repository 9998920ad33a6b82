package llm

import (
	"log/slog"
	"os"
	"strconv"
)

// coldStartProjector returns both places a projector can come from: the files
// of the manifest, and the architectures whose model file may hold one inline.
// OLLAMA_SKIP_MMPROJ empties both. Memory estimate and fit padding are computed
// from the result, so they follow.
func coldStartProjector(files []string, inline map[string]bool) ([]string, map[string]bool) {
	skip, _ := strconv.ParseBool(os.Getenv("OLLAMA_SKIP_MMPROJ"))
	if !skip {
		return files, inline
	}
	slog.Info("projector left out, images will be refused", "reason", "OLLAMA_SKIP_MMPROJ", "files", files)
	return nil, nil
}
