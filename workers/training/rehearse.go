package training

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/exec"
)

const (
	// rehearsedSteps is how many steps are measured, after one that allocates.
	rehearsedSteps = 5
	// rehearsedFor bounds the time in which they are; two are measured anyway.
	rehearsedFor = 2 * time.Second
	// mostTogether bounds the devices that rehearse at the same time, as each holds the whole model.
	mostTogether = 4
)

// mostSkipped is how many steps may overflow in Float16 before one is measured all the same: the scale of the loss is
// below 1 then.
const mostSkipped = 20

// A rehearsal trains the unsplit model for a few steps as it is trained later: with the data, the loss, dropout,
// gradients that are added up, and the optimizer. The operations, which a probe measures one by one, are scaled to it.
// Several devices of one host that train at the same time tell how much they slow each other down: they may share a
// core's arithmetic, caches and memory.

// pace is what the passes of a model take, in seconds.
type pace struct {
	forward, backward float64 // of one micro-batch, without what a call takes whatever it does
	// the recomputation of a forward pass that kept nothing; 0 where passes keep their activations
	again float64
	step  float64 // of the optimizer, and what the first backward pass of a step takes more than the others
}

// rehearsal is what was found out.
type rehearsal struct {
	samples int // of a micro-batch
	pace    pace
	// extra is what a backward pass that adds gradients up takes more than the first of a step; added says that there were
	// such.
	extra float64
	added bool
	usage exec.Usage
	load  time.Duration // until the model was loaded
}

// contention is by how much each device at work slows another one down: a pass beside n of them takes 1 + n c times as
// long as alone.
type contention struct{ forward, backward, step float64 }

// rehearse trains the whole model on a device, in some number of micro-batches.
func (p *prober) rehearse(ctx context.Context, device exec.Device, microBatches int) (rehearsal, error) {
	a, err := p.act(ctx, device, microBatches)
	if err != nil {
		return rehearsal{}, err
	}
	r, err := a.run(ctx)
	return r, errors.Join(err, a.pipeline.Close())
}

// together measures on the first of some devices how much the others slow it down.
func (p *prober) together(
	ctx context.Context, devices []exec.Device, microBatches int,
) (alone rehearsal, c contention, err error) {
	acts := make([]*act, len(devices))
	errs := make([]error, len(devices))
	defer func() {
		for _, a := range acts {
			if a != nil {
				err = errors.Join(err, a.pipeline.Close())
			}
		}
	}()
	var loading sync.WaitGroup
	for i, d := range devices {
		loading.Go(func() { acts[i], errs[i] = p.act(ctx, d, microBatches) })
	}
	loading.Wait()
	if err := errors.Join(errs...); err != nil {
		return rehearsal{}, contention{}, err
	}
	if alone, err = acts[0].run(ctx); err != nil || len(devices) == 1 {
		return alone, contention{}, err
	}
	end := make(chan struct{})
	var others sync.WaitGroup
	var warm sync.WaitGroup
	for i, a := range acts[1:] {
		warm.Add(1)
		others.Go(func() { errs[i+1] = a.keepOn(ctx, warm.Done, end) })
	}
	warm.Wait()
	beside, err := acts[0].run(ctx)
	close(end)
	others.Wait()
	if err := errors.Join(err, errors.Join(errs...)); err != nil {
		return rehearsal{}, contention{}, err
	}
	slower := func(alone, beside float64) float64 {
		if alone <= 0 {
			return 0
		}
		return max(0, beside/alone-1) / float64(len(devices)-1)
	}
	c = contention{
		forward: slower(alone.pace.forward, beside.pace.forward), backward: slower(alone.pace.backward, beside.pace.backward),
		step: slower(alone.pace.step, beside.pace.step),
	}
	return alone, c, nil
}

// act is a whole model that is loaded for a rehearsal.
type act struct {
	pipeline exec.Pipeline
	batch    exec.Batch
	clip     bool
	scaled   bool          // the loss is, so that gradients may overflow
	again    bool          // the activations are computed again
	call     float64       // what a call takes besides its work, in seconds
	load     time.Duration // until it was loaded
}

