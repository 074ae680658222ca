package exectest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/exec"
)

// tensors is what a message of the reference holds: outputs, or their cotangents, by operation.
type tensors map[string]*matrix

// stage implements [exec.Stage]. It is strict: whatever the contract forbids is an error.
type stage struct {
	reference *reference
	index     int
	layout    exec.Layout
	ops       model
	weights   map[string]weights // by operation
	makers    map[string]int     // the stage of every operation
	flights   map[int]*flight
	loss      float64
	backwards int // micro-batches that are in the gradients
	peak      quantity.Bytes
	busy      atomic.Bool
}

// flight is a micro-batch between its forward and its backward pass.
type flight struct {
	*pass
	read   tensors // of earlier stages
	values tensors // of this one; nil until they are computed again
	kept   tensors
}

func newStage(r *reference, index int, layout exec.Layout, ops model) *stage {
	s := &stage{
		reference: r, index: index, layout: layout, ops: ops, weights: map[string]weights{},
		flights: map[int]*flight{},
	}
	for _, op := range ops {
		s.weights[op.id] = weights{}
		for _, d := range op.layer.declare() {
			s.weights[op.id][d.name] = newParameter(op.id, d, layout.Seed)
		}
	}
	return s
}

// connect tells the stage where every operation is.
func (s *stage) connect(makers map[string]int) { s.makers = makers }

// enter refuses a second caller at the same time, and a context that has ended.
func (s *stage) enter(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if s.busy.Swap(true) {
		return fmt.Errorf("stage %d is called by two goroutines at once", s.index)
	}
	return nil
}

func (s *stage) leave() { s.busy.Store(false) }

func (s *stage) last() bool { return s.index == len(s.layout.Parts)-1 }

// Forward implements [exec.Stage].
func (s *stage) Forward(
	ctx context.Context, step int64, microBatch int, batch exec.Message, from []exec.Message,
) (exec.Message, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.leave()
	if fail := s.reference.Fail; fail != nil {
		if err := fail(ctx, step, s.index); err != nil {
			return nil, err
		}
	}
	p, ok := batch.(*pass)
	if !ok || p.step != step || len(from) != s.index {
		return nil, fmt.Errorf("forward of micro-batch %d of step %d: the batch is %T, and there are messages of %d "+
			"stages; want %d",
			microBatch, step, batch, len(from), s.index)
	}
	if s.flights[microBatch] != nil || len(s.flights) >= s.layout.Parts[s.index].InFlight {
		return nil, fmt.Errorf("forward of micro-batch %d: %d are in flight, and the part was loaded for %d",
			microBatch, len(s.flights), s.layout.Parts[s.index].InFlight)
	}
	f := &flight{pass: p, read: tensors{}}
	for _, op := range s.ops {
		for _, id := range op.reads {
			if maker := s.makers[id]; maker != s.index {
				message, _ := from[maker].(tensors)
				if f.read[id] = message[id]; f.read[id] == nil {
					return nil, fmt.Errorf("forward of micro-batch %d: stage %d sent no %q", microBatch, maker, id)
				}
			}
		}
	}
	s.flights[microBatch] = f
	s.compute(f)
	made := tensors{}
	for _, op := range s.ops {
		made[op.id] = f.values[op.id]
	}
	if s.last() {
		s.loss += f.values["loss"].data[0] * p.share
		made = nil
	}
	s.account()
	if s.layout.Parts[s.index].Recompute {
		f.values, f.kept = nil, nil
	}
	return made, nil
}

func (s *stage) compute(f *flight) {
	f.values, f.kept = tensors{}, tensors{}
	for _, op := range s.ops {
		s.apply(f, op)
	}
}

// apply computes one operation.
func (s *stage) apply(f *flight, op operation) {
	f.values[op.id], f.kept[op.id] = op.layer.forward(f.pass, s.weights[op.id], f.operands(op))
}

func (f *flight) operands(op operation) []*matrix {
	if len(op.reads) == 0 {
		return []*matrix{f.inputs}
	}
	in := make([]*matrix, len(op.reads))
	for i, id := range op.reads {
		if in[i] = f.values[id]; in[i] == nil {
			in[i] = f.read[id]
		}
	}
	return in
}

// Recompute implements [exec.Stage].
func (s *stage) Recompute(ctx context.Context, microBatch int) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.leave()
	f := s.flights[microBatch]
	if f == nil || f.values != nil {
		return fmt.Errorf("recompute micro-batch %d: it has no forward pass whose activations are gone", microBatch)
	}
	again := *f.pass
	again.again = true
	f.pass = &again
	s.compute(f)
	s.account()
	return nil
}

