package spill

import (
	"math"
	"slices"

	"github.com/spillway-ml/spillway/predictor/provision"
)

// Forecaster foretells the load of the next steps from the steps so far.
type Forecaster interface {
	// Observe tells how many tasks arrived in the step that has just ended.
	Observe(tasks float64)
	// Forecast is of the next steps.
	Forecast(steps int) provision.Forecast
}

// levels are the quantiles of forecasts: every twentieth, and one for the tail.
var levels = []float64{
	.01, .05, .1, .15, .2, .25, .3, .35, .4, .45, .5, .55, .6, .65, .7, .75, .8, .85, .9, .95, .99,
}

// remembered is how many errors a quantile rests on: a day of minutes.
const remembered = 1440

// Empirical foretells what was seen: a level, times the ratios of what came to the level of the time, at each distance
// a step on the last day. The level is the moving average, of several, whose logarithm was nearest in the mean of the
// last hours.
type Empirical struct {
	horizon  int
	averages []average
	history  [][]float64 // by average, the levels at the last steps
	ratios   [][]window  // by average, by distance
	errors   [][]float64 // by average, by distance: decayed mean absolute error
	seen     int
}

type average struct{ weight, level float64 }

// NewEmpirical foretells as many steps as are asked of it.
func NewEmpirical(horizon int) *Empirical {
	e := &Empirical{horizon: horizon}
	for _, weight := range []float64{1, .5, .25, .125, .0625} {
		e.averages = append(e.averages, average{weight: weight})
	}
	for range e.averages {
		e.ratios = append(e.ratios, make([]window, horizon))
		e.errors = append(e.errors, make([]float64, horizon))
		e.history = append(e.history, nil)
	}
	return e
}

// Observe implements Forecaster.
func (e *Empirical) Observe(tasks float64) {
	for i := range e.averages {
		for k := 1; k <= min(e.horizon, len(e.history[i])); k++ {
			level := e.history[i][len(e.history[i])-k]
			ratio := math.Log((tasks + 1) / (level + 1))
			e.ratios[i][k-1].add(ratio)
			decay := 1 - 1/math.Min(float64(e.seen+1), 240)
			e.errors[i][k-1] = decay*e.errors[i][k-1] + (1-decay)*math.Abs(tasks-level)
		}
		a := &e.averages[i]
		a.level += (tasks - a.level) * max(a.weight, 1/float64(e.seen+1))
		e.history[i] = append(e.history[i], a.level)
		if len(e.history[i]) > e.horizon {
			e.history[i] = e.history[i][1:]
		}
	}
	e.seen++
}

// Forecast implements Forecaster.
func (e *Empirical) Forecast(steps int) provision.Forecast {
	forecast := provision.Forecast{Levels: levels, Steps: make([][]float64, steps)}
	for s := range steps {
		k := min(s, e.horizon-1)
		best := 0
		for i := range e.averages {
			if e.errors[i][k] < e.errors[best][k] {
				best = i
			}
		}
		level := e.averages[best].level
		values := make([]float64, len(levels))
		for j, q := range levels {
			values[j] = max(0, (level+1)*math.Exp(e.ratios[best][k].quantile(q))-1)
		}
		forecast.Steps[s] = values
	}
	return forecast
}

// window holds the last values, sorted.
type window struct {
	order  []float64
	sorted []float64
}

func (w *window) add(value float64) {
	if len(w.order) == remembered {
		at, _ := slices.BinarySearch(w.sorted, w.order[0])
		w.sorted = slices.Delete(w.sorted, at, at+1)
		w.order = w.order[1:]
	}
	w.order = append(w.order, value)
	at, _ := slices.BinarySearch(w.sorted, value)
	w.sorted = slices.Insert(w.sorted, at, value)
}

// quantile is 0 while nothing is known.
func (w *window) quantile(q float64) float64 {
	if len(w.sorted) == 0 {
		return 0
	}
	at := q * float64(len(w.sorted)-1)
	low := int(at)
	high := min(low+1, len(w.sorted)-1)
	return w.sorted[low] + (at-float64(low))*(w.sorted[high]-w.sorted[low])
}