func (p *prober) act(ctx context.Context, device exec.Device, microBatches int) (*act, error) {
	began := time.Now()
	pipeline, err := p.executor.Load(ctx, exec.Layout{
		Parts: []exec.Part{{Device: device, InFlight: 1, Recompute: p.recompute}}, Batch: p.batch, Of: p.of,
		MicroBatches: microBatches,
		Precision:    p.precision, Optimizer: p.optimizer, Steps: p.steps, Epochs: p.epochs, Timed: true,
	})
	if err != nil {
		return nil, fmt.Errorf("load the model for a rehearsal: %w", err)
	}
	batch, err := pipeline.Batch(ctx, 0)
	if err == nil && len(batch.MicroBatches) != microBatches {
		err = fmt.Errorf("%d micro-batches; want %d", len(batch.MicroBatches), microBatches)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("get a batch for a rehearsal: %w", err), pipeline.Close())
	}
	return &act{
		pipeline: pipeline, batch: batch, clip: p.clip, scaled: p.precision == exec.Float16, again: p.recompute,
		call: p.call, load: time.Since(began),
	}, nil
}

// durations are those of one step, in seconds.
type durations struct {
	forward, again, first, others []float64 // passes; first is the backward pass that makes the gradients
	step                          float64
	skipped                       bool // its gradients overflowed, so that nothing was updated
}

// step trains once.
func (a *act) step(ctx context.Context) (durations, error) {
	stage := a.pipeline.Stages()[0]
	var d durations
	timed := func(call func() error) (float64, error) {
		started := time.Now()
		err := call()
		return time.Since(started).Seconds(), err
	}
	for m, batch := range a.batch.MicroBatches {
		forward, err := timed(func() error {
			_, err := stage.Forward(ctx, 0, m, batch, []exec.Message{})
			return err
		})
		if err != nil {
			return d, err
		}
		if a.again {
			again, err := timed(func() error { return stage.Recompute(ctx, m) })
			if err != nil {
				return d, err
			}
			d.again = append(d.again, again)
		}
		backward, err := timed(func() error {
			_, err := stage.Backward(ctx, m, make([]exec.Message, 1))
			return err
		})
		if err != nil {
			return d, err
		}
		d.forward = append(d.forward, forward)
		if m == 0 {
			d.first = append(d.first, backward)
		} else {
			d.others = append(d.others, backward)
		}
	}
	var err error
	d.step, err = timed(func() (err error) {
		d.skipped, err = a.update(ctx)
		return err
	})
	return d, err
}

// update ends a step as the training does, and says whether its gradients had overflowed, so that nothing was updated.
func (a *act) update(ctx context.Context) (skipped bool, err error) {
	stage, scale := a.pipeline.Stages()[0], 1.0
	if a.clip || a.scaled {
		squares, err := stage.GradientSquares(ctx)
		if err != nil {
			return false, err
		}
		if a.clip {
			scale = 0.5
		}
		if skipped = a.scaled && (math.IsNaN(squares) || math.IsInf(squares, 0)); skipped {
			scale = 0
		}
	}
	_, err = stage.Step(ctx, scale)
	return skipped, err
}

