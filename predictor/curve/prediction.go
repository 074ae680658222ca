package curve

import (
	"fmt"
	"math"
)

// Options say what is known of a run besides its points. The zero value minimises and knows nothing.
type Options struct {
	// Direction says which values are better.
	Direction Direction
	// Planned is the step at which the run ends, in the unit of its steps; 0 if that is not known. Then [Prediction.Final]
	// takes it to end after any multiple m of the steps seen with a chance of 1 - 1/m (Lindy's law; Gott, Nature 1993),
	// and [Prediction.Reaches] takes it to be long enough for a level that the run can reach.
	Planned float64
	// Earlier is what earlier runs of the same workload were like, in the same direction; nil without any.
	Earlier *Workload
}

// Prediction is what is thought of a run. It does not change.
type Prediction struct {
	options Options
	trace   trace
	alone   ensemble
	alike   likeness
	phase   Phase
}

// Fit learns from the points of a run so far, in the order of their steps; a step may have several. Of no points, and
// of one, nothing follows but that what comes takes longer. The error wraps [ErrStep], [ErrOrder] or [ErrDirection] and
// says which point is wrong.
func Fit(points []Point, options Options) (*Prediction, error) {
	if err := options.Direction.check(); err != nil {
		return nil, fmt.Errorf("fit a learning curve: %w", err)
	}
	if err := check(points); err != nil {
		return nil, fmt.Errorf("fit a learning curve: %w", err)
	}
	if !(options.Planned >= 0) || math.IsInf(options.Planned, 0) {
		return nil, fmt.Errorf("fit a learning curve that is planned to end at %v: %w", options.Planned, ErrStep)
	}
	if w := options.Earlier; w != nil && len(w.runs) > 0 && w.direction != options.Direction {
		return nil, fmt.Errorf("fit a learning curve beside earlier runs in the other direction: %w", ErrDirection)
	}
	p := &Prediction{options: options, trace: traced(points, options.Direction)}
	p.phase = phaseOf(points, options.Direction, p.trace)
	if len(p.trace.steps) > 0 {
		p.alone = fitEnsemble(p.trace)
		p.alike = options.Earlier.like(p.trace)
	}
	return p, nil
}

// Phase is where the run is.
func (p *Prediction) Phase() Phase { return p.phase }

// Reaches is when the run first reaches a level, in the unit of its values. Of a run without points, and for NaN, it is
// never.
func (p *Prediction) Reaches(level float64) Steps {
	loss := p.options.Direction.loss(level)
	if len(p.trace.steps) == 0 || math.IsNaN(loss) {
		return Steps{now: 1, mass: mass{never: 1}}
	}
	if done := p.trace.first(loss); !math.IsInf(done, 1) {
		return Steps{done: done}
	}
	now := p.trace.last()
	reaches := p.alone.reaches(loss)
	if p.alike.share > 0 {
		reaches.mix(p.alike.reaches(now, loss), p.alike.share)
	}
	if p.options.Planned > 0 {
		reaches.end(math.Log(p.options.Planned / now))
	}
	return Steps{now: now, every: p.trace.every(), mass: reaches}
}

// At is the best value when a step is reached, at least the last one seen.
func (p *Prediction) At(step float64) Values {
	if len(p.trace.steps) == 0 || math.IsNaN(step) {
		return Values{}
	}
	u := math.Max(0, math.Min(farthest, math.Log(step/p.trace.last())))
	losses, share := p.alike.values(p.trace, u, &p.alone, nil)
	return distribution(p.options.Direction, p.alone.values(u, 1-share, losses))
}

// ends is how many ends of a run whose end is not known are looked at.
const ends = 5

// Final is the best value at the end of the run: at its planned end, or else when it may end.
func (p *Prediction) Final() Values {
	if len(p.trace.steps) == 0 {
		return Values{}
	}
	if p.options.Planned > 0 {
		return p.At(p.options.Planned)
	}
	losses, share := p.alike.values(p.trace, math.Inf(1), &p.alone, nil)
	for i := range ends {
		u := -math.Log(1 - (float64(i)+0.5)/ends)
		losses = p.alone.values(u, (1-share)/ends, losses)
	}
	return distribution(p.options.Direction, losses)
}
