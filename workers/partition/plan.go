package partition

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/graph"
)

// Plan says which device runs what, and what that comes to.
type Plan struct {
	// Assignment is the index of the device for each operation; of the first replica where its stage has several.
	Assignment []int
	// Stages are those of a pipeline, in order; nil for plans that are not contiguous.
	Stages []Stage
	// MicroBatches is into how many parts the batch is cut; 1 but for Step.
	MicroBatches int
	// StepTime is what the objective measures.
	StepTime graph.Seconds
	// LowerBound is a time that no plan can beat.
	LowerBound graph.Seconds
	// Optimal says that no contiguous plan is faster, in this model of costs and, for Step, with the numbers of
	// micro-batches that were tried; so it does where the plan takes no longer than LowerBound.
	Optimal bool
	// PerDevice is in the order of the problem's devices.
	PerDevice []Share
	// Idle is the memory that the devices in use have left.
	Idle quantity.Bytes
	// HourlyPrice is that of the devices in use.
	HourlyPrice quantity.Money
	// Reason says how the plan was found and, of plans of Solve and Front, how far from the least possible it may be.
	Reason string
}

// Stage is a part of a pipeline.
type Stage struct {
	// Ops are the indices of its operations, ascending.
	Ops []int
	// Devices are the indices of those that run it, each a share of every micro-batch.
	Devices []int
	// Forward and Backward are the times of one micro-batch, Recompute included.
	Forward, Backward graph.Seconds
	// Send is the time in which one micro-batch goes to the next stage; its gradient takes as long.
	Send graph.Seconds
	// AllReduce is the time to sum the gradients of the replicas.
	AllReduce graph.Seconds
	// InFlight is how many micro-batches hold activations at once.
	InFlight int
	// Recompute says that activations are computed again before the backward pass.
	Recompute bool
}

// Share is what a plan puts on one device.
type Share struct {
	// Ops is how many operations it has.
	Ops int
	// Load is how long it works and transfers in a batch.
	Load graph.Seconds
	// Sent is how many bytes leave it in a batch.
	Sent quantity.Bytes
	// Memory is the most it holds.
	Memory quantity.Bytes
}

// ErrUnfit is wrapped by errors about plans that exceed a device, and about problems without any plan.
var ErrUnfit = errors.New("does not fit")

// Loss is the plan's time over the least possible time, plus the problem's IdleWeight times the idle part of the memory
// of all devices.
func (p Plan) Loss(problem Problem) float64 {
	loss := 1.0
	if p.LowerBound > 0 {
		loss = float64(p.StepTime / p.LowerBound)
	}
	var all quantity.Bytes
	for _, d := range problem.Devices {
		all += d.Memory
	}
	if all > 0 {
		loss += problem.IdleWeight * float64(p.Idle) / float64(all)
	}
	return loss
}

// sameTime is by how much times may differ that are equal but for rounding, as a part.
const sameTime = 1e-9

// conclude says how far from LowerBound the plan is, which holds for the plan from now on.
func (p *Plan) conclude() {
	if p.LowerBound <= 0 || p.StepTime <= 0 {
		return
	}
	switch ratio := float64(p.StepTime / p.LowerBound); {
	case ratio <= 1+sameTime:
		p.Optimal = true
		p.Reason += "; no plan is faster"
	case ratio < 2:
		p.Reason += fmt.Sprintf("; within %.0f percent of the least possible", math.Ceil(100*(ratio-1-sameTime)))
	default:
		p.Reason += fmt.Sprintf("; at most %.1f times the least possible", math.Ceil(10*ratio)/10)
	}
}

// Used returns the indices of the devices that run something.
func (p Plan) Used() []int {
	var used []int
	for d, share := range p.PerDevice {
		if share.Ops > 0 {
			used = append(used, d)
		}
	}
	return used
}

// Evaluate returns the plan that an assignment of every operation to the index of a device comes to, with the objective
// Throughput or Latency; Step needs stages. Operations that must be together and are not, devices that cannot run what
// they are given, and devices without room are errors; the last wrap ErrUnfit.
func Evaluate(p Problem, assignment []int) (Plan, error) {
	in, err := newInstance(p)
	if err != nil {
		return Plan{}, err
	}
	in = in.loose
	place, err := in.placeOf(assignment)
	if err != nil {
		return Plan{}, err
	}
	return in.plan(place, "given")
}

