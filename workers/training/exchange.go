package training

import (
	"cmp"
	"math"
	"regexp"
	"slices"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/exec"
)

// What replicas exchange in a step, of Ψ bytes of parameters and with m micro-batches each: N replicas that divide
// nothing send 2 (N-1)/N Ψ each, which a ring takes 2 (N-1) messages for; with the state of the optimizer divided they
// send as much; with the gradients, (1 + m) (N-1)/N Ψ, as they are summed after each micro-batch; and with the
// parameters, 3 m (N-1)/N Ψ, as these are gathered for both passes (Rajbhandari et al., "ZeRO", 2020, section 7;
// Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", 2009). How long a message and a byte take is measured
// on the devices, and brought from the number of ranks there to another by these formulas.

// DistributedDataParallel of torch sums gradients in buckets, in the order in which backward passes make them: the
// first of firstBucket bytes, the others of moreBuckets (torch/nn/parallel/distributed.py).
const (
	firstBucket = float64(1 * quantity.MiB)
	moreBuckets = float64(25 * quantity.MiB)
)

// sent is how many bytes each replica sends in a step.
func sent(sharding exec.Sharding, parameters float64, replicas, microBatches int) float64 {
	gathers, scatters := collectives(sharding, microBatches)
	return float64(gathers+scatters) * parameters * float64(replicas-1) / float64(replicas)
}

// collectives are how often the parameters of a part are gathered in a step, and its gradients summed into pieces: an
// all-reduce is one of both.
func collectives(sharding exec.Sharding, microBatches int) (gathers, scatters int) {
	switch sharding {
	case exec.ShardGradients:
		return 1, microBatches
	case exec.ShardParameters:
		return 2 * microBatches, microBatches
	default:
		return 1, 1
	}
}

// among is what ranks exchange where there are other numbers of them than were measured; over is by how many times more
// ranks than processors they share these.
func among(e exec.Exchange, replicas int, over float64) exec.Exchange {
	if e.Ranks < 2 || replicas < 2 {
		return e
	}
	messages := over * float64(replicas-1) / float64(e.Ranks-1)
	share := func(n int) float64 { return float64(n-1) / float64(n) }
	bytes := over * share(replicas) / share(e.Ranks)
	for _, t := range []*exec.Transfer{&e.AllReduce, &e.Gather, &e.Scatter} {
		t.Fixed, t.EachByte = t.Fixed*messages, t.EachByte*bytes
	}
	e.Send = exec.Transfer{Fixed: e.Send.Fixed * over, EachByte: e.Send.EachByte * over}
	e.Step *= over
	e.Ranks = replicas
	return e
}

// gradient is what the backward pass of an operation adds to what replicas sum.
type gradient struct{ bytes, seconds float64 }

// exposed is how much longer a backward pass takes that sums its gradients over replicas, in seconds: buckets are
// summed one after the other, each as soon as it is full and beside the rest of the pass. Where an exchange takes the
// cores of the computation, nothing of it is hidden and both take their time.
func exposed(backward []gradient, e exec.Exchange) float64 {
	now, free, alone, filled, limit := 0.0, 0.0, 0.0, 0.0, firstBucket
	send := func() {
		free = max(free, now) + e.AllReduce.At(filled)
		filled, limit = 0, moreBuckets
	}
	for _, g := range backward {
		beside := min(g.seconds, max(0, free-now))
		slower := (1 - e.Hidden) * beside
		now, free, alone = now+g.seconds+slower, free+slower, alone+g.seconds
		for filled += g.bytes; filled >= limit; { // a tensor is in one bucket
			send()
		}
	}
	if filled > 0 {
		send()
	}
	return max(now, free) - alone
}

