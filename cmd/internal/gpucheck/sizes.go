package gpucheck

import (
	"github.com/spillway-ml/spillway/predictor/quantity"
	executor "github.com/spillway-ml/spillway/workers/exec"
)

// language is one of the transformers of language.py.
type language struct {
	// name is that of the function that makes it, and of its data.
	name                                string
	words, length, width, heads, layers int
}

// languages are all, from the largest to the one for CPUs.
func languages() []language {
	return []language{
		{"large", 8192, 512, 1024, 16, 24},
		{"medium", 4096, 256, 768, 12, 12},
		{"compact", 4096, 256, 512, 8, 8},
		{"small", 256, 16, 384, 4, 4},
	}
}

// parameters counts what is trained: the embeddings, a layer's four products and two normalizations, the last one, and
// the head.
func (l language) parameters() int {
	layer := 12*l.width*l.width + 9*l.width + 4*l.width
	return 2*l.words*l.width + l.length*l.width + l.layers*layer + 2*l.width
}

// holds is what one process has of a device that trains so many samples at once in float32, at most: parameters,
// gradients and both moments of Adam, what the backward pass needs of each word (some twenty vectors of each layer, its
// scores of attention where they are not fused, and three of the head), and the temporaries of the optimizer's step.
func (l language) holds(samples int) quantity.Bytes {
	const parameterBytes, stepBytes, numberBytes = 16, 4, 4
	each := l.layers*(20*l.width+2*l.heads*l.length) + 3*l.words
	return quantity.Bytes(l.parameters()*(parameterBytes+stepBytes) + samples*l.length*each*numberBytes)
}

// processHolds is what each process has of a device besides: its context, kernels and libraries.
const processHolds = 640 * quantity.MiB

// trial is how a step trains a language model.
type trial struct {
	language
	batch int
}

// tried is the first of some trials that fits the memory of the device, the last where none does; needs says what one
// takes. On CPUs, where nothing is judged by its speed, it is always the last.
func (s Setup) tried(trials []trial, needs func(trial) quantity.Bytes) trial {
	last := trials[len(trials)-1]
	if s.Device != executor.CUDA {
		return last
	}
	for _, one := range trials {
		if needs(one) <= s.Memory {
			return one
		}
	}
	return last
}

// from are all trials of the models from a size on, each with these batches.
func from(name string, batches ...int) []trial {
	var trials []trial
	for _, l := range languages() {
		if l.name == name {
			name = "" // and all that are smaller
		}
		if name != "" {
			continue
		}
		for _, batch := range batches {
			trials = append(trials, trial{l, batch})
		}
	}
	return trials
}

// judged reports whether times of the model say something about others: those of small ones are mostly launches.
func (l language) judged() bool { return l.parameters() > 50e6 }

// alone is what the unsplit model takes with another process of its kind beside it, which a plan may load: in so many
// micro-batches.
func alone(microBatches int) func(trial) quantity.Bytes {
	return func(t trial) quantity.Bytes {
		return 2 * (t.holds((t.batch+microBatches-1)/microBatches) + processHolds)
	}
}

// beside is what the unsplit model takes together with one that is split into so many parts, of which the first holds
// as many micro-batches as there are parts: all of them together hold (parts + 1) / 2 times the activations of one.
func beside(parts, microBatches int) func(trial) quantity.Bytes {
	return func(t trial) quantity.Bytes {
		samples := (t.batch + microBatches - 1) / microBatches
		return t.holds(samples) + t.holds(samples*(parts+1)/2) + quantity.Bytes(1+parts)*processHolds
	}
}
