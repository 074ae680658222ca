package torch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/exec"
)

// pipeline is a loaded split: a runner for each part.
type pipeline struct {
	stages []*stage
	data   exec.Data
}

// Stages are the parts in order.
func (p *pipeline) Stages() []exec.Stage {
	stages := make([]exec.Stage, len(p.stages))
	for i, s := range p.stages {
		stages[i] = s
	}
	return stages
}

// Data describes what the first part reads.
func (p *pipeline) Data() exec.Data { return p.data }

// Batch has the first part fetch a batch and put into the shared memory what others read of it.
func (p *pipeline) Batch(ctx context.Context, step int64) (exec.Batch, error) {
	if step < 0 {
		return exec.Batch{}, fmt.Errorf("batch of step %d; steps count from 0", step)
	}
	var fetched struct {
		MicroBatches []message `json:"micro_batches"`
		Samples      []int     `json:"samples"`
		Tokens       int       `json:"tokens"`
	}
	if err := p.stages[0].runner.call(ctx, "batch", map[string]any{"step": step}, &fetched); err != nil {
		return exec.Batch{}, fmt.Errorf("batch of step %d: %w", step, err)
	}
	batch := exec.Batch{Samples: fetched.Samples, Tokens: fetched.Tokens}
	batch.MicroBatches = make([]exec.Message, len(fetched.MicroBatches))
	for i, m := range fetched.MicroBatches {
		if !isNull(m) {
			batch.MicroBatches[i] = m
		}
	}
	return batch, nil
}

// Write makes a state_dict with the names of the unsplit model, which load_state_dict takes, and beside it the same in
// a file .safetensors.
func (p *pipeline) Write(ctx context.Context, parts []string, path string) error {
	paths, err := absolute(append([]string{path}, parts...))
	if err != nil {
		return fmt.Errorf("write the trained model: %w", err)
	}
	if err := p.stages[0].runner.call(ctx, "write", map[string]any{"paths": paths[1:], "path": paths[0]}, nil); err !=
		nil {
		return fmt.Errorf("write the trained model to %s: %w", path, err)
	}
	return nil
}

