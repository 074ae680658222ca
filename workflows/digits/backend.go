package digits

import (
	"errors"
	"fmt"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/gobackend"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
)

// engine computes the network with GoMLX's Go backend: no library to install, one core or many.
// Its methods may not be called concurrently.
type engine struct {
	network network
	backend compute.Backend
	forward *graph.Exec // parameters, images -> probabilities
	learn   *graph.Exec // parameters, images, labels, dropout mask -> loss, gradient of each array
}

// newEngine prepares a network. GoMLX sizes its pool of workers from GOMAXPROCS when a backend is created, so an engine follows
// GOMAXPROCS as it was then: make a new one when it has changed. Graphs are compiled at their first use, once for each batch size.
func newEngine(n network) (*engine, error) {
	backend, err := gobackend.New("")
	if err != nil {
		return nil, fmt.Errorf("create the compute backend: %w", err)
	}
	e := &engine{network: n, backend: backend}
	if e.forward, err = graph.NewExec(backend, n.forwardGraph); err != nil {
		e.close()
		return nil, fmt.Errorf("prepare the forward graph: %w", err)
	}
	if e.learn, err = graph.NewExec(backend, n.learnGraph); err != nil {
		e.close()
		return nil, fmt.Errorf("prepare the gradient graph: %w", err)
	}
	return e, nil
}

// close gives the compiled graphs and their buffers back.
func (e *engine) close() {
	for _, exec := range []*graph.Exec{e.forward, e.learn} {
		if exec != nil {
			exec.Finalize()
		}
	}
	e.backend.Finalize()
}

// probabilities classifies a batch: pixels holds images of side x side values in 0..1, one after the other.
// It returns ten probabilities for each image.
func (e *engine) probabilities(parameters, pixels []float32) ([]float32, error) {
	out, err := call(e.forward, e.network.parameterTensor(parameters), e.network.imageTensor(pixels))
	if err != nil {
		return nil, fmt.Errorf("classify: %w", err)
	}
	return out[0], nil
}

// gradient returns the mean loss (cross entropy, in nats) over a batch and writes its gradient, one value for each parameter, into into.
// mask scales the features of each image, for dropout.
func (e *engine) gradient(parameters, pixels []float32, labels []int32, mask, into []float32) (float64, error) {
	out, err := call(e.learn, e.network.parameterTensor(parameters), e.network.imageTensor(pixels),
		tensors.FromFlatDataAndDimensions(labels, len(labels)),
		tensors.FromFlatDataAndDimensions(mask, len(labels), e.network.features()))
	if err != nil {
		return 0, fmt.Errorf("compute the gradient: %w", err)
	}
	offset := 0
	for _, array := range out[1:] {
		offset += copy(into[offset:], array)
	}
	if offset != e.network.size() {
		return 0, fmt.Errorf("compute the gradient: %d values for %d parameters", offset, e.network.size())
	}
	return float64(out[0][0]), nil
}

// call runs a graph and copies its outputs, giving all buffers back at once: waiting for the garbage collector would double the memory.
func call(exec *graph.Exec, inputs ...*tensors.Tensor) (outputs [][]float32, err error) {
	arguments := make([]any, len(inputs))
	for i, in := range inputs {
		arguments[i] = in
	}
	results, err := exec.Call(arguments...)
	defer func() {
		for _, t := range append(inputs, results...) {
			err = errors.Join(err, t.FinalizeAll())
		}
	}()
	if err != nil {
		return nil, err
	}
	outputs = make([][]float32, len(results))
	for i, result := range results {
		if outputs[i], err = tensors.CopyFlatData[float32](result); err != nil {
			return nil, err
		}
	}
	return outputs, nil
}
