package ledger_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

func TestWhatAStageWaitedIsToldForOneAttempt(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		waits := rapid.SliceOfN(rapid.Float64Range(0.001, 5000), 1, 200).Draw(t, "waits")
		l := apply(started("r"))
		for i, seconds := range waits {
			one := record(i, 1, predictor.Pool, predictor.Succeeded)
			one.Queue = time.Duration(seconds * float64(time.Second))
			l.Apply(one)
		}
		found, _ := l.Run("r")
		got := found.Stages[0].Wait
		below, longest := 0, 0.0
		for _, seconds := range waits {
			longest = max(longest, seconds)
			if seconds <= got.MedianSeconds*(1+1e-6) {
				below++
			}
		}
		above := 0
		for _, seconds := range waits {
			if seconds >= got.MedianSeconds/1.05*(1-1e-6) {
				above++
			}
		}
		if math.Abs(got.LongestSeconds-longest) > 1e-6 || got.Attempts != len(waits) || 2*below < len(waits) ||
			2*above < len(waits) {
			t.Errorf("of waits of %v s: %+v", waits, got)
		}
	})
}

func TestPeaksAndGrantsAreToldByVenue(t *testing.T) {
	t.Parallel()
	used := func(task int, venue predictor.Venue, peak, grant quantity.Bytes) predictor.Record {
		one := record(task, 1, venue, predictor.Succeeded)
		one.Usage.PeakMemory, one.Grant.Memory = peak*quantity.MiB, grant*quantity.MiB
		return one
	}
	l := apply(
		started("r"), used(0, predictor.Pool, 24, 4664), used(1, predictor.Function, 49, 128),
		used(2, predictor.Pool, 22, 26),
		predictor.Sampled{
			Run: "r", Stage: score, Task: "t3", Attempt: 1, Venue: predictor.Pool, Memory: 25 * quantity.MiB,
			Grant: quantity.Size{Memory: 27 * quantity.MiB}, At: after(11),
		},
	)
	want := map[predictor.Venue]ledger.Memory{
		predictor.Pool:     {Peak: 25 * quantity.MiB, Grant: 27 * quantity.MiB},
		predictor.Function: {Peak: 49 * quantity.MiB, Grant: 128 * quantity.MiB},
	}
	if diff := cmp.Diff(want, view(t, l, "r").Stages[0].Memory); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	l.Apply(used(4, predictor.Pool, 10, 12)) // a smaller task
	if got := view(t, l, "r").Stages[0].Memory[predictor.Pool]; got != want[predictor.Pool] {
		t.Errorf("no peak is above its grant: got %+v, want that of the attempt with the peak, %+v", got,
			want[predictor.Pool])
	}
}

// TestStaticSizesAreToldWithTheTimeThatTheyWouldHaveTaken serves runs of one-core attempts again on a host of four
// cores.
func TestStaticSizesAreToldWithTheTimeThatTheyWouldHaveTaken(t *testing.T) {
	t.Parallel()
	type row struct {
		stage    string
		venue    predictor.Venue
		from, to float64 // seconds; from is when it was scheduled, too
	}
	many := func(n int, one row) []row {
		rows := make([]row, n)
		for i := range rows {
			rows[i] = one
		}
		return rows
	}
	for name, c := range map[string]struct {
		rows      []row
		end, want float64
	}{
		"one attempt takes as long as it did":       {[]row{{"train", predictor.Pool, 0, 10}}, 10, 10},
		"eight at functions at once take two turns": {many(8, row{"score", predictor.Function, 0, 10}), 10, 20},
		"what the run did before and after stays":   {[]row{{"train", predictor.Pool, 2, 12}}, 15, 15},
		"a loop stays a loop": {[]row{
			{"a", predictor.Pool, 0, 5},
			{"b", predictor.Pool, 5, 10},
			{"a", predictor.Pool, 11, 16},
		}, 16, 16},
		"what follows a stage waits for it": {append(many(8, row{"score", predictor.Function, 0, 10}),
			row{"last", predictor.Pool, 11, 13}), 13, 23},
		"stages side by side share the host": {append(many(4, row{"score", predictor.Function, 0, 10}),
			row{"evaluate", predictor.Pool, 0, 10}), 10, 20},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := apply(run("r"), held("h", 0, 60, 60*cent))
			for _, stage := range []string{"train", "score", "last", "a", "b", "evaluate"} {
				id := score
				id.Name = stage
				l.Apply(predictor.Scheduled{
					Run: "r", Stage: id, Tasks: 1,
					Declared: quantity.Size{CPU: quantity.Core, Memory: quantity.GiB}, At: after(0),
				})
			}
			for i, row := range c.rows {
				host := "h"
				if row.venue == predictor.Function {
					host = "fn"
				}
				l.Apply(line("r", row.stage, fmt.Sprint("t", i), row.venue, host, row.from, row.to, cent))
			}
			if got := view(t, l, "r").Static; !got.Known || got.Seconds != 0 {
				t.Errorf("while the run goes on: %+v", got)
			}
			l.Apply(predictor.RunEnded{Run: "r", State: predictor.RunSucceeded, At: after(c.end)})
			if got := view(t, l, "r").Static; !got.Known || math.Abs(got.Seconds-c.want) > 1e-6 {
				t.Errorf("known %v, %g s; want %g s", got.Known, got.Seconds, c.want)
			}
		})
	}
}

func TestASizeThatNoHostHoldsHasNoTime(t *testing.T) {
	t.Parallel()
	big := line("r", "score", "t0", predictor.Pool, "h", 0, 10, cent)
	l := apply(
		run("r"), held("h", 0, 60, 60*cent),
		predictor.Scheduled{
			Run: "r", Stage: big.Stage, Tasks: 1,
			Declared: quantity.Size{CPU: 64 * quantity.Core, Memory: quantity.GiB}, At: after(0),
		}, big,
		predictor.RunEnded{Run: "r", State: predictor.RunSucceeded, At: after(10)},
	)
	if got := view(t, l, "r").Static; got.Seconds != 0 {
		t.Errorf("64 cores on a host of 4: %+v", got)
	}
}
