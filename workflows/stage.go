package workflows

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// Stage is a named, typed function that a pipeline calls. Declare it once, as a package variable, and list it in
// app.Main. It is a value: With returns a changed copy.
type Stage[In, Out any] struct {
	name      string
	run       func(context.Context, In) (Out, error)
	hints     Hints
	recommend func(context.Context, In, Proposal) (Size, error) // nil leaves sizes to Spillway
	// a host runs the program that the input names, and run only says so
	command bool
}

// Hints are what the author of a stage knows better than its history. None is needed: sizes are predicted.
// The zero value gives no hint.
type Hints struct {
	// CPU is the share of cores that an attempt is given until its use is known; 0 means one core.
	CPU quantity.Milli
	// Memory is the limit until its use is known; 0 begins with what stages that are alike take, and grows where the host
	// has room.
	Memory quantity.Bytes
	// GPU is how many whole GPUs an attempt gets, for itself alone; 0 means none. Which they are stands in
	// CUDA_VISIBLE_DEVICES, so that programs see those and no others.
	GPU int
	// GPUMemory is what an attempt takes of each of them until that is known; 0 leaves it to Spillway. GPUClass is their
	// model, such as "h100" (spillway doctor names those of a host); empty takes any.
	GPUMemory quantity.Bytes
	GPUClass  string
	// Timeout bounds one attempt; 0 means none. An attempt past it is killed and counts as failed.
	Timeout time.Duration
	// MaxAttempts is how often the stage's own code may fail or run out of time; 0 means three. Attempts that were lost
	// with their host do not count, and what runs out of memory is tried again with more.
	MaxAttempts int
	// PoolOnly keeps the stage off functions.
	PoolOnly bool
	// Cache says that the stage's output depends on its code and its input alone, and that it is run for its output alone:
	// a run then takes what another run has made of the same input with the same build. Without it only a retry takes
	// results, those of the run that it tries again. Leave it out where a stage reads a directory, a clock or a service,
	// writes to a database or sends a message.
	Cache bool
	// CacheVersion tells results of the same input apart, such as those of two states of a data set: results of another
	// version are never taken. At most 100 bytes of printable characters; the empty one is a version as well.
	CacheVersion string
	// CacheFor is how old a result of another run may be; 0 means as old as results are kept, which is 30 days.
	CacheFor time.Duration
	// Secrets are the names of what the operator of the server has for the stage, such as openai-api-key. Its attempts
	// read them with Secret, and its programs in variables (OPENAI_API_KEY); nothing else is given them. A server that
	// lacks one refuses the app. At most 16.
	Secrets []string
}

// mostSecrets bounds the secrets of a stage.
const mostSecrets = 16

// check returns what is wrong with the hints.
func (h Hints) check() error {
	if h.CPU < 0 || h.Memory < 0 || h.Timeout < 0 || h.MaxAttempts < 0 || h.CacheFor < 0 {
		return fmt.Errorf("it has a negative hint: %+v", h)
	}
	if err := h.gpus().Check(); err != nil {
		return err
	}
	if len(h.Secrets) > mostSecrets {
		return fmt.Errorf("it names %d secrets; name at most %d", len(h.Secrets), mostSecrets)
	}
	if err := wire.CheckSecrets(h.Secrets); err != nil {
		return err
	}
	return runs.CheckCacheVersion(h.CacheVersion)
}

func (h Hints) gpus() quantity.GPUs {
	return quantity.GPUs{Count: h.GPU, Class: h.GPUClass, Memory: h.GPUMemory}
}

// NewStage declares a stage. It panics when the name is not a lower-case word of letters, digits, '-' and '_' (at most
// 40), or run is nil: both are mistakes of the program that calls it.
func NewStage[In, Out any](name string, run func(context.Context, In) (Out, error)) Stage[In, Out] {
	mustName("stage", name)
	if run == nil {
		panic(fmt.Sprintf("spillway: stage %q has no function", name))
	}
	runs.Declare(name)
	return Stage[In, Out]{name: name, run: run}
}

// With returns the stage with these hints. It panics when a hint is negative, or a cache version is no short text.
func (s Stage[In, Out]) With(hints Hints) Stage[In, Out] {
	if err := hints.check(); err != nil {
		panic(fmt.Sprintf("spillway: stage %q: %v", s.name, err))
	}
	s.hints = hints
	return s
}

// Name returns the name that the stage was declared with.
func (s Stage[In, Out]) Name() string { return s.name }

