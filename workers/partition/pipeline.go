package partition

import (
	"fmt"
	"math"
	"slices"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/graph"
)

// A training step of K stages and M micro-batches under the schedule 1F1B takes, in this model,
//
//	T = S + (M-1) P + R
//
// S is the time of one micro-batch through all stages and links, forward and back. P is the time between two
// micro-batches: the largest of all stages and links, and for each stage the time from its forward pass to its backward
// pass over the micro-batches it may have in flight. R is what the sums of gradients add: stage s starts its own when
// its last backward pass ends, before those of the stages in front of it,
//
//	R = max(0, max over s of AllReduce_s - sum over i < s of (Backward_i + Send_i))
//
// (S. Fan et al., DAPPLE: A Pipelined Data Parallel Approach for Training Large Models, PPoPP 2021,
// https://arxiv.org/abs/2007.01045, whose planner uses the same three terms; the bound by micro-batches in flight is
// ours). A replica takes its part of every micro-batch. The model leaves out that a stage keeps to its order though
// another micro-batch is there; TestTheTimeOfAStepIsCloseToThatOfItsSchedule shows what that amounts to.

// sums are what stages are made of, added up over blocks.
type sums struct {
	forward, backward, extra []float64 // by kind, in seconds of a whole batch; +Inf where a block cannot run
	parameters               float64   // bytes
	activation, kept         float64   // bytes: all activations, and those that recomputation keeps
	measured                 bool      // kept comes from the profile
	workspace                float64
}

// crossing is what goes over a border in one direction, for a whole batch.
type crossing struct{ bytes, seconds, tensors float64 }

// border is a place between two stages.
type border struct{ forward, backward crossing }

// sumsOf adds up one block.
func (in *instance) sumsOf(block int) sums {
	k := len(in.kinds)
	s := sums{forward: make([]float64, k), backward: make([]float64, k), extra: make([]float64, k)}
	for _, i := range in.blocks[block] {
		op := in.p.Graph.Ops[i]
		s.parameters += float64(op.Parameters)
		s.activation += float64(op.Activation)
		s.workspace += float64(op.Workspace)
		if op.Recompute != nil {
			s.kept += float64(op.Recompute.Activation)
			s.measured = true
		}
		for kind, of := range in.kinds {
			device := in.p.Devices[of.devices[0]]
			cost, runs := op.Costs[device.Class]
			if !runs {
				s.forward[kind] = math.Inf(1)
				continue
			}
			forward, backward := float64(cost.Forward)/device.speed(), float64(cost.Backward)/device.speed()
			if op.Backward || op.BackwardOf != "" {
				forward, backward = 0, forward+backward
			}
			s.forward[kind] += forward
			s.backward[kind] += backward
			if op.Recompute != nil {
				s.extra[kind] += float64(op.Recompute.Extra) / device.speed()
			} else {
				s.extra[kind] += forward
			}
		}
	}
	return s
}

// plus adds other to s in place.
func (s *sums) plus(other sums) {
	for k := range s.forward {
		s.forward[k] += other.forward[k]
		s.backward[k] += other.backward[k]
		s.extra[k] += other.extra[k]
	}
	s.parameters += other.parameters
	s.activation += other.activation
	s.kept += other.kept
	s.measured = s.measured || other.measured
	s.workspace += other.workspace
}

// borders returns what crosses each place between groups, for the group of each block. Tensors that skip groups are
// passed on by those between.
func (in *instance) borders(group []int, groups int) []border {
	all := make([]border, groups+1)
	crossed := 0
	for _, t := range in.outputs {
		home := group[in.blockOf[t.From]]
		first, last := home, home
		for _, reader := range t.Readers {
			g := group[in.blockOf[reader]]
			first, last = min(first, g), max(last, g)
		}
		seconds, bytes := 0.0, float64(t.Bytes)
		if t.Transfer > 0 {
			seconds, bytes = float64(t.Transfer), 0
		}
		one := crossing{bytes: bytes, seconds: seconds, tensors: 1}
		back := backward(in.p.Graph.Ops[t.From])
		crossed += len(t.Readers) + last - first
		for at := first + 1; at <= last; at++ {
			if !back {
				all[at].forward.add(one)
			}
			if back || in.p.Training {
				all[at].backward.add(one)
			}
		}
	}
	in.effort.spend(crossSteps * float64(crossed))
	return all
}

