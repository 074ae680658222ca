package provision

import (
	"fmt"
	"slices"

	"gonum.org/v1/gonum/floats"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/words"
)

// Decision is what is held from now on. What arrives above it is for functions.
type Decision struct {
	// Launch is how many hosts of each type are launched now.
	Launch []int
	// Release are the indices of the held hosts that are given back now, rising.
	Release []int
	// Capacity is how many tasks a step what is held then serves, once it serves.
	Capacity float64
	// Spilled is how many tasks functions are expected to take over the horizon.
	Spilled float64
	// Gain is what the launches and the hosts that are kept although they may go save over the horizon, as expected,
	// beside functions.
	Gain quantity.Money
	// Reason says why, for people.
	Reason string
}

// Decide holds what pays beside functions, as the forecast expects.
//
// A unit of capacity at the level x saves price x P(L > x) in a step, because a task that the pool has no room for goes
// to a function. So the capacity that costs least is the quantile of the load at which the chance of using another unit
// is what the unit costs over what functions would,
//
//	P(L > q) = c_pool / c_function          (per task)
//
// the newsvendor's (T. M. Whitin, "Inventory control and price theory", Management Science 2(1), 1955; as it is used
// between hosts and functions: MArk, C. Zhang et al., USENIX ATC 2019). Hosts are lumps of several sizes and prices,
// have to be launched before and held for a while, and the load changes meanwhile, so the quantile is taken over all
// steps of the hold together: a combination of hosts is launched whose cost until it may be released is furthest below
// what functions would cost over the same steps (the covering knapsack).
//
// A host that is held and may be released competes without its launch; it is kept when there is a number of steps over
// which it pays beside all others that stay, and released otherwise. One that may not be released yet is expected to be
// kept: then its next steps cost less than those of any other.
//
// The forecast covers at least Horizon steps. An error wraps ErrTerms and says what was wrong.
func Decide(terms Terms, pool []Held, forecast Forecast) (Decision, error) {
	if err := terms.Validate(); err != nil {
		return Decision{}, err
	}
	if err := forecast.validate(terms.Horizon()); err != nil {
		return Decision{}, err
	}
	for i, held := range pool {
		if held.Host < 0 || held.Host >= len(terms.Hosts) || held.Age < 0 {
			return Decision{}, fmt.Errorf("held host %d of type %d and age %d: %w; give a type of the terms and an age of at "+
				"least 0", i, held.Host, held.Age, ErrTerms)
		}
	}
	p := planner{terms: terms, pool: pool, forecast: forecast}
	return p.decide(), nil
}

// planner is one decision on the way.
type planner struct {
	terms    Terms
	pool     []Held
	forecast Forecast
	launched []int // how many of each type
	stays    []bool
	gain     float64
}

func (p *planner) decide() Decision {
	p.stays, p.launched = make([]bool, len(p.pool)), make([]int, len(p.terms.Hosts))
	for i, held := range p.pool {
		p.stays[i] = held.Age < p.terms.Horizon()
	}
	p.launch()
	for p.keep() {
	}
	decision := Decision{Launch: p.launched}
	for host, n := range p.launched {
		decision.Capacity += float64(n) * p.terms.Hosts[host].Tasks
	}
	for i, held := range p.pool {
		if p.stays[i] {
			decision.Capacity += p.terms.Hosts[held.Host].Tasks
		} else {
			decision.Release = append(decision.Release, i)
		}
	}
	for s, base := range p.capacities(p.terms.Horizon()) {
		decision.Spilled += p.expected(s) - served(p.forecast.Levels, p.forecast.Steps[s], base)
	}
	decision.Gain = quantity.USD.Times(p.gain)
	decision.Reason = p.reason(decision)
	return decision
}

// launch chooses what is launched, and which of the hosts that may go stay for at least as long as a launch would.
func (p *planner) launch() {
	t := p.terms
	g, saved := p.saved(t.Delay, t.Horizon())
	options := p.mayGo(g, t.Hold)
	for i := range t.Hosts {
		options = append(options, g.launch(t, i, t.Committed(i).USD()))
	}
	sums := saved[len(saved)-1]
	chosen, gain := cover(sums[:p.soon(g, saved[0])+1], options)
	p.take(chosen, gain)
}

// soon is how many cells pay in the first step that a launch serves. What pays only later is launched later, when
// more is known: until then its steps would cost more than they save.
func (p *planner) soon(g grid, first []float64) int {
	var options []option
	for i, host := range p.terms.Hosts {
		options = append(options, g.launch(p.terms, i, host.Step.USD()))
	}
	chosen, _ := cover(first, options)
	cells := 0
	for _, o := range chosen {
		cells += o.cells
	}
	return min(cells, g.cells)
}

