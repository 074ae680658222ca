// Package gomlx trains models that are written in Go, with GoMLX's pure Go backend: there is nothing to install.
//
// A [Model] is a list of blocks that run in turn, and any cut between two blocks splits it. The stages of a pipeline
// live in this process, each with a compute backend of its own that uses no more threads than its device has.
package gomlx

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/gomlx/gomlx/core/graph"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/exec"
)

// ErrModel is wrapped by the errors of models and data that do not fit together.
var ErrModel = errors.New("not a model that can be trained")

// Model is what is trained.
type Model struct {
	// Name is for people; it is that of the probed graph.
	Name string
	// Blocks run in turn: the first one gets the inputs of the data, each later one the outputs of the one before, and the
	// last one returns one output, which Loss reads.
	Blocks []Block
	// Loss is the mean over the samples of what is to become small, a scalar. Nil is the mean cross entropy of logits in
	// nats where the target is Int32, and the mean squared error where it is Float32.
	Loss func(output, target *graph.Node) *graph.Node
	// Optimizer is used where the layout names none; the zero value is Adam at 0.001.
	Optimizer exec.Optimizer
	// LearningRate is a factor on the optimizer's learning rate in a step, from 0; nil is 1. It may be called
	// concurrently.
	LearningRate func(step int64) float64
}

// Block is a piece of a model that is never split. Its functions may be called concurrently and must always build the
// same.
type Block struct {
	// Name is unique in the model and not empty; it is the ID of the block's operation in the probed graph.
	Name string
	// Parameters are trained; BLOCK.NAME is what one is called in files.
	Parameters []Parameter
	// Buffers are kept beside the parameters and not trained, such as running means.
	Buffers []Parameter
	// Forward builds the graph from the inputs to the outputs, whose first dimensions are the samples. It reads each
	// parameter. It may panic with an error, as GoMLX does, to refuse its inputs.
	Forward func(c *Context, inputs []*graph.Node) []*graph.Node
}

// Parameter is an array of float32.
type Parameter struct {
	// Name is unique in its block and not empty.
	Name string
	// Shape has the dimensions, each from 1; nil is a single number.
	Shape []int
	// Initial fills the array in before training; nil leaves zeros.
	Initial Initial
}

// Initial sets the first values of a parameter, which are zeros before. It draws from random only: that is seeded by
// the layout's seed and the parameter's name, so values do not depend on the split.
type Initial func(random *rand.Rand, values []float32)

// Normal draws from the normal distribution of mean 0 and this standard deviation.
func Normal(deviation float64) Initial {
	return func(random *rand.Rand, values []float32) {
		for i := range values {
			values[i] = float32(deviation * random.NormFloat64())
		}
	}
}

// Constant sets all to one value.
func Constant(value float32) Initial {
	return func(_ *rand.Rand, values []float32) {
		for i := range values {
			values[i] = value
		}
	}
}

// Executor trains one model on one set of data. Its methods are safe for concurrent use.
type Executor struct {
	model Model
	data  Dataset
}

var _ exec.Executor = (*Executor)(nil)

// New checks that a model and its data fit together, by building the model for the first samples.
func New(model Model, data Dataset) (*Executor, error) {
	if err := model.validate(); err != nil {
		return nil, fmt.Errorf("model %q: %w", model.Name, err)
	}
	if data == nil || data.Samples() < 1 {
		return nil, fmt.Errorf("model %q: %w: it has no samples to learn from", model.Name, ErrModel)
	}
	e := &Executor{model: model, data: data}
	if err := e.try(); err != nil {
		return nil, fmt.Errorf("model %q: %w", model.Name, err)
	}
	return e, nil
}

// Name is "gomlx".
func (e *Executor) Name() string { return "gomlx" }

// try builds the whole model for two samples.
func (e *Executor) try() (err error) {
	inputs, target, err := e.samples(context.Background(), min(2, e.data.Samples()))
	if err != nil {
		return err
	}
	d, err := newDevice(1)
	if err != nil {
		return err
	}
	defer d.close()
	p, err := build(d, part{model: e.model, blocks: e.model.Blocks, first: true, last: true}, shapesOf(inputs),
		target.shape())
	if err != nil {
		return err
	}
	p.close()
	return nil
}

// samples returns the first count samples of the data, again from the start where there are fewer.
func (e *Executor) samples(ctx context.Context, count int) ([]Array, Array, error) {
	chosen := make([]int, count)
	for i := range chosen {
		chosen[i] = i % e.data.Samples()
	}
	return read(ctx, e.data, chosen, rand.New(rand.NewPCG(0, key("probe"))))
}

func (m Model) validate() error {
	if len(m.Blocks) == 0 {
		return fmt.Errorf("%w: it has no blocks; give it one", ErrModel)
	}
	blocks, names := map[string]bool{}, map[string]bool{}
	for i, b := range m.Blocks {
		switch {
		case b.Name == "":
			return fmt.Errorf("%w: block %d has no name; give it one", ErrModel, i)
		case blocks[b.Name]:
			return fmt.Errorf("%w: two blocks are called %q; rename one", ErrModel, b.Name)
		case b.Forward == nil:
			return fmt.Errorf("%w: block %q has no Forward", ErrModel, b.Name)
		}
		blocks[b.Name] = true
		for _, p := range slices.Concat(b.Parameters, b.Buffers) {
			full := b.Name + "." + p.Name
			switch {
			case p.Name == "":
				return fmt.Errorf("%w: a parameter of block %q has no name; give it one", ErrModel, b.Name)
			case names[full]:
				return fmt.Errorf("%w: two arrays are called %q; rename one", ErrModel, full)
			case slices.ContainsFunc(p.Shape, func(n int) bool { return n < 1 }):
				return fmt.Errorf("%w: parameter %q has shape %v; want dimensions from 1", ErrModel, full, p.Shape)
			}
			names[full] = true
		}
	}
	return nil
}

// array is a parameter or a buffer by its full name.
type array struct {
	name   string
	shape  []int
	buffer bool
	first  Initial
}

func (a array) size() int { return product(a.shape) }

func arrays(blocks []Block) []array {
	var all []array
	for _, b := range blocks {
		for _, p := range b.Parameters {
			all = append(all, array{b.Name + "." + p.Name, p.Shape, false, p.Initial})
		}
		for _, p := range b.Buffers {
			all = append(all, array{b.Name + "." + p.Name, p.Shape, true, p.Initial})
		}
	}
	return all
}

// initial returns the first values of an array. They depend on the seed and the name only.
func (a array) initial(seed uint64) []float32 {
	values := make([]float32, a.size())
	if a.first != nil {
		a.first(rand.New(rand.NewPCG(seed, key("parameter", a.name))), values)
	}
	return values
}

// digest is the same for models whose arrays have the same names, shapes and uses.
func (m Model) digest() string {
	hash := sha256.New()
	for _, a := range arrays(m.Blocks) {
		_, _ = fmt.Fprintf(hash, "%q float32 %v %v\n", a.name, a.shape, a.buffer)
	}
	return hex.EncodeToString(hash.Sum(nil))
}

// key hashes words to a number that seeds a stream of its own.
func key(words ...string) uint64 {
	hash := fnv.New64a()
	_, _ = io.WriteString(hash, strings.Join(words, "\x00"))
	return hash.Sum64()
}

func product(dimensions []int) int {
	total := 1
	for _, n := range dimensions {
		total *= n
	}
	return total
}

// float32Bytes is what values take.
func float32Bytes(values int) quantity.Bytes { return quantity.Bytes(values) * 4 }
