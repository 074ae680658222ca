package training

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/graph"
	"github.com/spillway-ml/spillway/workers/partition"
	"github.com/spillway-ml/spillway/workers/schedule"
)

// parameterBytes is the size of a trained parameter and of its gradient: float32, whatever the precision of products.
const parameterBytes = 4

// machine is what the host does besides computing.
type machine struct {
	// copyRate is how fast memory is copied, in bytes a second; 0 is at once.
	copyRate float64
	// call is what each call of a part takes besides its work, in seconds.
	call float64
	// written is how fast checkpoints get to the disk, in bytes a second; 0 is not known.
	written float64
	// seen is what is known of CUDA devices, by ID.
	seen map[string]exec.Surveyed
}

// setup is what all splits of a training have in common.
type setup struct {
	model    model
	machine  machine
	batch    int
	schedule string
	state    float64 // bytes of optimizer state for each parameter
	// besides is what processes held in rehearsals besides tensors, by class of device.
	besides   map[string]besides
	recompute string
	copies    copying
	// least is how many samples a micro-batch has at least; 0 is 1.
	least   int
	loading loading
	// replicas train together, batch samples each at most; 0 is 1. beside of them share the hardware of the first, which
	// is among them; 0 is 1.
	replicas, beside int
	sharding         exec.Sharding
	// hosts is on how many hosts they are, 0 is this one; here of the replicas are on the first, 0 is all.
	hosts, here int
	// exchange is what such replicas exchange, or what was measured before their number was known; across is what was
	// measured between the hosts of a gang.
	exchange, across exec.Exchange
	// host is what the host can give to processes, in bytes; 0 is not known.
	host float64
}

// count is how many replicas there are, from 1.
func (s setup) count() int { return max(s.replicas, 1) }

// divides reports whether replicas divide something.
func (s setup) divides() bool { return s.sharding != "" && s.sharding != exec.ShardNone }

// copying says when checkpoints are copied. A copy is in the memory of the host until it is written.
type copying int

const (
	// copiesNever prices none.
	copiesNever copying = iota
	// copiesLast makes one when no micro-batch is under way.
	copiesLast
	// copiesBeside makes them beside the steps.
	copiesBeside
)

// part is one part of a split, priced.
type part struct {
	ops               []int // in topological order
	device            exec.Device
	flight            int
	recompute         bool
	forward, backward float64 // of one micro-batch, in seconds
	again             float64 // its recomputation, where there is one
	step              float64 // of the optimizer, in seconds
	send              float64 // of one micro-batch to the next part, in seconds
	peak, capacity    float64 // in bytes; capacity is +Inf where nothing bounds it
	// copied is what a checkpoint copies, in bytes, and most what the part holds with a copy in the device's memory.
	copied, most       float64
	parameters, buffer float64 // in bytes
	contention         contention
	busy               float64 // in a step, in seconds, beside the other parts
	exchange           float64 // of replicas in a step, in seconds, beyond what is hidden; it is in step
}

// candidate is a split that is priced.
type candidate struct {
	parts        []part
	microBatches int
	seconds      float64
	bubble       float64
	replicas     int // 0 is 1
	hosts        int // 0 is 1
	sharding     exec.Sharding
	lacks        float64 // bytes that the host has too few for all replicas
}

// count is how many replicas it has, from 1.
func (c candidate) count() int { return max(c.replicas, 1) }

// ranks is how many parts all replicas have together.
func (c candidate) ranks() int { return c.count() * len(c.parts) }

// theHost names what all processes share, beside the IDs of devices.
const theHost = "the host"

// over is by how many bytes the fullest part exceeds its device, and which one, or all of them the host; 0 where all
// fit.
func (c candidate) over() (bytes float64, device string) {
	if c.lacks > 0 {
		bytes, device = c.lacks, theHost
	}
	for _, p := range c.parts {
		if p.most-p.capacity > bytes {
			bytes, device = p.most-p.capacity, p.device.ID
		}
	}
	return bytes, device
}

