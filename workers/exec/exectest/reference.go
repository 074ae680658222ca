// Package exectest has the conformance suite of executors and a reference executor that is slow and obvious: plain Go,
// 64-bit numbers, gradients written by hand.
package exectest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/graph"
)

// Options configure the reference executor. The zero value is a sound multilayer perceptron.
type Options struct {
	// Model is "mlp" or "batchnorm"; empty is the first.
	Model string
	// Samples is the size of the data; 0 is 240.
	Samples int
	// Fail is asked before every forward pass, and its error is the stage's; nil never fails.
	Fail func(ctx context.Context, step int64, stage int) error
	// NaN makes the loss of a step, and its gradients, no number; nil never does.
	NaN func(step int64) bool
}

// reference is an executor.
type reference struct {
	Options
	model model
	data  dataset
}

// Reference returns an executor of a small classification. It panics where the options name no model of its own.
func Reference(options Options) exec.Executor {
	if options.Model == "" {
		options.Model = "mlp"
	}
	if options.Samples <= 0 {
		options.Samples = 240
	}
	m, err := newModel(options.Model)
	if err != nil {
		panic(err)
	}
	return &reference{Options: options, model: m, data: newDataset(options.Samples)}
}

// Name is "reference".
func (*reference) Name() string { return "reference" }

// repetitions is how often the probe measures; the least time counts.
const repetitions = 5

// Probe implements [exec.Executor].
func (r *reference) Probe(ctx context.Context, o exec.ProbeOptions) (exec.Probe, error) {
	if o.Samples < 1 || o.Samples > r.Samples {
		return exec.Probe{}, fmt.Errorf("probe with %d samples; the data has %d", o.Samples, r.Samples)
	}
	if err := checkDevice(o.Device); err != nil {
		return exec.Probe{}, err
	}
	p := exec.Probe{
		Samples: o.Samples, Model: r.model.digest(), Dataset: r.Samples,
		Graph: graph.Graph{Name: r.Options.Model},
	}
	s := newStage(r, 0, exec.Layout{Parts: []exec.Part{{InFlight: 1}}, MicroBatches: 1}, r.model)
	inputs, targets := r.data.batch(0, 0, o.Samples)
	costs := make([]graph.Cost, len(r.model))
	var sizes []quantity.Bytes
	for n := range repetitions {
		if ctx.Err() != nil {
			return exec.Probe{}, context.Cause(ctx)
		}
		f := &flight{
			pass: &pass{inputs: inputs, targets: targets, share: 1}, values: map[string]*matrix{},
			kept: map[string]*matrix{},
		}
		var forward, backward graph.Seconds
		for i, op := range r.model {
			spent := measure(func() { s.apply(f, op) })
			forward += spent
			costs[i].Forward = least(n, costs[i].Forward, spent)
		}
		cotangents := map[string]*matrix{"loss": {rows: 1, columns: 1, data: []float64{1}}}
		for i, op := range slices.Backward(r.model) {
			spent := measure(func() { s.differentiate(f, op, cotangents) })
			backward += spent
			costs[i].Backward = least(n, costs[i].Backward, spent)
		}
		p.Forward, p.Backward = least(n, p.Forward, forward), least(n, p.Backward, backward)
		sizes = sizes[:0]
		for _, op := range r.model {
			sizes = append(sizes, f.values[op.id].bytes())
		}
	}
	for i, op := range r.model {
		node := graph.Op{ID: op.id, Name: op.id, Costs: map[string]graph.Cost{graph.CPU: costs[i]}, Activation: sizes[i]}
		for _, w := range s.weights[op.id] {
			if !w.buffer {
				node.Parameters += quantity.Bytes(8 * len(w.value))
			}
		}
		p.Graph.Ops = append(p.Graph.Ops, node)
		for _, from := range op.reads {
			at, _ := p.Graph.Index(from)
			p.Graph.Edges = append(p.Graph.Edges, graph.Edge{From: at, To: i, Bytes: sizes[at]})
		}
	}
	return p, nil
}

