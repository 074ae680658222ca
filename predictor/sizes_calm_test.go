package predictor_test

import (
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// sizesTold are the decisions of a plan that change a size, as text.
func sizesTold(plan predictor.Plan) []string {
	var told []string
	for _, line := range reasons(plan) {
		if strings.Contains(line, " size: ") {
			told = append(told, line)
		}
	}
	return told
}

// TestASizeOutlivesTheHosts lets the lease of the only host end and come back, as when an engine starts anew.
func TestASizeOutlivesTheHosts(t *testing.T) {
	t.Parallel()
	for name, state := range map[string]predictor.State{
		"learned":  history(predictor.State{}, "score", 0.4, []int{80, 110, 140, 170, 200}, []int{10, 20, 30, 40, 50}),
		"guessed":  {},
		"of hints": history(predictor.State{}, "score", 1, []int{100}, nil),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, slot, state := sized(t, state, quantity.Size{}, 50*quantity.MiB)
			for tick := range 6 {
				snap := laptop(2+float64(tick), 4)
				if tick%2 == 0 {
					snap.Hosts = nil
				}
				var plan predictor.Plan
				plan, state = predictor.Decide(state, snap)
				if told := sizesTold(plan); len(told) > 0 {
					t.Errorf("tick %d, %d hosts: a size of %v was changed: %v", tick, len(snap.Hosts), slot, told)
				}
			}
		})
	}
}

// TestALeaderThatBeginsKeepsTheSizesInForce folds what the last leader folded, without what it decided: its last
// checkpoint was before the stage's first task, or of a version that is not read.
func TestALeaderThatBeginsKeepsTheSizesInForce(t *testing.T) {
	t.Parallel()
	folded := func() predictor.State {
		state := history(predictor.State{}, "score", 0.4, []int{80, 110, 140, 170, 200}, []int{10, 20, 30, 40, 50})
		return fold(state, started("r", 0, predictor.Goal{}), hint("r", "score", 7, 0))
	}
	plan, _ := predictor.Decide(folded(), laptop(1, 4))
	snap := laptop(2, 4)
	snap.Term = 2
	for name, inForce := range map[string]predictor.Plan{
		"with slots": plan,
		"without":    {Term: plan.Term, Sizings: plan.Sizings},
	} {
		next, _ := predictor.Decide(predictor.Resume(folded(), inForce), snap)
		if told := sizesTold(next); len(told) > 0 {
			t.Errorf("%s: the first plan of the next leader changes sizes: %v", name, told)
		}
	}
	next, _ := predictor.Decide(predictor.Resume(folded(), plan), snap)
	if told := reasons(next); len(told) > 0 {
		t.Errorf("the first plan of the next leader changes what nobody asked for: %v", told)
	}
}

// TestASizeThatDependsOnAnInputDoesNotFlap ends attempts whose peaks depend on their input in several ways.
func TestASizeThatDependsOnAnInputDoesNotFlap(t *testing.T) {
	t.Parallel()
	const byText = "by a text"
	for name, need := range map[string]func(f *flow, task int) (input, peak float64){
		"hardly": func(f *flow, _ int) (input, peak float64) {
			input = 1 + 9*f.draw.Float64()
			return input, 20 + 0.3*input + 4*f.draw.Float64()
		},
		"with noise": func(f *flow, _ int) (input, peak float64) {
			input = 1 + 9*f.draw.Float64()
			return input, 20 + input + 8*f.draw.Float64()
		},
		"wholly": func(f *flow, _ int) (input, peak float64) {
			input = 10 * f.draw.ExpFloat64()
			return input, 5 + 3*input
		},
		"by its square or not": func(f *flow, _ int) (input, peak float64) {
			input = 1 + 9*f.draw.Float64()
			return input, 20 + 2*input + 0.2*input*input + 3*f.draw.Float64()
		},
		"with a large one now and then": func(f *flow, task int) (input, peak float64) {
			input = 5 + f.draw.Float64()
			if task%100 == 99 {
				input = 50
			}
			return input, 20 + 2*input
		},
		"with a large one now and then that nothing explains": func(f *flow, task int) (input, peak float64) {
			peak = 20 + f.draw.Float64()
			if task%100 == 99 {
				peak = 45
			}
			return 0, peak
		},
		byText: func(f *flow, _ int) (input, peak float64) {
			input = float64(f.draw.IntN(5))
			return input, (20 + f.draw.Float64()) * (1 + input)
		},
		byText + " beside other things": func(f *flow, _ int) (input, peak float64) {
			input = float64(f.draw.IntN(5))
			return input, (20 + 8*f.draw.Float64()) * (1 + input)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(2) {
				f := newFlow(seed, 30, 0.005)
				inputs := map[int]float64{}
				if strings.HasPrefix(name, byText) {
					f.features = func(task int) map[string]float64 { return map[string]float64{"kind=": 1 + inputs[task]} }
				}
				f.memory = func(task int) quantity.Bytes {
					input, peak := need(f, task)
					inputs[task] = input
					return quantity.Bytes(peak * float64(quantity.MiB))
				}
				f.input = func(task int) quantity.Bytes {
					if f.features != nil {
						return 0
					}
					return quantity.Bytes(inputs[task] * float64(quantity.MiB))
				}
				f.run(0, 300)
				steady := f.sizes
				for len(steady) > 0 && steady[0] < 130 {
					steady = steady[1:]
				}
				if got := most(steady); got > 2 {
					t.Errorf("seed %d: the size changed %d times within a minute, want at most 2:\n%s", seed, got,
						strings.Join(f.told, "\n"))
				}
			}
		})
	}
}
