package provision

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// cents is an amount in cents.
func cents(n float64) quantity.Money { return quantity.USD.Times(n / 100) }

// smallAndLarge are two types of host, the larger one cheaper by the task, beside functions at 10 cents a task: with
// small ones at 3 cents a task and large ones at 2.
func smallAndLarge() Terms {
	return Terms{
		Hosts: []Host{{Name: "small", Tasks: 16, Step: cents(48)}, {Name: "large", Tasks: 64, Step: cents(128)}},
		// A launch costs a step without use: 4 steps are paid for 3.
		Function: cents(10), Delay: 1, Hold: 3,
	}
}

// steady repeats the same quantiles.
func steady(terms Terms, levels, quantiles []float64) Forecast {
	return Forecast{Levels: levels, Steps: slices.Repeat([][]float64{quantiles}, terms.Horizon())}
}

func TestDecide(t *testing.T) {
	t.Parallel()
	old, young := 9, 2
	halves := []float64{0.25, 0.75}
	for _, row := range []struct {
		name     string
		with     func(*Terms)
		pool     []Held
		forecast func(Terms) Forecast
		launch   []int
		release  []int
		reason   string
	}{
		{name: "nothing comes, nothing is held", forecast: known(0), launch: []int{0, 0}, reason: "nothing changes"},
		{name: "a load that is sure is covered at the least cost", forecast: known(80), launch: []int{1, 1}},
		{name: "a rest that is too small for a host is left to functions", forecast: known(70), launch: []int{0, 1}},
		{name: "a large host pays for less than it serves", forecast: known(60), launch: []int{0, 1}},
		{
			// Four steps are paid for three: 4 x 128 cents of 3 x 64 x 10, 27 percent of the time.
			name: "a unit is held where it is used often enough", launch: []int{0, 2},
			forecast: func(t Terms) Forecast { return steady(t, []float64{0.69, 0.7}, []float64{64, 128}) },
		},
		{
			name: "and left to functions where it is not", launch: []int{0, 1},
			forecast: func(t Terms) Forecast { return steady(t, []float64{0.75, 0.76}, []float64{64, 128}) },
		},
		{
			name: "functions are cheaper than any host", launch: []int{0, 0},
			with: func(t *Terms) { t.Function = cents(2.5) }, forecast: known(64),
		},
		{
			name: "a launch has a price", launch: []int{0, 0},
			with: func(t *Terms) { t.Hosts[1].Launch, t.Hosts[0].Launch = cents(2000), cents(2000) }, forecast: known(64),
		},
		{
			name: "what is held needs no launch", pool: []Held{{Host: 1, Age: old}}, forecast: known(64), launch: []int{0, 0},
			reason: "nothing changes",
		},
		{
			name: "what is held already counts before it serves", pool: []Held{{Host: 1}}, forecast: known(64),
			launch: []int{0, 0},
		},
		{
			name: "a host that is not used goes", pool: []Held{{Host: 1, Age: old}}, forecast: known(0), launch: []int{0, 0},
			release: []int{0}, reason: "1 host released",
		},
		{
			name: "unless it may not", pool: []Held{{Host: 1, Age: young}}, forecast: known(0), launch: []int{0, 0},
		},
		{
			name: "the dearer of two goes", pool: []Held{{0, old}, {0, old}, {0, old}, {0, old}, {1, old}},
			forecast: known(64), launch: []int{0, 0}, release: []int{0, 1, 2, 3},
		},
		{
			name: "a host for one step more is kept for it", pool: []Held{{Host: 1, Age: old}}, launch: []int{0, 0},
			forecast: func(Terms) Forecast { return sure(64, 0, 0, 0) },
		},
		{
			name: "a host that is wanted again after a short while is kept", pool: []Held{{Host: 1, Age: old}},
			launch: []int{0, 0}, forecast: func(Terms) Forecast { return sure(0, 64, 64, 64) },
		},
		{
			name: "what is wanted later is launched later", launch: []int{0, 0},
			forecast: func(Terms) Forecast { return sure(0, 0, 64, 64) },
		},
		{
			name: "nothing is held for a load that is gone when it serves", launch: []int{0, 0},
			forecast: func(Terms) Forecast { return sure(40, 40, 0, 0) },
		},
		{
			name: "half a chance of more", forecast: func(t Terms) Forecast { return steady(t, halves, []float64{64, 96}) },
			launch: []int{1, 1},
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			terms := smallAndLarge()
			if row.with != nil {
				row.with(&terms)
			}
			got, err := Decide(terms, row.pool, row.forecast(terms))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(row.launch, got.Launch); diff != "" {
				t.Errorf("launches (-want +got):\n%s%s", diff, got.Reason)
			}
			if diff := cmp.Diff(row.release, got.Release); diff != "" {
				t.Errorf("releases (-want +got):\n%s%s", diff, got.Reason)
			}
			if !strings.Contains(got.Reason, row.reason) {
				t.Errorf("reason %q, want %q in it", got.Reason, row.reason)
			}
		})
	}
}

