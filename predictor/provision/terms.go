package provision

import (
	"errors"
	"fmt"
	"math"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// ErrTerms is wrapped by every refusal of terms, forecasts and pools.
var ErrTerms = errors.New("cannot be decided on")

// Host is a type of host that can be had.
type Host struct {
	Name string
	// Tasks is how many tasks it serves in a step; finite and more than 0.
	Tasks float64
	// Step is what it costs in a step, from its launch on, also while it starts; more than 0.
	Step quantity.Money
	// Launch is what a launch costs besides; 0 for nothing.
	Launch quantity.Money
}

// Terms are the prices and the times on which capacity is had. A step is the time between two decisions.
type Terms struct {
	Hosts []Host
	// Function is what functions cost for a task; not negative.
	Function quantity.Money
	// Delay is how many steps after the decision a host serves nothing yet; 0 when it serves from the next step on.
	Delay int
	// Hold is for how many steps a host that serves is held at least; at least 1.
	Hold int
}

// Horizon is how many steps a forecast has to cover: until a host that is launched now may be released.
func (t Terms) Horizon() int { return t.Delay + t.Hold }

// Committed is what a launch costs until the host may be released.
func (t Terms) Committed(host int) quantity.Money {
	return t.Hosts[host].Launch.Plus(t.Hosts[host].Step.Times(float64(t.Horizon())))
}

// Validate returns the first reason why nothing can be decided on these terms.
func (t Terms) Validate() error {
	switch {
	case len(t.Hosts) == 0:
		return fmt.Errorf("terms without a type of host: %w; name at least one", ErrTerms)
	case t.Function < 0:
		return fmt.Errorf("a function price of %s for a task: %w; give one that is not negative", t.Function, ErrTerms)
	case t.Delay < 0 || t.Hold < 1 || t.Horizon() > mostSteps:
		return fmt.Errorf("a delay of %d steps and a hold of %d: %w; give at least 0 and 1, together at most %d", t.Delay,
			t.Hold, ErrTerms, mostSteps)
	}
	for _, host := range t.Hosts {
		if !(host.Tasks > 0) || math.IsInf(host.Tasks, 1) || host.Step <= 0 || host.Launch < 0 {
			return fmt.Errorf("host %q that serves %v tasks a step for %s and %s a launch: %w; give more than 0 tasks, a price "+
				"above 0 and a launch that is not negative", host.Name, host.Tasks, host.Step, host.Launch, ErrTerms)
		}
	}
	return nil
}

// mostSteps bounds delay and hold: a week of minutes.
const mostSteps = 7 * 24 * 60

// Held is a host of the pool.
type Held struct {
	// Host is its type, an index of the terms.
	Host int
	// Age is how many steps have ended since it was launched. It serves from age Delay on and may be released from age
	// Delay + Hold on.
	Age int
}

// Forecast is the load of the next steps, each as quantiles of how many tasks arrive.
type Forecast struct {
	// Levels are the probabilities of the quantiles, rising, each in (0, 1).
	Levels []float64
	// Steps has for each step from the next one on the quantiles at Levels, not falling and not negative.
	//
	// Between two quantiles the load is as likely anywhere; below the lowest level it is the lowest quantile and above the
	// highest level the highest one, so that nothing is held for loads of which the forecast says nothing.
	Steps [][]float64
}

// validate returns the first reason why the forecast cannot be read for so many steps.
func (f Forecast) validate(steps int) error {
	last := 0.0
	for _, level := range f.Levels {
		if !(level > last && level < 1) {
			return fmt.Errorf("forecast levels %v: %w; give rising probabilities between 0 and 1", f.Levels, ErrTerms)
		}
		last = level
	}
	if len(f.Levels) == 0 || len(f.Steps) < steps {
		return fmt.Errorf("a forecast of %d levels for %d steps: %w; give at least one level for %d steps", len(f.Levels),
			len(f.Steps), ErrTerms, steps)
	}
	for s, values := range f.Steps[:steps] {
		last = 0
		if len(values) != len(f.Levels) {
			return fmt.Errorf("step %d of the forecast has %d quantiles for %d levels: %w", s+1, len(values), len(f.Levels),
				ErrTerms)
		}
		for _, value := range values {
			if !(value >= last) || math.IsInf(value, 1) {
				return fmt.Errorf("step %d of the forecast has the quantiles %v: %w; give finite counts that do not fall", s+1,
					values, ErrTerms)
			}
			last = value
		}
	}
	return nil
}

// served is the expected number of tasks of a step that a capacity serves,
//
//	E[min(L, c)] = integral from 0 to c of P(L > x) dx
//
// with the distribution that Levels and one row of Steps describe; 0 for a capacity of 0 or less.
func served(levels, quantiles []float64, capacity float64) float64 {
	r := reading{levels: levels, quantiles: quantiles}
	return r.at(capacity)
}

// reading is served at capacities that do not fall, read once from the lowest quantile to the highest.
type reading struct {
	levels, quantiles []float64
	below             int     // how many quantiles are passed
	sum               float64 // served up to the last of them
}

func (r *reading) at(capacity float64) float64 {
	for r.below < len(r.quantiles) && capacity >= r.quantiles[r.below] {
		r.sum += r.part(r.quantiles[r.below])
		r.below++
	}
	if r.below == len(r.quantiles) {
		return r.sum
	}
	return r.sum + r.part(max(0, capacity))
}

// part is the integral from the last quantile that was passed to a capacity that is not above the next one.
func (r *reading) part(to float64) float64 {
	if r.below == 0 {
		return to
	}
	low, high := r.quantiles[r.below-1], r.quantiles[r.below]
	if high <= low {
		return 0
	}
	// P(L > x) falls linearly from one level to the next.
	at, next := 1-r.levels[r.below-1], 1-r.levels[r.below]
	reached := at + (next-at)*(to-low)/(high-low)
	return (to - low) * (at + reached) / 2
}
