package gomlx

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/exec"
)

// weight is a trained array of a stage.
type weight struct {
	array

	value, gradient tensor
	slots           [][]float32 // the optimizer's
}

// buffer is an array that follows others.
type buffer struct {
	array

	value []float32
}

// stage is a part on its device.
type stage struct {
	number, stages int
	device         *device
	part           part
	layout         exec.Layout
	optimizer      optimizer
	digest         string

	programs map[int]*program // by the samples of a micro-batch
	weights  []*weight
	buffers  []*buffer
	steps    int64 // updates so far

	step    int64 // of the last forward pass
	loss    float64
	flights map[int]*flight    // by micro-batch
	spare   map[int][][]tensor // masks that no flight has, by the samples of a micro-batch
}

var _ exec.Stage = (*stage)(nil)

// flight is a micro-batch between its forward and its backward pass.
type flight struct {
	step    int64
	batch   *microBatch
	program *program
	inputs  []tensor
	masks   []tensor
	kept    []argument // nil until there is something to go back with
}

// activations is what a stage hands to the next one, and cotangents what it hands to the one before. Nobody writes to
// them or frees them: the garbage collector does when the last stage that reads them forgets them.
type activations []tensor

type cotangents []tensor

// microBatch is what stages read of a micro-batch. Its tensors belong to the pipeline.
type microBatch struct {
	inputs []tensor
	target tensor
	first  int // the number of its first sample in the batch
	count  int
	share  tensor // of its samples in the batch's
	part   float64
}

// Forward computes a micro-batch.
func (s *stage) Forward(
	ctx context.Context, step int64, micro int, batch exec.Message, from []exec.Message,
) (exec.Message, error) {
	message, err := s.advance(ctx, step, micro, batch, from)
	if err != nil {
		return nil, s.failed(fmt.Sprintf("forward pass of micro-batch %d of step %d", micro, step), err)
	}
	if message == nil {
		return nil, nil //nolint:nilnil // the last stage hands nothing on
	}
	return message, nil
}

func (s *stage) advance(
	ctx context.Context, step int64, micro int, batch exec.Message, from []exec.Message,
) (activations, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	m, is := batch.(*microBatch)
	if !is {
		return nil, fmt.Errorf("a batch of type %T; want one of this pipeline", batch)
	}
	if s.flights[micro] != nil {
		return nil, errors.New("it is between its passes already")
	}
	f := &flight{step: step, batch: m, program: s.programs[m.count], inputs: m.inputs}
	if f.program == nil {
		return nil, fmt.Errorf("it has %d samples; the layout has no such micro-batch", m.count)
	}
	if s.number > 0 {
		if len(from) < s.number {
			return nil, fmt.Errorf("%d messages of earlier stages; want %d", len(from), s.number)
		}
		received, is := from[s.number-1].(activations)
		if !is || len(received) != len(f.program.inputs) {
			return nil, fmt.Errorf("a message of type %T from stage %d; want %d tensors", from[s.number-1], s.number-1,
				len(f.program.inputs))
		}
		f.inputs = received
	}
	s.step = step
	outputs, averages, err := s.run(f, !s.recomputes())
	if err != nil {
		return nil, err
	}
	s.follow(f.program.averages, averages)
	s.flights[micro] = f
	if s.part.last {
		s.loss += f.batch.part * float64(outputs[0].floats()[0])
		return nil, nil
	}
	return outputs, nil
}

func (s *stage) recomputes() bool { return s.layout.Parts[s.number].Recompute }

