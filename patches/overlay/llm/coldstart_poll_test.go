package llm

import (
	"testing"
	"time"
)

func TestColdStartPoll(t *testing.T) {
	upstream := 250 * time.Millisecond
	for value, want := range map[string]time.Duration{
		"":     upstream,
		"20":   20 * time.Millisecond,
		"1":    time.Millisecond,
		"1000": time.Second,
		"0":    upstream,
		"-5":   upstream,
		"1001": upstream,
		"20ms": upstream,
		"2.5":  upstream,
	} {
		t.Run(value, func(t *testing.T) {
			t.Setenv("OLLAMA_LOAD_POLL_MS", value)
			if got := coldStartPoll(upstream); got != want {
				t.Errorf("got %v, want %v", got, want)
			}
		})
	}
}