// peak is what the fullest part holds.
func (c candidate) peak() float64 {
	most := 0.0
	for _, p := range c.parts {
		most = max(most, p.peak)
	}
	return most
}

// capacity is what a part on the device may hold: its process holds some already.
func (s setup) capacity(d exec.Device) float64 {
	if d.Memory == 0 {
		return math.Inf(1)
	}
	return float64(room(d, s.model.base))
}

// room is what a part may hold on a device whose memory is bounded, where its process holds some of the host's already.
func room(d exec.Device, base quantity.Bytes) quantity.Bytes {
	if d.Kind == exec.CUDA {
		return d.Memory
	}
	return max(d.Memory-base, 1)
}

// split divides the model into one part for each device, for a number of micro-batches, and prices that with corrected
// times and sizes. A split that fits nowhere is an error that wraps [partition.ErrUnfit]; the candidate that comes
// closest is returned besides.
func (s setup) split(devices []exec.Device, microBatches int, by correction) (candidate, error) {
	if len(devices) == 1 {
		made, err := s.price([][]int{s.model.order}, devices, microBatches, by)
		if err != nil {
			return candidate{}, err
		}
		return made, made.fits()
	}
	p := s.problem(devices, microBatches)
	bounded := false
	for i, d := range devices {
		if room := s.capacity(d); !math.IsInf(room, 1) {
			p.Devices[i].Memory = max(1, quantity.Bytes(room/by.peak))
			bounded = true
		}
	}
	best, err := s.solve(p, devices, by)
	if err != nil && !errors.Is(err, partition.ErrUnfit) {
		return candidate{}, err
	}
	// the fastest split that does not fit is another place to start from
	if excess, _ := best.over(); bounded && (best.parts == nil || excess > 0) {
		for i := range p.Devices {
			p.Devices[i].Memory = 0
		}
		other, err := s.solve(p, devices, by)
		if err != nil {
			return candidate{}, err
		}
		if best.parts == nil || other.better(best) {
			best = other
		}
	}
	return s.againstOrder(best, microBatches, by)
}

// againstOrder returns the better of a split and of one that cuts the operations in their order, improved.
func (s setup) againstOrder(best candidate, microBatches int, by correction) (candidate, error) {
	ordered, err := s.inOrder(best.placed().devices, microBatches, best.fits() == nil, by)
	if err != nil {
		return candidate{}, err
	}
	if ordered.parts != nil {
		if ordered, err = s.refined(ordered, by); err != nil {
			return candidate{}, err
		}
		if ordered.better(best) {
			best = ordered
		}
	}
	return best, best.fits()
}

// solve divides the model as package partition would, and improves that.
func (s setup) solve(p partition.Problem, devices []exec.Device, by correction) (candidate, error) {
	plan, err := partition.Solve(p)
	if err != nil {
		return candidate{}, fmt.Errorf("divide the model into %d parts: %w", len(devices), err)
	}
	var from placed
	for _, stage := range plan.Stages {
		from.stages = append(from.stages, s.ordered(stage.Ops))
		from.devices = append(from.devices, devices[stage.Devices[0]])
	}
	made, err := s.cut(from, devices, p.MicroBatches, by)
	if err != nil {
		return candidate{}, err
	}
	return s.refined(made, by)
}

// fits refuses a candidate that exceeds a device.
func (c candidate) fits() error {
	excess, device := c.over()
	if excess == 0 {
		return nil
	}
	return fmt.Errorf("%d parts of %d micro-batches: %s is short of %v: the model %w", len(c.parts), c.microBatches,
		device, quantity.Bytes(math.Ceil(excess)), partition.ErrUnfit)
}

// splitBudget is that of one split: a plan prices one for each number of parts and of micro-batches, and improves it by
// what package partition does not know.
const splitBudget = 250 * time.Millisecond

