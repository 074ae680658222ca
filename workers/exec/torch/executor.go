package torch

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/graph"
	"github.com/spillway-ml/spillway/workers/spawn"
)

// Executor trains a PyTorch model, each part in a Python process of its own. It is safe for concurrent use.
type Executor struct {
	options Options
	forks   forks
	hosts   []away // of the gang that trains, this process's first; nil without one. Hold sets it
}

var (
	_ exec.Executor    = (*Executor)(nil)
	_ exec.Surveyor    = (*Executor)(nil)
	_ exec.Distributor = (*Executor)(nil)
	_ exec.Examiner    = (*pipeline)(nil)
)

// New returns an executor of the model that the options name. Of the options, Batch, Shape, Type, Device and Threads
// are not looked at: the data says what the inputs are, and probes and layouts say where to run.
//
// The file says how the model is trained: data(path) returns (inputs, targets), a Dataset or a DataLoader; loss(output,
// target), optimizer(parameters), scheduler(optimizer), validation(path) and metrics(output, target) are optional.
// Options.Data and Options.Validation are the paths.
func New(options Options) (*Executor, error) {
	options, err := options.normalized()
	if err != nil {
		return nil, err
	}
	if _, _, err := options.locate(); err != nil {
		return nil, err
	}
	return &Executor{options: options}, nil
}

// Name is "torch".
func (e *Executor) Name() string { return "torch" }

// Probe runs the model on the first samples of the data and measures its operations. The loss is the operation "loss";
// what nobody reads leads to it with an edge of no bytes, so that it is in the last part of every split.
func (e *Executor) Probe(ctx context.Context, options exec.ProbeOptions) (exec.Probe, error) {
	if options.Samples < 1 {
		return exec.Probe{}, fmt.Errorf("probe %s: %d samples; want 1 or more", e.options.Model, options.Samples)
	}
	if err := checkDevice(options.Device); err != nil {
		return exec.Probe{}, fmt.Errorf("probe %s: %w", e.options.Model, err)
	}
	if err := checkPrecision(options.Precision, options.Device); err != nil {
		return exec.Probe{}, fmt.Errorf("probe %s: %w", e.options.Model, err)
	}
	file, function, err := e.options.locate()
	if err != nil {
		return exec.Probe{}, err
	}
	r, err := e.start(ctx, options.Device, nil)
	if err != nil {
		return exec.Probe{}, fmt.Errorf("probe %s: %w", e.options.Model, err)
	}
	defer r.close()
	var found findings
	err = r.call(ctx, "probe", map[string]any{
		"file": file, "function": function, "batch": options.Samples, "device": deviceName(options.Device),
		"repeats": e.options.Repeats,
		"threads": options.Device.Threads, "training": true, "data": e.options.Data,
		"validation": e.options.Validation,
		"precision":  cmp.Or(options.Precision, exec.Float32), "memory": options.Device.Memory,
	}, &found)
	if err != nil {
		return exec.Probe{}, fmt.Errorf("probe %s: %w", e.options.Model, err)
	}
	class := graph.CPU
	if options.Device.Kind == exec.CUDA {
		class = graph.Accelerator
	}
	g, _, err := found.graph(class, true)
	if err != nil {
		return exec.Probe{}, fmt.Errorf("probe %s: read what was measured: %w", e.options.Model, err)
	}
	g.Name = e.options.Model
	return exec.Probe{
		Graph: g, Samples: options.Samples, Forward: found.Forward, Backward: found.Backward, Model: found.Model,
		Dataset: found.Dataset, Base: found.Base, Data: found.Data, Working: found.working(),
		Tied: found.tied(), Fetching: found.fetching(), Validates: found.Validates, Metrics: found.Metrics,
		FLOPs: found.flops(), PeakFLOPS: found.PeakFLOPS,
		Slowdown: found.Slowdown, Statistics: found.Statistics,
	}, nil
}

