package provision_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor/provision"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// keptFor is for how long it is kept of a time with nothing to do, looked at every tick, and whether all of it.
func keptFor(terms provision.Idle, gap, tick time.Duration, steps func(age time.Duration) []provision.Step,
) (kept time.Duration, whole bool) {
	for age := time.Duration(0); age < gap; age += tick {
		if !terms.Decide(age, steps(age)).Kept {
			return age, false
		}
	}
	return gap, true
}

// paid is what that costs, best what the least would have been.
func paid(terms provision.Idle, gap, kept time.Duration, whole bool) (cost, best float64) {
	price := terms.Hour.USD() / float64(time.Hour)
	cost = float64(kept) * price
	if !whole {
		cost += terms.Start.USD()
	}
	return cost, min(float64(gap)*price, terms.Start.USD())
}

// idleTerms are some at which an idle minute costs a cent, and a start as much as so many of them.
func idleTerms(minutes, trust float64) provision.Idle {
	return provision.Idle{Start: quantity.USD.Times(minutes / 100), Hour: quantity.USD.Times(0.6), Trust: trust}
}

// TestWhateverIsForecastIdleTimesCostNoMoreThanTheirBound looks for a broken bound: forecasts that are random, that
// change their mind at each tick, that say what is wrong, and gaps just after it was given back.
func TestWhateverIsForecastIdleTimesCostNoMoreThanTheirBound(t *testing.T) {
	t.Parallel()
	const tick = time.Second
	random := rand.New(rand.NewPCG(7, 8))
	closest := 0.0
	for try := range 4000 {
		trust := []float64{0.1, 0.3, 0.5, 0.8, 1}[try%5]
		terms := idleTerms(0.2+10*random.Float64(), trust)
		gap := time.Duration(float64(terms.Most()) * 2 * random.Float64() * random.Float64())
		certain := random.IntN(2) == 0
		wrong := func(age time.Duration) []provision.Step {
			switch try % 4 {
			case 0: // never, whatever comes
				return []provision.Step{{Lasts: time.Hour, Chance: 0}}
			case 1: // at once, whatever comes
				return []provision.Step{{Lasts: time.Second, Chance: 1}}
			case 2: // at once where it comes late, and never where it comes soon
				if gap-age > terms.BreakEven() {
					return []provision.Step{{Lasts: time.Second, Chance: 1}}
				}
				return []provision.Step{{Lasts: time.Hour, Chance: 0}}
			}
			steps := make([]provision.Step, 1+random.IntN(5))
			for i := range steps {
				steps[i] = provision.Step{Lasts: time.Duration(1 + random.Int64N(int64(2*time.Minute))), Chance: random.Float64()}
				if certain {
					steps[i].Chance = math.Round(steps[i].Chance)
				}
			}
			return steps
		}
		kept, whole := keptFor(terms, gap, tick, wrong)
		gaps := []time.Duration{gap}
		if !whole { // the worst gap for what was decided
			gaps = append(gaps, kept+1)
		}
		for _, gap := range gaps {
			cost, best := paid(terms, gap, min(kept, gap), whole)
			late := tick.Hours() * terms.Hour.USD()
			if bound := (1 + 1/trust) * best; cost > bound+late {
				t.Fatalf("try %d: a gap of %v at T = %v and a trust of %v costs %v, best %v, bound %v", try, gap,
					terms.BreakEven(), trust, cost, best, bound)
			}
			closest = max(closest, (cost-late)/((1+1/trust)*best))
		}
	}
	t.Logf("at most %.3f of the bound", closest)
	if closest < 0.95 {
		t.Errorf("no case came closer to the bound than %.3f of it: it is not tested", closest)
	}
}

func TestAPerfectForecastOfIdleTimesCostsWhatItIsWorth(t *testing.T) {
	t.Parallel()
	const tick = time.Second
	for _, trust := range []float64{0.2, 0.5, 0.8, 1} {
		terms := idleTerms(3, trust)
		worst := 0.0
		for gap := tick; gap < 2*terms.Most(); gap += 7 * tick {
			perfect := func(age time.Duration) []provision.Step {
				const moment = time.Millisecond
				return []provision.Step{{Lasts: max(moment, gap-age-moment), Chance: 0}, {Lasts: moment, Chance: 1}}
			}
			kept, whole := keptFor(terms, gap, tick, perfect)
			cost, best := paid(terms, gap, kept, whole)
			if cost > (1+trust)*best+tick.Hours()*terms.Hour.USD() {
				t.Errorf("trust %v: a gap of %v at T = %v costs %.2f times the least, want %.2f at most", trust, gap,
					terms.BreakEven(), cost/best, 1+trust)
			}
			worst = max(worst, cost/best)
		}
		t.Logf("trust %v: at most %.3f times the least", trust, worst)
	}
}