// exchanges is how much longer a step of a part takes for what its replicas send each other, in seconds.
func (s setup) exchanges(p part, microBatches int) float64 {
	if s.count() < 2 {
		return 0
	}
	e := s.exchange
	if !s.divides() {
		backward := make([]gradient, 0, len(p.ops))
		works := s.model.classes[classOf(p.device)]
		each, sum := float64(s.batch)/float64(microBatches), 0.0
		for _, op := range slices.Backward(p.ops) {
			g := gradient{float64(s.model.shape.Ops[op].Parameters), works[op].backward.at(each)}
			backward, sum = append(backward, g), sum+g.seconds
		}
		for i := range backward {
			if sum > 0 { // as long as it is priced, with what slows it down
				backward[i].seconds *= p.backward / sum
			}
		}
		return e.Step + exposed(backward, e)
	}
	gathers, scatters := collectives(s.sharding, microBatches)
	units := 1.0
	if s.sharding == exec.ShardParameters {
		units = float64(len(s.blocks(p.ops)))
	}
	all := float64(gathers)*(e.Gather.At(p.parameters)+(units-1)*e.Gather.Fixed) +
		float64(scatters)*(e.Scatter.At(p.parameters)+(units-1)*e.Scatter.Fixed)
	return e.Step + (1-e.Hidden)*all
}

// ofRank is what a rank holds besides what a part without replicas does, in bytes.
func (s setup) ofRank(p part) float64 {
	if s.count() < 2 {
		return 0
	}
	held := 0.0
	if p.device.Kind != exec.CUDA {
		held = float64(s.exchange.Process)
	}
	if !s.divides() { // buckets, and what sums the largest
		return held + p.parameters + s.exchange.Scratch*min(p.parameters, moreBuckets)
	}
	most := p.parameters // of what is summed at once
	if s.sharding == exec.ShardParameters {
		most = s.largestBlock(p.ops)
	}
	return held + (1+s.exchange.Scratch)*most
}

// holding is what a part holds of parameters, of the optimizer's state, and of gradients from one micro-batch to the
// next, in bytes, and what it holds of parameters and gradients that are gathered or not summed yet.
func (s setup) holding(p part) (parameters, state, gradients, whole float64) {
	parameters, state, gradients = p.parameters, p.parameters*s.state/parameterBytes, p.parameters
	if s.count() < 2 || !s.divides() {
		return parameters, state, gradients, 0
	}
	share := 1 / float64(s.count())
	state *= share
	switch s.sharding {
	case exec.ShardOptimizer:
		return parameters * (1 + share), state, gradients, 0
	case exec.ShardGradients:
		return parameters * (1 + share), state, gradients * share, p.parameters
	default:
		return parameters * share, state, gradients * share, 3 * s.largestBlock(p.ops)
	}
}

// spares is what the first backward pass of a step never has of gradients at once, as those of a block are summed and
// divided before those of the next ones are made.
func (s setup) spares(p part, whole float64) float64 {
	if s.count() < 2 || s.sharding != exec.ShardParameters {
		return 0
	}
	return max(0, p.parameters-whole)
}

// block is the module of an operation whose parameters are gathered together: one layer of a list, or one field.
var block = regexp.MustCompile(`^(?:.*?[._]\d+|[^._]+)`)

// blocks are the bytes of the parameters of each block of some operations.
func (s setup) blocks(ops []int) map[string]float64 {
	all := map[string]float64{}
	for _, i := range ops {
		if op := s.model.shape.Ops[i]; op.Parameters > 0 {
			all[block.FindString(op.ID)] += float64(op.Parameters)
		}
	}
	return all
}

// largestBlock is that of the most bytes.
func (s setup) largestBlock(ops []int) float64 {
	most := 0.0
	for _, bytes := range s.blocks(ops) {
		most = max(most, bytes)
	}
	return most
}

// needs is what all ranks of a candidate take of the host's memory, in bytes, the code that they share counted once.
func (s setup) needs(c candidate) float64 {
	sum := 0.0
	for _, p := range c.parts {
		if p.device.Kind != exec.CUDA {
			sum += p.most
		}
	}
	if sum == 0 {
		return 0
	}
	return float64(cmp.Or(s.here, s.count()))*sum + float64(s.model.base)
}

// lacks is by how much that is more than the host can give; 0 where that is not known, and of one replica, which the
// limit of its attempt bounds.
func (s setup) lacks(c candidate) float64 {
	if s.count() < 2 || s.host <= 0 {
		return 0
	}
	return math.Max(0, s.needs(c)-s.host)
}
