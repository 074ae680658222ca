// Package torch trains and measures PyTorch models, which it runs in Python processes.
package torch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/graph"
)

// The devices that a model can be probed on.
const (
	CPU  = "cpu"
	CUDA = "cuda"
)

// Options say what to probe and how. The zero value of a field but Model is its default.
type Options struct {
	// Python is the interpreter, a name in PATH or a path: 3.8 or later with torch 1.13 or later. Empty is python3 or,
	// where that one has no torch, that of the system, /usr/bin/python3.
	Python string
	// Model is file.py:function. The function takes no arguments and returns a torch.nn.Module, or it and example inputs.
	// The file is run with the rights and the environment of this process.
	Model string
	// Batch is how many examples a batch has, from 1; 0 is 32. The file's example_inputs(batch) takes it; inputs that the
	// function returns have their own.
	Batch int
	// Shape is that of one example, without the batch, for a model of one input whose file gives none. Nil where the file
	// does.
	Shape []int
	// Type is torch's name of the elements of Shape; empty is float32. Integers are drawn below the size of the smallest
	// embedding.
	Type string
	// Data is the path that the file's data(path) gets when a model is trained; without that function an .npz, .pt or .csv
	// file. Probe does not look at it.
	Data string
	// Validation is the path that the file's validation(path) gets, or an .npz, .pt or .csv file; empty leaves it to that
	// function, which gets Data where it wants a path. Without both there are no validation data.
	Validation string
	// Device is CPU or CUDA; empty is CPU.
	Device string
	// Repeats is how often each operation is timed, from 1, after a warm-up; 0 is 7. The median counts.
	Repeats int
	// Threads is how many CPU threads one operation may use, from 1; 0 leaves it to PyTorch.
	Threads int
	// Logger gets what the model prints, at debug level; nil discards it.
	Logger *slog.Logger
}

// Report tells how a probe came about and what it is worth. Times are medians in seconds for one batch in training
// mode; operations are timed one by one on inputs of their own, so the sums differ from the whole model, whose
// operations find their inputs in the caches and, on a GPU, overlap their launches. Backward times are without the
// fixed cost of one call of autograd, which training pays once for all operations.
type Report struct {
	// Model is Options.Model.
	Model string `json:"model"`
	// Python, Torch and CUDA are versions; CUDA is empty in a build without it.
	Python string `json:"python"`
	Torch  string `json:"torch"`
	CUDA   string `json:"cuda,omitempty"`
	// Device is the name of the device that was measured.
	Device string `json:"device"`
	// Threads is how many CPU threads an operation could use.
	Threads int `json:"threads"`
	// Batch is the first dimension of the first input; 0 where that is a single number.
	Batch int `json:"batch"`
	// Blocks says that the operations are the modules of the file's blocks().
	Blocks bool `json:"blocks,omitempty"`
	// Forward and Backward are measured over the whole model, untraced.
	Forward  graph.Seconds `json:"forward_seconds"`
	Backward graph.Seconds `json:"backward_seconds"`
	// OpsForward and OpsBackward are the sums over the operations.
	OpsForward  graph.Seconds `json:"ops_forward_seconds"`
	OpsBackward graph.Seconds `json:"ops_backward_seconds"`
	// Parameters and Buffers are what the model holds, shared ones once.
	Parameters quantity.Bytes `json:"parameter_bytes"`
	Buffers    quantity.Bytes `json:"buffer_bytes"`
	// Unused names the parameters that no operation reads; the graph lacks them.
	Unused []string `json:"unused,omitempty"`
	// Ops are in the order of the graph's.
	Ops []OpReport `json:"ops"`
}

// OpReport is what a graph does not say about an operation.
type OpReport struct {
	// ID is that of the graph's operation.
	ID string `json:"id"`
	// Kind is the class of the module, or the name of the function or method; "placeholder" for an input.
	Kind string `json:"kind"`
	// Place is the line of the user's code that calls it, as file:line; empty where unknown.
	Place string `json:"place,omitempty"`
	// Shape is that of its output, as Python writes it.
	Shape string `json:"shape"`
	// Output is the size of its output.
	Output quantity.Bytes `json:"output_bytes"`
	// FLOPs counts the forward pass's matrix products, convolutions and attention, a multiplication and an addition as
	// two; all else counts 0. It is -1 where this version of PyTorch cannot count.
	FLOPs int64 `json:"flops"`
}

