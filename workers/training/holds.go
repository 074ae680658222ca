package training

import (
	"slices"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/exec"
)

// What a part holds at most is decided at one of four moments of a step. Between them it holds
//
//	standing = P (1 + state/4) + buffers + library + passing
//
// bytes: parameters P, the state of their optimizer, buffers, the work space that libraries keep, and what passes
// between parts. To that come, with F micro-batches in flight that keep A each, gradients G of all its parameters, and
// what the operations were measured to take while they work:
//
//	in the first backward pass of a step    (F - 1) A + max over operations i of (A of those up to i + the gradients that
//	                                        wait there + what i takes + G of those after i)
//	in a later one                          (F' - 1) A + G + max over i of the same without the last term
//	in a forward pass                       (F - 1) A + G, where there was a backward pass before + max over i of (A of
//	                                        those before i + what i takes)
//	in the optimizer's step                 G + what that makes
//
// F' is F where more micro-batches follow than are in flight at once, else F - 1. So a part is charged what its own
// operations take, and the loss only where the loss is. With recomputation, A is held of the one at work only.
//
// What processes hold besides tensors is in reserved and besides. Where nobody measured what operations take, they take
// the tensors that they read, make and keep.

// working is what an operation takes while it works, by the number of samples; see exec.Working.
type working struct {
	forward, backward line
	library           float64
}

// workingOf returns what the operations of the larger of two probes take, in its order; nil where that was not
// measured.
func workingOf(small, large exec.Probe) []working {
	if len(small.Working) != len(small.Graph.Ops) || len(large.Working) != len(large.Graph.Ops) {
		return nil
	}
	few := make(map[string]exec.Working, len(small.Working))
	for i, op := range small.Graph.Ops {
		few[op.ID] = small.Working[i]
	}
	all := make([]working, len(large.Working))
	for i, op := range large.Graph.Ops {
		a, b := few[op.ID], large.Working[i]
		all[i] = working{
			forward:  through(small.Samples, large.Samples, float64(a.Forward), float64(b.Forward)),
			backward: through(small.Samples, large.Samples, float64(a.Backward), float64(b.Backward)),
			library:  float64(max(a.Library, b.Library)),
		}
	}
	return all
}

// workingOfTensors is what operations take by the sizes of their tensors: forward what they make or keep, whichever is
// more, and back the gradients of what they read and of their parameters. Libraries keep nothing that is known.
func (m model) workingOfTensors() []working {
	read, made := make([]float64, len(m.shape.Ops)), make([]float64, len(m.shape.Ops))
	for _, t := range m.tensors {
		made[t.From] += float64(t.Bytes)
		for _, reader := range t.Readers {
			read[reader] += float64(t.Bytes)
		}
	}
	all, samples := make([]working, len(m.shape.Ops)), float64(m.samples)
	for i, op := range m.shape.Ops {
		all[i].forward = m.activations[i]
		if made[i] > all[i].forward.at(samples) {
			all[i].forward = line{each: made[i] / samples}
		}
		all[i].backward = line{fixed: float64(op.Parameters), each: read[i] / samples}
	}
	return all
}

// moments are what the micro-batch at work takes of a part at most, in bytes, besides what stands.
type moments struct {
	forward  float64 // activations so far, and what an operation takes
	backward float64 // activations that are left, waiting gradients, and what an operation takes
	first    float64 // the same with the gradients of the parameters that have one by then
	library  float64 // that the libraries of the part keep
	medium   bool    // some tensor is one of those of which torch's allocator keeps several in a segment
	large    bool    // some tensor has a segment of its own
}

// sizes takes in how large a tensor is.
func (m *moments) sizes(bytes float64) {
	m.medium = m.medium || bytes > smallTensor && bytes < largeTensor
	m.large = m.large || bytes >= largeTensor
}

