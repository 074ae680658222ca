package exectest

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/graph"
)

// CUDADevice is one that is stood in for.
type CUDADevice struct {
	// Name is that of its model, Memory what it has; 0 is no bound.
	Name   string
	Memory quantity.Bytes
	// Speed is how many times as fast as a CPU its probes say that it is; 0 is 1.
	Speed float64
	// Out, In, Copy and Save are what a survey says of it.
	Out, In, Copy, Save float64
}

// CUDA stands in for an executor on a host with CUDA devices: it answers for devices "cuda:0" and on, as many as it
// has, with their names and sizes, and has another executor compute on the CPU what they are to compute. It knows what
// parts hold there, refuses what is more than a device has, and loses devices. CPU devices are the other executor's.
type CUDA struct {
	exec.Executor
	devices []CUDADevice

	mu      sync.Mutex
	lost    map[int]bool
	touched map[int]bool
	held    map[*cudaStage]quantity.Bytes // by stages that are loaded, their peaks
}

var (
	_ exec.Executor = (*CUDA)(nil)
	_ exec.Surveyor = (*CUDA)(nil)
)

// NewCUDA returns an executor of CUDA devices that an executor on CPUs stands in for.
func NewCUDA(on exec.Executor, devices ...CUDADevice) *CUDA {
	return &CUDA{
		Executor: on, devices: devices, lost: map[int]bool{}, touched: map[int]bool{}, held: map[*cudaStage]quantity.Bytes{},
	}
}

// Lose takes a device away: whatever is asked of it from now on fails.
func (c *CUDA) Lose(index int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lost[index] = true
}

// Touched are the indices of the devices that anything was asked of, ascending.
func (c *CUDA) Touched() []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []int
	for i := range c.devices {
		if c.touched[i] {
			all = append(all, i)
		}
	}
	return all
}

// absentError is the error about a device that is not there; it matches [exec.ErrRequest].
type absentError struct{ index, devices int }

func (e absentError) Error() string {
	return fmt.Sprintf("there is no device cuda:%d; this host has %d", e.index, e.devices)
}

// Is reports whether target is [exec.ErrRequest].
func (absentError) Is(target error) bool { return target == exec.ErrRequest }