// Survey asks torch for CUDA devices: their names, what is free of them, and how fast tensors get to page-locked memory
// of the host and back, which is the way of messages. One process looks at all of them, and a second one at those
// that are named several times: what is no longer free beside it is what each process takes.
func (e *Executor) Survey(ctx context.Context, devices []exec.Device) ([]exec.Surveyed, error) {
	names := make([]string, len(devices))
	for i, d := range devices {
		if err := checkDevice(d); err != nil {
			return nil, fmt.Errorf("look at the devices: %w", err)
		}
		names[i] = deviceName(d)
	}
	r, err := e.start(ctx, exec.Device{}, nil)
	if err != nil {
		return nil, fmt.Errorf("look at the devices: %w", err)
	}
	defer r.close()
	all, err := r.survey(ctx, names)
	if err != nil {
		return nil, fmt.Errorf("look at the devices: %w", err)
	}
	shared := repeated(names)
	if len(shared) == 0 {
		return all, nil
	}
	// What is free beside the first process and no longer beside a second one is what each holds.
	second, err := e.start(ctx, exec.Device{}, nil)
	if err != nil {
		return nil, fmt.Errorf("look at the devices: %w", err)
	}
	defer second.close()
	beside, err := second.survey(ctx, shared)
	if err != nil {
		return nil, fmt.Errorf("look at the devices with a second process: %w", err)
	}
	for i, name := range names {
		if at := slices.Index(shared, name); at >= 0 {
			all[i].Context = max(0, all[i].Free-beside[at].Free)
		}
	}
	return all, nil
}

// repeated are the names that occur more than once, each once.
func repeated(names []string) []string {
	var found []string
	for i, name := range names {
		if slices.Contains(names[:i], name) && !slices.Contains(found, name) {
			found = append(found, name)
		}
	}
	return found
}

// survey asks a runner about devices by their names. What it holds of them is held until it is closed.
func (r *runner) survey(ctx context.Context, names []string) ([]exec.Surveyed, error) {
	var found []struct {
		Name        string         `json:"name"`
		Memory      quantity.Bytes `json:"memory"`
		Free        quantity.Bytes `json:"free"`
		Out         float64        `json:"out"`
		In          float64        `json:"in"`
		Copy        float64        `json:"copy"`
		Save        float64        `json:"save"`
		Float32Only bool           `json:"float32_only"`
	}
	if err := r.call(ctx, "survey", map[string]any{"devices": names}, &found); err != nil {
		return nil, err
	}
	if len(found) != len(names) {
		return nil, fmt.Errorf("%d were found of %d", len(found), len(names))
	}
	all := make([]exec.Surveyed, len(found))
	for i, f := range found {
		all[i] = exec.Surveyed{
			Name: f.Name, Memory: f.Memory, Free: f.Free, Out: f.Out, In: f.In, Copy: f.Copy, Save: f.Save,
			Float32Only: f.Float32Only,
		}
	}
	return all, nil
}

// arena is the memory that the runners of a pipeline share on each host.
type arena struct {
	file *os.File // that of this host
	// session names it on the others, and parts is for how many it is.
	session string
	parts   int
}

// makeArena makes the memory of so many parts: a file that is as large as the stretches of all, none of which takes
// memory before it is written.
func makeArena(parts int) (*arena, error) {
	file, err := newArena()
	if err != nil {
		return nil, err
	}
	if err := file.Truncate(int64(parts) * stretch); err != nil {
		return nil, errors.Join(fmt.Errorf("make shared memory: %w", err), file.Close())
	}
	return &arena{file: file, session: rand.Text(), parts: parts}, nil
}

// start starts a runner for a device, on the host where that is.
func (e *Executor) start(ctx context.Context, device exec.Device, shared *arena) (*runner, error) {
	host, err := e.hostOf(device)
	if err != nil {
		return nil, err
	}
	if host != nil {
		return e.startAway(ctx, host, device, shared)
	}
	how := launching{
		python: cmp.Or(e.options.Python, usualPython), threads: device.Threads, cpus: device.CPUs,
		logger: e.options.Logger,
	}
	if shared != nil {
		how.shared = shared.file
	}
	r, err := e.forks.start(ctx, how)
	if e.options.Python != "" || !errors.Is(err, ErrNoTorch) {
		return r, err
	}
	how.python = systemPython
	if r, other := e.forks.start(ctx, how); !errors.Is(other, ErrNoTorch) && !errors.Is(other, fs.ErrNotExist) {
		return r, other
	}
	return nil, err
}

// Load starts a process for each part. They load one after the other. The first makes the whole model and hands the
// others what they hold, so that the host holds one whole model, and a part more.
func (e *Executor) Load(ctx context.Context, layout exec.Layout) (exec.Pipeline, error) {
	if layout.Replicas > 1 || sharded(layout) || isAway(layout) {
		p, err := e.loadRanks(ctx, layout)
		if err != nil {
			return nil, fmt.Errorf("load %s in %d replicas of %d parts: %w", e.options.Model, layout.Replicas, len(layout.Parts),
				err)
		}
		return p, nil
	}
	p, err := e.load(ctx, layout)
	if err != nil {
		return nil, fmt.Errorf("load %s in %d parts: %w", e.options.Model, len(layout.Parts), err)
	}
	return p, nil
}

