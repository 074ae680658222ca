package function

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestARampGivesAPeriodsWorthAtOnceAndThenItsRate(t *testing.T) {
	t.Parallel()
	const rate = 1000
	start := time.Unix(1000, 0)
	var r ramp
	gain := func(at time.Time) (n int) {
		for ok := true; ok; n++ {
			r, ok = r.take(at, rate)
		}
		return n - 1
	}
	for _, tt := range []struct {
		at   time.Duration
		want int
	}{
		{0, 1000},
		{9 * time.Millisecond, 0},
		{10 * time.Millisecond, 1},
		{time.Second, 99},
		{time.Second, 0},
		{time.Hour, 1000}, // what was not used is not saved up
	} {
		if got := gain(start.Add(tt.at)); got != tt.want {
			t.Errorf("after %v: got %d environments, want %d", tt.at, got, tt.want)
		}
	}
}

// TestNoRampGivesMoreThanTwoPeriodsWorthInAPeriod: one that it had, and one that came back meanwhile.
func TestNoRampGivesMoreThanTwoPeriodsWorthInAPeriod(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		rate := rapid.IntRange(1, 50).Draw(t, "rate")
		now, total := time.Unix(1000, 0), 0
		end := now.Add(scaleOutPeriod)
		var r ramp
		for now.Before(end) {
			var ok bool
			if r, ok = r.take(now, rate); ok {
				total++
			}
			now = now.Add(time.Duration(rapid.IntRange(1, 1000).Draw(t, "pause in ms")) * time.Millisecond)
		}
		if total > 2*rate {
			t.Errorf("got %d environments at a rate of %d", total, rate)
		}
	})
}
