package loop_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// TestARecordThatComesAgainAddsNothing records the attempts of a run in any order, some again by another recorder, as
// of another host, with another outcome and costs and times that may be none: what follows the stream adds up each
// once, by what was said first.
func TestARecordThatComesAgainAddsNothing(t *testing.T) {
	t.Parallel()
	js := stream(t)
	first, second := recorder(t, js, nil), recorder(t, js, nil)
	round := 0
	rapid.Check(t, func(rt *rapid.T) {
		round++
		run := fmt.Sprintf("run-%d", round)
		var all []predictor.Record
		cost := quantity.Money(0)
		for task := range rapid.IntRange(1, 4).Draw(rt, "tasks") {
			for attempt := range rapid.IntRange(1, 3).Draw(rt, "attempts") {
				one := record(fmt.Sprintf("train-%d", task), attempt+1)
				one.Run, one.Host, one.At = run, "a", time.Date(2026, 11, 28, 9, 0, 0, 0, time.UTC)
				one.Cost = quantity.Money(rapid.Int64Range(0, 1e9).Draw(rt, "cost"))
				all, cost = append(all, one), cost+one.Cost
			}
		}
		var said []predictor.Record
		for _, one := range rapid.Permutation(all).Draw(rt, "order") {
			said = append(said, one)
			if err := first.Record(t.Context(), one); err != nil {
				rt.Fatal(err)
			}
			for range rapid.IntRange(0, 2).Draw(rt, "how often again") {
				late := rapid.SampledFrom(said).Draw(rt, "which")
				late.Host = rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "by whom")
				late.Outcome = rapid.SampledFrom([]predictor.Outcome{
					predictor.Succeeded, predictor.Failed, predictor.Lost,
				}).Draw(rt, "outcome")
				late.Cost = quantity.Money(rapid.SampledFrom([]int64{1e12, -1, math.MaxInt64}).Draw(rt, "another cost"))
				late.At = rapid.SampledFrom([]time.Time{late.At, late.At.Add(time.Hour), {}}).Draw(rt, "another time")
				if err := second.Record(t.Context(), late); err != nil {
					rt.Fatal(err)
				}
			}
		}
		l := ledger.New()
		count := 0
		for _, line := range lines(t, js) {
			if one, is := line.Event.(predictor.Record); is && one.Run == run {
				count++
				l.Apply(one)
			}
		}
		view, known := l.Run(run)
		if !known || count != len(all) || view.Totals.Attempts != len(all) || view.Totals.Cost != cost {
			rt.Fatalf("the stream has %d lines, and the ledger %d attempts that cost %d; want %d that cost %d", count,
				view.Totals.Attempts, view.Totals.Cost, len(all), cost)
		}
	})
}
