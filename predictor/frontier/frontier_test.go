package frontier_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/spillway-ml/spillway/predictor/frontier"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// every visits all combinations of a job's options.
func every(job frontier.Job, visit func(options []int, seconds float64, cost quantity.Money)) {
	chosen := make([]int, len(job.Stages))
	var choose func(stage, capacity int, seconds float64, cost quantity.Money)
	choose = func(stage, capacity int, seconds float64, cost quantity.Money) {
		if stage == len(job.Stages) {
			visit(chosen, seconds, cost)
			return
		}
		for i, o := range job.Stages[stage] {
			chosen[stage] = i
			s, c := seconds+o.Seconds, cost+o.Cost
			if job.Change != nil && o.Capacity != capacity {
				change := job.Change(capacity, o.Capacity)
				s, c = s+change.Seconds, c+change.Cost
			}
			choose(stage+1, o.Capacity, s, c)
		}
	}
	choose(0, -1, 0, 0)
}

// drawn is a job with times and costs of which many are equal.
func drawn(r *rand.Rand, stages, options, capacities int) frontier.Job {
	var job frontier.Job
	for range stages {
		var list []frontier.Option
		for range 1 + r.IntN(options) {
			list = append(list, frontier.Option{
				Seconds: float64(r.IntN(12)), Cost: quantity.Money(r.IntN(12)), Capacity: r.IntN(capacities),
			})
		}
		job.Stages = append(job.Stages, list)
	}
	if capacities > 1 {
		job.Change = func(from, to int) frontier.Option {
			return frontier.Option{
				Seconds: float64(max(0, to-from)), Cost: quantity.Money(3 * max(0, to-max(from, 0))),
			}
		}
	}
	return job
}

func TestTheFrontierIsWhatEnumerationFinds(t *testing.T) {
	t.Parallel()
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 1))
		job := drawn(r, 1+r.IntN(5), 6, 1+r.IntN(3))
		f, err := frontier.New(job)
		if err != nil {
			t.Fatal(err)
		}
		var want []pair
		every(job, func(_ []int, seconds float64, cost quantity.Money) { want = append(want, pair{seconds, cost}) })
		want = unbeaten(want)
		var got []pair
		for i := range f.Len() {
			p := f.At(i)
			got = append(got, pair{p.Seconds, p.Cost})
			found := false
			every(job, func(options []int, seconds float64, cost quantity.Money) {
				found = found || slices.Equal(options, p.Options) && seconds == p.Seconds && cost == p.Cost
			})
			if !found {
				t.Fatalf("seed %d: the options of %+v come to something else", seed, p)
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("seed %d: frontier %v, enumeration finds %v", seed, got, want)
		}
		limit, budget := float64(r.IntN(40)), quantity.Money(r.IntN(40))
		seconds, cost := func(p pair) float64 { return p.seconds }, func(p pair) float64 { return float64(p.cost) }
		cheap := best(want, func(p pair) bool { return p.seconds <= limit }, cost)
		fast := best(want, func(p pair) bool { return p.cost <= budget }, seconds)
		if p, found := f.Cheapest(limit); found != (cheap < math.Inf(1)) || found && float64(p.Cost) != cheap {
			t.Errorf("seed %d: the cheapest within %g is %+v, %v, want %g", seed, limit, p, found, cheap)
		}
		if p, found := f.Fastest(budget); found != (fast < math.Inf(1)) || found && p.Seconds != fast {
			t.Errorf("seed %d: the fastest for %v is %+v, %v, want %g", seed, budget, p, found, fast)
		}
	}
}

type pair struct {
	seconds float64
	cost    quantity.Money
}

// unbeaten is by definition: no other is as fast and as cheap; one of equals.
func unbeaten(all []pair) (found []pair) {
	for _, p := range all {
		if !slices.ContainsFunc(all, func(q pair) bool { return q != p && q.seconds <= p.seconds && q.cost <= p.cost }) &&
			!slices.Contains(found, p) {
			found = append(found, p)
		}
	}
	slices.SortFunc(found, func(a, b pair) int { return int(a.seconds - b.seconds) })
	return found
}

func best(all []pair, within func(pair) bool, of func(pair) float64) float64 {
	least := math.Inf(1)
	for _, p := range all {
		if within(p) {
			least = min(least, of(p))
		}
	}
	return least
}

// rungs is a job of successive halving with times and costs that differ in every digit.
func rungs(seed uint64, stages, options int) frontier.Job {
	r := rand.New(rand.NewPCG(seed, 2))
	var job frontier.Job
	for stage := range stages {
		work := math.Exp2(float64(stages-stage)) * (1 + r.Float64())
		var list []frontier.Option
		for i := range options {
			workers := math.Pow(1.2, float64(i))
			list = append(list, frontier.Option{
				Seconds: work/workers + 0.05*workers, Cost: quantity.Money(1e6 * (work + 0.3*workers*(1+0.01*r.Float64()))),
			})
		}
		job.Stages = append(job.Stages, list)
	}
	return job
}