func (c *crossing) add(other crossing) {
	c.bytes += other.bytes
	c.seconds += other.seconds
	c.tensors += other.tensors
}

// pipe is a problem with a number of micro-batches and a limit of those in flight.
type pipe struct {
	*instance
	micro float64
	// wide gives stages enough micro-batches in flight to hide the links: 2n-1 with n stages from here on, instead of n.
	wide bool
}

// inFlight is how many micro-batches a stage holds at once with so many stages from it on, itself included.
func (x *pipe) inFlight(stages int) float64 {
	n := stages
	if x.wide {
		n = 2*stages - 1
	}
	return min(float64(n), x.micro)
}

// timing is what one stage costs.
type timing struct {
	forward, backward float64 // of one micro-batch
	reduce            float64
	memory            float64
	recompute         bool
	fits              bool
}

// keeping is what the parameters of a stage come to on each of its replicas.
type keeping struct {
	reduce float64 // the time to sum their gradients
	held   float64 // bytes of them, their gradients and their state
}

func (x *pipe) keeps(parameters float64, replicas int) keeping {
	return keeping{x.reduce(parameters, replicas), x.p.Memory.held(parameters, replicas, x.trains())}
}

// stage prices a stage of some blocks on replicas of a kind, with what enters it.
func (x *pipe) stage(s *sums, keeps keeping, enters crossing, kind, replicas, stages int) timing {
	share := x.micro * float64(replicas)
	t := timing{
		forward:  s.forward[kind]/share + float64(x.p.Launch),
		backward: s.backward[kind]/share + float64(x.p.Launch),
		reduce:   keeps.reduce,
	}
	flight := x.inFlight(stages)
	fixed := keeps.held + s.workspace
	t.memory = fixed + s.activation/share*flight
	t.fits = t.memory <= x.kinds[kind].room
	if math.IsInf(t.forward, 1) {
		t.fits = false
		return t
	}
	if !t.fits && x.p.Memory.Recompute && x.trains() {
		kept := enters.bytes
		if s.measured {
			kept = s.kept
		}
		memory := fixed + (kept*flight+s.activation)/share
		if memory <= x.kinds[kind].room || memory < t.memory {
			t.memory, t.recompute = memory, true
			t.backward += s.extra[kind] / share
			t.fits = memory <= x.kinds[kind].room
		}
	}
	return t
}

// trains reports whether the pipeline has a backward pass.
func (x *pipe) trains() bool { return x.p.Training || x.gradients }

// reduce is the time of a ring all-reduce of the gradients, 2 (n-1)/n of their bytes over each link, and of ZeRO's
// third stage 3 (n-1)/n; an optimizer state in the memory of the host adds the way of the gradients there and of the
// weights back.
func (x *pipe) reduce(parameters float64, replicas int) float64 {
	if !x.trains() || parameters == 0 {
		return 0
	}
	n, link := float64(replicas), x.p.Links.Between
	seconds := func(bytes float64) float64 {
		if link.BytesPerSecond == 0 {
			return 0
		}
		return bytes / link.BytesPerSecond
	}
	m := x.p.Memory.withDefaults()
	passes := 2.0
	if m.ZeRO == 3 {
		passes = 3
	}
	gradients := parameters * max(m.Gradient/m.Weight, 1)
	t := 0.0
	if replicas > 1 {
		t = seconds(passes*(n-1)/n*gradients) + passes*(n-1)*float64(link.Latency)
	}
	if m.Offload {
		share := 1.0
		if m.ZeRO >= 1 {
			share = n
		}
		t += seconds((gradients + parameters) / share)
	}
	return t
}

