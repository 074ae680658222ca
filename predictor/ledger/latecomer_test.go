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

// attemptsOfARun draws one Record of each attempt of a run, of which several may be of one task.
func attemptsOfARun(t *rapid.T) (records []predictor.Record) {
	for task := range rapid.IntRange(1, 6).Draw(t, "tasks") {
		for attempt := range rapid.IntRange(1, 3).Draw(t, "attempts") {
			one := record(task, attempt+1, predictor.Pool, rapid.SampledFrom([]predictor.Outcome{
				predictor.Succeeded, predictor.Failed, predictor.OutOfMemory, predictor.Lost, predictor.Cancelled,
			}).Draw(t, "outcome"))
			one.Host, one.Cost = "a", quantity.Money(rapid.Int64Range(0, 1e9).Draw(t, "cost"))
			one.Usage.Wall = time.Duration(rapid.IntRange(0, 100).Draw(t, "wall")) * time.Second
			records = append(records, one)
		}
	}
	return records
}

// again draws what may be said once more of an attempt that was recorded: the same, or by another host, with another
// outcome, another cost and other times, possible or not.
func again(t *rapid.T, of predictor.Record) predictor.Record {
	of.Host = rapid.SampledFrom([]string{"a", "b", ""}).Draw(t, "host")
	of.Outcome = rapid.SampledFrom([]predictor.Outcome{
		of.Outcome, predictor.Succeeded, predictor.Failed, predictor.Refused, predictor.Lost, "unheard of",
	}).Draw(t, "another outcome")
	of.Cost = quantity.Money(rapid.SampledFrom([]int64{int64(of.Cost), 0, -1, 1e15, math.MaxInt64, math.MinInt64}).
		Draw(t, "another cost"))
	of.Usage.Wall = time.Duration(rapid.SampledFrom([]int64{int64(of.Usage.Wall), -1, math.MaxInt64, math.MinInt64}).
		Draw(t, "another wall"))
	of.At = rapid.SampledFrom([]time.Time{
		of.At, {}, epoch.Add(-time.Hour), epoch.Add(time.Hour), time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC),
	}).Draw(t, "another time")
	return of
}

// sums are what a run comes to: no later word may change it.
type sums struct {
	Attempts, Done, Running, Failed, Lost, Refused, OutOfMemory int
	Cost                                                        quantity.Money
	Run, CPU, Queue                                             float64
	State                                                       predictor.RunState
}

func sumsOf(l *ledger.Ledger) (s sums) {
	found, _ := l.Run("r")
	s.State = found.State
	for _, st := range found.Stages {
		s.Attempts, s.Done, s.Running = s.Attempts+st.Attempts, s.Done+st.Done, s.Running+st.Running
		s.Failed, s.Lost, s.Refused = s.Failed+st.Failed, s.Lost+st.Lost, s.Refused+st.Refused
		s.OutOfMemory, s.Cost = s.OutOfMemory+st.OutOfMemory, s.Cost+st.Cost
		s.Run, s.CPU, s.Queue = s.Run+st.RunSeconds, s.CPU+st.CPUSeconds, s.Queue+st.QueueSeconds
	}
	return s
}

// TestARecordThatComesAgainChangesNoSum: whoever tells it, at whatever time and cost, while the run goes on and after
// its end, and when its attempt was superseded by the next long ago.
func TestARecordThatComesAgainChangesNoSum(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l := apply(started("r"))
		records := rapid.Permutation(attemptsOfARun(t)).Draw(t, "order")
		end := rapid.IntRange(0, len(records)).Draw(t, "records before the end")
		for i, one := range records {
			if i == end {
				l.Apply(predictor.RunEnded{Run: "r", State: predictor.RunFailed, At: after(11)})
			}
			l.Apply(one)
			before := sumsOf(l)
			for range rapid.IntRange(0, 3).Draw(t, "how often again") {
				late := again(t, records[rapid.IntRange(0, i).Draw(t, "which")])
				l.Apply(late)
				if diff := cmp.Diff(before, sumsOf(l)); diff != "" {
					t.Fatalf("it came again (-before +after):\n%s\n%+v", diff, late)
				}
			}
		}
	})
}

// TestTheFirstWordsOfAttemptsAddUpInAnyOrder: a Record that comes after the next attempt's, or after the end of its
// run, counts once like all others, so that what a run cost depends on what happened alone.
func TestTheFirstWordsOfAttemptsAddUpInAnyOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		all := attemptsOfARun(t)
		var want sums
		for name, order := range map[string][]predictor.Record{
			"as they were": all, "in another order": rapid.Permutation(all).Draw(t, "order"),
		} {
			l := apply(started("r"))
			end := len(order)
			if name != "as they were" {
				end = rapid.IntRange(0, len(order)).Draw(t, "records before the end")
			}
			for i, one := range order {
				if i == end {
					l.Apply(predictor.RunEnded{Run: "r", State: predictor.RunSucceeded, At: after(11)})
				}
				l.Apply(one)
				if rapid.Bool().Draw(t, "again") {
					l.Apply(again(t, one))
				}
			}
			if end == len(order) {
				l.Apply(predictor.RunEnded{Run: "r", State: predictor.RunSucceeded, At: after(11)})
			}
			got := sumsOf(l)
			cost := quantity.Money(0)
			for _, one := range all {
				cost += one.Cost
			}
			if got.Cost != cost || got.Attempts != len(all) {
				t.Fatalf("%s: %d attempts cost %d, want %d that cost %d", name, got.Attempts, got.Cost, len(all), cost)
			}
			if want == (sums{}) {
				want = got
			} else if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("another order comes to other sums (-one +other):\n%s", diff)
			}
		}
	})
}

// TestImpossibleRecordsTakeNothingAway draws first words that cannot be true: no sum falls, overflows or is no number.
func TestImpossibleRecordsTakeNothingAway(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l := apply(started("r"))
		before := sumsOf(l)
		for i := range rapid.IntRange(1, 20).Draw(t, "records") {
			one := again(t, record(i, 1, predictor.Pool, predictor.Succeeded))
			one.Queue, one.Usage.CPU = one.Usage.Wall, one.Usage.Wall
			l.Apply(one)
			now := sumsOf(l)
			if now.Cost < before.Cost || now.Run < before.Run || now.CPU < before.CPU || now.Queue < before.Queue ||
				now.Attempts < before.Attempts || math.IsInf(now.Run, 0) || math.IsNaN(now.Run) {
				t.Fatalf("%s after %+v:\n%+v\n%+v", fmt.Sprint("record ", i), one, before, now)
			}
			before = now
		}
	})
}
