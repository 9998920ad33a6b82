package discover

import "testing"

func TestColdStartValidate(t *testing.T) {
	for _, c := range []struct {
		name, value, library string
		upstream, want       bool
	}{
		{"unset", "", "CUDA", true, true},
		{"false", "0", "CUDA", true, true},
		{"not a boolean", "once", "CUDA", true, true},
		{"CUDA", "1", "CUDA", true, false},
		{"ROCm keeps its check", "1", "ROCm", true, true},
		{"a library upstream starts to check", "1", "Vulkan", true, true},
		{"upstream's no stays no", "", "Vulkan", false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("OLLAMA_DISCOVER_ONCE", c.value)
			if got := coldStartValidate(c.upstream, c.library); got != c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

func TestColdStartRediscover(t *testing.T) {
	for _, c := range []struct {
		name, value string
		runners     []int
		want        []bool
	}{
		{"unset", "", []int{0, 0}, []bool{true, true}},
		{"the first load only", "1", []int{0, 0, 1, 0}, []bool{false, true, true, true}},
		{"a runner came first", "1", []int{1, 0}, []bool{true, true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("OLLAMA_DISCOVER_ONCE", c.value)
			coldStartRefreshed.Store(false)
			for i, runners := range c.runners {
				if got := coldStartRediscover(runners); got != c.want[i] {
					t.Errorf("refresh %d with %d runners: got %v, want %v", i, runners, got, c.want[i])
				}
			}
		})
	}
}
