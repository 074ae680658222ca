package curve_test

import (
	"math"
	"testing"

	"github.com/spillway-ml/spillway/predictor/curve"
)

// trailOf is the trail of a task that tells a value every few steps.
func trailOf(metric string, from, to, every int, value func(step float64) float64) *curve.Trail {
	t := &curve.Trail{}
	for step := from + every; step <= to; step += every {
		t.Tell(step, map[string]float64{metric: value(float64(step))}, nil, curve.MostTrail)
	}
	return t
}

func falling(step float64) float64 { return 0.2 + math.Pow(step, -0.5) }

// Epochs of a hundred steps, of which nine are had and 27 may be: the loss is 0.2 + 1/sqrt(steps).
func TestAProspectHoldsWhereATrainingEnds(t *testing.T) {
	t.Parallel()
	end := falling(2700)
	for name, test := range map[string]struct {
		trail *curve.Trail
		s     curve.Stretch
		want  float64
	}{
		"from the beginning": {trailOf("loss", 0, 900, 50, falling), curve.Stretch{Before: 3, To: 9, Most: 27}, end},
		"from a checkpoint": {
			trailOf("loss", 300, 900, 50, falling), curve.Stretch{From: 3, Before: 3, To: 9, Most: 27}, end,
		},
		"of an accuracy": {
			trailOf("val_acc", 0, 900, 50, func(step float64) float64 { return 1 - falling(step) }),
			curve.Stretch{Before: 3, To: 9, Most: 27},
			1 - end,
		},
		"at the end": {trailOf("loss", 0, 2700, 50, falling), curve.Stretch{Before: 9, To: 27, Most: 27}, end},
	} {
		p := test.trail.Prospect(test.s)
		if p == nil {
			t.Errorf("%s: nothing is told", name)
			continue
		}
		if p.Low > test.want+1e-12 || p.High < test.want-1e-12 || p.High-p.Low > 0.08 {
			t.Errorf("%s: from %g to %g, want about %g", name, p.Low, p.High, test.want)
		}
		last := test.trail.Points[len(test.trail.Points)-1].Value
		if p.Value != last || p.Metric != test.trail.Metric {
			t.Errorf("%s: it told %s %g last, want %s %g", name, p.Metric, p.Value, test.trail.Metric, last)
		}
		if known := p.Before != nil; known != (test.s.From == 0) {
			t.Errorf("%s: what was before is known: %v", name, known)
		}
	}
	p := trailOf("loss", 0, 900, 50, falling).Prospect(curve.Stretch{Before: 3, To: 9, Most: 27})
	if p.Before == nil || *p.Before != falling(300) {
		t.Errorf("before, at 300 steps, it was %v, want %g", p.Before, falling(300))
	}
}

func TestOfSomeTrailsNoProspectIsTold(t *testing.T) {
	t.Parallel()
	diverged := trailOf("loss", 0, 900, 100, falling)
	diverged.Tell(900, nil, []string{"loss"}, curve.MostTrail)
	for name, test := range map[string]struct {
		trail *curve.Trail
		s     curve.Stretch
	}{
		"three points":                  {trailOf("loss", 0, 900, 300, falling), curve.Stretch{To: 9, Most: 27}},
		"none":                          {&curve.Trail{}, curve.Stretch{To: 9, Most: 27}},
		"steps that begin anew":         {trailOf("loss", 0, 600, 50, falling), curve.Stretch{From: 3, To: 9, Most: 27}},
		"few steps that may begin anew": {trailOf("loss", 0, 600, 100, falling), curve.Stretch{From: 1, To: 9, Most: 27}},
		"a last value that is none":     {diverged, curve.Stretch{To: 9, Most: 27}},
		"a stretch that ends beyond":    {trailOf("loss", 0, 900, 50, falling), curve.Stretch{To: 9, Most: 3}},
		"a stretch of nothing":          {trailOf("loss", 0, 900, 50, falling), curve.Stretch{}},
		"a stretch that is no number":   {trailOf("loss", 0, 900, 50, falling), curve.Stretch{To: math.NaN(), Most: 3}},
	} {
		if p := test.trail.Prospect(test.s); p != nil {
			t.Errorf("%s: %+v is told", name, *p)
		}
	}
}
