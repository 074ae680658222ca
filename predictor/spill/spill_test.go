package spill

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/venue"
)

// lambda is Lambda's price list (us-east-1, x86).
func lambda() venue.Functions {
	return venue.Functions{
		Enabled: true, Concurrency: 100, MaxMemory: 10 * quantity.GiB, MaxDuration: 15 * time.Minute,
		PerGiBSecond: 16_666_700, PerRequest: 200_000,
	}
}

func TestTheWorkedExampleOfTheSpillFormula(t *testing.T) {
	t.Parallel()
	o := Offer{Tasks: 240, Slots: 1, Wall: 0.1, Function: 0.1, Highest: 0.1, Class: quantity.GiB, Venue: lambda(), Most: 1}
	if got := o.Duration(0); math.Abs(got-24) > 1e-9 {
		t.Errorf("T(0) = %v s, want 24", got)
	}
	if got := o.Duration(1); math.Abs(got-12) > 1e-9 {
		t.Errorf("T(1) = %v s, want 12", got)
	}
	if got := o.Price(1).String(); got != "$0.0002240" {
		t.Errorf("M(1) = %s, want $0.0002240", got)
	}
	if got := o.best(quantity.USD); got != 1 {
		t.Errorf("best n at $1 an hour = %d, want 1", got)
	}
	o.Venue.PerGiBSecond *= 1000
	o.Venue.PerRequest *= 1000
	if got := o.best(quantity.USD); got != 0 {
		t.Errorf("best n at a price a thousand times as high = %d, want 0", got)
	}
}

// one is a task that takes what tasks take in the mean.
func one() float64 { return 1 }

func anOffer(t *rapid.T) Offer {
	offered := lambda()
	offered.PerGiBSecond = offered.PerGiBSecond.Times(math.Pow(10, rapid.Float64Range(-1, 2).Draw(t, "price factor")))
	wall := math.Pow(10, rapid.Float64Range(-1, 1.5).Draw(t, "wall"))
	return Offer{
		Tasks: float64(rapid.IntRange(1, 60).Draw(t, "tasks")), Slots: rapid.IntRange(1, 4).Draw(t, "pool slots"), Wall: wall,
		Function: wall * rapid.Float64Range(0.5, 4).Draw(t, "slowdown"), Cold: rapid.Float64Range(0, 3).Draw(t, "cold"),
		Wait:  rapid.SampledFrom([]float64{0, 0, 1, 30}).Draw(t, "without room"),
		Class: quantity.GiB, Venue: offered, Most: 8,
	}
}

func TestSpillDurationAgreesWithServingTheTasksOneByOne(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		o := anOffer(t)
		n := rapid.IntRange(0, o.Most).Draw(t, "n")
		served, _ := o.served(n, one)
		// The formula lets tasks be split, so it may be off by one task of the slower venue on either side.
		if off := math.Abs(o.Duration(n) - served); off > max(o.Wall, o.Function+o.Cold)+1e-9 {
			t.Fatalf("T(%d) = %.3f s, one by one %.3f s, for %+v", n, o.Duration(n), served, o)
		}
	})
}

// TestSpillChoice holds the chosen n against every other n, each served task by task: what it forgoes is at most the
// value of the time and the price of the tasks by which the formula, which lets tasks be split, may be off.
func TestSpillChoice(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		o := anOffer(t)
		perHour := quantity.USD.Times(math.Pow(10, rapid.Float64Range(-2, 2).Draw(t, "value of time")))
		task, start := o.Venue.Price(o.Class, Span(o.Function)), o.Venue.Price(o.Class, Span(o.Cold))-o.Venue.PerRequest
		worth := func(n int) float64 {
			alone, _ := o.served(0, one)
			together, taken := o.served(n, one)
			return (alone-together)/3600*float64(perHour) - float64(task)*float64(taken) - float64(start)*float64(n)
		}
		chosen, best := o.best(perHour), 0
		for n := range o.Most + 1 {
			if worth(n) > worth(best) {
				best = n
			}
		}
		step := max(o.Wall, o.Function+o.Cold)
		allowed := 2*step/3600*float64(perHour) + float64(task)*float64(max(chosen, best)+1)
		if regret := worth(best) - worth(chosen); regret > allowed {
			t.Fatalf("n = %d is worth %.3g less than n = %d, allowed %.3g, for %+v", chosen, regret, best, allowed, o)
		}
	})
}

func TestSpillGoals(t *testing.T) {
	t.Parallel()
	base := Offer{Tasks: 100, Slots: 1, Wall: 1, Function: 1, Highest: 1, Class: quantity.GiB, Venue: lambda(), Most: 20}
	// T(n) = 100 / (1 + n)
	if got := base.affordable(20, base.UpperPrice(7), 1); got != 7 {
		t.Errorf("the n that the price of 7 affords = %d, want 7", got)
	}
	if got := base.affordable(20, 0, 1); got != 0 {
		t.Errorf("the n that nothing affords = %d, want 0", got)
	}
	slow := base
	slow.Function = 200
	if got := slow.fastest(); got != 0 {
		t.Errorf("the fastest n with functions slower than the whole backlog = %d, want 0", got)
	}
	for n := range base.Most {
		if base.Duration(n+1) > base.Duration(n) {
			t.Errorf("T(%d) = %v > T(%d) = %v", n+1, base.Duration(n+1), n, base.Duration(n))
		}
	}
}

// TestAPoolWithoutRoomFinishesNothingBeforeItHasSome holds for every number of function slots that take no task.
func TestAPoolWithoutRoomFinishesNothingBeforeItHasSome(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		o := anOffer(t)
		o.Wait = rapid.Float64Range(0, 100).Draw(t, "wait")
		alone := o
		alone.Slots = 0
		if got := o.Duration(0); got < o.Wait+min(o.Wall, o.Tasks*o.Wall/float64(o.Slots))-1e-9 {
			t.Fatalf("T(0) = %v s, but there is no room for %v s and a task takes %v s", got, o.Wait, o.Wall)
		}
		for n := 1; n <= o.Most; n++ {
			if got := o.Duration(n); got > alone.Duration(n)+1e-9 || got > o.Duration(n-1)+o.Cold+o.Function+1e-9 {
				t.Fatalf("T(%d) = %v s, %v s without a pool, T(%d) = %v s, for %+v", n, got, alone.Duration(n), n-1,
					o.Duration(n-1), o)
			}
		}
	})
}