// run computes the forward pass; with keep, the flight has what the backward pass needs afterwards.
func (s *stage) run(f *flight, keep bool) (outputs, averages []tensor, err error) {
	p := f.program
	if err := s.fillMasks(f); err != nil {
		return nil, nil, err
	}
	arguments := make([]argument, len(p.arguments))
	for i, from := range p.arguments {
		arguments[i] = argument{tensor: s.source(f, from)}
	}
	g := p.forward
	if keep {
		g = p.keeping
	}
	results, err := call(g, arguments)
	if err != nil {
		return nil, nil, err
	}
	outputs, results = results[:len(p.outputs)], results[len(p.outputs):]
	averages, results = results[:len(p.averages)], results[len(p.averages):]
	if !keep {
		s.release(f)
		return outputs, averages, nil
	}
	f.kept = make([]argument, len(p.kept))
	for i, again := range p.again {
		if again >= 0 {
			f.kept[i] = argument{tensor: outputs[again]}
			continue
		}
		f.kept[i] = argument{results[0], true}
		results = results[1:]
	}
	if !p.reads(fromInputs) {
		f.inputs = nil
	}
	if !p.reads(fromDropout) {
		s.release(f)
	}
	return outputs, averages, nil
}

// source returns an argument that is there before the forward pass.
func (s *stage) source(f *flight, from source) tensor {
	switch from.kind {
	case fromParameters:
		return s.weights[from.index].value
	case fromInputs:
		return f.inputs[from.index]
	case fromDropout:
		return f.masks[from.index]
	case fromTarget:
		return f.batch.target
	default:
		panic(fmt.Errorf("argument of kind %d before the forward pass", from.kind))
	}
}

// fillMasks makes the masks of a flight that has none.
func (s *stage) fillMasks(f *flight) error {
	if len(f.program.drops) == 0 || f.masks != nil {
		return nil
	}
	at := f.batch.count
	if free := s.spare[at]; len(free) > 0 {
		f.masks, s.spare[at] = free[len(free)-1], free[:len(free)-1]
	} else {
		for _, d := range f.program.drops {
			t, err := s.device.tensor(d.shape)
			if err != nil {
				return err
			}
			f.masks = append(f.masks, t)
		}
	}
	for i, d := range f.program.drops {
		mask(f.masks[i].floats(), f.batch.count, f.batch.first, d.rate, s.layout.Seed, f.step, d.layer)
	}
	return nil
}

// release takes the masks of a flight back.
func (s *stage) release(f *flight) {
	if f.masks != nil {
		at := f.batch.count
		s.spare[at], f.masks = append(s.spare[at], f.masks), nil
	}
}

// follow moves the buffers.
func (s *stage) follow(averages []average, values []tensor) {
	for i, a := range averages {
		at := slices.IndexFunc(s.buffers, func(b *buffer) bool { return b.name == a.name })
		for j, v := range values[i].floats() {
			now := s.buffers[at].value[j]
			s.buffers[at].value[j] = now + float32(a.momentum)*(v-now)
		}
	}
}

// Recompute repeats the forward pass of a micro-batch, and keeps what its backward pass needs.
func (s *stage) Recompute(ctx context.Context, micro int) error {
	err := ctx.Err()
	f := s.flights[micro]
	switch {
	case err != nil:
	case f == nil:
		err = errors.New("its forward pass was not computed")
	case f.kept == nil:
		_, _, err = s.run(f, true)
	}
	return s.failed(fmt.Sprintf("repeat the forward pass of micro-batch %d", micro), err)
}

// Backward computes the gradients of a micro-batch.
func (s *stage) Backward(ctx context.Context, micro int, later []exec.Message) ([]exec.Message, error) {
	answer, err := s.retreat(ctx, micro, later)
	if err != nil {
		return nil, s.failed(fmt.Sprintf("backward pass of micro-batch %d", micro), err)
	}
	return answer, nil
}

func (s *stage) retreat(ctx context.Context, micro int, later []exec.Message) ([]exec.Message, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	f := s.flights[micro]
	if f == nil {
		return nil, errors.New("its forward pass was not computed")
	}
	if f.kept == nil {
		return nil, errors.New("its forward pass was not repeated; call Recompute first")
	}
	adjoints, err := s.adjoints(f, later)
	if err != nil {
		return nil, err
	}
	delete(s.flights, micro)
	handed, err := s.goBack(f, adjoints)
	if err != nil {
		return nil, err
	}
	answer := make([]exec.Message, s.stages)
	if s.number > 0 {
		answer[s.number-1] = cotangents(handed)
	}
	return answer, nil
}

