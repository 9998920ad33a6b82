package discover

import (
	"log/slog"
	"os"
	"strconv"
	"sync/atomic"
)

// coldStartRefreshed is set by the first refresh of the devices' free memory.
var coldStartRefreshed atomic.Bool

func coldStartOnce() bool {
	once, _ := strconv.ParseBool(os.Getenv("OLLAMA_DISCOVER_ONCE"))
	return once
}

// coldStartValidate reports whether a device is probed a second time. For CUDA
// the second probe is the first one again: the variable it sets is read nowhere
// in llama.cpp, and the first already compared architectures. ROCm keeps it.
func coldStartValidate(upstream bool, library string) bool {
	return upstream && !(library == "CUDA" && coldStartOnce())
}

// coldStartRediscover reports whether devices may be discovered again to learn
// their free memory. Only the very first refresh may go without, and only
// while no runner exists: nothing of ours has touched the memory since it was
// measured. Every later refresh has seen a runner come or go and must measure.
func coldStartRediscover(runners int) bool {
	first := !coldStartRefreshed.Swap(true)
	if first && runners == 0 && coldStartOnce() {
		slog.Debug("free memory kept from discovery", "reason", "OLLAMA_DISCOVER_ONCE")
		return false
	}
	return true
}
