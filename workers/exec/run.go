package exec

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spillway-ml/spillway/workers/schedule"
)

// run is one step on its way through the stages.
type run struct {
	*Engine
	at      int64 // the step's number
	batch   Batch
	workers []*worker
	busy    []time.Duration // by worker
	squares []float64       // by stage
	scale   float64
	loss    float64 // written by the worker of the last stage
	norm    float64
}

// link carries messages between a stage and the next. What is sent waits in it, so that senders do not: there is room
// for every micro-batch.
type link struct {
	activations, cotangents chan parcel
}

// parcel is what travels over a link for a micro-batch. With an activation, messages[0][s] is the message of stage s,
// for every stage so far: references to what later stages may read. With a cotangent, messages[c][p] is that of
// consumer c to producer p.
type parcel struct {
	microBatch int
	messages   [][]Message
}

// worker follows one instruction list.
type worker struct {
	*run
	index int
	links []link                          // links[s] joins stages s and s+1
	held  map[schedule.Instruction]parcel // what an instruction left for one that comes later
}

func newRun(e *Engine, step int64, batch Batch) *run {
	r := &run{
		Engine: e, at: step, batch: batch, scale: 1,
		busy: make([]time.Duration, len(e.schedule.Workers)), squares: make([]float64, len(e.stages)),
	}
	links := make([]link, len(e.stages)-1)
	for i := range links {
		links[i] = link{
			activations: make(chan parcel, e.schedule.MicroBatches),
			cotangents:  make(chan parcel, e.schedule.MicroBatches),
		}
	}
	for index := range e.schedule.Workers {
		r.workers = append(r.workers, &worker{run: r, index: index, links: links, held: map[schedule.Instruction]parcel{}})
	}
	return r
}

// MostSkipped is how many steps in turn may overflow in Float16. The scale of the loss, 65536 at first, is below 1
// then: what overflows is not due to it.
const MostSkipped = 20

// all runs the step. Where gradients are clipped or may overflow, all of them have to be there before the first is
// applied.
func (r *run) all(ctx context.Context) error {
	if r.clip > 0 || r.scaled {
		passes := func(i schedule.Instruction) bool { return i.Kind != schedule.Step }
		if err := r.each(ctx, passes, (*worker).do); err != nil {
			return err
		}
		if err := r.clipped(ctx); err != nil {
			return err
		}
		steps := func(i schedule.Instruction) bool { return i.Kind == schedule.Step }
		if err := r.each(ctx, steps, (*worker).do); err != nil {
			return err
		}
	} else if err := r.each(ctx, func(schedule.Instruction) bool { return true }, (*worker).do); err != nil {
		return err
	}
	if math.IsNaN(r.loss) || math.IsInf(r.loss, 0) {
		return &LossError{Step: r.at, Loss: r.loss, GradientNorm: r.norm, Updated: true}
	}
	return nil
}

// clipped finds the factor for the gradients: min(1, clip / (norm + 1e-6)), where norm is the square root of the sum of
// the stages' squares, in their order.
func (r *run) clipped(ctx context.Context) error {
	steps := func(i schedule.Instruction) bool { return i.Kind == schedule.Step }
	err := r.each(ctx, steps, func(w *worker, ctx context.Context, i schedule.Instruction) (err error) {
		w.squares[i.Stage], err = w.stages[i.Stage].GradientSquares(ctx)
		return err
	})
	if err != nil {
		return err
	}
	sum := 0.0
	for _, s := range r.squares {
		sum += s
	}
	norm := math.Sqrt(sum)
	finite := !math.IsNaN(norm) && !math.IsInf(norm, 0)
	if !finite && r.scaled && r.skipped < MostSkipped {
		r.scale, r.skipped = 0, r.skipped+1
		return nil
	}
	if !finite {
		return &LossError{Step: r.at, GradientNorm: norm}
	}
	r.skipped = 0
	if r.clip > 0 {
		r.norm, r.scale = norm, min(1, r.clip/(norm+1e-6))
	}
	return nil
}

