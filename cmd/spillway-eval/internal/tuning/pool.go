package tuning

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/spillway-ml/spillway/predictor/search"
)

// Trial is a recorded training: its metric over its steps, smaller being better.
type Trial struct {
	Steps, Values []float64
}

// last is the step that it was recorded to.
func (t Trial) last() float64 { return t.Steps[len(t.Steps)-1] }

// best is the best metric that was seen until a step; infinite where none was.
func (t Trial) best(until float64) float64 {
	found := math.Inf(1)
	for i, step := range t.Steps {
		if step > until {
			break
		}
		if t.Values[i] < found { // not where it is NaN
			found = t.Values[i]
		}
	}
	return found
}

// Pool is the trials of one workload and study, of which a search finds the best.
type Pool struct {
	// Study tells repetitions of the same configurations apart.
	Study  string
	Trials []Trial
}

// most is how much a trial gets at most: the 90th percentile of how far the recorded ones came.
func (p Pool) most() float64 {
	last := make([]float64, len(p.Trials))
	for i, t := range p.Trials {
		last[i] = t.last()
	}
	slices.Sort(last)
	return last[int(math.Ceil(0.9*float64(len(last))))-1]
}

// marks are the metric of the best trial and that of the middle one.
func (p Pool) marks() (best, middle float64) {
	ends := make([]float64, len(p.Trials))
	for i, t := range p.Trials {
		ends[i] = t.best(math.Inf(1))
	}
	slices.Sort(ends)
	n := len(ends)
	return ends[0], (ends[(n-1)/2] + ends[n/2]) / 2
}

// Whole reports whether regret can be told: trials differ.
func (p Pool) Whole() bool {
	best, middle := p.marks()
	return best < middle && !math.IsInf(middle, 1)
}

// Searchers are what searches a pool, by name.
func Searchers() []string { return []string{"asha", "random", "hyperband"} }

// Multiples are the budgets, in the most that a trial gets.
var Multiples = []float64{2, 4, 7}

// Regret is how far the best that a search has seen is from the best there is, as a part of how far the middle one is,
// at most 1: the mean over random orders of the trials, for each of Multiples. One worker does one job after another.
func (p Pool) Regret(ctx context.Context, searcher string, orders int, seed uint64) ([]float64, error) {
	best, middle := p.marks()
	most := p.most()
	sums := make([]float64, len(Multiples))
	for order := range orders {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		r := rand.New(rand.NewPCG(seed, uint64(order)))
		spent, seen, err := p.search(search.Algorithm(searcher), most, r.Perm(len(p.Trials)))
		if err != nil {
			return nil, err
		}
		for i, multiple := range Multiples {
			found := math.Inf(1)
			for j, s := range seen {
				if spent[j] <= multiple*most {
					found = min(found, s)
				}
			}
			sums[i] += max(0, min(1, (found-best)/(middle-best)))
		}
	}
	for i := range sums {
		sums[i] /= float64(orders)
	}
	return sums, nil
}

// search runs a search over the trials in an order, and returns each metric that was seen, with what had been spent
// then. A trial that was recorded to fewer steps keeps its last best metric, and is charged what was recorded.
func (p Pool) search(algorithm search.Algorithm, most float64, order []int) (spent, seen []float64, err error) {
	// What is drawn of it does not count: the trial's number is its place in order.
	which := search.Space{{Name: "trial", Kind: search.Int, High: float64(len(order) - 1)}}
	s, err := search.New(which, search.Options{
		Algorithm: algorithm, Trials: len(order), Least: most / 27, Most: most, GoOn: algorithm == search.ASHA,
	})
	if err != nil {
		return nil, nil, err
	}
	total := 0.0
	for job, found := s.Next(); found; job, found = s.Next() {
		t := p.Trials[order[job.Trial]]
		for i, step := range t.Steps {
			if step > job.From && step <= job.To && !math.IsNaN(t.Values[i]) {
				spent, seen = append(spent, total+step-min(job.From, t.last())), append(seen, t.Values[i])
			}
		}
		total += min(job.To, t.last()) - min(job.From, t.last())
		if err := s.Report(job.Trial, t.best(job.To)); err != nil {
			return nil, nil, err
		}
	}
	return spent, seen, nil
}
