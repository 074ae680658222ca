package gomlx

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/graph"
)

// Probe runs every block by itself, one after the other on real samples, and the whole model. Times are medians of
// several runs after a first one. The operations are the blocks; the loss belongs to the last one.
func (e *Executor) Probe(ctx context.Context, options exec.ProbeOptions) (exec.Probe, error) {
	probe, err := e.probe(ctx, options)
	if err != nil {
		return exec.Probe{}, fmt.Errorf("probe model %q: %w", e.model.Name, err)
	}
	return probe, nil
}

func (e *Executor) probe(ctx context.Context, options exec.ProbeOptions) (_ exec.Probe, err error) {
	if err := checkDevice(options.Device); err != nil {
		return exec.Probe{}, err
	}
	if options.Samples < 1 {
		return exec.Probe{}, fmt.Errorf("%d samples; want 1 or more", options.Samples)
	}
	d, err := newDevice(options.Device.Threads)
	if err != nil {
		return exec.Probe{}, err
	}
	defer d.close()
	samples, target, err := e.samples(ctx, options.Samples)
	if err != nil {
		return exec.Probe{}, err
	}
	m, err := d.microBatch(samples, target)
	if err != nil {
		return exec.Probe{}, err
	}
	found := exec.Probe{
		Graph: graph.Graph{Name: e.model.Name}, Samples: options.Samples, Model: e.model.digest(), Dataset: e.data.Samples(),
	}
	inputs := m.inputs
	var measured []measurement
	for i := range e.model.Blocks {
		one, err := d.measure(ctx, part{e.model, e.model.Blocks[i : i+1], i == 0, i == len(e.model.Blocks)-1}, m, inputs)
		if err != nil {
			return exec.Probe{}, err
		}
		measured, inputs = append(measured, one), one.outputs
	}
	for i, block := range e.model.Blocks {
		var next *measurement
		if i+1 < len(measured) {
			next = &measured[i+1]
			for output, shape := range next.program.inputs {
				found.Graph.Edges = append(found.Graph.Edges, graph.Edge{From: i, To: i + 1, Output: output, Bytes: bytes(shape)})
			}
		}
		found.Graph.Ops = append(found.Graph.Ops, measured[i].op(block, next))
	}
	whole, err := d.measure(ctx, part{e.model, e.model.Blocks, true, true}, m, m.inputs)
	if err != nil {
		return exec.Probe{}, err
	}
	found.Forward, found.Backward = whole.forward, whole.backward
	return found, nil
}

// microBatch puts samples into memory, as the only micro-batch of a batch.
func (d *device) microBatch(samples []Array, target Array) (*microBatch, error) {
	m := &microBatch{count: target.samples(), part: 1}
	put := func(a Array) (tensor, error) {
		t, err := d.tensor(a.shape())
		if err != nil {
			return t, err
		}
		return t, t.fill(a)
	}
	for _, a := range samples {
		t, err := put(a)
		if err != nil {
			return nil, err
		}
		m.inputs = append(m.inputs, t)
	}
	var err error
	if m.target, err = put(target); err != nil {
		return nil, err
	}
	m.share, err = put(Array{Float32: []float32{1}})
	m.share.shape = shapes.Make(dtypes.Float32)
	return m, err
}

// measurement is what a part costs and holds.
type measurement struct {
	forward, backward graph.Seconds
	program           *program // closed; only its description is left
	outputs           []tensor
}

const (
	probeRuns = 5                     // at least, after a first one
	probeTime = 50 * time.Millisecond // of runs, so that the median of short ones is that of many
	probeMost = 200                   // runs
)

// measure runs a part as its stage would.
func (d *device) measure(ctx context.Context, of part, m *microBatch, inputs []tensor) (measurement, error) {
	made, err := build(d, of, tensorShapes(inputs), m.target.shape)
	if err != nil {
		return measurement{}, err
	}
	defer made.close()
	s := &stage{
		stages: 1, device: d, part: of, layout: exec.Layout{Parts: []exec.Part{{}}},
		programs: map[int]*program{m.count: made}, flights: map[int]*flight{}, spare: map[int][][]tensor{},
	}
	if err := s.initialise(); err != nil {
		return measurement{}, err
	}
	adjoints, err := d.ones(made.outputs)
	if err != nil {
		return measurement{}, err
	}
	result := measurement{program: made}
	var forward, backward []time.Duration
	for begin := time.Now(); len(forward) <= probeRuns || (time.Since(begin) < probeTime && len(forward) < probeMost); {
		if err := ctx.Err(); err != nil {
			return measurement{}, err
		}
		f := &flight{batch: m, program: made, inputs: inputs}
		start := time.Now()
		if result.outputs, _, err = s.run(f, true); err != nil {
			return measurement{}, err
		}
		middle := time.Now()
		if _, err = s.goBack(f, adjoints); err != nil {
			return measurement{}, err
		}
		forward, backward = append(forward, middle.Sub(start)), append(backward, time.Since(middle))
	}
	result.forward, result.backward = median(forward[1:]), median(backward[1:])
	return result, nil
}

// op describes a block. next is the measurement of the following one, nil for the last: a tensor between two blocks is
// kept once, by the one that reads it where that one needs it.
func (m measurement) op(b Block, next *measurement) graph.Op {
	parameters, buffers := 0, 0
	for _, a := range arrays([]Block{b}) {
		if a.buffer {
			buffers += a.size()
		} else {
			parameters += a.size()
		}
	}
	var kept quantity.Bytes
	for _, from := range m.program.backArguments {
		switch from.kind {
		case fromInputs:
			kept += bytes(m.program.inputs[from.index])
		case fromDropout:
			kept += bytes(m.program.drops[from.index].shape)
		case fromKept:
			again := m.program.again[from.index]
			if again < 0 || next == nil || !slices.Contains(next.program.backArguments, source{fromInputs, again}) {
				kept += bytes(m.program.kept[from.index])
			}
		default: // it is held anyway
		}
	}
	return graph.Op{
		ID: b.Name, Name: b.Name,
		Costs:      map[string]graph.Cost{graph.CPU: {Forward: m.forward, Backward: m.backward}},
		Parameters: float32Bytes(parameters), Activation: kept, Workspace: float32Bytes(buffers),
	}
}

// ones are cotangents for outputs of these shapes.
func (d *device) ones(outputs []shapes.Shape) ([]tensor, error) {
	var all []tensor
	for _, shape := range outputs {
		if !differentiable(shape) {
			continue
		}
		t, err := d.tensor(shape)
		if err != nil {
			return nil, err
		}
		for i := range t.floats() {
			t.floats()[i] = 1
		}
		all = append(all, t)
	}
	return all, nil
}

// median is that of measured times.
func median(times []time.Duration) graph.Seconds {
	sorted := slices.Sorted(slices.Values(times))
	return graph.Seconds(sorted[len(sorted)/2].Seconds())
}

func tensorShapes(all []tensor) []shapes.Shape {
	var found []shapes.Shape
	for _, t := range all {
		found = append(found, t.shape)
	}
	return found
}

func bytes(s shapes.Shape) quantity.Bytes { return quantity.Bytes(s.ByteSize()) }
