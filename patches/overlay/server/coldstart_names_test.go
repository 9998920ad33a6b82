package server

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestColdStartNames(t *testing.T) {
	dir := t.TempDir()
	there := filepath.Join(dir, "Q8_0")
	if err := os.WriteFile(there, []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("the store cannot be read")
	search := func(lenient bool) (map[string]bool, error) {
		return map[string]bool{"searched": lenient}, broken
	}
	for _, c := range []struct {
		name, value, manifest string
		err                   error
		searched              bool
	}{
		{"there", "1", there, nil, false},
		{"word", "true", there, nil, false},
		{"in another spelling", "1", filepath.Join(dir, "q8_0"), nil, true},
		{"a directory", "1", dir, nil, true},
		{"no such name", "1", there, errors.New("invalid name"), true},
		{"unset", "", there, nil, true},
		{"false", "0", there, nil, true},
		{"not a boolean", "please", there, nil, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("OLLAMA_EXACT_NAMES", c.value)
			found, err := coldStartNames(search, true)(c.manifest, c.err)
			if found["searched"] != c.searched || (err != nil) != c.searched {
				t.Errorf("got %v and %v, want a search: %v", found, err, c.searched)
			}
			for range found {
				if !c.searched {
					t.Error("nothing was to be found")
				}
			}
		})
	}
}
