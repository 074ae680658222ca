package tuning

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/spillway-ml/spillway/predictor/curve"
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

// Plain is ASHA that is told nothing of curves.
const Plain = "asha_without_curves"

// Searchers are what searches a pool, by name.
func Searchers() []string { return []string{"asha", Plain, "random", "hyperband"} }

// Multiples are the budgets, in the most that a trial gets.
var Multiples = []float64{2, 4, 7}

// Regret is how far the best that a search has seen is from the best there is, as a part of how far the middle one is,
// at most 1: the mean over random orders of the trials, for each of Multiples. One worker does one job after another,
// and ASHA goes on with the next best.
func (p Pool) Regret(ctx context.Context, searcher string, orders int, seed uint64) ([]float64, error) {
	most := p.most()
	sums := make([]float64, len(Multiples))
	err := p.replay(ctx, searcher, orders, seed, true, func(spent, seen []float64) {
		for i, multiple := range Multiples {
			found := math.Inf(1)
			for j, s := range seen {
				if spent[j] <= multiple*most {
					found = min(found, s)
				}
			}
			sums[i] += p.regret(found)
		}
	})
	for i := range sums {
		sums[i] /= float64(orders)
	}
	return sums, err
}

// End is what a search that does not go on has spent when it is done, in the most that a trial gets, and its regret
// then: the means over random orders.
func (p Pool) End(ctx context.Context, searcher string, orders int, seed uint64) (spent, regret float64, err error) {
	err = p.replay(ctx, searcher, orders, seed, false, func(after, seen []float64) {
		spent += after[len(after)-1] / p.most() / float64(orders)
		regret += p.regret(slices.Min(seen)) / float64(orders)
	})
	return spent, regret, err
}

func (p Pool) regret(found float64) float64 {
	best, middle := p.marks()
	return max(0, min(1, (found-best)/(middle-best)))
}

// replay does searches over trials in random orders.
func (p Pool) replay(
	ctx context.Context, searcher string, orders int, seed uint64, goOn bool, each func(spent, seen []float64),
) error {
	told := prospects{}
	for order := range orders {
		if err := ctx.Err(); err != nil {
			return err
		}
		r := rand.New(rand.NewPCG(seed, uint64(order)))
		spent, seen, err := p.search(searcher, goOn, r.Perm(len(p.Trials)), told)
		if err != nil {
			return err
		}
		each(spent, seen)
	}
	return nil
}

// search runs a search over the trials in an order, and returns each metric that was seen, with what had been spent
// then. A trial that was recorded to fewer steps keeps its last best metric, and is charged what was recorded.
func (p Pool) search(searcher string, goOn bool, order []int, told prospects) (spent, seen []float64, err error) {
	most := p.most()
	// What is drawn of it does not count: the trial's number is its place in order.
	which := search.Space{{Name: "trial", Kind: search.Int, High: float64(len(order) - 1)}}
	options := search.Options{
		Algorithm: search.Algorithm(searcher), Trials: len(order), Least: most / 27, Most: most, Rules: search.Newest,
	}.WithDefaults()
	if searcher == Plain {
		options.Algorithm = search.ASHA
	}
	options.GoOn = goOn && options.Algorithm == search.ASHA
	s, err := search.New(which, options)
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
		if searcher != string(search.ASHA) {
			continue
		}
		if ahead := told.of(order[job.Trial], t, job, options); ahead != nil {
			if err := s.Expect(job.Trial, *ahead); err != nil {
				return nil, nil, err
			}
		}
	}
	return spent, seen, nil
}

// prospects are what the curves of trials say at the end of their rungs, by trial and rung: the same in every order.
type prospects map[[2]int]*search.Ahead

// of is what the points of a job's curve say, as an engine tells it; nil where they say nothing, and of a trial that
// ended by itself, which gains nothing more and costs nothing.
func (p prospects) of(number int, t Trial, job search.Job, options search.Options) *search.Ahead {
	key := [2]int{number, job.Rung}
	if ahead, known := p[key]; known {
		return ahead
	}
	p[key] = nil
	if t.last() < job.To {
		return nil
	}
	trail := curve.Trail{Metric: "loss"}
	for i, step := range t.Steps {
		if step > job.From && step <= job.To {
			trail.Points = append(trail.Points, curve.Point{Step: step, Value: t.Values[i]})
		}
	}
	prospect := trail.Prospect(curve.Stretch{
		From: job.From, Before: job.To / float64(options.Eta), To: job.To, Most: options.Most,
	})
	if prospect != nil {
		ahead := search.Ahead{Best: prospect.Low, Before: math.NaN()}
		if prospect.Before != nil {
			ahead.Before = *prospect.Before
		}
		p[key] = &ahead
	}
	return p[key]
}