// keep looks for hosts that may go and pay over some number of steps beside what stays, and lets those stay that pay
// most. It returns whether there were any.
func (p *planner) keep() bool {
	if !slices.Contains(p.stays, false) {
		return false
	}
	var best []option
	most := 0.0
	g, saved := p.saved(0, p.terms.Horizon())
	for n, sums := range saved {
		if chosen, gain := cover(sums, p.mayGo(g, n+1)); gain > most+tiny {
			best, most = chosen, gain
		}
	}
	p.take(best, most)
	return len(best) > 0
}

// mayGo are the options to keep those hosts for so many steps that may go and do not stay yet.
func (p *planner) mayGo(g grid, steps int) (options []option) {
	of := make([][]int, len(p.terms.Hosts))
	for i, held := range p.pool {
		if !p.stays[i] {
			of[held.Host] = append(of[held.Host], i)
		}
	}
	for host, indices := range of {
		price := p.terms.Hosts[host].Step.Times(float64(steps)).USD()
		options = append(options, g.held(p.terms, host, price, indices)...)
	}
	return options
}

func (p *planner) take(chosen []option, gain float64) {
	p.gain += gain
	for _, o := range chosen {
		if o.held == nil {
			p.launched[o.host] += o.lot
		}
		for _, i := range o.held {
			p.stays[i] = true
		}
	}
}

// capacities is what serves in each of the next steps.
func (p *planner) capacities(steps int) []float64 {
	base := make([]float64, steps)
	for i, held := range p.pool {
		for s := max(0, p.terms.Delay-held.Age); p.stays[i] && s < steps; s++ {
			base[s] += p.terms.Hosts[held.Host].Tasks
		}
	}
	for host, n := range p.launched {
		for s := p.terms.Delay; s < steps; s++ {
			base[s] += float64(n) * p.terms.Hosts[host].Tasks
		}
	}
	return base
}

// saved returns, for each number of steps of the forecast after the first from, what capacities above those that stay
// save over them, up to the step before to.
func (p *planner) saved(from, to int) (grid, [][]float64) {
	capacities, top := p.capacities(to), 0.0
	for s := from; s < to; s++ {
		quantiles := p.forecast.Steps[s]
		top = max(top, quantiles[len(quantiles)-1]-capacities[s])
	}
	g, price := newGrid(p.terms.Hosts, top), p.terms.Function.USD()
	var sums [][]float64
	for s := from; s < to; s++ {
		step := g.saved(p.forecast.Levels, p.forecast.Steps[s], capacities[s], price)
		if s > from {
			floats.Add(step, sums[len(sums)-1])
		}
		sums = append(sums, step)
	}
	return g, sums
}

// expected is the mean load of a step.
func (p *planner) expected(step int) float64 {
	quantiles := p.forecast.Steps[step]
	return served(p.forecast.Levels, quantiles, quantiles[len(quantiles)-1])
}

func (p *planner) reason(d Decision) string {
	what := "nothing changes"
	launched := 0
	for _, n := range p.launched {
		launched += n
	}
	switch {
	case launched > 0 && len(d.Release) > 0:
		what = fmt.Sprintf("%s launched and %d released", words.Count(launched, "host"), len(d.Release))
	case launched > 0:
		what = words.Count(launched, "host") + " launched"
	case len(d.Release) > 0:
		what = words.Count(len(d.Release), "host") + " released"
	}
	total := 0.0
	for s := range p.terms.Horizon() {
		total += p.expected(s)
	}
	return fmt.Sprintf("%s: %.0f tasks are expected in %s, of which functions take %.0f at %s each; hosts that could go "+
		"and those that are launched save %s of it", what, total, words.Count(p.terms.Horizon(), "step"), d.Spilled,
		p.terms.Function, d.Gain)
}

// Apply returns the pool as it is right after the decision, when what is launched has age 0. Who holds it adds a step
// to every age as a step ends.
func (d Decision) Apply(pool []Held) []Held {
	next := make([]Held, 0, len(pool))
	for i, held := range pool {
		if _, gone := slices.BinarySearch(d.Release, i); !gone {
			next = append(next, held)
		}
	}
	for host, n := range d.Launch {
		for range n {
			next = append(next, Held{Host: host})
		}
	}
	return next
}
