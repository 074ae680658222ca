package gomlx

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
)

// Array holds numbers for each of some samples, one sample after the other, in row-major order. Either Float32 or Int32
// is set.
type Array struct {
	// Shape is that of one sample, without the number of samples; nil is a single number.
	Shape []int
	// Float32 and Int32 are the numbers.
	Float32 []float32
	Int32   []int32
}

// Dataset gives out samples. Its methods may be called concurrently.
type Dataset interface {
	// Samples is how many there are, from 1. It does not change.
	Samples() int
	// Batch returns the inputs and the target of the chosen samples, numbered from 0, in their order. The shapes and types
	// are always the same. What is left to chance, such as random views of images, is drawn from random, so that a step
	// has the same batch whenever it is asked for. The caller does not keep the arrays.
	Batch(ctx context.Context, chosen []int, random *rand.Rand) (inputs []Array, target Array, err error)
}

// InMemory is a [Dataset] of arrays that hold all samples. It may be shared while nobody writes to the arrays.
type InMemory struct {
	Inputs []Array
	Target Array
}

// Samples is how many samples the target has.
func (d InMemory) Samples() int { return d.Target.samples() }

// Batch copies the chosen samples.
func (d InMemory) Batch(_ context.Context, chosen []int, _ *rand.Rand) ([]Array, Array, error) {
	inputs := make([]Array, len(d.Inputs))
	for i, a := range d.Inputs {
		if a.samples() != d.Samples() {
			return nil, Array{}, fmt.Errorf("input %d has %d samples and the target %d; give as many of both", i, a.samples(),
				d.Samples())
		}
		inputs[i] = a.choose(chosen)
	}
	return inputs, d.Target.choose(chosen), nil
}

// samples is how many samples the array holds; 0 where its numbers are not a whole number of them.
func (a Array) samples() int {
	size, values := product(a.Shape), len(a.Float32)+len(a.Int32)
	if size < 1 || values%size != 0 {
		return 0
	}
	return values / size
}

func (a Array) choose(chosen []int) Array {
	size := product(a.Shape)
	picked := Array{Shape: a.Shape}
	for _, c := range chosen {
		if a.Float32 != nil {
			picked.Float32 = append(picked.Float32, a.Float32[c*size:(c+1)*size]...)
		} else {
			picked.Int32 = append(picked.Int32, a.Int32[c*size:(c+1)*size]...)
		}
	}
	return picked
}

// cut returns the samples from begin to end, and shares the numbers.
func (a Array) cut(begin, end int) Array {
	size := product(a.Shape)
	if a.Float32 != nil {
		a.Float32 = a.Float32[begin*size : end*size]
	} else {
		a.Int32 = a.Int32[begin*size : end*size]
	}
	return a
}

// shape is that of all samples together.
func (a Array) shape() shapes.Shape {
	kind := dtypes.Int32
	if a.Float32 != nil {
		kind = dtypes.Float32
	}
	return shapes.Make(kind, append([]int{a.samples()}, a.Shape...)...)
}

func shapesOf(all []Array) []shapes.Shape {
	var found []shapes.Shape
	for _, a := range all {
		found = append(found, a.shape())
	}
	return found
}

// read asks for samples and refuses arrays that do not hold them.
func read(ctx context.Context, data Dataset, chosen []int, random *rand.Rand) ([]Array, Array, error) {
	inputs, target, err := data.Batch(ctx, chosen, random)
	if err != nil {
		return nil, Array{}, fmt.Errorf("read %d samples: %w", len(chosen), err)
	}
	if len(inputs) == 0 {
		return nil, Array{}, fmt.Errorf("%w: the data has no inputs", ErrModel)
	}
	for i, a := range inputs {
		if err := a.check(len(chosen)); err != nil {
			return nil, Array{}, fmt.Errorf("%w: input %d: %w", ErrModel, i, err)
		}
	}
	if err := target.check(len(chosen)); err != nil {
		return nil, Array{}, fmt.Errorf("%w: target: %w", ErrModel, err)
	}
	return inputs, target, nil
}

func (a Array) check(samples int) error {
	switch {
	case slices.ContainsFunc(a.Shape, func(n int) bool { return n < 1 }):
		return fmt.Errorf("shape %v of a sample; want dimensions from 1", a.Shape)
	case a.Float32 == nil && a.Int32 == nil:
		return errors.New("it has no numbers; set Float32 or Int32")
	case a.Float32 != nil && a.Int32 != nil:
		return errors.New("it has numbers of two types; set Float32 or Int32")
	case a.samples() != samples:
		return fmt.Errorf("%d numbers are not %d samples of shape %v", len(a.Float32)+len(a.Int32), samples, a.Shape)
	}
	return nil
}

// order says which samples a step learns from: every epoch passes over them in an order of its own, and what does not
// fill a batch waits for another epoch.
type order struct {
	samples, batch int
	seed           uint64
	epoch          int64 // of permutation
	permutation    []int
}

func (o *order) stepsPerEpoch() int64 { return int64(o.samples / o.batch) }

// chosen returns the samples of a step, until the next call.
func (o *order) chosen(step int64) []int {
	epoch, place := step/o.stepsPerEpoch(), int(step%o.stepsPerEpoch())
	if o.permutation == nil || o.epoch != epoch {
		o.epoch = epoch
		o.permutation = rand.New(rand.NewPCG(o.seed, mix(key("order")+uint64(epoch)))).Perm(o.samples)
	}
	return o.permutation[place*o.batch : (place+1)*o.batch]
}
