package training

import (
	"context"
	"fmt"
	"math"

	"github.com/spillway-ml/spillway/predictor/curve"
)

// Parts are the parts of a run that are seen before it is asked. Nobody is told which part it is.
var Parts = [...]float64{0.2, 0.4, 0.6}

// Answer is what was said of one level of one run.
type Answer struct {
	// True is when the level was first reached; +Inf for never.
	True float64
	// Seen is the latest step that was seen.
	Seen float64
	// Said is the step that each predictor said, by name; +Inf for never.
	Said map[string]float64
	// Low and High are our interval for 80 %.
	Low, High float64
}

// Asked are answers by part of Parts.
type Asked [len(Parts)][]Answer

// worst caps an error.
const worst = 5

// failure is the error of what was said: relative to the true step, or 1 for a step where there is none.
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

// The names of predictors.
const (
	Ours          = "spillway"
	EarlierMedian = "earlier_median"
	// Hindsight is the constant multiple of the steps seen that has the least median error of these very answers.
	Hindsight = "multiple_hindsight"
)

// fewestSeen is how many points have to be seen before a run is asked: the families have three parameters.
const fewestSeen = 3

// Families are the baselines that see the run alone, by name.
func Families() map[string]Finish {
	return map[string]Finish{
		"power": Power(), "exponential": Exponential(), "optimus": Optimus(), "twice_seen": Multiple(2),
	}
}

// Replay asks of each run of a workload that is scored, after each of Parts, each level of the ladder that it has not
// reached by then. Warm, earlier runs are known.
func (p Protocol) Replay(ctx context.Context, of Workload, warm bool, into *Asked) error {
	var earlier []Run
	var workload *curve.Workload
	for _, s := range p.splits(of) {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		finishes := Families()
		if warm {
			finishes[EarlierMedian] = medianOf(s.earlier)
			if len(s.earlier) > 0 && (earlier == nil || &earlier[0] != &s.earlier[0]) {
				earlier = s.earlier
				var err error
				if workload, err = learned(of, earlier); err != nil {
					return err
				}
			}
		}
		if p.Measured {
			for name, finish := range finishes {
				finishes[name] = finish.Measured()
			}
		}
		if err := ask(s.run, of, workload, Ladder(s.earlier, of.Direction), finishes, into); err != nil {
			return err
		}
	}
	return nil
}

func learned(of Workload, earlier []Run) (*curve.Workload, error) {
	runs := make([][]curve.Point, len(earlier))
	for i, run := range earlier {
		runs[i] = run.Points
	}
	workload, err := curve.NewWorkload(of.Direction, runs...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", of.Name, err)
	}
	return workload, nil
}

// ask asks one run after each of Parts.
func ask(
	run Run, of Workload, earlier *curve.Workload, levels []float64, finishes map[string]Finish, into *Asked,
) error {
	for i, part := range Parts {
		seen := run.seen(part)
		if len(seen) < fewestSeen {
			continue
		}
		prediction, err := curve.Fit(seen, curve.Options{Direction: of.Direction, Earlier: earlier})
		if err != nil {
			return fmt.Errorf("run %s of %s: %w", run.Name, of.Name, err)
		}
		for _, level := range levels {
			if !math.IsInf(first(seen, of.Direction, level), 1) {
				continue
			}
			steps := prediction.Reaches(level)
			answer := Answer{
				True: first(run.Points, of.Direction, level), Seen: seen[len(seen)-1].Step,
				Said: map[string]float64{Ours: steps.Expected()},
			}
			answer.Low, answer.High = steps.Interval(0.8)
			for name, finish := range finishes {
				answer.Said[name] = finish(seen, of.Direction, level)
			}
			into[i] = append(into[i], answer)
		}
	}
	return nil
}

// Reference asks what families are known by: n runs at random, each for its own best level after 90 % of its steps.
func (p Protocol) Reference(of []Workload, n int) (Asked, error) {
	type one struct {
		run Run
		of  Workload
	}
	var all []one
	for _, workload := range of {
		for _, run := range workload.Runs {
			all = append(all, one{run, workload})
		}
	}
	var asked Asked
	for _, i := range p.random("reference").Perm(len(all))[:min(n, len(all))] {
		run, workload := all[i].run, all[i].of
		level := best(run.seen(0.9), workload.Direction)
		if math.IsNaN(level) {
			continue
		}
		if err := ask(run, workload, nil, []float64{level}, Families(), &asked); err != nil {
			return asked, err
		}
	}
	return asked, nil
}

// Know adds Hindsight to what was said.
func Know(answers []Answer) {
	times, least := 1.0, math.Inf(1)
	for i := range 200 { // up to ten times, in steps of about a percent
		of := math.Pow(10, float64(i)/200)
		errors := make([]float64, len(answers))
		for j, a := range answers {
			errors[j] = failure(of*a.Seen, a.True)
		}
		if median := quantile(errors, 0.5); median < least {
			times, least = of, median
		}
	}
	for _, a := range answers {
		a.Said[Hindsight] = times * a.Seen
	}
}

// Error is the quantile at a level of the errors of a predictor; NaN without any answer.
func Error(answers []Answer, of string, level float64) float64 {
	errors := make([]float64, len(answers))
	for i, a := range answers {
		errors[i] = failure(a.Said[of], a.True)
	}
	return quantile(errors, level)
}

// rounded is by which part a step is off that was added up.
const rounded = 1e-9

// Covered is the part of the answers whose level was reached within our interval for 80 %, or never if that is in it.
func Covered(answers []Answer) float64 {
	covered := 0
	for _, a := range answers {
		if a.Low <= a.True*(1+rounded) && a.True <= a.High*(1+rounded) {
			covered++
		}
	}
	return float64(covered) / float64(len(answers))
}
