package usage

import (
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestTheMaximumOfASpanIsThatOfAllItsValues(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var m maxima
		var seen []peak
		var now time.Duration
		for range rapid.IntRange(1, maximaRoom).Draw(t, "observations") { // up to the room, nothing is merged
			now += time.Duration(rapid.IntRange(0, int(pace)).Draw(t, "step"))
			value := rapid.Float64Range(0, 10).Draw(t, "value")
			m.add(now, value)
			seen = append(seen, peak{now, value})
		}
		for _, window := range windows {
			var want float64
			for _, p := range seen {
				if p.At > now-window {
					want = max(want, p.Value)
				}
			}
			if got := m.last(now, window); got != want {
				t.Fatalf("the maximum of the last %v is %v, want %v", window, got, want)
			}
		}
	})
}

func TestAFullMemoryOfMaximaForgetsNoneTooEarly(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	var m maxima
	var seen []peak
	value := 1.0
	for i := range 5 * maximaRoom {
		now := time.Duration(i+1) * time.Minute
		value *= 1 - 0.001*random.Float64() // ever falling: nothing can be forgotten
		m.add(now, value)
		seen = append(seen, peak{now, value})
		if len(m.peaks) > maximaRoom {
			t.Fatalf("%d peaks are kept, want at most %d", len(m.peaks), maximaRoom)
		}
		for _, window := range windows {
			exact := seen[max(0, i+1-int(window/time.Minute))].Value
			if got := m.last(now, window); got < exact || got > exact*1.02 {
				t.Fatalf("after %v the maximum of the last %v is %v, want %v to 2%% more", now, window, got, exact)
			}
		}
	}
}

func TestModelsReadAsPeopleSayThem(t *testing.T) {
	t.Parallel()
	for model, want := range map[WindowModel]string{
		{}: "first limit",
		{Window: 6 * time.Hour, Percentile: 1, Margin: 0.1}:    "6h maximum +10%",
		{Window: 12 * time.Hour, Percentile: 0.95, Margin: 0}:  "12h p95 +0%",
		{Window: 168 * time.Hour, Percentile: 1, Margin: 0.07}: "168h maximum +7%",
	} {
		if got := model.String(); got != want {
			t.Errorf("%#v reads %q, want %q", model, got, want)
		}
	}
	distinct := map[WindowModel]bool{}
	for i := range modelCount {
		distinct[windowModel(i)] = true
	}
	if len(distinct) != modelCount {
		t.Errorf("%d of %d models are distinct", len(distinct), modelCount)
	}
}