// run measures some steps.
func (a *act) run(ctx context.Context) (rehearsal, error) {
	for range mostSkipped { // the first step allocates, and one that is skipped updates nothing
		if d, err := a.step(ctx); err != nil {
			return rehearsal{}, fmt.Errorf("rehearse: %w", err)
		} else if !d.skipped {
			break
		}
	}
	var all durations
	var steps []float64
	for started := time.Now(); len(steps) < 2 || (len(steps) < rehearsedSteps && time.Since(started) < rehearsedFor); {
		d, err := a.step(ctx)
		if err != nil {
			return rehearsal{}, fmt.Errorf("rehearse: %w", err)
		}
		all.forward, all.again = append(all.forward, d.forward...), append(all.again, d.again...)
		all.first, all.others = append(all.first, d.first...), append(all.others, d.others...)
		steps = append(steps, d.step)
	}
	usage, err := a.pipeline.Stages()[0].Usage(ctx)
	if err != nil {
		return rehearsal{}, fmt.Errorf("rehearse: %w", err)
	}
	first := median(all.first, 0)
	backward := median(all.others, first)
	r := rehearsal{
		samples: a.batch.Samples[0], usage: usage, extra: backward - first, added: len(all.others) > 0, load: a.load,
	}
	r.pace = pace{
		forward: max(0, median(all.forward, 0)-a.call), again: max(0, median(all.again, 0)-a.call),
		backward: max(0, backward-a.call), step: max(0, median(steps, 0)+first-backward-a.call),
	}
	return r, nil
}

// keepOn trains until the end. It calls warm after the first step, or where that fails.
func (a *act) keepOn(ctx context.Context, warm func(), end <-chan struct{}) error {
	_, err := a.step(ctx)
	warm()
	for err == nil {
		select {
		case <-end:
			return nil
		default:
		}
		_, err = a.step(ctx)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return fmt.Errorf("rehearse: %w", err)
}

// perform rehearses a class of devices, of which devices are those that work at the same time, in few micro-batches and
// in many.
func (p *prober) perform(ctx context.Context, devices []exec.Device, few, many int) (performance, error) {
	first := devices[0]
	made := performance{cuda: first.Kind == exec.CUDA}
	var err error
	if many > few || len(devices) == 1 {
		if made.large, err = p.rehearse(ctx, first, few); err != nil {
			return performance{}, err
		}
		devices = companions(devices, made.large.usage.Peak, p.model.base)
	}
	if many > few || len(devices) > 1 {
		if made.small, made.contention, err = p.together(ctx, devices, many); err != nil {
			return performance{}, err
		}
	}
	switch {
	case made.small.samples == 0:
		made.small = made.large
	case made.large.samples == 0:
		made.large = made.small
	case made.small.added && !made.large.added:
		made.large.pace.backward = max(0, made.large.pace.backward+made.small.extra)
		made.large.pace.step = made.small.pace.step
	}
	return made, nil
}

// performance is what a class of devices showed.
type performance struct {
	small, large rehearsal // micro-batches
	contention   contention
	cuda         bool
}

// learn takes over what rehearsals showed of memory: the optimizer's state, and what is held besides tensors that are
// known: by libraries and the allocator.
func (s *setup) learn() {
	s.besides = map[string]besides{}
	for class, made := range s.model.performances {
		usage := made.small.usage
		if usage.Parameters > 0 {
			s.state = parameterBytes * float64(usage.Optimizer) / float64(usage.Parameters)
		}
		if usage.Peak > 0 && made.large.usage.Peak > 0 {
			s.besides[class] = s.besidesOf(made)
		}
	}
}

// companions are those of the devices that rehearse at the same time as the first, itself included: what shares its
// arithmetic. On CPUs of this host, they are as many as have room for a model each; on a CUDA device, the parts that
// share it.
func companions(devices []exec.Device, peak, base quantity.Bytes) []exec.Device {
	var alike []exec.Device
	for _, d := range devices {
		if len(alike) < mostTogether && shares(d, devices[0]) {
			alike = append(alike, d)
		}
	}
	if devices[0].Kind == exec.CUDA {
		return alike
	}
	if available, known := availableMemory(os.DirFS("/")); known {
		for len(alike) > 1 && 2*quantity.Bytes(len(alike))*(peak+base) > available {
			alike = alike[:len(alike)-1]
		}
	}
	return alike
}

// shares reports whether parts on two devices slow each other down: CPUs of one host, or one CUDA device.
func shares(a, b exec.Device) bool {
	if a.Host != b.Host {
		return false
	}
	if a.Kind == exec.CUDA || b.Kind == exec.CUDA {
		return a.Kind == b.Kind && a.Index == b.Index
	}
	return true
}
