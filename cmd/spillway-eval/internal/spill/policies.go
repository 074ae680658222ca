package spill

import (
	"math"
	"slices"

	"github.com/spillway-ml/spillway/predictor/provision"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Policy decides at the end of every step what is held from then on.
type Policy interface {
	// Next is told the step that has ended and what is held, and says what is launched and released.
	Next(ended Minute, pool []provision.Held) (provision.Decision, error)
}

// Minute is a step that has ended.
type Minute struct {
	// Tasks is how many arrived.
	Tasks float64
	// Functions is what functions cost.
	Functions quantity.Money
	// Busy is for each second how many tasks were at work or waited at once.
	Busy []float64
}

// Ours is Spillway's: it holds what pays as the forecast expects, as long as a Hedge follows that.
type Ours struct {
	Terms      provision.Terms
	Forecaster Forecaster
	Hedge      provision.Hedge
}

// Next implements Policy.
func (o *Ours) Next(ended Minute, pool []provision.Held) (provision.Decision, error) {
	o.Forecaster.Observe(ended.Tasks)
	o.Hedge = o.Hedge.Observe(o.Terms, ended.Tasks, ended.Functions)
	decision, next, err := o.Hedge.Decide(o.Terms, pool, o.Forecaster.Forecast(o.Terms.Horizon()))
	o.Hedge = next
	return decision, err
}

// windowed chooses a combination of hosts at the end of every Hold steps, from the loads so far.
type windowed struct {
	terms  provision.Terms
	choose func(past []float64) []int
	past   []float64
	target []int
}

// Next implements Policy.
func (w *windowed) Next(ended Minute, pool []provision.Held) (provision.Decision, error) {
	w.past = append(w.past, ended.Tasks)
	if w.target == nil || len(w.past)%w.terms.Hold == 0 {
		w.target = w.choose(w.past)
	}
	return Towards(w.terms, w.target, pool), nil
}

// Towards launches what is missing of each type and releases what is too much, the oldest first, once it may go.
func Towards(terms provision.Terms, target []int, pool []provision.Held) provision.Decision {
	decision := provision.Decision{Launch: make([]int, len(terms.Hosts))}
	missing := slices.Clone(target)
	for _, held := range pool {
		missing[held.Host]--
	}
	for i := range pool {
		if held := pool[i]; missing[held.Host] < 0 && held.Age >= terms.Horizon() {
			missing[held.Host]++
			decision.Release = append(decision.Release, i)
		}
	}
	for i, n := range missing {
		decision.Launch[i] = max(0, n)
	}
	return decision
}

// Simple are the six simple policies, by name. They know nothing before the end of the first window; most is the most
// of all loads, which only static_peak knows.
func Simple(terms provision.Terms, covers Covers, most float64) map[string]Policy {
	none := make([]int, len(terms.Hosts))
	after := func(choose func(past, last []float64) []int) Policy {
		return &windowed{terms: terms, choose: func(past []float64) []int {
			if len(past) < terms.Hold {
				return none
			}
			return choose(past, past[len(past)-terms.Hold:])
		}}
	}
	return map[string]Policy{
		"functions_only": after(func(_, _ []float64) []int { return none }),
		"static_peak": &windowed{terms: terms, choose: func([]float64) []int {
			return covers.For(most)
		}},
		"mean_tracking": after(func(_, last []float64) []int { return covers.For(mean(last)) }),
		"last_max_20pct": after(func(_, last []float64) []int {
			return covers.For(1.2 * slices.Max(last))
		}),
		"last_best": after(func(_, last []float64) []int {
			tasks, _ := covers.Best(last)
			return covers.For(tasks)
		}),
		"newsvendor": after(func(past, last []float64) []int {
			return covers.For(mean(last) * ratio(terms, past))
		}),
	}
}

// ratio is the newsvendor's quantile of loads over the mean of the window before, over the last day; 1 while there is
// none.
func ratio(terms provision.Terms, past []float64) float64 {
	cheapest := math.Inf(1)
	for _, host := range terms.Hosts {
		cheapest = min(cheapest, host.Step.USD()/host.Tasks)
	}
	past = past[max(0, len(past)-remembered-terms.Hold):]
	var ratios window
	for from := terms.Hold; from+terms.Hold <= len(past); from += terms.Hold {
		if before := mean(past[from-terms.Hold : from]); before > 0 {
			for _, load := range past[from : from+terms.Hold] {
				ratios.add(load / before)
			}
		}
	}
	if len(ratios.sorted) == 0 {
		return 1
	}
	return ratios.quantile(1 - cheapest/terms.Function.USD())
}

func mean(values []float64) float64 {
	sum := 0.0
	for _, value := range values {
		sum += value
	}
	return sum / float64(len(values))
}