// each lets every worker follow those of its instructions that are wanted, in order, and waits for all. The first error
// ends them and is returned.
func (r *run) each(ctx context.Context, wanted func(schedule.Instruction) bool,
	do func(*worker, context.Context, schedule.Instruction) error,
) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var running sync.WaitGroup
	var failed atomic.Bool
	for _, w := range r.workers {
		running.Go(func() {
			var now schedule.Instruction
			err := errExit // where a stage ends this goroutine
			defer func() {
				if err != nil {
					failed.Store(true)
					cancel(&StageError{Instruction: now, Err: err})
				}
			}()
			for _, now = range r.schedule.Workers[w.index] {
				if !wanted(now) {
					continue
				}
				err = errExit
				if err = w.guarded(ctx, now, do); err != nil {
					return
				}
			}
			err = nil
		})
	}
	running.Wait()
	if !failed.Load() {
		return nil // even if ctx has ended since
	}
	return context.Cause(ctx)
}

// errExit is a stage that ends its goroutine.
var errExit = errors.New("the stage ended the goroutine that called it")

// guarded does an instruction; a panic becomes an error.
func (w *worker) guarded(
	ctx context.Context, i schedule.Instruction, do func(*worker, context.Context, schedule.Instruction) error,
) (err error) {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	defer func() {
		if reason := recover(); reason != nil {
			err = fmt.Errorf("panic: %v\n%s", reason, debug.Stack())
		}
	}()
	return do(w, ctx, i)
}

// do follows one instruction. Only what stages do counts as busy.
func (w *worker) do(ctx context.Context, i schedule.Instruction) error {
	switch i.Kind {
	case schedule.ReceiveActivation:
		return w.receive(ctx, i, w.links[i.Stage-1].activations)
	case schedule.ReceiveGradient:
		return w.receive(ctx, i, w.links[i.Stage].cotangents)
	case schedule.SendActivation:
		w.links[i.Stage].activations <- w.take(schedule.Forward, i)
		return nil
	case schedule.SendGradient:
		w.links[i.Stage-1].cotangents <- w.take(schedule.Backward, i)
		return nil
	default:
	}
	started := time.Now()
	err := w.compute(ctx, i)
	w.busy[w.index] += time.Since(started)
	return err
}

// take returns what an instruction left for another of the same stage and micro-batch.
func (w *worker) take(kind schedule.Kind, i schedule.Instruction) parcel {
	key := schedule.Instruction{Kind: kind, MicroBatch: i.MicroBatch, Stage: i.Stage}
	p := w.held[key]
	delete(w.held, key)
	return p
}

func (w *worker) receive(ctx context.Context, i schedule.Instruction, from <-chan parcel) error {
	select {
	case p := <-from:
		if p.microBatch != i.MicroBatch {
			return fmt.Errorf("micro-batch %d arrived", p.microBatch)
		}
		w.held[i] = p
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (w *worker) compute(ctx context.Context, i schedule.Instruction) (err error) {
	stage := w.stages[i.Stage]
	switch i.Kind {
	case schedule.Forward:
		return w.forward(ctx, i)
	case schedule.Recompute:
		return stage.Recompute(ctx, i.MicroBatch)
	case schedule.Backward:
		return w.backward(ctx, i)
	case schedule.Step:
		loss, err := stage.Step(ctx, w.scale)
		if i.Stage == len(w.stages)-1 {
			w.loss = loss
		}
		return err
	default:
		return fmt.Errorf("%v is nothing that a stage does", i.Kind)
	}
}

func (w *worker) forward(ctx context.Context, i schedule.Instruction) error {
	from := make([]Message, i.Stage)
	if i.Stage > 0 {
		from = w.take(schedule.ReceiveActivation, i).messages[0]
	}
	message, err := w.stages[i.Stage].Forward(ctx, w.at, i.MicroBatch, w.batch.MicroBatches[i.MicroBatch], from)
	if err != nil {
		return err
	}
	if i.Stage+1 < len(w.stages) {
		w.held[i] = parcel{microBatch: i.MicroBatch, messages: [][]Message{append(slices.Clone(from), message)}}
	}
	return nil
}

func (w *worker) backward(ctx context.Context, i schedule.Instruction) error {
	cotangents, relayed := make([]Message, len(w.stages)), make([][]Message, len(w.stages))
	if i.Stage+1 < len(w.stages) {
		copy(relayed, w.take(schedule.ReceiveGradient, i).messages)
	}
	for consumer, to := range relayed {
		if i.Stage < len(to) {
			cotangents[consumer] = to[i.Stage]
		}
	}
	answers, err := w.stages[i.Stage].Backward(ctx, i.MicroBatch, cotangents)
	if err != nil {
		return err
	}
	if i.Stage > 0 {
		relayed[i.Stage] = answers
		w.held[i] = parcel{microBatch: i.MicroBatch, messages: relayed}
	}
	return nil
}
