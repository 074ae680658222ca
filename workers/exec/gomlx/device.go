package gomlx

import (
	"fmt"
	"reflect"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/gobackend"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
)

// device is a compute backend with a number of threads of its own. Its buffers are plain memory, and other devices read
// them without a copy.
type device struct {
	backend compute.Backend
	threads int // 0 is the backend's choice
}

func newDevice(threads int) (*device, error) {
	// Operations run one after another, each on all threads, so that results and the memory that is held do not depend on
	// timing.
	backend, err := gobackend.New("ops_sequential")
	if err != nil {
		return nil, fmt.Errorf("create a compute backend: %w", err)
	}
	if threads > 0 {
		if err := limit(backend, threads); err != nil {
			return nil, err
		}
	}
	return &device{backend, threads}, nil
}

// limit sets how many threads a backend uses. Its configuration has an option for that, which prints to the standard
// output.
func limit(backend compute.Backend, threads int) (err error) {
	failed := attempt(func() {
		pool, is := reflect.TypeAssert[interface{ SetMaxParallelism(threads int) }](reflect.ValueOf(backend).Elem().
			FieldByName("Workers"))
		if !is {
			err = fmt.Errorf("the compute backend %s does not let its threads be limited; leave the device's threads at 0",
				backend.Name())
			return
		}
		if threads == 1 {
			threads = 0 // no worker besides the caller
		}
		pool.SetMaxParallelism(threads)
	})
	if failed != nil {
		return fmt.Errorf("limit the compute backend to %d threads: %w", threads, failed)
	}
	return err
}

func (d *device) close() { d.backend.Finalize() }

// tensor is memory that a graph reads or wrote.
type tensor struct {
	buffer compute.Buffer
	shape  shapes.Shape
}

// tensor returns memory of undefined content.
func (d *device) tensor(shape shapes.Shape) (tensor, error) {
	buffer, _, err := d.backend.NewSharedBuffer(0, shape)
	if err != nil {
		return tensor{}, fmt.Errorf("allocate %v: %w", shape, err)
	}
	return tensor{buffer, shape}, nil
}

// floats are the numbers themselves, not a copy.
func (t tensor) floats() []float32 {
	flat, err := t.buffer.Data()
	if err != nil {
		panic(fmt.Errorf("read a tensor after its backend's end: %w", err))
	}
	return flat.([]float32) // only float32 tensors are asked for their numbers
}

// fill copies an array into the tensor, which has its shape.
func (t tensor) fill(a Array) error {
	if have := a.shape(); !have.Equal(t.shape) {
		return fmt.Errorf("%w: shape %v; it was %v before", ErrModel, have, t.shape)
	}
	flat, err := t.buffer.Data()
	if err != nil {
		return err
	}
	switch into := flat.(type) {
	case []float32:
		copy(into, a.Float32)
	case []int32:
		copy(into, a.Int32)
	}
	return nil
}

// differentiable says whether gradients flow through tensors of this shape.
func differentiable(s shapes.Shape) bool { return s.DType == dtypes.Float32 }

// argument is what a graph gets for one of its parameters.
type argument struct {
	tensor
	donated bool // the graph may reuse the memory
}

// call runs a compiled graph. What it returns is the caller's, and donated arguments are gone.
func call(g *graph.Graph, arguments []argument) (results []tensor, err error) {
	buffers, donated := make([]compute.Buffer, len(arguments)), make([]bool, len(arguments))
	for i, a := range arguments {
		buffers[i], donated[i] = a.buffer, a.donated
	}
	failed := attempt(func() {
		for _, output := range g.RunWithBuffers(buffers, donated, 0) {
			buffer, failed := output.Buffer(g.Backend(), 0)
			if failed != nil {
				panic(failed)
			}
			results = append(results, tensor{buffer, output.Shape()})
		}
	})
	if failed != nil {
		return nil, fmt.Errorf("run %s: %w", g.Name(), failed)
	}
	return results, nil
}