// problem is the one that package partition solves.
func (s setup) problem(devices []exec.Device, microBatches int) partition.Problem {
	g := s.model.batchGraph(s.batch, microBatches)
	if s.recompute == RecomputeAlways {
		for i := range g.Ops {
			for class, cost := range g.Ops[i].Costs {
				g.Ops[i].Costs[class] = graph.Cost{Forward: cost.Forward, Backward: cost.Backward + cost.Forward}
			}
			g.Ops[i].Activation /= quantity.Bytes(microBatches)
		}
	}
	p := partition.Problem{
		Graph: g, Objective: partition.Step, Training: true, MicroBatches: microBatches, MostReplicas: 1,
		Launch: graph.Seconds(s.machine.call), Budget: splitBudget,
		Links: partition.Links{Between: partition.Link{BytesPerSecond: s.machine.copyRate}},
		Memory: partition.Memory{
			Weight: parameterBytes, Gradient: parameterBytes, Optimizer: s.state,
			Recompute: s.recompute == RecomputeAuto,
		},
	}
	if s.copies == copiesBeside && !slices.ContainsFunc(devices, func(d exec.Device) bool { return d.Kind == exec.CUDA }) {
		p.Memory.Optimizer += parameterBytes + s.state
	}
	for _, d := range devices {
		p.Devices = append(p.Devices, partition.Device{ID: d.ID, Class: classOf(d)})
	}
	if s.machine.seen != nil || s.hosts > 1 {
		p.Links.Pairs = s.links(devices)
	}
	return p
}

// links are those of every two devices, where they are not alike.
func (s setup) links(devices []exec.Device) map[[2]string]partition.Link {
	pairs := map[[2]string]partition.Link{}
	for _, a := range devices {
		for _, b := range devices {
			if a.ID != b.ID {
				link := partition.Link{BytesPerSecond: inverse(s.machine.perByte(a, b))}
				if a.Host != b.Host && s.exchange.Send.EachByte > 0 {
					link.BytesPerSecond = 1 / s.exchange.Send.EachByte
				}
				pairs[[2]string{a.ID, b.ID}] = link
			}
		}
	}
	return pairs
}

// price simulates given stages on given devices.
func (s setup) price(stages [][]int, devices []exec.Device, microBatches int, by correction) (candidate, error) {
	home := make([]int, len(s.model.order))
	for i, ops := range stages {
		for _, op := range ops {
			home[op] = i
		}
	}
	made := candidate{
		microBatches: microBatches, parts: make([]part, len(stages)), replicas: s.replicas, sharding: s.sharding,
		hosts: s.hosts,
	}
	traffic, err := s.traffic(home, len(stages), microBatches)
	if err != nil {
		return candidate{}, err
	}
	tied := ties(s.model.tied, home, len(stages))
	for i, ops := range stages {
		traffic[i].tie = tied[i]
		made.parts[i] = s.part(ops, devices[i], i, len(stages), microBatches, traffic[i], by)
		if i+1 < len(stages) {
			made.parts[i].send = s.passing(traffic[i].passed, devices[i], devices[i+1])
			made.parts[i].step += s.passing(tied[i].passed, devices[i], devices[i+1])
		}
		made.parts[i].exchange = s.exchanges(made.parts[i], microBatches)
		made.parts[i].step += made.parts[i].exchange
	}
	made.lacks = s.lacks(made)
	result, err := simulate(s.schedule, made.parts, microBatches)
	if err != nil {
		return candidate{}, err
	}
	made.seconds, made.bubble = result.Makespan*by.time, result.Bubble()
	for i := range made.parts {
		made.parts[i].busy = result.Busy[i] * by.time
	}
	return made, nil
}

// passing is how long bytes take from a part to the next one.
func (s setup) passing(bytes float64, from, to exec.Device) float64 {
	if (s.count() > 1 || from.Host != to.Host) && s.exchange.Ranks > 0 { // by torch.distributed
		return s.exchange.Send.At(bytes)
	}
	return bytes * s.machine.toAndFro(from, to)
}

// traffic is what goes in and out of a part with one micro-batch, in bytes.
type traffic struct {
	in, out float64 // of tensors that it reads and makes
	// shared is what lies in memory that processes share: what the part sends for each micro-batch in flight and the
	// gradients that come back, and what it receives and answers, for each that is in flight where that comes from.
	shared  float64
	passed  float64 // over the border to the next part, those that are passed on included
	moments         // of the micro-batch at work
	tie     tie     // of parameters that several parts read, in a step
}