// goBack adds the gradients of a flight up and returns the cotangents of its inputs.
func (s *stage) goBack(f *flight, adjoints []tensor) ([]tensor, error) {
	arguments := make([]argument, len(f.program.backArguments))
	for i, from := range f.program.backArguments {
		switch from.kind {
		case fromKept:
			arguments[i] = f.kept[from.index]
		case fromCotangents:
			arguments[i] = argument{tensor: adjoints[from.index]}
		case fromAccumulators:
			arguments[i] = argument{s.weights[from.index].gradient, true}
		default:
			arguments[i] = argument{tensor: s.source(f, from)}
		}
	}
	results, err := call(f.program.backward, arguments)
	if err != nil {
		return nil, err
	}
	s.release(f)
	handed := len(results) - len(s.weights)
	for i, w := range s.weights {
		w.gradient = results[handed+i]
	}
	return results[:handed], nil
}

// adjoints are those of the stage's outputs: the loss has its share of the batch, and all else what the next stage
// says.
func (s *stage) adjoints(f *flight, later []exec.Message) ([]tensor, error) {
	if s.part.last {
		return []tensor{f.batch.share}, nil
	}
	want := 0
	for _, shape := range f.program.outputs {
		if differentiable(shape) {
			want++
		}
	}
	if len(later) <= s.number+1 {
		return nil, fmt.Errorf("%d messages of later stages; want one from stage %d", len(later), s.number+1)
	}
	received, is := later[s.number+1].(cotangents)
	if !is || len(received) < want {
		return nil, fmt.Errorf("a message of type %T from stage %d; want %d cotangents", later[s.number+1], s.number+1, want)
	}
	return received, nil
}

// GradientSquares is the sum of the squares of the gradients, in the order of the parameters.
func (s *stage) GradientSquares(ctx context.Context) (float64, error) {
	total := 0.0
	for _, w := range s.weights {
		for _, g := range w.gradient.floats() {
			total += float64(g) * float64(g)
		}
	}
	return total, s.failed("sum the gradients up", ctx.Err())
}

// Step updates the parameters.
func (s *stage) Step(ctx context.Context, scale float64) (float64, error) {
	if err := ctx.Err(); err != nil {
		return 0, s.failed("update", err)
	}
	if len(s.flights) > 0 {
		return 0, s.failed("update", fmt.Errorf("%d micro-batches are between their passes", len(s.flights)))
	}
	factor := 1.0
	if rate := s.part.model.LearningRate; rate != nil {
		factor = rate(s.step)
	}
	s.steps++
	for _, w := range s.weights {
		gradient := w.gradient.floats()
		s.optimizer.step(w.value.floats(), gradient, w.slots, s.steps, scale, factor, s.device.threads)
		clear(gradient)
	}
	loss := s.loss
	s.loss = 0
	return loss, nil
}

// Usage tells what the stage holds. Parts share a process, so nothing is known about the most that one held.
func (s *stage) Usage(ctx context.Context) (exec.Usage, error) {
	var u exec.Usage
	for _, w := range s.weights {
		u.Parameters += float32Bytes(w.size())
		u.Gradients += float32Bytes(w.size())
		u.Optimizer += quantity.Bytes(len(w.slots)) * float32Bytes(w.size())
	}
	for _, b := range s.buffers {
		u.Buffers += float32Bytes(b.size())
	}
	return u, s.failed("count", ctx.Err())
}

// failed says which stage failed at what; it returns nil where nothing did.
func (s *stage) failed(at string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("stage %d: %s: %w", s.number, at, err)
}
