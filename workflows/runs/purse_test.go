package runs

import (
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// TestAPurseNeverHoldsMoreThanItsLimit begins, grows and ends jobs at random, which cost what they hold at most.
func TestAPurseNeverHoldsMoreThanItsLimit(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		limit := quantity.Money(1 + r.IntN(100_000))
		p := newPurse(limit)
		running := map[string]float64{}
		for i := range 300 {
			if free := p.free(); free < 0 || free > limit {
				t.Fatalf("seed %d, step %d: %d of %d are free", seed, i, free, limit)
			}
			task, units := strconv.Itoa(i), float64(1+r.IntN(9))
			if p.hold(task, units) {
				running[task] = units
			}
			for _, task := range sortedKeys(running) {
				switch r.IntN(4) {
				case 0:
					has := p.held[task]
					least := has + quantity.Money(r.IntN(500))
					if got := p.grow(task, least, 2*least); got < has || got > 2*least && got != has {
						t.Fatalf("seed %d: had %d, asked for %d to %d, got %d", seed, has, least, 2*least, got)
					}
				case 1:
					cost := quantity.Money(r.Int64N(int64(p.held[task]) + 1))
					p.settle(task, cost, running[task], time.Second, r.IntN(2) == 0)
					delete(running, task)
				}
			}
		}
	}
}

func sortedKeys(m map[string]float64) (keys []string) {
	for i := range 1000 {
		if _, found := m[strconv.Itoa(i)]; found {
			keys = append(keys, strconv.Itoa(i))
		}
	}
	return keys
}

// TestAJobIsJudgedByThoseThatTrainedAsMuch: what all have in common, such as their start, is not multiplied.
func TestAJobIsJudgedByThoseThatTrainedAsMuch(t *testing.T) {
	t.Parallel()
	p := newPurse(1000)
	if !p.hold("a", 1) || p.held["a"] != 1000 || p.hold("b", 1) {
		t.Errorf("the first job of which nobody knows the price goes alone, with all there is: %v", p.held)
	}
	p.settle("a", 10, 1, 5*time.Second, true)
	p.settle("c", 12, 2, 6*time.Second, true)
	p.settle("d", 11, 2, 0, false)
	for _, c := range []struct {
		units float64
		price quantity.Money
		takes time.Duration
	}{{1, 15, 5 * time.Second}, {2, 18, 6 * time.Second}, {6, 54, 18 * time.Second}, {.5, 15, 5 * time.Second}} {
		if price, takes := p.price(c.units), p.takes(c.units); price != c.price || takes != c.takes {
			t.Errorf("%g units: got %d and %s, want %d and %s", c.units, price, takes, c.price, c.takes)
		}
	}
	if p.price(1) == 0 || newPurse(0).price(1) != 0 || !newPurse(0).hold("x", 1) {
		t.Error("who knows nothing expects nothing, and without a limit everything is held")
	}
}

// TestAWishThatComesAfterItsJobsEndHoldsNothing: who is over gives nothing back any more.
func TestAWishThatComesAfterItsJobsEndHoldsNothing(t *testing.T) {
	t.Parallel()
	p := newPurse(1000)
	p.settle("a", 100, 1, time.Second, true)
	p.hold("b", 1)
	p.settle("b", 100, 1, time.Second, true)
	if got := p.grow("b", 200, 300); got != 0 || p.free() != 800 {
		t.Errorf("it got %d, and %d of 800 are free", got, p.free())
	}
}

// TestAWishIsRefusedWhereNothingThatRunsCouldMeetIt: of two jobs that wait for each other one is told so.
func TestAWishIsRefusedWhereNothingThatRunsCouldMeetIt(t *testing.T) {
	t.Parallel()
	p := newPurse(1000)
	p.settle("a", 100, 1, time.Second, true)
	if !p.hold("b", 1) || !p.hold("c", 1) || !p.busyBeside("b") || p.allows("b", 900) {
		t.Fatalf("b and c run: %v", p.held)
	}
	p.growing["b"], p.growing["c"] = true, false
	if p.busyBeside("c") || !p.busyBeside("b") || p.hold("d", 1) {
		t.Error("b waits for c, which asks and runs, and d for both")
	}
	p.growing["c"] = true
	if p.busyBeside("b") || p.busyBeside("c") {
		t.Error("both wait, and neither runs")
	}
	p.settle("c", 100, 1, time.Second, true)
	if !p.allows("b", 800) || p.busyBeside("c") || len(p.growing) != 1 {
		t.Errorf("c is over: %v, %v", p.held, p.growing)
	}
}
