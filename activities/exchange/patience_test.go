package exchange_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spillway-ml/spillway/activities/exchange"
)

// TestPartsLongerThanThePatienceAreComputedOnce has workers that begin one after another and compute longer than they
// are patient.
func TestPartsLongerThanThePatienceAreComputedOnce(t *testing.T) {
	t.Parallel()
	const rounds, workers = 5, 3
	for _, pattern := range exchange.Patterns() {
		t.Run(string(pattern), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				files := openFiles(t)
				on := &exchange.Memory{}
				var all sync.WaitGroup
				for i := range workers {
					all.Go(func() {
						time.Sleep(time.Duration(i) * time.Second / 2)
						m := newLogistic(1)
						m.before = func(int, int) error { time.Sleep(30 * time.Second); return nil }
						ctx, _ := attemptOf(t.Context(), files)
						told, err := exchange.Train(ctx, exchange.Job{
							Board: on, Group: "group", Worker: i, Workers: workers, Rounds: rounds, Pattern: pattern,
						}, m)
						if err != nil || told.Rounds != rounds || told.Parts != rounds {
							t.Errorf("worker %d: %+v, %v; want each part computed once", i, told, err)
						}
					})
				}
				all.Wait()
			})
		})
	}
}

// TestARoundInWhichSomebodyIsMissedTellsHowLongOneTakes stops before a limit that the next round would pass, though the
// first is all that it knows and nobody else was there in it.
func TestARoundInWhichSomebodyIsMissedTellsHowLongOneTakes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		files := openFiles(t)
		m := newLogistic(1)
		m.before = func(int, int) error { time.Sleep(10 * time.Second); return nil }
		ctx, _ := attemptOf(t.Context(), files)
		told, err := exchange.Train(ctx, exchange.Job{
			Board: &exchange.Memory{}, Group: "group", Workers: 2, Rounds: 5, Pattern: exchange.AllGather,
			Limit: 75 * time.Second,
		}, m)
		if told.Rounds != 1 || err == nil {
			t.Errorf("got %+v, %v; want it to stop after the first round", told, err)
		}
	})
}
