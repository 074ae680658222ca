package runner

import (
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities/wire"
)

// TestAfterTheStagesTimeoutThereIsTheGraceAndTimeToAnswer: whoever waits for the function waits no longer.
func TestAfterTheStagesTimeoutThereIsTheGraceAndTimeToAnswer(t *testing.T) {
	t.Parallel()
	begun := time.Unix(100, 0)
	for name, c := range map[string]struct {
		bound            time.Duration
		ask, kill, store time.Duration
	}{
		"alone":                    {0, 60 * time.Second, 90 * time.Second, 91500 * time.Millisecond},
		"money for less than that": {70 * time.Second, 60 * time.Second, 70 * time.Second, 70 * time.Second},
		"money for the grace only": {90 * time.Second, 60 * time.Second, 90 * time.Second, 90 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			start := wire.StartAttempt{Task: wire.Task{Timeout: time.Minute}, Bound: c.bound}
			l := limitsOf(t.Context(), start, 30*time.Second, begun)
			if ask, kill, store := l.ask.Sub(begun), l.kill.Sub(begun), l.store.Sub(begun); ask != c.ask || kill != c.kill ||
				store != c.store {
				t.Errorf("asked after %s, killed after %s, stored until %s; want %s, %s and %s", ask, kill, store, c.ask,
					c.kill, c.store)
			}
		})
	}
}