func measure(f func()) graph.Seconds {
	started := time.Now()
	f()
	return graph.Seconds(time.Since(started).Seconds())
}

// least is the smaller time, or the new one in the first repetition.
func least(repetition int, before, now graph.Seconds) graph.Seconds {
	if repetition == 0 {
		return now
	}
	return min(before, now)
}

// checkDevice refuses what plain Go cannot use.
func checkDevice(d exec.Device) error {
	if d.Kind != "" && d.Kind != exec.CPU {
		return fmt.Errorf("device %s is %q; the reference runs on %q", d.ID, d.Kind, exec.CPU)
	}
	return nil
}

// Load implements [exec.Executor].
func (r *reference) Load(_ context.Context, layout exec.Layout) (exec.Pipeline, error) {
	optimizer, err := layout.Optimizer.Filled()
	if err != nil {
		return nil, fmt.Errorf("load the reference: %w", err)
	}
	layout.Optimizer = optimizer
	parts, err := r.divide(layout)
	if err != nil {
		return nil, fmt.Errorf("load the reference: %w", err)
	}
	p := &pipeline{reference: r, layout: layout}
	for i, part := range parts {
		p.stages = append(p.stages, newStage(r, i, layout, part))
	}
	makers := map[string]int{}
	for i, part := range parts {
		for _, op := range part {
			makers[op.id] = i
		}
	}
	for _, s := range p.stages {
		s.connect(makers)
	}
	return p, nil
}

// divide returns the operations of every part, in the model's order, and refuses a layout that is no split of the
// model.
func (r *reference) divide(layout exec.Layout) ([]model, error) {
	switch {
	case layout.Precision != "" && layout.Precision != exec.Float32:
		return nil, fmt.Errorf("precision %q; the reference computes more exactly than %q", layout.Precision, exec.Float32)
	case layout.MicroBatches < 1 || layout.Batch < layout.MicroBatches || layout.Batch > r.Samples:
		return nil, fmt.Errorf("a batch of %d in %d micro-batches; the data has %d samples", layout.Batch,
			layout.MicroBatches, r.Samples)
	case len(layout.Parts) == 0:
		return nil, errors.New("a layout without parts")
	}
	owner, err := r.owners(layout)
	if err != nil {
		return nil, err
	}
	parts := make([]model, len(layout.Parts))
	for _, op := range r.model {
		part, known := owner[op.id]
		if !known {
			return nil, fmt.Errorf("operation %q is in no part", op.id)
		}
		delete(owner, op.id)
		parts[part] = append(parts[part], op)
		for _, from := range op.reads {
			if at := slices.IndexFunc(parts, func(m model) bool { return m.has(from) }); at > part {
				return nil, fmt.Errorf("operation %q of part %d reads %q of part %d: no tensor goes backwards", op.id, part, from,
					at)
			}
		}
	}
	for id := range owner {
		return nil, fmt.Errorf("part %d has an operation %q; the model has none", owner[id], id)
	}
	if !parts[len(parts)-1].has("loss") {
		return nil, errors.New("the loss is not in the last part")
	}
	return parts, nil
}

// owners returns the part of every operation that a layout names.
func (r *reference) owners(layout exec.Layout) (map[string]int, error) {
	owner := map[string]int{}
	for i, part := range layout.Parts {
		if err := checkDevice(part.Device); err != nil {
			return nil, err
		}
		if part.InFlight < 1 {
			return nil, fmt.Errorf("part %d may have %d micro-batches in flight; want at least 1", i, part.InFlight)
		}
		ops := part.Ops
		if ops == nil && len(layout.Parts) == 1 {
			for _, op := range r.model {
				ops = append(ops, op.id)
			}
		}
		for _, id := range ops {
			if before, twice := owner[id]; twice {
				return nil, fmt.Errorf("operation %q is in part %d and part %d", id, before, i)
			}
			owner[id] = i
		}
	}
	return owner, nil
}

func (m model) has(id string) bool {
	return slices.ContainsFunc(m, func(op operation) bool { return op.id == id })
}
