package gomlx

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"

	"github.com/spillway-ml/spillway/workers/exec"
)

// pipeline is a loaded split.
type pipeline struct {
	model  Model
	data   Dataset
	layout exec.Layout
	order  order
	stages []*stage
	// batches are reused from step to step.
	batches []*microBatch
}

var _ exec.Pipeline = (*pipeline)(nil)

// Load compiles every part for the micro-batches of the layout, which have at most two sizes.
func (e *Executor) Load(ctx context.Context, layout exec.Layout) (exec.Pipeline, error) {
	p, err := e.load(ctx, layout)
	if err != nil {
		return nil, fmt.Errorf("load model %q in %d parts: %w", e.model.Name, len(layout.Parts), err)
	}
	return p, nil
}

func (e *Executor) load(ctx context.Context, layout exec.Layout) (_ *pipeline, err error) {
	parts, err := e.split(layout)
	if err != nil {
		return nil, err
	}
	chosen := layout.Optimizer
	if chosen == (exec.Optimizer{}) {
		chosen = e.model.Optimizer
	}
	update, err := newOptimizer(chosen)
	if err != nil {
		return nil, err
	}
	p := &pipeline{
		model: e.model, data: e.data, layout: layout,
		order: order{samples: e.data.Samples(), batch: layout.Batch, seed: layout.Seed},
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close())
		}
	}()
	digest := e.model.digest()
	for i, part := range parts {
		d, err := newDevice(layout.Parts[i].Device.Threads)
		if err != nil {
			return nil, err
		}
		s := &stage{
			number: i, stages: len(parts), device: d, part: part, layout: layout, optimizer: update, digest: digest,
			programs: map[int]*program{}, flights: map[int]*flight{}, spare: map[int][][]tensor{},
		}
		p.stages = append(p.stages, s)
		if err := s.initialise(); err != nil {
			return nil, err
		}
	}
	for m := range layout.MicroBatches {
		begin, end := microBatchBounds(layout, m)
		if err := e.compile(ctx, p, end-begin); err != nil {
			return nil, err
		}
		if err := p.allocate(begin, end); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// compile makes the programs of all stages for micro-batches of this size, once.
func (e *Executor) compile(ctx context.Context, p *pipeline, count int) error {
	if p.stages[0].programs[count] != nil {
		return nil
	}
	samples, target, err := e.samples(ctx, count)
	if err != nil {
		return err
	}
	inputs := shapesOf(samples)
	for i, s := range p.stages {
		if err := ctx.Err(); err != nil {
			return err
		}
		made, err := build(s.device, s.part, inputs, target.shape())
		if err != nil {
			return fmt.Errorf("part %d: %w", i, err)
		}
		s.programs[count], inputs = made, made.outputs
	}
	return nil
}

// split checks a layout and returns its parts.
func (e *Executor) split(layout exec.Layout) ([]part, error) {
	switch {
	case len(layout.Parts) == 0:
		return nil, errors.New("the layout has no parts; one part is the unsplit model")
	case layout.MicroBatches < 1 || layout.Batch < layout.MicroBatches:
		return nil, fmt.Errorf("%d samples in %d micro-batches; want one sample in each at least", layout.Batch,
			layout.MicroBatches)
	case layout.Batch > e.data.Samples():
		return nil, fmt.Errorf("%w: a batch of %d samples from data that has %d; take a smaller batch", ErrModel,
			layout.Batch, e.data.Samples())
	case layout.Precision != "" && layout.Precision != exec.Float32:
		return nil, fmt.Errorf("precision %q; this executor computes in %s", layout.Precision, exec.Float32)
	}
	var parts []part
	next := 0
	for i, p := range layout.Parts {
		if err := checkDevice(p.Device); err != nil {
			return nil, fmt.Errorf("part %d: %w", i, err)
		}
		ops := p.Ops
		if ops == nil && len(layout.Parts) == 1 {
			ops = blockNames(e.model.Blocks)
		}
		end := next + len(ops)
		if len(ops) == 0 || end > len(e.model.Blocks) || !sameNames(ops, blockNames(e.model.Blocks[next:end])) {
			return nil, fmt.Errorf("part %d has the operations %q; parts are one or more blocks that follow each other, and "+
				"the rest is %q",
				i, ops, blockNames(e.model.Blocks[next:]))
		}
		parts = append(parts, part{e.model, e.model.Blocks[next:end], i == 0, i == len(layout.Parts)-1})
		next = end
	}
	if next < len(e.model.Blocks) {
		return nil, fmt.Errorf("no part has the operations %q", blockNames(e.model.Blocks[next:]))
	}
	return parts, nil
}

func checkDevice(d exec.Device) error {
	if d.Kind != "" && d.Kind != exec.CPU {
		return fmt.Errorf("device %q is of kind %q; this executor has %q only", d.ID, d.Kind, exec.CPU)
	}
	if d.Threads < 0 {
		return fmt.Errorf("device %q has %d threads; want 1 or more, or 0 for the executor's choice", d.ID, d.Threads)
	}
	return nil
}

func blockNames(blocks []Block) []string {
	names := make([]string, len(blocks))
	for i, b := range blocks {
		names[i] = b.Name
	}
	return names
}

func sameNames(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

// microBatchBounds are the first sample of a micro-batch and the one after its last.
func microBatchBounds(l exec.Layout, micro int) (begin, end int) {
	return micro * l.Batch / l.MicroBatches, (micro + 1) * l.Batch / l.MicroBatches
}

// initialise makes the arrays of a stage.
func (s *stage) initialise() error {
	for _, a := range arrays(s.part.blocks) {
		first := a.initial(s.layout.Seed)
		if a.buffer {
			s.buffers = append(s.buffers, &buffer{a, first})
			continue
		}
		w := &weight{array: a}
		for _, t := range []*tensor{&w.value, &w.gradient} {
			var err error
			if *t, err = s.device.tensor(shapes.Make(dtypes.Float32, a.shape...)); err != nil {
				return err
			}
			clear(t.floats())
		}
		copy(w.value.floats(), first)
		for range s.optimizer.slots {
			w.slots = append(w.slots, make([]float32, a.size()))
		}
		s.weights = append(s.weights, w)
	}
	return nil
}

// allocate makes the memory of a micro-batch.
func (p *pipeline) allocate(begin, end int) error {
	first, last := p.stages[0], p.stages[len(p.stages)-1]
	m := &microBatch{first: begin, count: end - begin, part: float64(end-begin) / float64(p.layout.Batch)}
	for _, shape := range first.programs[m.count].inputs {
		t, err := first.device.tensor(shape)
		if err != nil {
			return err
		}
		m.inputs = append(m.inputs, t)
	}
	var err error
	if m.target, err = last.device.tensor(last.programs[m.count].target); err != nil {
		return err
	}
	if m.share, err = last.device.tensor(shapes.Make(dtypes.Float32)); err != nil {
		return err
	}
	m.share.floats()[0] = float32(m.part)
	p.batches = append(p.batches, m)
	return nil
}

// Stages are the loaded parts.
func (p *pipeline) Stages() []exec.Stage {
	all := make([]exec.Stage, len(p.stages))
	for i, s := range p.stages {
		all[i] = s
	}
	return all
}

// Data describes the data.
func (p *pipeline) Data() exec.Data {
	return exec.Data{Samples: p.order.samples, StepsPerEpoch: p.order.stepsPerEpoch(), Model: p.model.digest()}
}

// Batch reads the samples of a step.
func (p *pipeline) Batch(ctx context.Context, step int64) (exec.Batch, error) {
	batch, err := p.batch(ctx, step)
	if err != nil {
		return exec.Batch{}, fmt.Errorf("batch of step %d: %w", step, err)
	}
	return batch, nil
}

func (p *pipeline) batch(ctx context.Context, step int64) (exec.Batch, error) {
	if step < 0 {
		return exec.Batch{}, errors.New("steps count from 0")
	}
	random := rand.New(rand.NewPCG(p.layout.Seed, mix(key("batch")+uint64(step))))
	inputs, target, err := read(ctx, p.data, p.order.chosen(step), random)
	if err != nil {
		return exec.Batch{}, err
	}
	var batch exec.Batch
	for _, m := range p.batches {
		if len(inputs) != len(m.inputs) {
			return exec.Batch{}, fmt.Errorf("%w: %d inputs; there were %d before", ErrModel, len(inputs), len(m.inputs))
		}
		for i, into := range m.inputs {
			if err := into.fill(inputs[i].cut(m.first, m.first+m.count)); err != nil {
				return exec.Batch{}, fmt.Errorf("input %d: %w", i, err)
			}
		}
		if err := m.target.fill(target.cut(m.first, m.first+m.count)); err != nil {
			return exec.Batch{}, fmt.Errorf("target: %w", err)
		}
		batch.MicroBatches = append(batch.MicroBatches, m)
		batch.Samples = append(batch.Samples, m.count)
	}
	return batch, nil
}

// Close gives all memory back to the garbage collector.
func (p *pipeline) Close() error {
	for _, s := range p.stages {
		for _, made := range s.programs {
			made.close()
		}
		s.device.close()
	}
	return nil
}