// Describe returns what the engine knows of the stage.
func (s Stage[In, Out]) Describe() wire.Stage {
	return wire.Stage{
		Name:         s.name,
		Declared:     quantity.Size{CPU: s.hints.CPU, Memory: s.hints.Memory}.WithGPUs(s.hints.gpus()),
		MaxAttempts:  cmp.Or(s.hints.MaxAttempts, runs.DefaultMaxAttempts),
		Timeout:      s.hints.Timeout,
		PoolOnly:     s.hints.PoolOnly || s.recommend != nil || s.hints.GPU > 0 || s.hints.Timeout > wire.FunctionTime,
		Command:      s.command,
		Recommends:   s.recommend != nil,
		Cache:        s.hints.Cache,
		CacheVersion: s.hints.CacheVersion,
		CacheFor:     s.hints.CacheFor,
		Secrets:      s.hints.Secrets,
	}
}

// Call runs the stage's function on an encoded input and encodes what it returns. The engine calls it; pipelines use
// Run, Start and Map.
func (s Stage[In, Out]) Call(ctx context.Context, input json.RawMessage) (json.RawMessage, error) {
	var in In
	if err := json.Unmarshal(input, &in); err != nil {
		return nil, fmt.Errorf("stage %s: %w into %T: %w", s.name, runs.ErrInput, in, err)
	}
	out, err := s.run(ctx, in)
	if err != nil {
		return nil, err
	}
	encoded, err := json.Marshal(out)
	if unsupported, ok := errors.AsType[*json.UnsupportedValueError](err); ok { // a NaN: another attempt computes it again
		return nil, fmt.Errorf("%w: stage %s: encode output %T: %w", ErrPermanent, s.name, out, unsupported)
	}
	if err != nil {
		return nil, fmt.Errorf("stage %s: encode output %T: %w", s.name, out, err)
	}
	return encoded, nil
}

// Run calls the stage once and waits for its output. A failed attempt is tried again; an error means that the task has
// failed for good.
func (s Stage[In, Out]) Run(ctx workflow.Context, in In) (Out, error) {
	return s.Start(ctx, in).Get(ctx)
}

// Start calls the stage once and does not wait.
func (s Stage[In, Out]) Start(ctx workflow.Context, in In) Future[Out] {
	encoded, err := json.Marshal(in)
	if err != nil {
		failed, settle := workflow.NewFuture(ctx)
		settle.SetError(fmt.Errorf("stage %s: encode input %T: %w", s.name, in, err))
		return Future[Out]{stage: s.name, future: failed}
	}
	return Future[Out]{stage: s.name, future: runs.Start(ctx, s.Describe(), encoded)}
}

// Map calls the stage once for every input, as many at a time as the run's window allows, and returns the outputs in
// the order of the inputs. It runs in child workflows of at most 500 tasks each. The first task that fails for good
// ends the Map; its error names the index.
func (s Stage[In, Out]) Map(ctx workflow.Context, inputs []In) ([]Out, error) {
	encoded := make([]json.RawMessage, len(inputs))
	for i, in := range inputs {
		one, err := json.Marshal(in)
		if err != nil {
			return nil, fmt.Errorf("stage %s: encode input %d (%T): %w", s.name, i, in, err)
		}
		encoded[i] = one
	}
	outputs, err := runs.Map(ctx, s.Describe(), encoded)
	if err != nil {
		return nil, err
	}
	out := make([]Out, len(outputs))
	for i, one := range outputs {
		if err := json.Unmarshal(one, &out[i]); err != nil {
			return nil, fmt.Errorf("stage %s: decode output %d into %T: %w", s.name, i, out[i], err)
		}
	}
	return out, nil
}

// Future is the output that a started stage will have.
type Future[Out any] struct {
	stage  string
	future workflow.Future
}

// Get waits for the output.
func (f Future[Out]) Get(ctx workflow.Context) (out Out, err error) {
	if f.future == nil {
		return out, errors.New("spillway: Get of a Future that no Start returned")
	}
	var encoded json.RawMessage
	if err := f.future.Get(ctx, &encoded); err != nil {
		return out, err
	}
	if err := json.Unmarshal(encoded, &out); err != nil {
		return out, fmt.Errorf("stage %s: decode output into %T: %w", f.stage, out, err)
	}
	return out, nil
}

func mustName(kind, name string) {
	if err := runs.CheckName(name); err != nil {
		panic(fmt.Sprintf("spillway: %s %v", kind, err))
	}
}