// moments follows the micro-batch at work through the operations of each part, in their order.
func (s setup) moments(home []int, parts int, each float64) []moments {
	made := make([]moments, parts)
	count := make([]int, parts+1) // of the operations in the parts before
	for _, part := range home {
		if part >= 0 && part < parts {
			count[part+1]++
		}
	}
	for i := range parts {
		count[i+1] += count[i]
	}
	place := make([]int, len(home)) // of each operation, part after part
	next := slices.Clone(count)
	for _, op := range s.model.order {
		if part := home[op]; part >= 0 && part < parts {
			place[op] = next[part]
			next[part]++
		}
	}
	own, waiting := s.gradients(home, place, count, each)
	kept, parameters := make([]float64, parts), make([]float64, parts)
	for _, op := range s.model.order {
		part := home[op]
		if part < 0 || part >= parts {
			continue
		}
		m, takes := &made[part], s.model.working[op]
		weights := float64(s.model.shape.Ops[op].Parameters)
		activation := s.model.activations[op].at(each)
		m.forward = max(m.forward, kept[part]+takes.forward.at(each))
		kept[part] += activation
		parameters[part] += weights
		at := place[op]
		now := kept[part] + own[at] + waiting[at] + takes.backward.at(each)
		m.backward = max(m.backward, now)
		m.first = max(m.first, now-parameters[part]) // and all gradients, below
		m.library = max(m.library, takes.library)
		m.sizes(weights)
		m.sizes(activation)
	}
	for i := range made {
		made[i].first += parameters[i]
	}
	scale := each / float64(s.model.samples)
	for _, t := range s.model.tensors {
		for _, op := range append([]int{t.From}, t.Readers...) {
			if part := home[op]; part >= 0 && part < parts {
				made[part].sizes(float64(t.Bytes) * scale)
			}
		}
	}
	return made
}

// gradients are, by the place of operations, those of what an operation makes, and those that wait while its backward
// pass works, as operations before it made what they belong to: those of tensors that later operations of the part or
// later parts read.
func (s setup) gradients(home, place, count []int, each float64) (own, waiting []float64) {
	n := count[len(count)-1]
	own, waiting = make([]float64, n), make([]float64, n+1)
	parts, scale := len(count)-1, each/float64(s.model.samples)
	last := make(map[int]int, 2) // the last reader's place in each part
	for _, t := range s.model.tensors {
		clear(last)
		bytes, from := float64(t.Bytes)*scale, home[t.From]
		leaves := false
		for _, reader := range t.Readers {
			last[home[reader]] = max(last[home[reader]], place[reader])
			leaves = leaves || home[reader] > from
		}
		for part, reader := range last {
			if part == from || part < 0 || part >= parts {
				continue
			}
			waiting[count[part]] += bytes
			waiting[reader] -= bytes
		}
		if from < 0 || from >= parts {
			continue
		}
		own[place[t.From]] += bytes
		begin, end := place[t.From]+1, count[from+1]
		if reader, here := last[from]; here && !leaves {
			end = reader
		}
		if begin < end {
			waiting[begin] += bytes
			waiting[end] -= bytes
		}
	}
	for i := 1; i < n; i++ {
		waiting[i] += waiting[i-1]
	}
	return own, waiting[:n]
}

// tensors is what the tensors of a part take at most, by what its operations take, in bytes.
func (s setup) tensors(p part, t traffic, kept, gradient float64, microBatches int, recompute bool) float64 {
	cuda, flight := p.device.Kind == exec.CUDA, float64(p.flight)
	parameters, state, gradients, whole := s.holding(p)
	standing := parameters + state + p.buffer + t.library
	leaving := 0.0
	switch {
	case s.count() > 1: // torch.distributed.pipelining has memory for each of a step
		standing += float64(microBatches) * (t.in + t.out)
	case cuda:
		standing += flight * t.in
		leaving = t.out
	case s.model.base > 0:
		standing += t.shared
	default:
		standing += flight * t.in
		leaving = t.out
	}
	beside := kept + leaving // by each other micro-batch in flight
	if recompute {
		beside = 0
	}
	earlier := 0.0 // gradients that are there in the forward pass with most micro-batches in flight
	if microBatches > p.flight {
		earlier = gradients
	}
	most := max(
		standing+(flight-1)*beside+leaving+t.first-s.spares(p, whole),
		standing+(flight-1)*beside+earlier+t.forward,
	)
	later := flight
	if microBatches <= p.flight {
		later--
	}
	if later > 0 {
		most = max(most, standing+(later-1)*beside+leaving+gradients+whole+t.backward)
	}
	stepping := standing + gradients
	if !s.model.measured { // what follows is torch's
		return max(most, stepping)
	}
	if cuda {
		return s.reserved(max(most, stepping), stepping, p.parameters, t.moments)
	}
	if s.state >= adamBytes {
		stepping += adamTensors * gradient
	}
	return max(most, stepping)
}

