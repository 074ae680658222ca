package exectest

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/exec/state"
)

// pipeline implements [exec.Pipeline].
type pipeline struct {
	*reference
	layout exec.Layout
	stages []*stage
	closed atomic.Bool
}

// errClosed is a pipeline that is used after its end.
var errClosed = errors.New("the pipeline is closed")

// Stages implements [exec.Pipeline].
func (p *pipeline) Stages() []exec.Stage {
	stages := make([]exec.Stage, len(p.stages))
	for i, s := range p.stages {
		stages[i] = s
	}
	return stages
}

// Data implements [exec.Pipeline].
func (p *pipeline) Data() exec.Data {
	return exec.Data{Samples: p.Samples, StepsPerEpoch: int64(p.Samples / p.layout.Batch), Model: p.model.digest()}
}

// Batch implements [exec.Pipeline].
func (p *pipeline) Batch(ctx context.Context, step int64) (exec.Batch, error) {
	if p.closed.Load() {
		return exec.Batch{}, errClosed
	}
	if ctx.Err() != nil {
		return exec.Batch{}, context.Cause(ctx)
	}
	inputs, targets := p.data.batch(p.layout.Seed, step, p.layout.Batch)
	var b exec.Batch
	for m := range p.layout.MicroBatches {
		from, to := m*p.layout.Batch/p.layout.MicroBatches, (m+1)*p.layout.Batch/p.layout.MicroBatches
		b.Samples = append(b.Samples, to-from)
		b.MicroBatches = append(b.MicroBatches, &pass{
			seed: p.layout.Seed, step: step, first: from,
			inputs:  &matrix{rows: to - from, columns: features, data: inputs.data[from*features : to*features]},
			targets: targets[from:to], share: float64(to-from) / float64(p.layout.Batch), poison: p.NaN != nil && p.NaN(step),
		})
	}
	return b, nil
}

// Write implements [exec.Pipeline]: a file of package state with parameters and buffers.
func (p *pipeline) Write(_ context.Context, parts []string, path string) error {
	found, err := readParts(parts, p.model.digest())
	if err != nil {
		return err
	}
	var tensors []state.Tensor
	for _, op := range p.model {
		for _, d := range op.layer.declare() {
			t, err := found.get(newParameter(op.id, d, 0))
			if err != nil {
				return err
			}
			tensors = append(tensors, t)
		}
	}
	return state.Write(path, map[string]string{state.ModelKey: p.model.digest()}, tensors)
}

// Close implements [exec.Pipeline].
func (p *pipeline) Close() error {
	if p.closed.Swap(true) {
		return errClosed
	}
	return nil
}
