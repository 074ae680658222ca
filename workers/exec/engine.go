package exec

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/spillway-ml/spillway/workers/schedule"
)

// EngineOptions configure an engine. The zero value clips nothing.
type EngineOptions struct {
	// ClipNorm bounds the norm of the gradients of all stages together: they are multiplied by min(1, ClipNorm / (norm +
	// 1e-6)), as torch.nn.utils.clip_grad_norm_ does. 0 does not.
	ClipNorm float64
	// Layout is what the pipeline was loaded with: the schedule is checked against what its parts may hold, and
	// recomputations of parts that keep their activations are left out of it. Where it has no parts, the schedule is taken
	// as it is.
	Layout Layout
}

// Engine drives a schedule over the stages of a pipeline. One goroutine at a time calls its methods.
type Engine struct {
	pipeline Pipeline
	stages   []Stage
	schedule schedule.Schedule
	clip     float64
	scaled   bool  // the loss is, and gradients may overflow
	skipped  int   // steps since the last that was made
	broken   error // why the parameters are not those of a whole number of steps
}

// StepReport tells how a step went.
type StepReport struct {
	// Loss is the sum, over the micro-batches in their order, of the mean loss times the micro-batch's share of the
	// samples.
	Loss float64
	// Samples is how many samples the batch had, Tokens how many tokens; 0 where it has none.
	Samples, Tokens int
	// Duration is the time from the first forward pass until all parameters are updated, Data the time that was waited for
	// the batch before.
	Duration, Data time.Duration
	// Busy is how long each worker of the schedule computed in Duration.
	Busy []time.Duration
	// GradientNorm is the norm of all gradients before they were clipped; 0 where nothing is clipped.
	GradientNorm float64
	// Skipped says that gradients overflowed in Float16, so that no parameter was updated.
	Skipped bool
}

// Bubble is the part of the workers' time in which they did not compute, from 0 to 1: 1 - sum(Busy) / (workers *
// Duration).
func (r StepReport) Bubble() float64 {
	if r.Duration <= 0 || len(r.Busy) == 0 {
		return 0
	}
	busy := time.Duration(0)
	for _, b := range r.Busy {
		busy += b
	}
	return max(0, 1-float64(busy)/(float64(r.Duration)*float64(len(r.Busy))))
}

// ErrBroken is wrapped by Step after a step that failed: some parts may have been updated and others not. Restore a
// checkpoint into a new pipeline.
var ErrBroken = errors.New("an earlier step failed, so that the parts may be of different steps; go on from " +
	"a checkpoint")

// NewEngine returns an engine for a loaded pipeline. It refuses schedules that are malformed, of another number of
// stages, that sum gradients over replicas, or that hold more micro-batches in a stage than its part may.
func NewEngine(pipeline Pipeline, s schedule.Schedule, options EngineOptions) (*Engine, error) {
	e := &Engine{
		pipeline: pipeline, stages: pipeline.Stages(), schedule: s, clip: options.ClipNorm,
		scaled: options.Layout.Precision == Float16,
	}
	if !(e.clip >= 0) || math.IsInf(e.clip, 0) {
		return nil, fmt.Errorf("start an engine: a clip norm of %v; want a number from 0", e.clip)
	}
	if err := s.Validate(0); err != nil {
		return nil, fmt.Errorf("start an engine: %w", err)
	}
	if s.Stages != len(e.stages) {
		return nil, fmt.Errorf("start an engine: the schedule is for %d stages; the pipeline has %d", s.Stages, len(e.stages))
	}
	if err := checkReplicas(s); err != nil {
		return nil, fmt.Errorf("start an engine: %w", err)
	}
	if len(options.Layout.Parts) > 0 {
		if err := checkLayout(s, options.Layout); err != nil {
			return nil, fmt.Errorf("start an engine: %w", err)
		}
		e.schedule = withoutNeedless(s, options.Layout)
	}
	return e, nil
}

// checkReplicas refuses sums over replicas.
func checkReplicas(s schedule.Schedule) error {
	for worker, list := range s.Workers {
		for _, i := range list {
			if i.Kind == schedule.AllReduce {
				return fmt.Errorf("worker %d is to %v; stages have no replicas", worker, i)
			}
		}
	}
	return nil
}