// What Adam and AdamW of torch make in a step besides their state: on CPUs, which go from parameter to parameter, the
// root of the second moment and its quotient; on GPUs, which take all at once, the root for all of them
// (_single_tensor_adam and _multi_tensor_adam of torch/optim/adam.py).
const (
	adamBytes   = 2 * parameterBytes
	adamTensors = 2
)

// Torch's allocator on GPUs hands out tensors of up to smallTensor from segments of 2 MiB, others below largeTensor
// from segments of 20 MiB, and rounds what is larger to 2 MiB (c10/cuda/CUDACachingAllocator.cpp). Of each kind of
// segment, half a one is empty on the average.
const (
	smallTensor   = float64(1 * quantity.MiB)
	largeTensor   = float64(10 * quantity.MiB)
	smallSegment  = float64(2 * quantity.MiB)
	mediumSegment = float64(20 * quantity.MiB)
)

// reserved is what torch's allocator holds of a GPU for tensors of most bytes, of which stepping are left in the
// optimizer's step before that makes tensors of its own. Of what is free by then, about half has the shape that these
// need: seen in trainings of transformers and perceptrons on an H200.
func (s setup) reserved(most, stepping, parameters float64, m moments) float64 {
	made := 0.0
	if s.state >= adamBytes {
		made = parameters
	}
	held := most + max(0, made-(most-stepping)/2)
	if held > 0 {
		held += smallSegment / 2
	}
	if m.medium {
		held += mediumSegment / 2
	}
	if m.large {
		held += smallSegment / 2
	}
	return held
}

// besides is what a process holds besides its tensors, as rehearsals of the unsplit model showed, between two numbers
// of samples of a micro-batch: on CPUs a share of what the tensors take, which is what the C library keeps of freed
// memory; on GPUs bytes, by which the segments of the unsplit model are more or less than usual. Where nobody measured
// what operations take, it is a share, which may be below 0. The zero value is nothing.
type besides struct{ few, many, atFew, atMany float64 }

func (b besides) at(samples float64) float64 {
	if b.few >= b.many {
		return b.atFew
	}
	return b.atFew + (b.atMany-b.atFew)*min(max((samples-b.few)/(b.many-b.few), 0), 1)
}

// processBytes is what parts that hold nothing were seen to hold on CPUs: code that first passes load, mostly.
const processBytes = float64(5 * quantity.MiB)

// besidesOf compares what rehearsals of the unsplit model held with what its tensors take.
func (s setup) besidesOf(made performance) besides {
	kind := exec.CPU
	if made.cuda {
		kind = exec.CUDA
	}
	than := func(r rehearsal) float64 {
		microBatches := (s.batch + r.samples - 1) / r.samples
		whole := part{device: exec.Device{Kind: kind}, flight: 1}
		each, kept, gradient := float64(r.samples), 0.0, 0.0
		for i, op := range s.model.shape.Ops {
			whole.parameters += float64(op.Parameters)
			whole.buffer += float64(op.Workspace)
			gradient = max(gradient, float64(op.Parameters))
			kept += s.model.activations[i].at(each)
		}
		t := traffic{moments: s.moments(make([]int, len(s.model.shape.Ops)), 1, each)[0]}
		tensors := s.tensors(whole, t, kept, gradient, microBatches, s.recompute == RecomputeAlways)
		rest := float64(r.usage.Peak) - tensors
		switch {
		case tensors == 0 || made.cuda && s.model.measured:
			return rest
		case !s.model.measured:
			return rest / tensors
		}
		return max(0, rest-processBytes-float64(s.model.data)) / tensors
	}
	return besides{
		few: float64(made.small.samples), many: float64(made.large.samples), atFew: than(made.small),
		atMany: than(made.large),
	}
}

// besideTensors is what a part holds besides its tensors.
func (s setup) besideTensors(device exec.Device, at, parts int, each, tensors float64) float64 {
	known := s.besides[classOf(device)]
	if !s.model.measured {
		return known.at(each) * tensors
	}
	if device.Kind == exec.CUDA {
		if parts > 1 { // other segments are full
			return 0
		}
		return max(known.at(each), -tensors)
	}
	held := processBytes + known.at(each)*tensors
	if at == 0 {
		held += float64(s.model.data) + s.loading.holds(s.dataWorkers(device, parts), s.batch)
	}
	return held
}