// placeOf turns an assignment of operations into one of blocks.
func (in *instance) placeOf(assignment []int) ([]int, error) {
	if len(assignment) != len(in.blockOf) {
		return nil, fmt.Errorf("evaluate a plan: %d of %d operations are assigned", len(assignment), len(in.blockOf))
	}
	place := make([]int, len(in.blocks))
	for b, members := range in.blocks {
		for _, op := range members {
			if d := assignment[op]; d < 0 || d >= len(in.p.Devices) {
				return nil, fmt.Errorf("evaluate a plan: operation %q is on device %d of %d", in.p.Graph.Ops[op].ID, d,
					len(in.p.Devices))
			}
			if assignment[op] != assignment[members[0]] {
				return nil, fmt.Errorf("evaluate a plan: operations %q and %q must be together and are on %q and %q",
					in.p.Graph.Ops[members[0]].ID,
					in.p.Graph.Ops[op].ID, in.p.Devices[assignment[members[0]]].ID, in.p.Devices[assignment[op]].ID)
			}
		}
		place[b] = assignment[members[0]]
	}
	return place, nil
}

// plan measures a placement of blocks.
func (in *instance) plan(place []int, reason string) (Plan, error) {
	plan := Plan{
		MicroBatches: 1, PerDevice: make([]Share, len(in.p.Devices)), Reason: reason,
		LowerBound: graph.Seconds(in.loose.bound()),
	}
	plan.Assignment = make([]int, len(in.blockOf))
	memory := make([]float64, len(in.p.Devices))
	for b, d := range place {
		for _, op := range in.blocks[b] {
			plan.Assignment[op] = d
		}
		if !in.runs(b, d) {
			return Plan{}, fmt.Errorf("device %q cannot run operation %q: it has no cost of class %q",
				in.p.Devices[d].ID, in.p.Graph.Ops[in.blocks[b][0]].ID, in.p.Devices[d].Class)
		}
		plan.PerDevice[d].Ops += len(in.blocks[b])
		memory[d] += in.memory[b]
	}
	for d, load := range in.loads(place) {
		plan.PerDevice[d].Load = graph.Seconds(load)
		plan.StepTime = max(plan.StepTime, graph.Seconds(load))
	}
	if in.p.Objective == Latency {
		plan.StepTime = graph.Seconds(in.makespan(place))
	}
	for d, sent := range in.sent(place) {
		plan.PerDevice[d].Sent = quantity.Bytes(sent)
	}
	for d := range plan.PerDevice {
		plan.PerDevice[d].Memory = quantity.Bytes(memory[d])
		if room := in.p.Devices[d].room(); memory[d] > room {
			return plan, fmt.Errorf("device %q needs %v and has %v: the plan %w", in.p.Devices[d].ID,
				quantity.Bytes(memory[d]), in.p.Devices[d].Memory, ErrUnfit)
		}
	}
	plan.account(in.p)
	return plan, nil
}

// account sums up the devices in use.
func (p *Plan) account(problem Problem) {
	p.Idle, p.HourlyPrice = 0, 0
	for d, share := range p.PerDevice {
		if share.Ops > 0 {
			p.Idle += max(problem.Devices[d].Memory-share.Memory, 0)
			p.HourlyPrice += problem.Devices[d].HourlyPrice
		}
	}
}

// stagesOf lists the operations of each device in use in an order in which tensors lead forward only, nil where there
// is none.
func (in *instance) stagesOf(place []int) []Stage {
	next := make([][]int, len(in.p.Devices))
	for b, successors := range in.next {
		for _, c := range successors {
			if place[b] != place[c] {
				next[place[b]] = append(next[place[b]], place[c])
			}
		}
	}
	order := graph.Topological(next)
	if len(order) < len(next) {
		return nil
	}
	var stages []Stage
	for _, d := range order {
		stage := Stage{Devices: []int{d}}
		for b, at := range place {
			if at == d {
				stage.Ops = append(stage.Ops, in.blocks[b]...)
			}
		}
		if len(stage.Ops) > 0 {
			slices.Sort(stage.Ops)
			stages = append(stages, stage)
		}
	}
	return stages
}