// known is a steady load without doubt.
func known(load float64) func(Terms) Forecast {
	return func(t Terms) Forecast { return sure(slices.Repeat([]float64{load}, t.Horizon())...) }
}

func TestWhatCannotBeDecidedOnIsRefused(t *testing.T) {
	t.Parallel()
	good := smallAndLarge()
	for _, row := range []struct {
		name     string
		with     func(*Terms)
		pool     []Held
		forecast Forecast
		want     string
	}{
		{name: "no hosts", with: func(t *Terms) { t.Hosts = nil }, want: "without a type of host"},
		{name: "a host that serves nothing", with: func(t *Terms) { t.Hosts[0].Tasks = 0 }, want: `host "small"`},
		{name: "a host that serves NaN", with: func(t *Terms) { t.Hosts[0].Tasks = math.NaN() }, want: `host "small"`},
		{name: "a host for nothing", with: func(t *Terms) { t.Hosts[1].Step = 0 }, want: `host "large"`},
		{name: "functions that pay", with: func(t *Terms) { t.Function = -1 }, want: "function price"},
		{name: "no hold", with: func(t *Terms) { t.Hold = 0 }, want: "a hold of 0"},
		{name: "a forecast that is too short", forecast: sure(1, 2, 3), want: "for 4 steps"},
		{name: "no levels", forecast: Forecast{Steps: make([][]float64, 4)}, want: "at least one level"},
		{name: "levels that fall", forecast: steady(good, []float64{0.5, 0.4}, []float64{1, 2}), want: "rising"},
		{name: "a level of NaN", forecast: steady(good, []float64{math.NaN()}, []float64{1}), want: "rising"},
		{name: "quantiles that fall", forecast: steady(good, []float64{0.4, 0.5}, []float64{2, 1}), want: "do not fall"},
		{name: "a quantile too few", forecast: steady(good, []float64{0.4, 0.5}, []float64{1}), want: "1 quantiles for 2"},
		{name: "an infinite load", forecast: sure(1, 1, 1, math.Inf(1)), want: "step 4"},
		{name: "a negative load", forecast: sure(-1, 1, 1, 1), want: "step 1"},
		{name: "a type that is not there", pool: []Held{{Host: 2}}, forecast: sure(1, 1, 1, 1), want: "of type 2"},
		{name: "an age before the launch", pool: []Held{{Age: -1}}, forecast: sure(1, 1, 1, 1), want: "age -1"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			terms := smallAndLarge()
			if row.with != nil {
				row.with(&terms)
			}
			_, err := Decide(terms, row.pool, row.forecast)
			if !errors.Is(err, ErrTerms) || !strings.Contains(err.Error(), row.want) {
				t.Errorf("got %v, want one of terms with %q", err, row.want)
			}
		})
	}
	if _, _, err := (Hedge{Trust: 1.5}).Decide(good, nil, sure(1, 1, 1, 1)); !errors.Is(err, ErrTerms) {
		t.Errorf("a trust of 1.5: got %v", err)
	}
}

