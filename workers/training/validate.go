package training

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workflows/nearest"
)

// ValidationLoss names the loss of the validation data among the numbers of an evaluation.
const ValidationLoss = "validation_loss"

// Which parameters the trained model has.
const (
	ResultLast = "last"
	ResultBest = "best"
)

// Evaluated is what a model made of the validation data after so many steps.
type Evaluated struct {
	Step int64
	exec.Evaluation
}

// Numbers are ValidationLoss and the metrics by name, those that are finite.
func (e Evaluated) Numbers() map[string]float64 {
	all := map[string]float64{ValidationLoss: e.Loss}
	maps.Copy(all, e.Metrics)
	maps.DeleteFunc(all, func(_ string, value float64) bool { return math.IsNaN(value) || math.IsInf(value, 0) })
	return all
}

// number is one of them, which need not be finite.
func (e Evaluated) number(name string) (value float64, there bool) {
	if name == ValidationLoss {
		return e.Loss, true
	}
	value, there = e.Metrics[name]
	return value, there
}

// Goal says which evaluation is better than another: "min:NAME", "max:NAME", or NAME alone, of which less is better.
type Goal struct {
	// Name is ValidationLoss or that of a metric.
	Name string
	// Most says that more is better.
	Most bool
}

// ParseGoal reads a goal; an empty text is the least loss.
func ParseGoal(text string) (Goal, error) {
	goal := Goal{Name: text}
	if direction, name, told := strings.Cut(text, ":"); told {
		if direction != "min" && direction != "max" {
			return Goal{}, fmt.Errorf("%q begins with neither min: nor max:; write NAME, min:NAME or max:NAME", text)
		}
		goal = Goal{Name: name, Most: direction == "max"}
	} else if text == "" {
		goal.Name = ValidationLoss
	}
	if goal.Name == "" {
		return Goal{}, fmt.Errorf("%q names no metric; write NAME, min:NAME or max:NAME", text)
	}
	return goal, nil
}

// String is what ParseGoal reads.
func (g Goal) String() string {
	if g.Most {
		return "max:" + g.Name
	}
	return "min:" + g.Name
}

// Better reports whether value is better than other by more than margin. What is not finite is not better.
func (g Goal) Better(value, other, margin float64) bool {
	switch {
	case math.IsNaN(value) || math.IsInf(value, 0):
		return false
	case g.Most:
		return value-other > margin
	default:
		return other-value > margin
	}
}

// judged returns how evaluations stand after one more, and whether it is the best so far. Those in turn are counted
// that were not better by more than margin than the last that was. before is nil where there was none.
func judged(before *exec.Standing, goal Goal, step int64, value, margin float64) (now exec.Standing, best bool) {
	now = exec.Standing{Goal: goal.String()}
	if before != nil && before.Goal == now.Goal {
		now = *before
	}
	bar, mark := now.Best, now.Mark
	if now.BestStep == 0 { // none was finite
		bar = math.Inf(1)
		if goal.Most {
			bar = math.Inf(-1)
		}
		mark = bar
	}
	if best = goal.Better(value, bar, 0); best {
		now.Best, now.BestStep, now.BestParts, now.From = value, step, nil, ""
	}
	now.Stale++
	if goal.Better(value, mark, margin) {
		now.Mark, now.Stale = value, 0
	}
	return now, best
}

// validating looks at validation data while a training goes on.
type validating struct {
	evaluator exec.Evaluator // nil where nothing is evaluated
	every     int64          // steps; 0 is the end alone
	goal      Goal
	patience  int // 0 is no bound
	margin    float64
	last      *Evaluated // nil before the first
}

// wantsValidation says what of a job needs validation data; empty is nothing.
func (j Job) wantsValidation() string {
	switch {
	case j.Patience > 0:
		return "patience"
	case j.EvaluateEvery > 0:
		return "evaluation"
	case j.Best != "" || j.Result == ResultBest:
		return "the best checkpoint"
	default:
		return ""
	}
}

// checkValidation refuses what needs validation data where there are none, and a metric that there is not. Names are
// those of the metrics; nil where they are not known.
func (j Job) checkValidation(validates bool, names []string) error {
	if wants := j.wantsValidation(); wants != "" && !validates {
		return refused("%s needs validation data, and there are none; define validation() in the model's file or name "+
			"their path", wants)
	}
	if validates && j.sharded() {
		return refused("replicas that divide what the %s take are not evaluated with validation data; leave the sharding "+
			"out, or the validation data, and evaluate the trained model afterwards", j.Sharding)
	}
	goal, err := ParseGoal(j.Best)
	if err != nil || names == nil || goal.Name == ValidationLoss || slices.Contains(names, goal.Name) {
		return err
	}
	return noMetric(goal.Name, names)
}

