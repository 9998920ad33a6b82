package server

import (
	"os"
	"strconv"
)

// coldStartNames returns what search finds, or nothing when a name needs no
// search: the manifest it leads to is there in exactly this spelling, and
// OLLAMA_EXACT_NAMES is true. The returned function takes what the one that
// leads to the manifest returns.
func coldStartNames[Found any](search func(bool) (Found, error), lenient bool) func(string, error) (Found, error) {
	return func(manifest string, err error) (Found, error) {
		if err == nil && coldStartExact(manifest) {
			var nothing Found
			return nothing, nil
		}
		return search(lenient)
	}
}

func coldStartExact(manifest string) bool {
	enabled, _ := strconv.ParseBool(os.Getenv("OLLAMA_EXACT_NAMES"))
	if !enabled {
		return false
	}
	info, err := os.Stat(manifest)
	return err == nil && info.Mode().IsRegular()
}