// drawn are terms, a pool and a forecast; capacities are multiples of a cell, so that rounding decides nothing.
func drawn(t *rapid.T) (Terms, []Held, Forecast) {
	terms := Terms{
		Function: quantity.USD.Times(rapid.Float64Range(0.001, 1).Draw(t, "function")),
		Delay:    rapid.IntRange(0, 2).Draw(t, "delay"), Hold: rapid.IntRange(1, 5).Draw(t, "hold"),
	}
	for _, tasks := range []float64{16, 32, 48, 80}[:rapid.IntRange(1, 4).Draw(t, "types")] {
		terms.Hosts = append(terms.Hosts, Host{
			Tasks: tasks, Step: quantity.USD.Times(tasks * rapid.Float64Range(0.01, 0.5).Draw(t, "price")),
			Launch: quantity.USD.Times(rapid.Float64Range(0, 5).Draw(t, "launch")),
		})
	}
	pool := make([]Held, rapid.IntRange(0, 4).Draw(t, "pool"))
	for i := range pool {
		pool[i] = Held{
			Host: rapid.IntRange(0, len(terms.Hosts)-1).Draw(t, "host"),
			Age:  rapid.IntRange(0, terms.Horizon()+1).Draw(t, "age"),
		}
	}
	levels := []float64{0.1, 0.3, 0.5, 0.7, 0.9}[:rapid.IntRange(1, 5).Draw(t, "levels")]
	forecast := Forecast{Levels: levels}
	for range terms.Horizon() {
		quantiles := make([]float64, len(levels))
		for i := range quantiles {
			quantiles[i] = rapid.Float64Range(0, 300).Draw(t, "quantile")
		}
		slices.Sort(quantiles)
		forecast.Steps = append(forecast.Steps, quantiles)
	}
	return terms, pool, forecast
}

func decided(t *rapid.T, terms Terms, pool []Held, forecast Forecast) Decision {
	decision, err := Decide(terms, pool, forecast)
	if err != nil {
		t.Fatal(err)
	}
	return decision
}

func TestMoreLoadNeverMeansLessCapacity(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		terms, _, forecast := drawn(t)
		before := decided(t, terms, nil, forecast)
		more := Forecast{Levels: forecast.Levels}
		for _, quantiles := range forecast.Steps {
			add := rapid.Float64Range(0, 100).Draw(t, "more")
			raised := slices.Clone(quantiles)
			for i := range raised {
				raised[i] += add
			}
			more.Steps = append(more.Steps, raised)
		}
		if after := decided(t, terms, nil, more); wanted(terms, forecast, after) < wanted(terms, forecast, before)-1e-6 {
			t.Fatalf("%v tasks a step for the load, %v for more of it", before.Capacity, after.Capacity)
		}
	})
}

// wanted is the capacity as far as a forecast can want it: of two combinations that cover all of it, the cheaper may
// serve less.
func wanted(terms Terms, forecast Forecast, d Decision) float64 {
	top := 0.0
	for _, quantiles := range forecast.Steps[terms.Delay:] {
		top = max(top, quantiles[len(quantiles)-1])
	}
	return min(d.Capacity, top)
}

func TestDearerFunctionsNeverMeanLessCapacity(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		terms, _, forecast := drawn(t)
		before := decided(t, terms, nil, forecast)
		terms.Function *= 10
		after := decided(t, terms, nil, forecast)
		if wanted(terms, forecast, after) < wanted(terms, forecast, before)-1e-6 {
			t.Fatalf("%v tasks a step, %v where functions cost ten times as much", before.Capacity, after.Capacity)
		}
	})
}

func TestNothingIsLaunchedAboveTheHighestQuantile(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		terms, pool, forecast := drawn(t)
		for i := range pool {
			pool[i].Age = min(pool[i].Age, terms.Horizon()-1) // what is kept for a step more has no part in it
		}
		decision := decided(t, terms, pool, forecast)
		top := 0.0
		for _, quantiles := range forecast.Steps {
			top = max(top, quantiles[len(quantiles)-1])
		}
		for host, n := range decision.Launch {
			if without := decision.Capacity - terms.Hosts[host].Tasks; n > 0 && without >= top {
				t.Fatalf("a host of %v is launched where %v are served without it, and %v is the most that may come",
					terms.Hosts[host].Tasks, without, top)
			}
		}
	})
}