func TestAThinnedFrontierIsCloseToTheExactOne(t *testing.T) {
	t.Parallel()
	const worst = 0.005
	for seed := range uint64(5) {
		job := rungs(seed, 4, 24)
		job.Most = 1 << 20
		exact, err := frontier.New(job)
		if err != nil {
			t.Fatal(err)
		}
		job.Most = 512
		thin, err := frontier.New(job)
		if err != nil {
			t.Fatal(err)
		}
		if thin.Len() >= exact.Len() || thin.Len() > 2*512 {
			t.Fatalf("%d points instead of %d", thin.Len(), exact.Len())
		}
		for i := range exact.Len() {
			p := exact.At(i)
			slower := p.Seconds * (1 + worst)
			if q, found := thin.Cheapest(slower); !found || q.Cost > p.Cost {
				t.Errorf("seed %d: within %g the cheapest is %v, of %v within %g", seed, slower, q.Cost, p.Cost, p.Seconds)
			}
			dearer := p.Cost.Times(1 + worst)
			if q, found := thin.Fastest(dearer); !found || q.Seconds > p.Seconds {
				t.Errorf("seed %d: for %v the fastest takes %g, of %g for %v", seed, dearer, q.Seconds, p.Seconds, p.Cost)
			}
		}
	}
}

func TestWhatCannotBeRunIsNamed(t *testing.T) {
	t.Parallel()
	ok := []frontier.Option{{Seconds: 1, Cost: 1}}
	for _, row := range []struct {
		name string
		job  frontier.Job
		want error
	}{
		{"no option", frontier.Job{Stages: [][]frontier.Option{ok, {}}}, frontier.ErrNoOption},
		{"NaN", frontier.Job{Stages: [][]frontier.Option{{{Seconds: math.NaN()}}}}, frontier.ErrOption},
		{"for ever", frontier.Job{Stages: [][]frontier.Option{{{Seconds: math.Inf(1)}}}}, frontier.ErrOption},
		{"it pays", frontier.Job{Stages: [][]frontier.Option{{{Cost: -1}}}}, frontier.ErrOption},
		{"a change back in time", frontier.Job{
			Stages: [][]frontier.Option{ok}, Change: func(int, int) frontier.Option { return frontier.Option{Seconds: -1} },
		}, frontier.ErrOption},
	} {
		if _, err := frontier.New(row.job); !errors.Is(err, row.want) {
			t.Errorf("%s: %v, want %v", row.name, err, row.want)
		}
	}
	nothing, err := frontier.New(frontier.Job{})
	if err != nil || nothing.Len() != 1 || nothing.At(0).Seconds != 0 {
		t.Errorf("of no stages: %d points, %v, want one of nothing", nothing.Len(), err)
	}
	if _, found := (frontier.Frontier{}).Cheapest(1); found {
		t.Error("the zero frontier has a point")
	}
}

// drawing draws how often a plan is within a time.
func drawing(r *rand.Rand, options []frontier.Option, seconds float64) float64 {
	const draws = 20000
	within := 0
	for range draws {
		sum := 0.0
		for _, o := range options {
			sum += o.Seconds * math.Exp(o.Spread*r.NormFloat64())
		}
		if sum <= seconds {
			within++
		}
	}
	return float64(within) / draws
}

func TestADeadlineIsMetWithTheProbabilityThatIsAsked(t *testing.T) {
	t.Parallel()
	stage := []frontier.Option{
		{Seconds: 10, Cost: 9, Spread: 0.3}, {Seconds: 20, Cost: 4, Spread: 0.3}, {Seconds: 40, Cost: 1, Spread: 0.3},
	}
	f, err := frontier.New(frontier.Job{Stages: [][]frontier.Option{stage, stage, {{Seconds: 5, Cost: 1}}}})
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(3, 4))
	var before quantity.Money
	for _, asked := range []float64{0.5, 0.9, 0.99} {
		p, told, found := f.Sure(65, asked)
		if !found || told < asked || p.Cost < before {
			t.Fatalf("with %g: %+v, %g, %v; want at least that, for no less than %v", asked, p, told, found, before)
		}
		before = p.Cost
		options := []frontier.Option{stage[p.Options[0]], stage[p.Options[1]], {Seconds: 5}}
		if came := drawing(r, options, 65); math.Abs(came-told) > 0.015 {
			t.Errorf("with %g: %g was told, %g is drawn", asked, told, came)
		}
	}
	if p, _, found := f.Sure(20, 0.9); found {
		t.Errorf("within 20 s: %+v, want none: two stages of 10 s each have a median", p)
	}
}

func BenchmarkTwelveRungs(b *testing.B) {
	job := rungs(1, 12, 50)
	for b.Loop() {
		if _, err := frontier.New(job); err != nil {
			b.Fatal(err)
		}
	}
}