// Examine has every part look at what its operations give, forward and backward, as [exec.Examiner] says.
func (p *pipeline) Examine(ctx context.Context, step int64) (found, err error) {
	for _, s := range p.stages {
		if err := s.call(ctx, "examine", map[string]any{}, nil); err != nil {
			return nil, err
		}
	}
	batch, err := p.Batch(ctx, step)
	if err != nil {
		return nil, err
	}
	for m, inputs := range batch.MicroBatches {
		if err := p.pass(ctx, step, m, inputs); errors.Is(err, exec.ErrLoss) {
			if said, does := errors.AsType[*ModelError](err); does { // without the part and the call
				return said, nil
			}
			return err, nil
		} else if err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// pass takes a micro-batch through all parts and back.
func (p *pipeline) pass(ctx context.Context, step int64, microBatch int, inputs exec.Message) error {
	var from []exec.Message
	for _, s := range p.stages {
		message, err := s.Forward(ctx, step, microBatch, inputs, from)
		if err != nil {
			return err
		}
		from = append(from, message)
	}
	to := make([][]exec.Message, len(p.stages)) // by the part that gets them, of each part
	for i := range to {
		to[i] = make([]exec.Message, len(p.stages))
	}
	for i := len(p.stages) - 1; i >= 0; i-- {
		s := p.stages[i]
		if s.recomputes {
			if err := s.Recompute(ctx, microBatch); err != nil {
				return err
			}
		}
		messages, err := s.Backward(ctx, microBatch, to[i])
		if err != nil {
			return err
		}
		for earlier, message := range messages {
			to[earlier][i] = message
		}
	}
	return nil
}

// Close ends the processes, all at once, and waits until they are gone. One that hangs in the kernel, as beside a
// driver that does, is left behind after ten seconds.
func (p *pipeline) Close() error {
	var ending sync.WaitGroup
	for _, s := range p.stages {
		if s != nil && s.runner != nil {
			ending.Go(s.runner.close)
		}
	}
	ending.Wait()
	return nil
}

// stage is a part in its process.
type stage struct {
	runner     *runner
	number     int
	name       string // of the device
	reads      []int  // the parts whose messages it reads
	readsBatch bool
	timed      bool // passes return when the device has done them
	inFlight   int  // micro-batches that it may have messages of
	// evaluationReads and evaluationReadsBatch are reads and readsBatch in evaluation mode.
	evaluationReads      []int
	evaluationReadsBatch bool
	recomputes           bool // its backward pass wants its forward pass repeated before
}

// pass is a request about a micro-batch.
func (s *stage) pass(microBatch int) map[string]any {
	request := map[string]any{"micro_batch": microBatch}
	if s.timed {
		request["wait"] = true
	}
	return request
}

// call runs a command of the part; its errors name the part.
func (s *stage) call(ctx context.Context, command string, request map[string]any, result any) error {
	if err := s.runner.call(ctx, command, request, result); err != nil {
		return fmt.Errorf("part %d on %s: %s: %w", s.number, s.name, command, err)
	}
	return nil
}

// Forward runs the part's module.
func (s *stage) Forward(
	ctx context.Context, step int64, microBatch int, batch exec.Message, from []exec.Message,
) (exec.Message, error) {
	request := s.pass(microBatch)
	request["step"] = step
	if s.readsBatch {
		request["batch"] = batch
	}
	read, err := messages(s.reads, from)
	if err != nil {
		return nil, fmt.Errorf("part %d on %s: forward: %w", s.number, s.name, err)
	}
	if len(read) > 0 {
		request["from"] = read
	}
	var made message
	if err := s.call(ctx, "forward", request, &made); err != nil || isNull(made) {
		return nil, err
	}
	return made, nil
}

// messages are those that a part reads of earlier ones, by the number of the part.
func messages(reads []int, from []exec.Message) (map[string]exec.Message, error) {
	read := make(map[string]exec.Message, len(reads))
	for _, i := range reads {
		if i >= len(from) || from[i] == nil {
			return nil, fmt.Errorf("the message of part %d is missing", i)
		}
		read[strconv.Itoa(i)] = from[i]
	}
	return read, nil
}

// Recompute repeats Forward from its inputs, and leaves the buffers as that left them.
func (s *stage) Recompute(ctx context.Context, microBatch int) error {
	return s.call(ctx, "recompute", s.pass(microBatch), nil)
}

// Backward runs autograd from the cotangents of later parts. Gradients are added up in float32, micro-batch by
// micro-batch in the order of calls; the cotangents of a tensor, from the last part that read it to the first.
func (s *stage) Backward(ctx context.Context, microBatch int, cotangents []exec.Message) ([]exec.Message, error) {
	request := s.pass(microBatch)
	read := map[string]exec.Message{}
	for i, m := range cotangents {
		if m != nil {
			read[strconv.Itoa(i)] = m
		}
	}
	if len(read) > 0 {
		request["cotangents"] = read
	}
	var made map[string]message
	if err := s.call(ctx, "backward", request, &made); err != nil {
		return nil, err
	}
	messages := make([]exec.Message, s.number)
	for i := range messages {
		if m, there := made[strconv.Itoa(i)]; there {
			messages[i] = m
		}
	}
	return messages, nil
}

// GradientSquares adds in double precision.
func (s *stage) GradientSquares(ctx context.Context) (float64, error) {
	var sum number
	err := s.call(ctx, "gradient_squares", map[string]any{}, &sum)
	return float64(sum), err
}

// Step runs the optimizer, then the scheduler.
func (s *stage) Step(ctx context.Context, scale float64) (float64, error) {
	var loss number
	err := s.call(ctx, "step", map[string]any{"scale": scale}, &loss)
	return float64(loss), err
}

// Export copies tensors within the process, which then writes them while it goes on.
func (s *stage) Export(ctx context.Context, path string) (func() error, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("part %d: export: %w", s.number, err)
	}
	if s.runner.away != nil {
		return s.exportAway(ctx, path)
	}
	id, written := s.runner.number()
	if err := s.call(ctx, "export", map[string]any{"path": path, "written": id}, nil); err != nil {
		s.runner.forget(id)
		return nil, err
	}
	return func() error {
		if err := s.runner.await(context.WithoutCancel(ctx), id, written, nil); err != nil {
			return fmt.Errorf("part %d on %s: export to %s: %w", s.number, s.name, path, err)
		}
		return nil
	}, nil
}

// Import reads the files of any split of the same model.
func (s *stage) Import(ctx context.Context, paths []string) error {
	paths, err := absolute(paths)
	if err != nil {
		return fmt.Errorf("part %d: import: %w", s.number, err)
	}
	if s.runner.away != nil {
		return s.importAway(ctx, paths)
	}
	return s.call(ctx, "import", map[string]any{"paths": paths}, nil)
}

// Usage is the peak of the process beyond what it held before the model, with the shared memory that it touched; on a
// GPU, what torch's allocator reserved.
func (s *stage) Usage(ctx context.Context) (exec.Usage, error) {
	var used struct {
		Parameters quantity.Bytes `json:"parameters"`
		Gradients  quantity.Bytes `json:"gradients"`
		Optimizer  quantity.Bytes `json:"optimizer"`
		Buffers    quantity.Bytes `json:"buffers"`
		Peak       quantity.Bytes `json:"peak"`
	}
	err := s.call(ctx, "usage", map[string]any{}, &used)
	return exec.Usage(used), err
}

func absolute(paths []string) ([]string, error) {
	made := make([]string, len(paths))
	var err error
	for i, path := range paths {
		if made[i], err = filepath.Abs(path); err != nil {
			return nil, fmt.Errorf("find %s: %w", path, err)
		}
	}
	return made, nil
}

func isNull(m message) bool { return string(m) == "null" }

// number is a float that Python writes; its NaN and infinities are no JSON, so they come as text.
type number float64

// UnmarshalJSON reads a number or its name.
func (n *number) UnmarshalJSON(text []byte) error {
	var name string
	if json.Unmarshal(text, &name) == nil {
		value, err := strconv.ParseFloat(name, 64)
		if err != nil {
			return errors.New("neither a number nor the name of one")
		}
		*n = number(value)
		return nil
	}
	return json.Unmarshal(text, (*float64)(n))
}
