// Package partition assigns the operations of a graph to devices.
//
// A [Problem] says what is to be placed, on what, and what counts: the load of the busiest device of a stream of
// batches ([Throughput]), the time of one training step of a pipeline with replicas and micro-batches ([Step]), or the
// time from the first operation to the last of one batch ([Latency]). [Solve] returns a [Plan]; [Front] returns those
// that trade time for idle memory; where nothing fits, [Explain] says by how much and what would help.
package partition

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/graph"
)

// Objective is the time that a plan makes small.
type Objective int

// The objectives.
const (
	// Throughput is the load of the busiest device: its work and its transfers, for each batch of an endless stream.
	Throughput Objective = iota
	// Step is the time of one synchronous training step: micro-batches through a pipeline of replicated stages, one
	// forward, one backward, then the sums of gradients.
	Step
	// Latency is the time of one batch from the first operation to the last.
	Latency
)

// String returns the objective's name.
func (o Objective) String() string {
	switch o {
	case Throughput:
		return "throughput"
	case Step:
		return "step"
	case Latency:
		return "latency"
	default:
		return fmt.Sprintf("objective %d", int(o))
	}
}

// Device is a machine's part that runs one operation at a time.
type Device struct {
	// ID is unique in its problem.
	ID string
	// Class chooses among the costs of an operation.
	Class string
	// Speed divides the costs; 0 means 1.
	Speed float64
	// Memory is what is left for the graph; 0 means more than it needs.
	Memory quantity.Bytes
	// HourlyPrice is for information: a plan sums it up over the devices it uses.
	HourlyPrice quantity.Money
	// Host says that the device computes in the memory of the host: with Links.ThroughHost it transfers for nothing.
	Host bool
}

// Link is a way for tensors. The zero value is free.
type Link struct {
	// BytesPerSecond is its bandwidth; 0 means that bytes take no time.
	BytesPerSecond float64
	// Latency is what each transfer takes besides.
	Latency graph.Seconds
}

// Links join the devices. The zero value is free.
type Links struct {
	// Between is the link of any two devices, and of a device and its host.
	Between Link
	// Pairs replaces it for pairs of device IDs, from and to; with ThroughHost the second ID is empty.
	Pairs map[[2]string]Link
	// ThroughHost says that tensors go through the memory of the host: the producer's device writes each once, every
	// device that needs it reads it once. Otherwise the producer's device sends each to every device that needs it.
	ThroughHost bool
}

// Memory is what a trained parameter takes, in bytes; the zero value is mixed precision with Adam, 2 + 2 + 12 bytes.
type Memory struct {
	// Weight is the size of a parameter in the graph's sizes.
	Weight float64
	// Gradient and Optimizer are held besides.
	Gradient, Optimizer float64
	// ZeRO is the stage to which replicas share them out: 0 nothing, 1 the optimizer's state, 2 gradients too, 3 weights
	// too (S. Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models, SC 2020,
	// https://arxiv.org/abs/1910.02054).
	ZeRO int
	// Recompute allows stages to forget activations and compute them again before the backward pass.
	Recompute bool
	// Offload keeps the optimizer's state in the host's memory, at the price of two transfers of the weights over
	// Links.Between each step.
	Offload bool
}

// Problem is what is to be placed, on what, and what counts. The zero value of an optional field is its default.
type Problem struct {
	// Graph holds the costs of one batch.
	Graph graph.Graph
	// Devices are at least one.
	Devices []Device
	// Links join them.
	Links Links
	// Objective is the time to make small.
	Objective Objective
	// IdleWeight is how much the idle memory of the devices in use counts: a plan's Loss is its time over the least
	// possible time, plus IdleWeight times the idle part of all memory. 0 counts time only.
	IdleWeight float64
	// Training adds the backward cost of each operation, gradients and optimizer state, and the way back of every tensor.
	// Graphs whose backward pass is made of operations hold all that already and leave it false, but for Step, which needs
	// it.
	Training bool
	// Memory is what training keeps.
	Memory Memory
	// MicroBatches is into how many parts Step cuts the batch; 0 chooses among the powers of two up to MostMicroBatches.
	MicroBatches int
	// MostMicroBatches is the number of samples of a batch; 0 means 64.
	MostMicroBatches int
	// MostReplicas is how many devices of a plan for Step may share one stage; 0 means any number.
	MostReplicas int
	// Launch is what each micro-batch costs a stage besides, in each direction.
	Launch graph.Seconds
	// Contiguous keeps plans to stages that no tensor leaves and enters again.
	Contiguous bool
	// Budget is how long the search for better plans goes on, on a core of about 2.5 GHz; 0 means 1 s. What is quick comes
	// first, and the search ends before where the plan is the least possible or where nothing better is found for long.
	// Work is counted instead of time: the same problem with the same budget has the same plan on any machine, and a
	// slower core takes longer for it. What makes the first plan is counted, too, and never left out.
	Budget time.Duration
	// MostIdeals bounds the exact search; 0 means 50,000. Graphs with more are searched along orders and close to plans.
	MostIdeals int
	// Moves is how many changes the local search tries; 0 means as many as the Budget lasts for, a negative number none.
	Moves int
	// Seed chooses the order of the local search. The same problem with the same seed has the same plan.
	Seed uint64
}

const (
	defaultIdeals = 50_000
	defaultMoves  = 500_000
	defaultMicro  = 64
	mostDevices   = 1024
)

// ErrProblem is wrapped by errors about problems that make no sense.
var ErrProblem = errors.New("not a problem")