func TestAHostStaysUntilItMayGo(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		terms, pool, forecast := drawn(t)
		for _, i := range decided(t, terms, pool, forecast).Release {
			if pool[i].Age < terms.Horizon() {
				t.Fatalf("host %d is released at age %d, before %d", i, pool[i].Age, terms.Horizon())
			}
		}
	})
}

// TestACoverIsTheBestOfAllCombinations tries every subset of held hosts with every number of launches.
func TestACoverIsTheBestOfAllCombinations(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(15, 6))
	for range 3000 {
		saved := make([]float64, 2+random.IntN(40))
		slope := 3 * random.Float64()
		for k := 1; k < len(saved); k++ {
			saved[k] = saved[k-1] + slope
			slope *= random.Float64()*0.2 + 0.8
		}
		var options []option
		for i := range random.IntN(4) {
			options = append(options, option{cells: 1 + random.IntN(12), cost: 8 * random.Float64(), held: []int{i}})
		}
		held := len(options)
		for range 1 + random.IntN(2) {
			options = append(options, option{cells: 1 + random.IntN(12), cost: 8 * random.Float64()})
		}
		best := 0.0
		var try func(i, cells int, cost float64)
		try = func(i, cells int, cost float64) {
			best = max(best, saved[min(cells, len(saved)-1)]-cost)
			if i == len(options) || cells >= len(saved) {
				return
			}
			o := options[i]
			try(i+1, cells, cost)
			if i < held {
				try(i+1, cells+o.cells, cost+o.cost)
				return
			}
			for n := 1; n*o.cells < len(saved)+o.cells; n++ {
				try(i+1, cells+n*o.cells, cost+float64(n)*o.cost)
			}
		}
		try(0, 0, 0)
		chosen, gain := cover(saved, options)
		cells, cost := 0, 0.0
		for _, o := range chosen {
			cells, cost = cells+o.cells, cost+o.cost
		}
		if got := saved[min(cells, len(saved)-1)] - cost; math.Abs(gain-best) > 1e-9 || got < gain-1e-9 {
			t.Fatalf("gain %v, of what was chosen %v, the best of all %v: %+v %v", gain, got, best, options, saved)
		}
	}
}

// TestWhatACapacityServesIsTheMeanOfWhatComes draws loads of the distribution that quantiles describe.
func TestWhatACapacityServesIsTheMeanOfWhatComes(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(15, 7))
	levels, quantiles := []float64{0.1, 0.5, 0.5001, 0.8, 0.95}, []float64{10, 40, 70, 70, 200}
	for _, capacity := range []float64{-1, 0, 5, 10, 33, 70, 150, 200, 500} {
		const draws = 200_000
		sum := 0.0
		for range draws {
			q := random.Float64()
			i := 0
			for i < len(levels) && levels[i] < q {
				i++
			}
			var load float64
			switch i {
			case 0:
				load = quantiles[0]
			case len(levels):
				load = quantiles[i-1]
			default:
				load = quantiles[i-1] + (q-levels[i-1])/(levels[i]-levels[i-1])*(quantiles[i]-quantiles[i-1])
			}
			sum += max(0, min(load, capacity))
		}
		if got, want := served(levels, quantiles, capacity), sum/draws; math.Abs(got-want) > 0.5 {
			t.Errorf("a capacity of %v serves %v, want %v", capacity, got, want)
		}
	}
}

func TestALargePoolIsDecidedInTime(t *testing.T) {
	t.Parallel()
	terms := smallAndLarge()
	began := time.Now()
	decision, err := Decide(terms, nil, sure(slices.Repeat([]float64{5e6}, terms.Horizon())...))
	if err != nil {
		t.Fatal(err)
	}
	if decision.Capacity < 4.9e6 || decision.Capacity > 5.1e6 {
		t.Errorf("%v tasks a step are held for 5,000,000", decision.Capacity)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
}
