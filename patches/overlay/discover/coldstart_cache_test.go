package discover

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const gib = 1 << 30

// What a group holds after a model of 40 GiB was read once: all of it cached,
// a little of everything else.
const coldStartAfterPrefetch = `anon 1073741824
file 43486543872
kernel 104857600
shmem 268435456
file_mapped 134217728
file_dirty 67108864
file_writeback 0
inactive_anon 268435456
active_anon 1073741824
inactive_file 42949672960
active_file 268435456
unevictable 0
slab_reclaimable 524288000
workingset_refault_file 12
`

func coldStartStat(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "memory.stat")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestColdStartFree(t *testing.T) {
	const prefetched = 40*gib + 256<<20 - 128<<20 - 64<<20
	for _, c := range []struct {
		name, value            string
		total, used, available uint64
		want                   uint64
	}{
		{"unset", "", 64 * gib, 42 * gib, 500 * gib, 22 * gib},
		{"false", "0", 64 * gib, 42 * gib, 500 * gib, 22 * gib},
		{"not a boolean", "cache", 64 * gib, 42 * gib, 500 * gib, 22 * gib},
		{"cache is free", "1", 64 * gib, 42 * gib, 500 * gib, 22*gib + prefetched},
		{"a group full of cache", "1", 42 * gib, 42 * gib, 500 * gib, prefetched},
		{"no more than the machine has", "1", 64 * gib, 42 * gib, 30 * gib, 30 * gib},
		{"no less than upstream says", "1", 64 * gib, 42 * gib, 10 * gib, 22 * gib},
		{"no more than was used", "1", 64 * gib, 8 * gib, 500 * gib, 64 * gib},
		{"a limit lowered below the usage", "1", 20 * gib, 42 * gib, 500 * gib, 20*gib - (42*gib - prefetched)},
		{"a limit below what cannot be dropped", "1", gib, 42 * gib, 500 * gib, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("OLLAMA_CACHE_IS_FREE", c.value)
			got := coldStartFreeBeside(coldStartStat(t, coldStartAfterPrefetch), c.total, c.used, c.available)
			if got != c.want {
				t.Errorf("got %d, want %d", got, c.want)
			}
		})
	}
}

func TestColdStartFreeKeepsUpstreamsOverflow(t *testing.T) {
	// Nothing set, nothing changed: not even what looks like a mistake.
	t.Setenv("OLLAMA_CACHE_IS_FREE", "")
	var total, used uint64 = 1, 2
	if got := coldStartFreeBeside(coldStartStat(t, coldStartAfterPrefetch), total, used, gib); got != total-used {
		t.Errorf("got %d, want %d", got, total-used)
	}
}

func TestColdStartReclaimable(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       uint64
	}{
		{"clean pages of both lists", "inactive_file 300\nactive_file 40\n", 340},
		{"not yet written", "inactive_file 300\nfile_dirty 100\nfile_writeback 50\n", 150},
		{"in somebody's address space", "active_file 300\nfile_mapped 120\n", 180},
		{"mapped shared memory is not on the lists", "active_file 100\nfile_mapped 400\n", 0},
		{"tmpfs counts as file but cannot be dropped", "file 500\nshmem 500\ninactive_file 0\n", 0},
		{"an older kernel without the busy ones", "active_file 7\n", 7},
		{"no number", "active_file lots\ninactive_file 3\n", 3},
		{"no line break at the end", "inactive_file 3", 3},
		{"similar names", "workingset_activate_file 9\ninactive_file_x 9\n", 0},
		{"empty", "", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := coldStartReclaimable(coldStartStat(t, c.text)); got != c.want {
				t.Errorf("got %d, want %d", got, c.want)
			}
		})
	}
	if got := coldStartReclaimable(filepath.Join(t.TempDir(), "none")); got != 0 {
		t.Errorf("without a file: got %d, want 0", got)
	}
}

// TestColdStartFreeInAGroup is for a process that a test put into a memory group
// and whose cache it filled; COLDSTART_GROUP names the folder with the group's
// files, COLDSTART_LEAST how many bytes must count as free and
// COLDSTART_UPSTREAM how many upstream may find at most.
func TestColdStartFreeInAGroup(t *testing.T) {
	folder := os.Getenv("COLDSTART_GROUP")
	if folder == "" {
		t.Skip("COLDSTART_GROUP names no memory group")
	}
	number := func(text string) uint64 {
		value, err := strconv.ParseUint(strings.TrimSpace(text), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
	read := func(name string) uint64 {
		text, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			t.Fatal(err)
		}
		return number(string(text))
	}
	total, used := read("memory.max"), read("memory.current")
	most, least := number(os.Getenv("COLDSTART_UPSTREAM")), number(os.Getenv("COLDSTART_LEAST"))
	for value, right := range map[string]func(uint64) bool{
		"0": func(free uint64) bool { return free <= most },
		"1": func(free uint64) bool { return free >= least && free <= total },
	} {
		t.Setenv("OLLAMA_CACHE_IS_FREE", value)
		free := coldStartFreeBeside(filepath.Join(folder, "memory.stat"), total, used, total)
		t.Logf("OLLAMA_CACHE_IS_FREE=%s: %d of %d bytes free, %d used", value, free, total, used)
		if !right(free) {
			t.Errorf("OLLAMA_CACHE_IS_FREE=%s: %d bytes free; upstream at most %d, ours at least %d", value, free, most, least)
		}
	}
}