// Validate refuses problems that make no sense: no device, no operation, repeated IDs, negative or non-finite amounts.
func (p Problem) Validate() error {
	if len(p.Devices) == 0 || len(p.Devices) > mostDevices {
		return fmt.Errorf("%w: %d devices; give 1 to %d", ErrProblem, len(p.Devices), mostDevices)
	}
	if len(p.Graph.Ops) == 0 {
		return fmt.Errorf("%w: the graph has no operation", ErrProblem)
	}
	seen := map[string]bool{}
	for i, d := range p.Devices {
		if seen[d.ID] {
			return fmt.Errorf("%w: device %d: ID %q is used twice", ErrProblem, i, d.ID)
		}
		seen[d.ID] = true
		if !finite(d.Speed) || d.Memory < 0 {
			return fmt.Errorf("%w: device %q: speed %v, memory %d; want finite amounts from 0", ErrProblem, d.ID, d.Speed,
				d.Memory)
		}
	}
	links := []Link{p.Links.Between}
	for _, link := range p.Links.Pairs {
		links = append(links, link)
	}
	for _, link := range links {
		if !finite(link.BytesPerSecond) || !finite(float64(link.Latency)) {
			return fmt.Errorf("%w: link of %v bytes/s and %v s; want finite amounts from 0", ErrProblem, link.BytesPerSecond,
				link.Latency)
		}
	}
	m := p.Memory
	if !finite(m.Weight) || !finite(m.Gradient) || !finite(m.Optimizer) || m.ZeRO < 0 || m.ZeRO > 3 {
		return fmt.Errorf("%w: memory %+v; want finite amounts from 0 and a ZeRO stage of 0 to 3", ErrProblem, m)
	}
	if !finite(p.IdleWeight) || !finite(float64(p.Launch)) || p.MicroBatches < 0 || p.MostMicroBatches < 0 ||
		p.MostReplicas < 0 {
		return fmt.Errorf("%w: idle weight %v, launch %v, micro-batches %d of at most %d, at most %d replicas; "+
			"want 0 or more",
			ErrProblem, p.IdleWeight, p.Launch, p.MicroBatches, p.MostMicroBatches, p.MostReplicas)
	}
	if p.Budget < 0 {
		return fmt.Errorf("%w: a budget of %v; want a time from 0", ErrProblem, p.Budget)
	}
	if p.Objective < Throughput || p.Objective > Latency {
		return fmt.Errorf("%w: %v is unknown", ErrProblem, p.Objective)
	}
	return nil
}

func finite(x float64) bool { return x >= 0 && !math.IsInf(x, 1) }

// speed is the device's with its default.
func (d Device) speed() float64 {
	if d.Speed == 0 {
		return 1
	}
	return d.Speed
}

// room is the device's memory with its default.
func (d Device) room() float64 {
	if d.Memory == 0 {
		return math.Inf(1)
	}
	return float64(d.Memory)
}

// mostReplicas is the bound with its default.
func (p Problem) mostReplicas() int {
	if p.MostReplicas == 0 {
		return len(p.Devices)
	}
	return p.MostReplicas
}

// seconds is how long the link takes for a tensor.
func (l Link) seconds(size quantity.Bytes, measured graph.Seconds) float64 {
	if measured > 0 {
		return float64(measured)
	}
	if size == 0 {
		return 0
	}
	t := float64(l.Latency)
	if l.BytesPerSecond > 0 {
		t += float64(size) / l.BytesPerSecond
	}
	return t
}

// link is the one from a device to another; to its host where to is negative.
func (p Problem) link(from, to int) Link {
	if len(p.Links.Pairs) > 0 {
		pair := [2]string{p.Devices[from].ID}
		if to >= 0 {
			pair[1] = p.Devices[to].ID
		}
		if special, known := p.Links.Pairs[pair]; known {
			return special
		}
	}
	return p.Links.Between
}

// Slowest is a link of the least bandwidth and the greatest latency of all that are given: a training step is priced
// with one link for all pairs.
func (l Links) Slowest() Link {
	worst := l.Between
	for _, link := range l.Pairs {
		if link.BytesPerSecond > 0 && (worst.BytesPerSecond == 0 || link.BytesPerSecond < worst.BytesPerSecond) {
			worst.BytesPerSecond = link.BytesPerSecond
		}
		worst.Latency = max(worst.Latency, link.Latency)
	}
	return worst
}

// withDefaults fills the memory of a parameter.
func (m Memory) withDefaults() Memory {
	if m.Weight == 0 {
		m.Weight = 2
		if m.Gradient == 0 && m.Optimizer == 0 {
			m.Gradient, m.Optimizer = 2, 12
		}
	}
	return m
}

// held is what parameters of a size in the graph take on each of several replicas, in bytes; only training keeps
// gradients and state.
//
//	weights / (replicas if ZeRO >= 3) + gradients / (if >= 2) + state / (if >= 1)
//
// With 2, 2 and 12 bytes that is ZeRO's table: 16, 4 + 12/n, 2 + 14/n and 16/n bytes for each parameter.
func (m Memory) held(parameters float64, replicas int, training bool) float64 {
	if !training {
		return parameters
	}
	m = m.withDefaults()
	count, n := parameters/m.Weight, float64(replicas)
	share := func(stage int) float64 {
		if m.ZeRO >= stage {
			return n
		}
		return 1
	}
	total := count * (m.Weight/share(3) + m.Gradient/share(2))
	if !m.Offload {
		total += count * m.Optimizer / share(1)
	}
	return total
}
