package child

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/exchange"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workflows"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// Stages finds stages by name.
type Stages map[string]runs.AnyStage

// NewStages indexes the listed stages.
func NewStages(listed []runs.AnyStage) Stages {
	stages := make(Stages, len(listed))
	for _, stage := range listed {
		stages[stage.Name()] = stage
	}
	return stages
}

// hooks are told what an attempt reports while it runs; nil fields ignore it.
type hooks struct {
	progress   func(wire.Progress)
	checkpoint func(saved activities.Ref, parts ...activities.Ref)
	trained    func(predictor.Training)
}

// execute runs one attempt to its end. It never panics: a panic of user code becomes a failure with its stack.
func (s Stages) execute(
	ctx context.Context, venue predictor.Venue, store activities.Store, logger *slog.Logger, start wire.StartAttempt,
	hooks hooks,
) (answer wire.Answer) {
	var latest latest
	attempt := &activities.Attempt{
		Run: start.Task.Run, Stage: start.Task.Stage.Name, Task: start.Task.ID, Number: start.Attempt, Venue: venue,
		Store: store, Resume: start.Resume, Past: start.Past, Secrets: start.Secrets,
		TimeToLoss: start.TimeToLoss,
		Timeout:    start.Task.Timeout,
		Traceparent: wire.AttemptTraceparent(start.Task.Run, start.Task.Traceparent, start.Task.ID, start.Attempt,
			start.Task.PoolOnly),
		Logger: logger.With("run", start.Task.Run, "stage", start.Task.Stage.Name, "task", start.Task.ID),
		Progress: func(step, of int, metrics map[string]float64) {
			progress := wire.NewProgress(step, of, metrics)
			latest.setProgress(progress)
			if hooks.progress != nil {
				hooks.progress(progress)
			}
		},
		Checkpoint: func(ref activities.Ref, parts ...activities.Ref) {
			latest.setCheckpoint(ref)
			if hooks.checkpoint != nil {
				hooks.checkpoint(ref, parts...)
			}
		},
	}
	if hooks.trained != nil {
		attempt.Trained = func(training predictor.Training) {
			if err := training.Validate(); err != nil {
				attempt.Logger.WarnContext(ctx, "what the stage tells of its training is left out", "error", err)
				return
			}
			hooks.trained(training)
		}
	}
	began, before := time.Now(), processTime()
	output, failure := s.call(activities.NewContext(ctx, attempt), start)
	answer = wire.Answer{
		Output: output, Error: failure,
		Read: quantity.Bytes(attempt.Read()), Written: quantity.Bytes(attempt.Written()),
		BeganAt: began, Wall: time.Since(began), Fetch: attempt.Fetched(), Publish: attempt.Published(),
		CPU: processTime() - before, PeakMemory: peakMemory(), Squeezed: squeezed(),
	}
	answer.Progress, answer.Checkpoint = latest.values()
	if hooks.progress == nil { // nobody has heard of the steps while it ran
		answer.Curve = latest.curve()
	}
	return answer
}

// squeezed reports whether the memory limit, and not the usual growth of the heap, decides when garbage is collected
// now.
func squeezed() bool {
	const live, goal, percent = "/gc/heap/live:bytes", "/gc/heap/goal:bytes", "/gc/gogc:percent"
	samples := []metrics.Sample{{Name: live}, {Name: goal}, {Name: percent}}
	metrics.Read(samples)
	for _, sample := range samples {
		if sample.Value.Kind() != metrics.KindUint64 {
			return false
		}
	}
	growth := float64(samples[2].Value.Uint64())
	if growth > maxGrowth { // the collector is off but for the limit
		return false
	}
	return float64(samples[1].Value.Uint64()) < goalSlack*float64(samples[0].Value.Uint64())*(1+growth/100)
}

// maxGrowth is more than anybody sets GOGC to; goalSlack is what the goal may lie below the usual one for other
// reasons.
const maxGrowth, goalSlack = 1e6, 0.95

func (s Stages) call(
	ctx context.Context, start wire.StartAttempt,
) (output json.RawMessage, failure *wire.StageFailure) {
	defer func() {
		if reason := recover(); reason != nil {
			output, failure = nil, &wire.StageFailure{Message: fmt.Sprintf("stage %s panicked: %v", start.Task.Stage.Name,
				reason), Stack: string(debug.Stack())}
		}
	}()
	stage, listed := s[start.Task.Stage.Name]
	if !listed {
		return nil, &wire.StageFailure{
			Message:   fmt.Sprintf("stage %q is not listed in app.Main of this build: add it to Stages", start.Task.Stage.Name),
			Permanent: true,
		}
	}
	output, err := stage.Call(ctx, start.Input)
	if err != nil {
		failure = &wire.StageFailure{
			Message: err.Error(),
			Permanent: errors.Is(err, runs.ErrInput) || errors.Is(err, workflows.ErrPermanent) ||
				errors.Is(err, exchange.ErrNoFit),
			OutOfMemory: errors.Is(err, workflows.ErrOutOfMemory),
		}
		if attempt, _ := activities.FromContext(ctx); errors.Is(err, exchange.ErrNoServer) && attempt != nil &&
			attempt.Venue != predictor.Pool {
			failure.Unfit = predictor.CauseStart
		}
		return nil, failure
	}
	return output, nil
}

// latest keeps the newest report of an attempt; stage code may report from several goroutines.
type latest struct {
	mu         sync.Mutex
	progress   *wire.Progress
	checkpoint *activities.Ref
	trail      predictor.Trail // of the metric of its training
}

func (l *latest) setProgress(p wire.Progress) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.progress = &p
	l.trail.Tell(p.Step, p.Metrics, p.NotFinite, predictor.MostTrail)
}

func (l *latest) setCheckpoint(ref activities.Ref) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.checkpoint = &ref
}

// curve is how the metric of its training went.
func (l *latest) curve() *predictor.Curve {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.trail.Curve()
}

func (l *latest) values() (*wire.Progress, *activities.Ref) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.progress, l.checkpoint
}