// traffic follows every tensor from its part to those that read it.
func (s setup) traffic(home []int, parts, microBatches int) ([]traffic, error) {
	all := make([]traffic, parts)
	each := float64(s.batch) / float64(microBatches)
	scale := each / float64(s.model.samples)
	for i, m := range s.moments(home, parts, each) {
		all[i].moments = m
	}
	for _, t := range s.model.tensors {
		bytes, from, last := float64(t.Bytes)*scale, home[t.From], home[t.From]
		var readers []int
		for _, reader := range t.Readers {
			to := home[reader]
			if to < from {
				return nil, errors.New("divide the model: a tensor would go backwards; this is a bug of the planner")
			}
			if to > from && !slices.Contains(readers, to) {
				readers = append(readers, to)
				all[to].in += bytes
				slots := bytes * float64(inFlight(s.schedule, from, parts, microBatches))
				all[to].shared += 2 * slots
				all[from].shared += slots
			}
			last = max(last, to)
		}
		if last > from {
			all[from].out += bytes
			all[from].shared += bytes * float64(inFlight(s.schedule, from, parts, microBatches))
		}
		for border := from; border < last; border++ {
			all[border].passed += bytes
		}
	}
	return all, nil
}

// part prices one part; what it holds is in holds.go.
func (s setup) part(ops []int, device exec.Device, at, parts, microBatches int, t traffic, by correction) part {
	p := part{
		ops: ops, device: device, flight: inFlight(s.schedule, at, parts, microBatches),
		capacity: s.capacity(device),
	}
	works := s.model.classes[classOf(device)]
	each := float64(s.batch) / float64(microBatches)
	activation, gradient := 0.0, 0.0
	for _, i := range ops {
		op := s.model.shape.Ops[i]
		p.forward += works[i].forward.at(each)
		p.backward += works[i].backward.at(each)
		p.parameters += float64(op.Parameters)
		p.buffer += float64(op.Workspace)
		gradient = max(gradient, float64(op.Parameters))
		activation += s.model.activations[i].at(each)
	}
	p.copied = p.parameters*(1+s.state/parameterBytes) + p.buffer
	p.buffer += 2 * t.tie.copies
	if s.model.base > 0 && device.Kind != exec.CUDA {
		p.buffer += t.tie.lent
	}
	performed, rehearsed := s.model.performances[classOf(device)]
	if whole := float64(performed.small.usage.Parameters); rehearsed && whole > 0 {
		p.step = performed.small.pace.step*p.parameters/whole + s.machine.call
		p.contention = performed.contention
	} else {
		// The optimizer reads the parameter, the gradient and its state and writes the first and the last.
		p.step = p.parameters * (3 + 2*s.state/parameterBytes) * inverse(s.machine.within(device)) / 2
	}
	p.again = p.forward + s.machine.call
	if pace := performed.small.pace; pace.again > 0 && pace.forward > 0 {
		p.again = p.forward*pace.again/pace.forward + s.machine.call
	}
	p.forward += s.machine.call
	p.backward += s.machine.call
	p.slow(s.beside - 1)
	again := p
	again.recompute = true
	holds := func(recompute bool) float64 {
		tensors := s.tensors(p, t, activation, gradient, microBatches, recompute)
		return (tensors + s.besideTensors(device, at, parts, each, tensors) + s.ofRank(p)) * by.peak
	}
	p.peak, again.peak = holds(false), holds(true)
	p.most = s.copies.most(p)
	again.most = s.copies.most(again)
	if s.recompute == RecomputeAlways ||
		s.recompute == RecomputeAuto && p.most > p.capacity && again.peak < p.peak {
		return again
	}
	return p
}