func (e *Executor) load(ctx context.Context, layout exec.Layout) (*pipeline, error) {
	if err := checkLayout(layout); err != nil {
		return nil, err
	}
	shared, err := makeArena(len(layout.Parts))
	if err != nil {
		return nil, err
	}
	defer func() { _ = shared.file.Close() }() // the processes have it open
	p := &pipeline{stages: make([]*stage, len(layout.Parts))}
	if err := e.startAll(ctx, layout, shared, p); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	if err := e.loadAll(ctx, layout, p); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// stretch is how much of the shared file each part owns, as arena.py has it.
const stretch = 1 << 40

func (e *Executor) startAll(ctx context.Context, layout exec.Layout, shared *arena, p *pipeline) error {
	errs := make([]error, len(layout.Parts))
	var starting sync.WaitGroup
	for i, part := range layout.Parts {
		p.stages[i] = &stage{
			number: i, name: cmp.Or(part.Device.ID, deviceName(part.Device)), timed: layout.Timed, recomputes: part.Recompute,
		}
		starting.Go(func() { p.stages[i].runner, errs[i] = e.start(ctx, part.Device, shared) })
	}
	starting.Wait()
	for i, err := range errs {
		if err != nil { // the others say the same, or were ended
			return fmt.Errorf("part %d: %w", i, err)
		}
	}
	return nil
}

// loadAll loads the parts in order. The first one, which has the data, tells the others what an input is.
func (e *Executor) loadAll(ctx context.Context, layout exec.Layout, p *pipeline) error {
	file, function, err := e.options.locate()
	if err != nil {
		return err
	}
	ops := make([][]string, len(layout.Parts))
	for i, part := range layout.Parts {
		ops[i] = part.Ops
	}
	allowed, err := spawn.AllowedCPUs()
	if err != nil {
		return fmt.Errorf("find the cores of processes that fetch data: %w", err)
	}
	cpus := coresForData(allowed, layout.Parts)
	var example string
	var sizes []int // of the pieces of validation data
	for i, part := range layout.Parts {
		var loaded struct {
			Model         string `json:"model"`
			Reads         []int  `json:"reads"`
			ReadsBatch    bool   `json:"reads_batch"`
			Example       string `json:"example"`
			Samples       int    `json:"samples"`
			StepsPerEpoch int64  `json:"steps_per_epoch"`
			Validation    *struct {
				Sizes      []int `json:"sizes"`
				Reads      []int `json:"reads"`
				ReadsBatch bool  `json:"reads_batch"`
			} `json:"validation"`
		}
		lent, err := p.lend(ctx, i)
		if err != nil {
			return err
		}
		err = p.stages[i].runner.call(ctx, "load", map[string]any{
			"file": file, "function": function, "data": e.options.Data, "seed": layout.Seed, "parts": ops, "index": i,
			"example": example, "lent": lent, "validation": e.options.Validation, "validation_sizes": sizes,
			"steps": layout.Steps, "epochs": layout.Epochs, "steps_per_epoch": p.data.StepsPerEpoch,
			"batch": layout.Batch, "batch_of": layout.Of, "micro_batches": layout.MicroBatches, "in_flight": part.InFlight,
			"recompute": part.Recompute,
			"precision": cmp.Or(layout.Precision, exec.Float32), "compile": layout.Compile, "optimizer": layout.Optimizer,
			"device":  deviceName(part.Device),
			"threads": part.Device.Threads, "memory": part.Device.Memory,
			"data_workers": layout.DataWorkers, "data_cpus": cpus, "data_timeout": layout.DataTimeout.Seconds(),
		}, &loaded)
		if err != nil {
			return fmt.Errorf("part %d on %s: %w", i, p.stages[i].name, err)
		}
		p.stages[i].reads, p.stages[i].readsBatch = loaded.Reads, loaded.ReadsBatch
		p.stages[i].inFlight = part.InFlight
		if v := loaded.Validation; v != nil {
			p.stages[i].evaluationReads, p.stages[i].evaluationReadsBatch = v.Reads, v.ReadsBatch
		}
		if i == 0 {
			if v := loaded.Validation; v != nil {
				sizes = v.Sizes
			}
			example = loaded.Example
			p.data = exec.Data{Samples: loaded.Samples, StepsPerEpoch: loaded.StepsPerEpoch, Model: loaded.Model}
			p.data.Validates = loaded.Validation != nil
		} else if loaded.Model != p.data.Model {
			return fmt.Errorf("part %d on %s: the model is another one than that of part 0; let the function build the same "+
				"model each time it is called", i, p.stages[i].name)
		}
	}
	_, err = p.lend(ctx, len(layout.Parts))
	return err
}

// coresForData are those to which no part is pinned, or all that are allowed where none is left. It is empty where
// processes that fetch data may run wherever the first part does.
func coresForData(allowed []int, parts []exec.Part) []int {
	if len(parts[0].Device.CPUs) == 0 {
		return nil
	}
	left := slices.DeleteFunc(slices.Clone(allowed), func(cpu int) bool {
		return slices.ContainsFunc(parts, func(p exec.Part) bool { return slices.Contains(p.Device.CPUs, cpu) })
	})
	if len(left) == 0 {
		return allowed
	}
	return left
}

// lend has the first part, which made the whole model, tell another where the tensors are that it holds; after the last
// part it lets go what is left.
func (p *pipeline) lend(ctx context.Context, part int) (lent message, err error) {
	if part == 0 || len(p.stages) == 1 {
		return nil, nil
	}
	if err := p.stages[0].runner.call(ctx, "lend", map[string]any{"part": part}, &lent); err != nil {
		return nil, fmt.Errorf("part 0 on %s: hand over the tensors of part %d: %w", p.stages[0].name, part, err)
	}
	return lent, nil
}

// checkLayout refuses layouts that no model can be trained with.
func checkLayout(layout exec.Layout) error {
	switch {
	case len(layout.Parts) == 0:
		return errors.New("a layout without parts; one part is the unsplit model")
	case layout.DataWorkers < 0 || layout.DataTimeout < 0:
		return fmt.Errorf("%d processes for the data, which may take %v; want none below 0", layout.DataWorkers,
			layout.DataTimeout)
	case layout.Batch < 1 || layout.MicroBatches < 1 || layout.MicroBatches > layout.Batch:
		return fmt.Errorf("a batch of %d samples in %d micro-batches; want 1 micro-batch or more, of 1 sample or more",
			layout.Batch, layout.MicroBatches)
	}
	for i, part := range layout.Parts {
		if err := errors.Join(checkDevice(part.Device), checkPrecision(layout.Precision, part.Device)); err != nil {
			return fmt.Errorf("part %d: %w", i, err)
		}
		switch {
		case part.InFlight < 1:
			return fmt.Errorf("part %d: %d micro-batches in flight; want 1 or more", i, part.InFlight)
		case part.Ops == nil && len(layout.Parts) > 1:
			return fmt.Errorf("part %d names no operations; only an only part may leave them to be all", i)
		}
	}
	return nil
}

// checkPrecision refuses what no device, or this one, computes in.
func checkPrecision(precision exec.Precision, device exec.Device) error {
	switch {
	case precision != "" && !slices.Contains(exec.Precisions(), precision):
		return fmt.Errorf("precision %q; want one of %v", precision, exec.Precisions())
	case precision == exec.TF32 && device.Kind != exec.CUDA:
		return fmt.Errorf("%s on %s: only units of GPUs multiply so; choose %s or %s, or a %s device", exec.TF32,
			deviceName(device), exec.Float32, exec.BFloat16, exec.CUDA)
	}
	return nil
}

func checkDevice(device exec.Device) error {
	switch {
	case device.Kind != "" && device.Kind != exec.CPU && device.Kind != exec.CUDA:
		return fmt.Errorf("device %q is of kind %q; want %s or %s", device.ID, device.Kind, exec.CPU, exec.CUDA)
	case device.Index < 0 || device.Threads < 0 || device.Memory < 0:
		return fmt.Errorf("device %q has number %d, %d threads and %d bytes; want none below 0", device.ID, device.Index,
			device.Threads, device.Memory)
	}
	return nil
}

// deviceName is torch's name of a device.
func deviceName(device exec.Device) string {
	if device.Kind == exec.CUDA {
		return fmt.Sprintf("cuda:%d", device.Index)
	}
	return "cpu"
}

// message is what a part passes on: where in the shared memory its tensors are, as arena.py writes it. It is never nil
// in a [exec.Message].
type message = json.RawMessage
