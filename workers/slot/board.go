package slot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"go.temporal.io/sdk/client"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wait"
	"github.com/spillway-ml/spillway/predictor"
)

const (
	// reconcileEvery is how often a board tries again what could not be started and drops workers that ended.
	reconcileEvery = time.Second
	// watchPause is the time between a broken watch of the plan and the next.
	watchPause = time.Second
)

// Target is what a stage is to have on this board.
type Target struct {
	Slots    int
	PoolOnly bool // also poll the queue that functions do not poll
}

// Board keeps one [Worker] for each stage that has slots here, and none for the others.
type Board struct {
	create func(predictor.StageID) stageWorker
	logger *slog.Logger
	turn   chan struct{} // the targets changed

	mu      sync.Mutex
	targets map[predictor.StageID]Target
	workers map[predictor.StageID]stageWorker
	closing map[predictor.StageID]stageWorker // those that end, once ctx has
}

// stageWorker is what a board needs of a Worker.
type stageWorker interface {
	Set(n int, poolOnly bool) error
	Running() int
	Idle() bool
	Close(ctx context.Context) error
}

// NewBoard returns a board without targets; handler runs the attempts of all its stages.
func NewBoard(c client.Client, handler Handler, logger *slog.Logger) *Board {
	return newBoard(func(stage predictor.StageID) stageWorker { return New(c, stage, handler, logger) }, logger)
}

func newBoard(create func(predictor.StageID) stageWorker, logger *slog.Logger) *Board {
	return &Board{
		create: create, logger: logger, turn: make(chan struct{}, 1),
		targets: make(map[predictor.StageID]Target), workers: make(map[predictor.StageID]stageWorker),
	}
}

// Run obeys the newest plan until ctx ends: read tells what a plan asks of this board. Then it stops polling, waits up
// to drain for running attempts, interrupts the rest and returns; where ctx has ended with the cause ErrFenced, it
// interrupts them at once. Without a plan everything stays as it is. It may be called again once it has returned.
func (b *Board) Run(
	ctx context.Context, plans activities.Plans, read func(predictor.Plan) map[predictor.StageID]Target,
	drain time.Duration,
) error {
	var watching sync.WaitGroup
	watching.Go(func() { b.watch(ctx, plans, read) })
	ticker := time.NewTicker(reconcileEvery)
	defer ticker.Stop()
	for ctx.Err() == nil {
		b.reconcile()
		select {
		case <-b.turn:
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
	if errors.Is(context.Cause(ctx), ErrFenced) { // the plan may be on its way for long
		err := b.close(ctx)
		watching.Wait()
		return err
	}
	watching.Wait()
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer cancel()
	return b.close(closing)
}

// watch hands plans to the board until ctx ends.
func (b *Board) watch(
	ctx context.Context, plans activities.Plans, read func(predictor.Plan) map[predictor.StageID]Target,
) {
	for ctx.Err() == nil {
		err := plans.Watch(ctx, func(plan predictor.Plan) { b.aim(read(plan)) })
		if ctx.Err() != nil {
			return
		}
		b.logger.WarnContext(ctx, "the plan cannot be watched; the last grants stay", "error", err)
		wait.For(ctx, watchPause)
	}
}

// aim replaces the targets.
func (b *Board) aim(targets map[predictor.StageID]Target) {
	b.mu.Lock()
	b.targets = targets
	b.mu.Unlock()
	select {
	case b.turn <- struct{}{}:
	default:
	}
}

// Stages returns the stages that have a worker here, sorted.
func (b *Board) Stages() []predictor.StageID {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.SortedFunc(maps.Keys(b.workers), byQueue)
}

// Running tells how many attempts run now.
func (b *Board) Running() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	total := 0
	for _, workers := range []map[predictor.StageID]stageWorker{b.workers, b.closing} {
		for _, w := range workers {
			total += w.Running()
		}
	}
	return total
}

// reconcile makes the workers what the targets say. Only Run's goroutine calls it.
func (b *Board) reconcile() {
	b.mu.Lock()
	steps := diff(b.targets, b.workers)
	for _, step := range steps {
		if step.create {
			b.workers[step.stage] = b.create(step.stage)
		}
	}
	workers := maps.Clone(b.workers)
	b.mu.Unlock()
	for _, step := range steps {
		w := workers[step.stage]
		if err := w.Set(step.target.Slots, step.target.PoolOnly); err != nil {
			b.logger.Error("a stage cannot be polled; trying again", "stage", step.stage.String(), "error", err)
		}
		if step.target.Slots <= 0 && w.Idle() {
			b.mu.Lock()
			delete(b.workers, step.stage)
			b.mu.Unlock()
		}
	}
}

// step is what one stage is set to.
type step struct {
	stage  predictor.StageID
	target Target
	create bool
}

// diff tells what to set, in a fixed order: first what gets no slots any more, so that room is free before others get
// more.
func diff[W any](targets map[predictor.StageID]Target, workers map[predictor.StageID]W) []step {
	var steps []step
	for stage := range workers {
		if targets[stage].Slots <= 0 {
			steps = append(steps, step{stage: stage})
		}
	}
	for stage, target := range targets {
		if target.Slots > 0 {
			_, exists := workers[stage]
			steps = append(steps, step{stage: stage, target: target, create: !exists})
		}
	}
	slices.SortFunc(steps, func(x, y step) int {
		return cmp.Or(cmp.Compare(min(x.target.Slots, 1), min(y.target.Slots, 1)), byQueue(x.stage, y.stage))
	})
	return steps
}

func byQueue(x, y predictor.StageID) int { return cmp.Compare(x.Queue(), y.Queue()) }

// close closes all workers at the same time.
func (b *Board) close(ctx context.Context) error {
	b.mu.Lock()
	workers := b.workers
	b.workers, b.targets, b.closing = make(map[predictor.StageID]stageWorker), nil, workers
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.closing = nil
	}()
	errs := make(chan error, len(workers))
	for _, w := range workers {
		go func() { errs <- w.Close(ctx) }()
	}
	var err error
	for range workers {
		err = errors.Join(err, <-errs)
	}
	if err != nil {
		return fmt.Errorf("drain: %w", err)
	}
	return nil
}