// slow has as many other replicas work beside the part as it does: those are at the same place of the same schedule, so
// that beside n parts of its own replica, n (1 + others) + others work. That is 1 + c others times as long as alone,
// and beside n parts, 1 + n c' times as long as that: the product is 1 + c (n (1 + others) + others).
func (p *part) slow(others int) {
	if others < 1 {
		return
	}
	slow := func(c *float64, seconds ...*float64) {
		by := 1 + *c*float64(others)
		*c *= float64(1+others) / by
		for _, s := range seconds {
			*s *= by
		}
	}
	slow(&p.contention.forward, &p.forward, &p.again)
	slow(&p.contention.backward, &p.backward)
	slow(&p.contention.step, &p.step)
}

// most is what a part holds at most in the memory of its device.
func (c copying) most(p part) float64 {
	switch {
	case p.device.Kind == exec.CUDA || c == copiesNever:
		return p.peak
	case c == copiesLast:
		return max(p.peak, 2*p.copied)
	default:
		return p.peak + p.copied
	}
}

// onHost is what parts on CUDA devices take of the host's memory at least while a checkpoint is copied: the copies of
// all of them, the processes that fetch data, and that of one part, as what processes share counts once; 0 where there
// are no such parts.
func (s setup) onHost(c candidate) quantity.Bytes {
	copied := 0.0
	for _, p := range c.parts {
		if p.device.Kind == exec.CUDA {
			copied += p.copied
		}
	}
	if copied == 0 {
		return 0
	}
	first := c.parts[0]
	copied += s.loading.holds(s.dataWorkers(first.device, len(c.parts)), s.batch)
	return s.model.base + quantity.Bytes(math.Ceil(copied))
}

// checkpoint is how long a checkpoint holds a training up: one part after the other copies its state to the host.
func (s setup) checkpoint(c candidate) time.Duration {
	seconds := 0.0
	for _, p := range c.parts {
		seconds += p.copied * inverse(cmp.Or(s.machine.seen[p.device.ID].Save, s.machine.copyRate))
	}
	return time.Duration(seconds * float64(time.Second))
}

// inFlight is how many micro-batches a part holds at most.
func inFlight(kind string, at, parts, microBatches int) int {
	if kind == GPipe {
		return microBatches
	}
	return min(parts-at, microBatches)
}

// instructions makes a schedule; with recompute, every part computes its activations again.
func instructions(kind string, parts, microBatches int, recompute bool) (schedule.Schedule, error) {
	order := schedule.OneForwardOneBackward
	if kind == GPipe {
		order = schedule.GPipe
	}
	s, err := order(parts, microBatches, schedule.Options{Recompute: recompute})
	if err != nil {
		return schedule.Schedule{}, fmt.Errorf("order the work: %w", err)
	}
	return s, nil
}

// simulate runs the schedule of parts with what they cost.
func simulate(kind string, parts []part, microBatches int) (schedule.Result, error) {
	var costs schedule.Costs
	recompute := false
	for i, p := range parts {
		recompute = recompute || p.recompute
		again := 0.0
		if p.recompute {
			again = p.again
		}
		costs.Forward = append(costs.Forward, p.forward)
		costs.Backward = append(costs.Backward, p.backward)
		costs.Recompute = append(costs.Recompute, again)
		costs.Step = append(costs.Step, p.step)
		if i+1 < len(parts) {
			costs.Send = append(costs.Send, p.send)
		}
	}
	s, err := instructions(kind, len(parts), microBatches, recompute)
	if err != nil {
		return schedule.Result{}, err
	}
	if slower := contentions(parts); slices.ContainsFunc(slower, func(c schedule.Contention) bool {
		return c != schedule.Contention{}
	}) {
		costs.Contention = slower
	}
	return schedule.Simulate(s, costs)
}

// contentions are by how much the others slow each part down: those with which it shares a device, or the CPUs.
func contentions(parts []part) []schedule.Contention {
	all := make([]schedule.Contention, len(parts))
	for i, p := range parts {
		if slices.ContainsFunc(slices.Concat(parts[:i], parts[i+1:]), func(other part) bool {
			return shares(p.device, other.device)
		}) {
			all[i] = schedule.Contention{
				Forward: p.contention.forward, Backward: p.contention.backward, Step: p.contention.step,
			}
		}
	}
	return all
}