// hop is how long one micro-batch takes over a border, between so many replicas on each side.
func (x *pipe) hop(c crossing, before, after int) float64 {
	if c.tensors == 0 {
		return 0
	}
	lanes := float64(min(before, after))
	t := c.seconds / x.micro / lanes
	if c.bytes > 0 {
		link := x.p.Links.Between
		t += float64(link.Latency)
		if link.BytesPerSecond > 0 {
			t += c.bytes / x.micro / lanes / link.BytesPerSecond
		}
	}
	if x.p.Links.ThroughHost { // to the host, and from it
		t *= 2
	}
	return t
}

// chainOf is the running total of a pipeline's cost from its last stage forward.
type chainOf struct {
	sum, period, residual float64
	stages                int
}

// before returns the cost with one more stage in front, which is after all that chain has; forward and back are the
// hops between them.
func (x *pipe) before(c chainOf, t timing, forward, back float64) chainOf {
	c.stages++
	c.sum += t.forward + t.backward + forward + back
	c.period = max(c.period, t.forward+t.backward, forward, back)
	if flight := x.inFlight(c.stages); flight < x.micro { // otherwise no micro-batch waits for another one to come back
		c.period = max(c.period, c.sum/flight)
	}
	c.residual = max(t.reduce, c.residual-t.backward-back)
	return c
}

// total is the time of a step.
func (x *pipe) total(c chainOf) float64 { return c.sum + (x.micro-1)*c.period + max(c.residual, 0) }

// stageOf is a stage as the planner sees it: blocks, and replicas of a kind.
type stageOf struct {
	blocks   []int
	kind     int
	replicas int
}

// What it takes to price a pipeline, for each block; and for each reader of a tensor and each border that it crosses.
const assessSteps, crossSteps = 10, 2

// assess prices a whole pipeline. Its stages are in order.
func (x *pipe) assess(stages []stageOf) (total float64, timings []timing, borders []border) {
	x.effort.spend(assessSteps * float64(len(x.blocks)))
	group := make([]int, len(x.blocks))
	parts := make([]sums, len(stages))
	for i, s := range stages {
		k := len(x.kinds)
		parts[i] = sums{forward: make([]float64, k), backward: make([]float64, k), extra: make([]float64, k)}
		for _, b := range s.blocks {
			group[b] = i
			parts[i].plus(x.sums[b])
		}
	}
	borders = x.borders(group, len(stages))
	timings = make([]timing, len(stages))
	var c chainOf
	for i := len(stages) - 1; i >= 0; i-- {
		s := stages[i]
		keeps := x.keeps(parts[i].parameters, s.replicas)
		timings[i] = x.stage(&parts[i], keeps, borders[i].forward, s.kind, s.replicas, len(stages)-i)
		forward, back := 0.0, 0.0
		if i+1 < len(stages) {
			forward = x.hop(borders[i+1].forward, s.replicas, stages[i+1].replicas)
			back = x.hop(borders[i+1].backward, s.replicas, stages[i+1].replicas)
		}
		c = x.before(c, timings[i], forward, back)
	}
	return x.total(c), timings, borders
}

// planOf makes the plan of a pipeline.
func (x *pipe) planOf(stages []stageOf, reason string) (Plan, error) {
	total, timings, borders := x.assess(stages)
	plan := Plan{
		StepTime: graph.Seconds(total), MicroBatches: int(x.micro), Reason: reason,
		Assignment: make([]int, len(x.blockOf)), PerDevice: make([]Share, len(x.p.Devices)),
	}
	used := make([]int, len(x.kinds))
	var shortage error
	for i, s := range stages {
		t := timings[i]
		stage := Stage{
			Forward: graph.Seconds(t.forward), Backward: graph.Seconds(t.backward), AllReduce: graph.Seconds(t.reduce),
			InFlight: int(x.inFlight(len(stages) - i)), Recompute: t.recompute,
			Devices: slices.Clone(x.kinds[s.kind].devices[used[s.kind]:][:s.replicas]),
		}
		used[s.kind] += s.replicas
		for _, b := range s.blocks {
			stage.Ops = append(stage.Ops, x.blocks[b]...)
		}
		slices.Sort(stage.Ops)
		for _, op := range stage.Ops {
			plan.Assignment[op] = stage.Devices[0]
		}
		sent := 0.0
		if i+1 < len(stages) {
			stage.Send = graph.Seconds(x.hop(borders[i+1].forward, s.replicas, stages[i+1].replicas))
			sent = borders[i+1].forward.bytes
		}
		if i > 0 {
			sent += borders[i].backward.bytes
		}
		load := graph.Seconds((t.forward+t.backward)*x.micro + t.reduce)
		for _, d := range stage.Devices {
			plan.PerDevice[d] = Share{
				Ops: len(stage.Ops), Load: load, Memory: quantity.Bytes(t.memory),
				Sent: quantity.Bytes(sent / float64(s.replicas)),
			}
		}
		if !t.fits && shortage == nil {
			shortage = fmt.Errorf("device %q needs %v and has %v: the plan %w", x.p.Devices[stage.Devices[0]].ID,
				quantity.Bytes(t.memory),
				x.p.Devices[stage.Devices[0]].Memory, ErrUnfit)
		}
		plan.Stages = append(plan.Stages, stage)
	}
	plan.account(x.p)
	return plan, shortage
}

