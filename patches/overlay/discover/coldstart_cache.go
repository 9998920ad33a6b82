package discover

import (
	"log/slog"
	"os"
	"strconv"
	"strings"
)

// coldStartFree returns how much memory the container may still take: total
// less used, as upstream counts, unless OLLAMA_CACHE_IS_FREE is true. Then page
// cache that the kernel gives up on demand is no longer counted as used, and
// the answer is at most what the whole machine has available.
func coldStartFree(total, used, available uint64) uint64 {
	return coldStartFreeBeside("/sys/fs/cgroup/memory.stat", total, used, available)
}

func coldStartFreeBeside(stat string, total, used, available uint64) uint64 {
	enabled, _ := strconv.ParseBool(os.Getenv("OLLAMA_CACHE_IS_FREE"))
	if !enabled {
		return total - used
	}
	cache := min(coldStartReclaimable(stat), used)
	var free uint64
	if kept := used - cache; kept < total {
		free = min(total-kept, available)
	}
	// Memory the group may take but the machine does not have is upstream's to
	// promise: the variable never makes the answer smaller.
	if used < total {
		free = max(free, total-used)
	}
	slog.Debug("page cache counted as free", "reason", "OLLAMA_CACHE_IS_FREE", "cache", cache, "free", free)
	return free
}

// coldStartReclaimable returns the bytes of page cache the kernel can drop at
// once: both lists of file pages, without those that have to be written first
// (dirty, writeback) and without those some process has mapped, which it would
// have to read again. tmpfs, shared memory and locked pages are on other lists.
// Without a readable file there is nothing to drop.
func coldStartReclaimable(stat string) uint64 {
	text, err := os.ReadFile(stat)
	if err != nil {
		return 0
	}
	var listed, busy uint64
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		bytes, err := strconv.ParseUint(value, 10, 64)
		if err != nil {
			continue
		}
		switch name {
		case "active_file", "inactive_file":
			listed += bytes
		case "file_dirty", "file_writeback", "file_mapped":
			busy += bytes
		}
	}
	return listed - min(busy, listed)
}