// TestWhatIsDecidedIsTheBestByTheForecast compares with the cost of giving it back at each moment to come, summed in
// steps of a second.
func TestWhatIsDecidedIsTheBestByTheForecast(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(9, 10))
	stays := map[bool]int{}
	for try := range 3000 {
		terms := idleTerms(0.5+5*random.Float64(), 0.5)
		age := terms.Least() + time.Duration(random.Float64()*float64(terms.Most()-terms.Least()))
		steps := make([]provision.Step, 1+random.IntN(12))
		for i := range steps {
			steps[i] = provision.Step{Lasts: time.Duration(1+random.IntN(90)) * time.Second}
			steps[i].Chance = math.Pow(random.Float64(), 4)
		}
		price, start := terms.Hour.USD()/3600, terms.Start.USD() // of a second
		cost, nothing, best := 0.0, 1.0, 1.0                     // over a start
		left := (terms.Most() - age).Seconds()
		for _, step := range steps {
			rate := -math.Log1p(-step.Chance) / step.Lasts.Seconds()
			const parts = 200
			length := min(left, step.Lasts.Seconds()) / parts
			for range parts {
				comes := -math.Expm1(-rate * length)
				cost += nothing * (1 - comes/2) * length * price
				nothing *= 1 - comes
				best = min(best, (cost+nothing*start)/start)
			}
			if left -= step.Lasts.Seconds(); left <= 0 {
				break
			}
		}
		got := terms.Decide(age, steps)
		if math.Abs(best-1) > 1e-4 && got.Kept != (best < 1) {
			t.Fatalf("try %d: kept %t at the age of %v of %v, where the best costs %v starts (%+v)", try, got.Kept, age,
				terms.BreakEven(), best, steps)
		}
		stays[got.Kept]++
	}
	if stays[true] < 300 || stays[false] < 300 {
		t.Errorf("kept or not: %v, want many of both", stays)
	}
}

func TestTheEdgesOfIdleTimes(t *testing.T) {
	t.Parallel()
	soon := []provision.Step{{Lasts: time.Minute, Chance: 1}}
	late := []provision.Step{{Lasts: 6 * time.Minute}, {Lasts: time.Second, Chance: 1}}
	for _, one := range []struct {
		name  string
		terms provision.Idle
		age   time.Duration
		steps []provision.Step
		want  bool
	}{
		{"nothing costs anything", provision.Idle{}, 0, soon, false},
		{"a start costs nothing", provision.Idle{Hour: quantity.USD}, 0, soon, false},
		{"keeping it costs nothing", provision.Idle{Start: quantity.USD}, 10 * 365 * 24 * time.Hour, nil, true},
		{"as much as there is", provision.Idle{Start: math.MaxInt64, Hour: 1}, time.Hour, nil, true},
		{"a trust that is none is the usual one", idleTerms(10, math.NaN()), 19 * time.Minute, soon, true},
		{"no forecast, before T", idleTerms(10, 0), 10*time.Minute - 1, nil, true},
		{"no forecast, at T", idleTerms(10, 0), 10 * time.Minute, nil, false},
		{"before half of T nobody is asked", idleTerms(10, 0), 5*time.Minute - 1, []provision.Step{{time.Hour, 0}}, true},
		{"never", idleTerms(10, 0), 5 * time.Minute, []provision.Step{{time.Hour, 0}}, false},
		{"soon, after T", idleTerms(10, 0), 15 * time.Minute, soon, true},
		{"soon, after twice T", idleTerms(10, 0), 20 * time.Minute, soon, false},
		{"too late to count", idleTerms(10, 0), 15 * time.Minute, late, false},
		{"a step of no length", idleTerms(10, 0), 15 * time.Minute, []provision.Step{{0, 1}}, false},
		{"more than certain", idleTerms(10, 0), 15 * time.Minute, []provision.Step{{time.Minute, 2}}, true},
		{"no chance at all", idleTerms(10, 0), 15 * time.Minute, []provision.Step{{time.Minute, math.NaN()}}, false},
	} {
		if got := one.terms.Decide(one.age, one.steps); got.Kept != one.want || !(got.Chance >= 0 && got.Chance <= 1) {
			t.Errorf("%s: %+v, want kept %t and a chance from 0 to 1", one.name, got, one.want)
		}
	}
	terms := idleTerms(10, 0)
	if got := terms.Describe(terms.Decide(6*time.Minute, soon), 5*time.Second); !strings.Contains(got, "takes 5 s") ||
		!strings.Contains(got, "worth 10m0s") || !strings.Contains(got, "within 60 s with a chance of 100 %") {
		t.Errorf("described as %q", got)
	}
}

// A child that takes 4 seconds to start, at half a dollar for each hour of somebody's time and 2 cents for an hour of
// its room, is kept for 50 to 200 seconds, and by the forecast between.
func ExampleIdle() {
	terms := provision.Idle{Start: quantity.USD.Times(0.5 * 4 / 3600), Hour: quantity.USD.Times(0.02)}
	quiet := []provision.Step{{Lasts: 10 * time.Minute, Chance: 0.1}}
	busy := []provision.Step{{Lasts: time.Minute, Chance: 0.8}}
	for _, age := range []time.Duration{40 * time.Second, time.Minute, 3 * time.Minute, 4 * time.Minute} {
		fmt.Println(age, terms.Decide(age, quiet).Kept, terms.Decide(age, busy).Kept)
	}
	// Output:
	// 40s true true
	// 1m0s false true
	// 3m0s false true
	// 4m0s false false
}