// Backward implements [exec.Stage].
func (s *stage) Backward(ctx context.Context, microBatch int, cotangents []exec.Message) ([]exec.Message, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.leave()
	f := s.flights[microBatch]
	if f == nil || f.values == nil {
		return nil, fmt.Errorf("backward of micro-batch %d: its activations are not there", microBatch)
	}
	if len(cotangents) != len(s.layout.Parts) {
		return nil, fmt.Errorf("backward of micro-batch %d: cotangents of %d stages; want %d", microBatch, len(cotangents),
			len(s.layout.Parts))
	}
	sums := tensors{}
	if s.last() {
		sums["loss"] = &matrix{rows: 1, columns: 1, data: []float64{f.share}}
	}
	for _, message := range slices.Backward(cotangents) { // from the last reader to the first
		of, _ := message.(tensors)
		for id, c := range of {
			sums[id] = sum(sums[id], c)
		}
	}
	for _, op := range slices.Backward(s.ops) {
		s.differentiate(f, op, sums)
	}
	answers := make([]exec.Message, s.index)
	for id := range f.read {
		maker := s.makers[id]
		of, _ := answers[maker].(tensors)
		if of == nil {
			of = tensors{}
			answers[maker] = of
		}
		of[id] = sums[id]
	}
	delete(s.flights, microBatch)
	s.backwards++
	return answers, nil
}

// differentiate adds the cotangents of an operation's inputs to sums. An output that nobody read has none.
func (s *stage) differentiate(f *flight, op operation, sums tensors) {
	if sums[op.id] == nil {
		return
	}
	in := op.layer.backward(f.pass, s.weights[op.id], f.operands(op), f.values[op.id], f.kept[op.id], sums[op.id])
	for i, id := range op.reads {
		sums[id] = sum(sums[id], in[i])
	}
}

// whole refuses to go on before all micro-batches are in the gradients.
func (s *stage) whole() error {
	if s.backwards != s.layout.MicroBatches || len(s.flights) > 0 {
		return fmt.Errorf("%d of %d micro-batches are in the gradients, and %d are in flight", s.backwards,
			s.layout.MicroBatches, len(s.flights))
	}
	return nil
}

// GradientSquares implements [exec.Stage].
func (s *stage) GradientSquares(ctx context.Context) (float64, error) {
	if err := s.enter(ctx); err != nil {
		return 0, err
	}
	defer s.leave()
	total := 0.0
	for _, p := range s.parameters() {
		for _, g := range p.gradient {
			total += g * g
		}
	}
	return total, s.whole()
}

// Step implements [exec.Stage].
func (s *stage) Step(ctx context.Context, scale float64) (float64, error) {
	if err := s.enter(ctx); err != nil {
		return 0, err
	}
	defer s.leave()
	if err := s.whole(); err != nil {
		return 0, err
	}
	for _, p := range s.parameters() {
		if !p.buffer {
			p.update(s.layout.Optimizer, scale)
		}
	}
	s.account()
	loss := s.loss
	s.loss, s.backwards = 0, 0
	return loss, nil
}

// parameters returns parameters and buffers in the model's order.
func (s *stage) parameters() []*parameter {
	var list []*parameter
	for _, op := range s.ops {
		for _, d := range op.layer.declare() {
			list = append(list, s.weights[op.id][d.name])
		}
	}
	return list
}

// Usage implements [exec.Stage].
func (s *stage) Usage(ctx context.Context) (exec.Usage, error) {
	if err := s.enter(ctx); err != nil {
		return exec.Usage{}, err
	}
	defer s.leave()
	return s.usage(), nil
}

func (s *stage) usage() exec.Usage {
	var u exec.Usage
	for _, p := range s.parameters() {
		size := quantity.Bytes(8 * len(p.value))
		if p.buffer {
			u.Buffers += size
			continue
		}
		u.Parameters += size
		u.Gradients += quantity.Bytes(8 * len(p.gradient))
		for _, slot := range p.slots {
			u.Optimizer += quantity.Bytes(8 * len(slot))
		}
	}
	u.Peak = s.peak
	return u
}

// account keeps the most that was held.
func (s *stage) account() {
	u := s.usage()
	held := u.Parameters + u.Gradients + u.Optimizer + u.Buffers
	for _, f := range s.flights {
		for _, of := range []tensors{f.read, f.values, f.kept} {
			for _, m := range of {
				if m != nil {
					held += m.bytes()
				}
			}
		}
	}
	s.peak = max(s.peak, held)
}

// errAbsent is a tensor that no part has.
var errAbsent = errors.New("no part has it")