// touch refuses a device that is not there, or no longer.
func (c *CUDA) touch(d exec.Device) error {
	if d.Kind != exec.CUDA {
		return nil
	}
	if d.Index >= len(c.devices) {
		return absentError{d.Index, len(c.devices)}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.touched[d.Index] = true
	if c.lost[d.Index] {
		return fmt.Errorf("cuda:%d has fallen off the bus", d.Index)
	}
	return nil
}

// Survey implements [exec.Surveyor].
func (c *CUDA) Survey(_ context.Context, devices []exec.Device) ([]exec.Surveyed, error) {
	all := make([]exec.Surveyed, len(devices))
	for i, d := range devices {
		if err := c.touch(d); err != nil {
			return nil, err
		}
		has := c.devices[d.Index]
		all[i] = exec.Surveyed{
			Name: has.Name, Memory: has.Memory, Free: has.Memory, Out: has.Out, In: has.In, Copy: has.Copy,
			Save: has.Save,
		}
	}
	return all, nil
}

// cpu is the device that computes for another.
func cpu(d exec.Device) exec.Device {
	if d.Kind == exec.CUDA {
		return exec.Device{ID: d.ID, Kind: exec.CPU, Threads: 1}
	}
	return d
}

// Probe implements [exec.Executor]. The operations are run one by one, and each must fit the device.
func (c *CUDA) Probe(ctx context.Context, o exec.ProbeOptions) (exec.Probe, error) {
	if err := c.touch(o.Device); err != nil {
		return exec.Probe{}, err
	}
	on := o.Device
	o.Device = cpu(on)
	p, err := c.Executor.Probe(ctx, o)
	if err != nil || on.Kind != exec.CUDA {
		return p, err
	}
	speed := graph.Seconds(c.devices[on.Index].Speed)
	if speed == 0 {
		speed = 1
	}
	room := c.room(on)
	for i, op := range p.Graph.Ops {
		if alone := 2*op.Parameters + op.Activation; alone > room {
			return exec.Probe{}, fmt.Errorf("cuda:%d: operation %s of %d samples: %w: it takes %v", on.Index, op.ID, o.Samples,
				exec.ErrMemory, alone)
		}
		cost := op.Costs[graph.CPU]
		p.Graph.Ops[i].Costs = map[string]graph.Cost{
			graph.Accelerator: {Forward: cost.Forward / speed, Backward: cost.Backward / speed},
		}
	}
	p.Forward, p.Backward = p.Forward/speed, p.Backward/speed
	if sum := p.Graph.Summary(); 2*sum.Parameters+sum.Activation > room {
		p.Forward, p.Backward = 0, 0
	}
	return p, nil
}

// room is what a part may hold on a device.
func (c *CUDA) room(d exec.Device) quantity.Bytes {
	room := graph.MostBytes
	for _, bound := range []quantity.Bytes{d.Memory, c.devices[d.Index].Memory} {
		if bound > 0 {
			room = min(room, bound)
		}
	}
	return room
}

// Load implements [exec.Executor].
func (c *CUDA) Load(ctx context.Context, layout exec.Layout) (exec.Pipeline, error) {
	inner := layout
	inner.Parts = slices.Clone(layout.Parts)
	for i, part := range layout.Parts {
		if err := c.touch(part.Device); err != nil {
			return nil, fmt.Errorf("part %d: %w", i, err)
		}
		inner.Parts[i].Device = cpu(part.Device)
	}
	p, err := c.Executor.Load(ctx, inner)
	if err != nil {
		return nil, err
	}
	made := &cudaPipeline{Pipeline: p}
	for i, s := range p.Stages() {
		made.stages = append(made.stages, &cudaStage{Stage: s, cuda: c, number: i, device: layout.Parts[i].Device})
	}
	return made, nil
}

type cudaPipeline struct {
	exec.Pipeline
	stages []*cudaStage
}

// Stages are those of the other executor with the bounds of their devices.
func (p *cudaPipeline) Stages() []exec.Stage {
	all := make([]exec.Stage, len(p.stages))
	for i, s := range p.stages {
		all[i] = s
	}
	return all
}

// Close gives the devices' memory back.
func (p *cudaPipeline) Close() error {
	for _, s := range p.stages {
		s.cuda.mu.Lock()
		delete(s.cuda.held, s)
		s.cuda.mu.Unlock()
	}
	return p.Pipeline.Close()
}

type cudaStage struct {
	exec.Stage
	cuda   *CUDA
	number int
	device exec.Device
}

// holds refuses what is more than the part or the device may hold.
func (s *cudaStage) holds(ctx context.Context, what string) error {
	if s.device.Kind != exec.CUDA {
		return nil
	}
	usage, err := s.Stage.Usage(ctx)
	if err != nil {
		return err
	}
	c := s.cuda
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held[s] = usage.Peak
	var all quantity.Bytes
	for other, bytes := range c.held {
		if other.device.Kind == exec.CUDA && other.device.Index == s.device.Index {
			all += bytes
		}
	}
	has := c.devices[s.device.Index].Memory
	if s.device.Memory > 0 && usage.Peak > s.device.Memory || has > 0 && all > has {
		return fmt.Errorf("part %d on cuda:%d: %s: %w: the part holds %v of %v, and all on the device %v of %v", s.number,
			s.device.Index, what, exec.ErrMemory, usage.Peak, s.device.Memory, all, has)
	}
	return nil
}

// Forward implements [exec.Stage].
func (s *cudaStage) Forward(
	ctx context.Context, step int64, microBatch int, batch exec.Message, from []exec.Message,
) (exec.Message, error) {
	if err := s.cuda.touch(s.device); err != nil {
		return nil, err
	}
	made, err := s.Stage.Forward(ctx, step, microBatch, batch, from)
	if err != nil {
		return nil, err
	}
	return made, s.holds(ctx, "forward")
}

// Recompute implements [exec.Stage].
func (s *cudaStage) Recompute(ctx context.Context, microBatch int) error {
	if err := s.cuda.touch(s.device); err != nil {
		return err
	}
	if err := s.Stage.Recompute(ctx, microBatch); err != nil {
		return err
	}
	return s.holds(ctx, "recompute")
}

// Backward implements [exec.Stage].
func (s *cudaStage) Backward(
	ctx context.Context, microBatch int, cotangents []exec.Message,
) ([]exec.Message, error) {
	if err := s.cuda.touch(s.device); err != nil {
		return nil, err
	}
	return s.Stage.Backward(ctx, microBatch, cotangents)
}

// Step implements [exec.Stage].
func (s *cudaStage) Step(ctx context.Context, scale float64) (float64, error) {
	if err := s.cuda.touch(s.device); err != nil {
		return 0, err
	}
	loss, err := s.Stage.Step(ctx, scale)
	if err != nil {
		return 0, err
	}
	return loss, s.holds(ctx, "step")
}
