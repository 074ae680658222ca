package alerting

import "testing"

func TestSpansAreWrittenAsPeopleWriteThem(t *testing.T) {
	t.Parallel()
	for want, seconds := range map[string]float64{
		"0s": 0, "1ms": 0.001, "40ms": 0.04, "500ms": 0.52, "2s": 2.04, "1m10s": 70, "2h": 7200, "for ever": 1e10,
	} {
		if got := span(seconds); got != want {
			t.Errorf("%g s: got %q, want %q", seconds, got, want)
		}
	}
}
