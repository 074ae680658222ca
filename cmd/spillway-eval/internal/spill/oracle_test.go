package spill

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spillway-ml/spillway/predictor/provision"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

func TestTheOracleIsTheBestOfAllCombinations(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 4))
	for range 500 {
		terms := provision.Terms{Function: quantity.USD.Times(0.01 + random.Float64()), Hold: 10}
		for range 1 + random.IntN(2) {
			terms.Hosts = append(terms.Hosts, provision.Host{
				Tasks: float64(3 + random.IntN(9)), Step: quantity.USD.Times(0.5 + 2*random.Float64()),
			})
		}
		loads := make([]float64, 1+random.IntN(4))
		for i := range loads {
			loads[i] = float64(random.IntN(25))
		}
		best := math.Inf(1)
		var try func(i int, tasks, price float64)
		try = func(i int, tasks, price float64) {
			if i == len(terms.Hosts) {
				cost := price * float64(len(loads))
				for _, load := range loads {
					cost += terms.Function.USD() * max(0, load-tasks)
				}
				best = min(best, cost)
				return
			}
			for n := range 9 {
				try(i+1, tasks+float64(n)*terms.Hosts[i].Tasks, price+float64(n)*terms.Hosts[i].Step.USD())
			}
		}
		try(0, 0, 0)
		covers := NewCovers(terms, 60)
		tasks, cost := covers.Best(loads)
		if math.Abs(cost-best) > 1e-9 {
			t.Fatalf("the oracle costs %v, the best of all combinations %v: %+v %v", cost, best, terms, loads)
		}
		plan, served := covers.For(tasks), 0.0
		for i, n := range plan {
			served += float64(n) * terms.Hosts[i].Tasks
		}
		if served < tasks {
			t.Fatalf("a plan for %v serves %v: %v", tasks, served, plan)
		}
	}
}

// TestOraclesAreOfTheOrderOfThoseWithoutDelay has one window of a steady load after the first: five hosts serve it.
func TestOraclesCountFromTheSecondWindow(t *testing.T) {
	t.Parallel()
	setting := Inception()
	loads := make([]float64, 20)
	for i := range loads {
		loads[i] = 284
	}
	windows, bound := NewCovers(setting.Terms, 1000).Oracles(loads)
	if want := 10 * 0.085 / 60; math.Abs(windows-want) > 1e-9 || math.Abs(bound-want) > 1e-9 {
		t.Errorf("oracle %v, bound %v, want one host for ten minutes: %v", windows, bound, want)
	}
}

func TestTowardsLaunchesWhatIsMissingAndReleasesWhatMayGo(t *testing.T) {
	t.Parallel()
	terms := Inception().Terms
	pool := []provision.Held{{Host: 0, Age: 30}, {Host: 0, Age: 5}, {Host: 4, Age: 11}, {Host: 1, Age: 3}}
	got := Towards(terms, []int{1, 0, 0, 0, 0}, pool)
	if diff := cmp.Diff(provision.Decision{Launch: []int{0, 0, 0, 0, 0}, Release: []int{0, 2}}, got); diff != "" {
		t.Errorf("to one small host (-want +got):\n%s", diff)
	}
	got = Towards(terms, []int{3, 0, 2, 0, 1}, pool)
	if diff := cmp.Diff(provision.Decision{Launch: []int{1, 0, 2, 0, 0}}, got); diff != "" {
		t.Errorf("to more hosts (-want +got):\n%s", diff)
	}
}

func TestSimplePolicies(t *testing.T) {
	t.Parallel()
	terms := Inception().Terms
	covers := NewCovers(terms, 20_000)
	simple := Simple(terms, covers, 3400)
	pools := map[string][]int{}
	for name, policy := range simple {
		var pool []provision.Held
		for i := range 20 { // windows of 284 and of 568, each with a minute of ten times as much
			load := 284.0 * float64(1+i/10)
			if i%10 == 4 {
				load *= 10
			}
			for j := range pool {
				pool[j].Age++
			}
			decision, err := policy.Next(Minute{Tasks: load}, pool)
			if err != nil {
				t.Fatal(err)
			}
			pool = decision.Apply(pool)
		}
		held := make([]int, len(terms.Hosts))
		for _, one := range pool {
			held[one.Host]++
		}
		pools[name] = held
	}
	for name, want := range map[string]float64{
		"functions_only": 0, "static_peak": 3400, "mean_tracking": 568 * 1.9, "last_max_20pct": 1.2 * 5680, "last_best": 568,
	} {
		served := 0.0
		for i, n := range pools[name] {
			served += float64(n) * terms.Hosts[i].Tasks
		}
		if served < want || served > want+1.2*3320 {
			t.Errorf("%s holds %v for %v tasks, want hosts for %v", name, pools[name], served, want)
		}
	}
}
