package training

import (
	"context"
	"fmt"
	"math"

	"github.com/spillway-ml/spillway/predictor/curve"
)

// Parts are the parts of a run that are seen before it is asked.
var Parts = [...]float64{0.2, 0.4, 0.6}

// Answer is what was said of one level of one run.
type Answer struct {
	// True is when the level was first reached; +Inf for never.
	True float64
	// Seen is the steps that were seen.
	Seen float64
	// Said is what each predictor said, by name.
	Said map[string]float64
	// Low and High are our interval for 80 %.
	Low, High float64
	PIT float64
	// Never is our chance that it is not reached.
	Never float64
}

// worst caps an error, as the least that is worth nothing.
const worst = 5

// failure is the error of what was said.
func failure(said, actual float64) float64 {
	switch {
	case math.IsInf(said, 1) && math.IsInf(actual, 1):
		return 0
	case math.IsInf(actual, 1):
		return 1
	default:
		return math.Min(worst, math.Abs(said-actual)/actual)
	}
}

// Ours is the name of our own predictions among what was said.
const Ours = "spillway"

// Asked are answers by part of Parts.
type Asked [len(Parts)][]Answer

// fewestSeen is how many points have to be seen before a run is asked: the baselines have three parameters.
const fewestSeen = 3

// Replay asks of each run of a workload that is scored, after each part of it, each level of the ladder that is not
// reached yet.
func (p Protocol) Replay(ctx context.Context, of Workload, warm bool, into *Asked) error {
	var workload *curve.Workload
	var from *Run
	for _, s := range p.splits(of) {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		levels := Ladder(s.earlier, of.Direction)
		baselines := map[string]Finish{
			"power": Power(), "exponential": Exponential(), "optimus": Optimus(), "twice": Multiple(2),
		}
		if warm {
			baselines["earlier_median"] = EarlierMedian(s.earlier)
			if from == nil || from != &s.earlier[0] {
				from = &s.earlier[0]
				var err error
				if workload, err = learned(s.earlier, of.Direction); err != nil {
					return err
				}
			}
		}
		for i, part := range Parts {
			seen := s.run.seen(part * s.run.last())
			if len(seen) < fewestSeen {
				continue
			}
			prediction, err := curve.Fit(seen, curve.Options{Direction: of.Direction, Earlier: workload})
			if err != nil {
				return fmt.Errorf("fit run %s of %s: %w", s.run.Name, of.Name, err)
			}
			for _, level := range levels {
				if !math.IsInf(first(seen, of.Direction, level), 1) {
					continue
				}
				answer := Answer{
					True: first(s.run.Points, of.Direction, level), Seen: seen[len(seen)-1].Step, Said: map[string]float64{},
				}
				for name, finish := range baselines {
					answer.Said[name] = finish(seen, of.Direction, level)
				}
				steps := prediction.Reaches(level)
				answer.Said[Ours] = steps.Expected()
				answer.PIT = steps.By(answer.True)
				answer.Never = steps.Never()
				answer.Low, answer.High = steps.Interval(0.8)
				into[i] = append(into[i], answer)
			}
		}
	}
	return nil
}

func learned(earlier []Run, direction curve.Direction) (*curve.Workload, error) {
	runs := make([][]curve.Point, len(earlier))
	for i, run := range earlier {
		runs[i] = run.Points
	}
	return curve.NewWorkload(direction, runs...)
}

// Covered is the part of the answers whose level was reached within our interval.
func Covered(answers []Answer) float64 {
	covered := 0
	for _, a := range answers {
		if a.Low <= a.True && a.True <= a.High {
			covered++
		}
	}
	return float64(covered) / float64(len(answers))
}

// Error is the quantile of the errors of a predictor.
func Error(answers []Answer, of string, level float64) float64 {
	errors := make([]float64, len(answers))
	for i, a := range answers {
		errors[i] = failure(a.Said[of], a.True)
	}
	return quantile(errors, level)
}

// BestMultiple is the constant multiple of the steps seen with the least median error of these very answers: it knows
// the future.
func BestMultiple(answers []Answer) float64 {
	best, least := 1.0, math.Inf(1)
	for i := range 200 {
		times := math.Exp(float64(i) / 200 * math.Log(10))
		errors := make([]float64, len(answers))
		for j, a := range answers {
			errors[j] = failure(times*a.Seen, a.True)
		}
		if of := quantile(errors, 0.5); of < least {
			best, least = times, of
		}
	}
	return best
}

// Reference asks what the families are known by: random runs, the level of the best so far at 90 % of the run.
func (p Protocol) Reference(of []Workload, n int) Asked {
	var asked Asked
	type one struct {
		run       Run
		direction curve.Direction
	}
	var all []one
	for _, w := range of {
		for _, run := range w.Runs {
			all = append(all, one{run, w.Direction})
		}
	}
	order := p.random("reference").Perm(len(all))
	for _, i := range order[:min(n, len(order))] {
		run, direction := all[i].run, all[i].direction
		level := best(run.seen(0.9*run.last()), direction)
		for j, part := range Parts {
			seen := run.seen(part * run.last())
			if len(seen) < fewestSeen || !math.IsInf(first(seen, direction, level), 1) {
				continue
			}
			asked[j] = append(asked[j], Answer{
				True: first(run.Points, direction, level), Seen: seen[len(seen)-1].Step,
				Said: map[string]float64{
					"power":       Power()(seen, direction, level),
					"exponential": Exponential()(seen, direction, level),
					"optimus":     Optimus()(seen, direction, level),
				},
			})
		}
	}
	return asked
}
