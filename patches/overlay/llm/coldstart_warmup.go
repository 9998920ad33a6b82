package llm

import (
	"os"
	"slices"
	"strconv"
)

// coldStartWarmup returns the runner's arguments, with --no-warmup at the end
// when OLLAMA_SKIP_WARMUP is true and the flag is not there yet.
func coldStartWarmup(args []string) []string {
	skip, _ := strconv.ParseBool(os.Getenv("OLLAMA_SKIP_WARMUP"))
	if !skip || slices.Contains(args, "--no-warmup") {
		return args
	}
	return append(slices.Clip(args), "--no-warmup")
}