// Probe runs the model in a Python process of its own and returns its operations with what they cost, hold and pass on.
//
// The modules of torch.nn, functions and methods are operations, and so are the inputs, which cost nothing; the user's
// own modules are entered. An operation's costs are those on the class [graph.CPU] or [graph.Accelerator]. Parameters
// counts each parameter at the first operation that reads it; operations that share one have its name as their colour.
// Activation is what autograd really keeps, each tensor at the first operation that keeps it. Workspace holds the
// buffers. A model whose path depends on the values of tensors is refused with an error that matches [ErrUntraceable],
// unless its file has a function blocks, of the model or of nothing, that returns a list of (name, module) that run in
// turn: each is then one operation.
//
// When ctx ends, the process and all that it started in its group are killed. Errors about the model are a
// [*ModelError] below.
func Probe(ctx context.Context, opts Options) (graph.Graph, Report, error) {
	opts, err := opts.normalized()
	if err != nil {
		return graph.Graph{}, Report{}, err
	}
	given := opts.Python
	opts.Python = cmp.Or(given, usualPython)
	g, report, err := probe(ctx, opts)
	if given == "" && errors.Is(err, ErrNoTorch) {
		opts.Python = systemPython
		if found, told, other := probe(ctx, opts); !errors.Is(other, ErrNoTorch) && !errors.Is(other, fs.ErrNotExist) {
			g, report, err = found, told, other
		}
	}
	if err != nil {
		return graph.Graph{}, Report{}, fmt.Errorf("probe %s: %w", opts.Model, err)
	}
	return g, report, nil
}

// The Pythons that are tried when nobody names one: a version manager's may come first in PATH, and a distribution's
// torch is in its own.
const (
	usualPython  = "python3"
	systemPython = "/usr/bin/python3"
)

func probe(ctx context.Context, opts Options) (graph.Graph, Report, error) {
	if _, _, err := opts.locate(); err != nil { // before anything starts
		return graph.Graph{}, Report{}, err
	}
	ctx, cancel := context.WithCancel(ctx) // and with it the process that r is forked from
	defer cancel()
	r, err := new(forks).start(ctx, launching{python: opts.Python, threads: opts.Threads, logger: opts.Logger})
	if err != nil {
		return graph.Graph{}, Report{}, err
	}
	defer r.close()
	return r.probe(ctx, opts)
}

// probe looks into a model; opts are normalized.
func (r *runner) probe(ctx context.Context, opts Options) (graph.Graph, Report, error) {
	file, function, err := opts.locate()
	if err != nil {
		return graph.Graph{}, Report{}, err
	}
	request := map[string]any{
		"file": file, "function": function, "batch": opts.Batch, "shape": opts.Shape, "dtype": opts.Type,
		"device": opts.Device, "repeats": opts.Repeats, "threads": opts.Threads,
	}
	var found findings
	if err := r.call(ctx, "probe", request, &found); err != nil {
		return graph.Graph{}, Report{}, err
	}
	class := graph.CPU
	if opts.Device == CUDA {
		class = graph.Accelerator
	}
	g, report, err := found.graph(class, false)
	if err != nil {
		return graph.Graph{}, Report{}, fmt.Errorf("read what was measured: %w", err)
	}
	g.Name, report.Model = opts.Model, opts.Model
	return g, report, nil
}

// normalized returns the options with defaults in place of zero values, or what is wrong with them.
func (o Options) normalized() (Options, error) {
	for _, field := range []struct {
		name    string
		value   *int
		whenNil int
		most    int
	}{{"batch", &o.Batch, 32, 1 << 24}, {"repeats", &o.Repeats, 7, 10_000}, {"threads", &o.Threads, 0, 4096}} {
		if *field.value < 0 || *field.value > field.most {
			return o, fmt.Errorf("probe %s: %s %d; want 1 to %d, or 0 for the default", o.Model, field.name, *field.value,
				field.most)
		}
		if *field.value == 0 {
			*field.value = field.whenNil
		}
	}
	if i := slices.IndexFunc(o.Shape, func(n int) bool { return n < 1 || n > 1<<30 }); i >= 0 {
		return o, fmt.Errorf("probe %s: dimension %d of shape %v is %d; want 1 or more", o.Model, i, o.Shape, o.Shape[i])
	}
	if o.Device == "" {
		o.Device = CPU
	}
	if o.Device != CPU && o.Device != CUDA {
		return o, fmt.Errorf("probe %s: device %q; want %s or %s", o.Model, o.Device, CPU, CUDA)
	}
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	return o, nil
}

// locate splits Model into the absolute path of an existing file and a function.
func (o Options) locate() (file, function string, err error) {
	i := strings.LastIndexByte(o.Model, ':')
	if i <= 0 || i == len(o.Model)-1 {
		return "", "", errors.New("a model is file.py:function, where the function returns a torch.nn.Module")
	}
	file, function = o.Model[:i], o.Model[i+1:]
	if !strings.HasSuffix(file, ".py") {
		return "", "", fmt.Errorf("%s is no Python file; give file.py:function", file)
	}
	info, err := os.Stat(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", "", fmt.Errorf("there is no file %s", file)
	case err != nil:
		return "", "", fmt.Errorf("look at the file: %w", err)
	case !info.Mode().IsRegular():
		return "", "", fmt.Errorf("%s is no file; give file.py:function", file)
	}
	file, err = filepath.Abs(file)
	if err != nil {
		return "", "", fmt.Errorf("find the file: %w", err)
	}
	return file, function, nil
}