// noMetric says that there is no metric of a name.
func noMetric(name string, names []string) error {
	known := append([]string{ValidationLoss}, names...)
	if near := nearest.Names(name, known); len(near) > 0 {
		return refused("there is no metric %q; did you mean %s?", name, strings.Join(near, ", "))
	}
	return refused("there is no metric %q; there is %s", name, strings.Join(known, ", "))
}

// newValidating decides when the model is evaluated.
func newValidating(job Job, pipeline exec.Pipeline) (validating, error) {
	data := pipeline.Data()
	if err := job.checkValidation(data.Validates, nil); err != nil {
		return validating{}, err
	}
	goal, err := ParseGoal(job.Best)
	if err != nil || !data.Validates {
		return validating{}, err
	}
	v := validating{goal: goal, every: job.EvaluateEvery, patience: job.Patience, margin: job.MinDelta}
	if v.every == 0 {
		v.every = data.StepsPerEpoch
	}
	if v.patience > 0 && v.every == 0 {
		return validating{}, refused("patience needs evaluations while the training goes on, and the data does not say " +
			"how many steps an epoch has; say after how many steps")
	}
	var can bool
	if v.evaluator, can = pipeline.(exec.Evaluator); !can {
		return validating{}, refused("the %s executor does not evaluate a model in this layout; leave the validation data "+
			"out", job.Executor.Name())
	}
	return v, nil
}

// due reports whether the model is evaluated after so many steps.
func (v *validating) due(step, total int64) bool {
	return v.evaluator != nil && (step == total || v.every > 0 && step%v.every == 0)
}

// over reports whether so many evaluations have brought nothing that the training ends.
func (v *validating) over(standing *exec.Standing) bool {
	return v.patience > 0 && standing != nil && standing.Goal == v.goal.String() && standing.Stale >= v.patience
}

// look evaluates the model after a step and returns how evaluations stand then. best says that it is the best so far.
func (v *validating) look(
	ctx context.Context, step int64, before *exec.Standing,
) (now exec.Standing, best bool, err error) {
	found, err := v.evaluator.Evaluate(ctx)
	if err != nil {
		return now, false, err
	}
	v.last = &Evaluated{Step: step, Evaluation: found}
	value, there := v.last.number(v.goal.Name)
	if !there {
		return now, false, noMetric(v.goal.Name, slices.Sorted(maps.Keys(found.Metrics)))
	}
	now, best = judged(before, v.goal, step, value, v.margin)
	return now, best, nil
}

// evaluate looks at the validation data if it is time for that. A step that is the best so far gets a checkpoint. Where
// the training is stopped meanwhile, the error is ErrStopped.
func (t *trainer) evaluate(ctx context.Context, step int64) (looked bool, err error) {
	if !t.validating.due(step, t.total) {
		return false, nil
	}
	began := time.Now()
	looking, done := unlessStopped(ctx, t.job.Stop)
	now, best, err := t.validating.look(looking, step, t.keeper.meta.Validation)
	stopped := errors.Is(context.Cause(looking), ErrStopped)
	done()
	if err != nil && stopped && ctx.Err() == nil { // the evaluation is left out, and the step is done
		return false, ErrStopped
	}
	if err != nil {
		return false, err
	}
	t.keeper.meta.Validation = &now
	took := time.Since(began)
	t.reported = t.reported.Add(took) // the speed is that of training
	t.keeper.paused(took)
	if best {
		t.keeper.best(ctx, step, t.loss)
	}
	if t.validating.over(&now) && step < t.total {
		t.job.Logger.InfoContext(ctx, "training ends early: evaluations have brought nothing better for some time",
			"step", step, "of", t.total, "evaluations", now.Stale, "best_step", now.BestStep)
		t.total = step
		t.training.TotalSteps = step
	}
	return true, nil
}

// standing is how evaluations stand; nil where there was none by the goal that counts.
func (t *trainer) standing() *exec.Standing {
	if s := t.keeper.meta.Validation; s != nil && t.validating.evaluator != nil && s.Goal == t.validating.goal.String() {
		return s
	}
	return nil
}

// errNoBest says that there are no files of the best step.
var errNoBest = errors.New("its checkpoint could not be made")

// bestModel returns the files of the best step by a goal, and whether that is another one than the last: where
// evaluations stand by another goal, or there were none, no other is known to be better.
func bestModel(last exec.Checkpoint, goal Goal) (paths []string, other bool, err error) {
	s := last.Meta.Validation
	switch {
	case s == nil || s.Goal != goal.String() || s.BestStep == 0 || s.BestStep == last.Meta.Step:
		return last.Paths(), false, nil
	case len(s.BestParts) == 0:
		return nil, false, fmt.Errorf("the model of step %d, which is the best: %w", s.BestStep, errNoBest)
	default:
		return last.BestPaths(), true, nil
	}
}
