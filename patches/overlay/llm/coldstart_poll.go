package llm

import (
	"os"
	"strconv"
	"time"
)

// coldStartPoll returns how long to sleep between two looks at a loading
// runner: OLLAMA_LOAD_POLL_MS when it is a whole number from 1 to 1000,
// otherwise upstream's value.
func coldStartPoll(upstream time.Duration) time.Duration {
	ms, err := strconv.Atoi(os.Getenv("OLLAMA_LOAD_POLL_MS"))
	if err != nil || ms < 1 || ms > 1000 {
		return upstream
	}
	return time.Duration(ms) * time.Millisecond
}
