package training_test

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/workers/training"
)

func TestTheIntervalOfCheckpoints(t *testing.T) {
	t.Parallel()
	const most = time.Duration(math.MaxInt64)
	for _, c := range []struct {
		name             string
		cost, timeToLoss time.Duration
		want             time.Duration
	}{
		{"half a second, lost once an hour", 500 * time.Millisecond, time.Hour, time.Minute},
		{"two seconds, lost once in a hundred", 2 * time.Second, 100 * time.Second, 20 * time.Second},
		{"nobody has told of losses: once a day", time.Second, 0, 415692194 * time.Microsecond},
		{"the cost is not known yet", 0, time.Hour, 5 * time.Second},
		{"nearly nothing", time.Microsecond, time.Hour, 5 * time.Second},
		{"a large model that is never lost", time.Minute, 1000 * time.Hour, 10 * time.Minute},
		{"below nothing", -time.Second, -time.Second, 5 * time.Second},
		{"more than all", most, most, 10 * time.Minute},
	} {
		if got := training.Interval(c.cost, c.timeToLoss).Round(time.Microsecond); got != c.want {
			t.Errorf("%s: %v and %v make %v, want %v", c.name, c.cost, c.timeToLoss, got, c.want)
		}
	}
}

// TestTheIntervalOfCheckpointsWastesTheLeast compares it with every other between its bounds.
func TestTheIntervalOfCheckpointsWastesTheLeast(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		cost := rapid.Float64Range(0.001, 60).Draw(t, "seconds of a checkpoint")
		toLoss := rapid.Float64Range(60, 1e6).Draw(t, "seconds to a loss")
		wasted := func(interval float64) float64 { return cost/interval + interval/(2*toLoss) }
		span := func(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }
		chosen := training.Interval(span(cost), span(toLoss)).Seconds()
		for other := 5.0; other <= 600; other *= 1.01 {
			if wasted(other) < wasted(chosen)*(1-1e-6) {
				t.Fatalf("every %v s wastes %v, every %v s only %v", chosen, wasted(chosen), other, wasted(other))
			}
		}
	})
}