// EvaluateStages returns the plan for [Step] that given stages come to; only Ops and Devices of each are read. The
// devices of one stage are of one kind, and devices of one kind are taken for equals. A stage without room is an error
// that wraps ErrUnfit, besides the plan.
func EvaluateStages(p Problem, stages []Stage, microBatches int) (Plan, error) {
	p.MicroBatches = microBatches
	in, err := newInstance(p)
	if err != nil {
		return Plan{}, err
	}
	if microBatches < 1 {
		return Plan{}, fmt.Errorf("evaluate stages: %d micro-batches; want 1 or more", microBatches)
	}
	parts, err := in.partsOf(stages)
	if err != nil {
		return Plan{}, fmt.Errorf("evaluate stages: %w", err)
	}
	var best Plan
	var shortage error
	for i, wide := range []bool{false, true} {
		plan, err := (&pipe{instance: in, micro: float64(microBatches), wide: wide}).planOf(parts, "given")
		if i == 0 || (err == nil && (shortage != nil || plan.StepTime < best.StepTime)) {
			best, shortage = plan, err
		}
	}
	return best, shortage
}

// partsOf checks given stages.
func (in *instance) partsOf(stages []Stage) ([]stageOf, error) {
	parts := make([]stageOf, len(stages))
	of := slices.Repeat([]int{-1}, len(in.blockOf)) // the stage of each operation
	busy := make([]bool, len(in.p.Devices))
	for i, s := range stages {
		for _, op := range s.Ops {
			if op < 0 || op >= len(of) || of[op] >= 0 {
				return nil, fmt.Errorf("stage %d: operation %d is unknown or in two stages", i, op)
			}
			of[op] = i
		}
		if most := in.p.mostReplicas(); len(s.Devices) == 0 || len(s.Devices) > most {
			return nil, fmt.Errorf("stage %d has %d devices; want 1 to %d", i, len(s.Devices), most)
		}
		for _, d := range s.Devices {
			if d < 0 || d >= len(busy) || busy[d] || in.kindOf[d] != in.kindOf[s.Devices[0]] {
				return nil, fmt.Errorf("stage %d: device %d is unknown, in use, or of another kind", i, d)
			}
			busy[d] = true
		}
		parts[i] = stageOf{kind: in.kindOf[s.Devices[0]], replicas: len(s.Devices)}
	}
	for b, members := range in.blocks {
		at := of[members[0]]
		for _, op := range members {
			if of[op] != at || at < 0 {
				return nil, fmt.Errorf("operation %q is in no stage, or not with %q", in.p.Graph.Ops[op].ID,
					in.p.Graph.Ops[members[0]].ID)
			}
		}
		if !in.runs(b, stages[at].Devices[0]) {
			return nil, fmt.Errorf("%w: device %q cannot run operation %q of stage %d", ErrProblem,
				in.p.Devices[stages[at].Devices[0]].ID,
				in.p.Graph.Ops[members[0]].ID, at)
		}
		parts[at].blocks = append(parts[at].blocks, b)
	}
	return parts, nil
}