// checkLayout compares what a schedule does with what the parts were loaded for.
func checkLayout(s schedule.Schedule, layout Layout) error {
	if len(layout.Parts) != s.Stages {
		return fmt.Errorf("the schedule is for %d stages; the layout has %d parts", s.Stages, len(layout.Parts))
	}
	if layout.MicroBatches != s.MicroBatches {
		return fmt.Errorf("the schedule is for %d micro-batches; the layout has %d", s.MicroBatches, layout.MicroBatches)
	}
	flight, most := make([]int, s.Stages), make([]int, s.Stages)
	recomputed := make([]int, s.Stages)
	for _, list := range s.Workers {
		for _, i := range list {
			switch i.Kind {
			case schedule.Forward:
				flight[i.Stage]++
				most[i.Stage] = max(most[i.Stage], flight[i.Stage])
			case schedule.Backward:
				flight[i.Stage]--
			case schedule.Recompute:
				recomputed[i.Stage]++
			default:
			}
		}
	}
	for stage, part := range layout.Parts {
		if most[stage] > part.InFlight {
			return fmt.Errorf("stage %d has up to %d micro-batches in flight in this schedule; its part was loaded for %d",
				stage, most[stage], part.InFlight)
		}
		if part.Recompute && recomputed[stage] < s.MicroBatches {
			return fmt.Errorf("stage %d keeps no activations; the schedule must recompute each of its %d micro-batches", stage,
				s.MicroBatches)
		}
	}
	return nil
}

// withoutNeedless leaves the recomputations out that parts do not need.
func withoutNeedless(s schedule.Schedule, layout Layout) schedule.Schedule {
	workers := make([][]schedule.Instruction, len(s.Workers))
	for worker, list := range s.Workers {
		workers[worker] = slices.DeleteFunc(slices.Clone(list), func(i schedule.Instruction) bool {
			return i.Kind == schedule.Recompute && !layout.Parts[i.Stage].Recompute
		})
	}
	s.Workers = workers
	return s
}

// Step trains on one batch. When it returns, nothing of it runs any more. The error is the first cause: a [StageError]
// where a stage failed, what ended ctx, or one that wraps [ErrLoss]; after any of them the engine is [ErrBroken].
func (e *Engine) Step(ctx context.Context, step int64) (StepReport, error) {
	if e.broken != nil {
		return StepReport{}, fmt.Errorf("step %d: %w: %w", step, ErrBroken, e.broken)
	}
	report, err := e.train(ctx, step)
	if err != nil {
		err = e.examined(ctx, step, err)
		e.broken = err
		return report, fmt.Errorf("step %d: %w", step, err)
	}
	return report, nil
}

// examined adds to an error about a loss or gradients that were not applied which tensor made them so.
func (e *Engine) examined(ctx context.Context, step int64, err error) error {
	if !errors.Is(err, ErrLoss) {
		return err
	}
	var loss *LossError
	if !errors.As(err, &loss) {
		loss = &LossError{Step: step, Cause: err}
	}
	examiner, can := e.pipeline.(Examiner)
	if loss.Updated || !can {
		return loss
	}
	found, failed := examiner.Examine(ctx, step)
	if failed != nil {
		found = fmt.Errorf("which tensor it was is not known, as it could not be looked for: %w", failed)
	}
	loss.Found = found
	return loss
}

func (e *Engine) train(ctx context.Context, step int64) (StepReport, error) {
	var report StepReport
	asked := time.Now()
	batch, err := e.pipeline.Batch(ctx, step)
	if err != nil {
		return report, fmt.Errorf("get the batch: %w", err)
	}
	report.Data = time.Since(asked)
	if err := e.checkBatch(batch); err != nil {
		return report, err
	}
	for _, n := range batch.Samples {
		report.Samples += n
	}
	report.Tokens = batch.Tokens
	r := newRun(e, step, batch)
	started := time.Now()
	err = r.all(ctx)
	report.Duration = time.Since(started)
	report.Busy, report.Loss, report.GradientNorm, report.Skipped = r.busy, r.loss, r.norm, e.skipped > 0
	return report, err
}

func (e *Engine) checkBatch(batch Batch) error {
	if len(batch.MicroBatches) != e.schedule.MicroBatches || len(batch.Samples) != e.schedule.MicroBatches {
		return fmt.Errorf("the pipeline gives %d micro-batches; the schedule is for %d", len(batch.MicroBatches),
			e.schedule.MicroBatches)
	}
	return nil
}
