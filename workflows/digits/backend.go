package digits

import (
	"errors"
	"fmt"

	"github.com/gomlx/compute"
	"github.com/gomlx/compute/gobackend"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"
)

// engine classifies with GoMLX's Go backend: no library to install, one core or many.
// Its methods may not be called concurrently.
type engine struct {
	network network
	backend compute.Backend
	forward *graph.Exec // parameters, images -> probabilities
}

// newEngine prepares a network. GoMLX sizes its pool of workers from GOMAXPROCS when a backend is created, so an engine
// follows GOMAXPROCS as it was then: make a new one when it has changed. Graphs are compiled at their first use, once
// for each batch size.
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
	return e, nil
}

// close gives the compiled graphs and their buffers back.
func (e *engine) close() {
	if e.forward != nil {
		e.forward.Finalize()
	}
	e.backend.Finalize()
}

// probabilities classifies a batch: pixels holds images of side x side values in 0..1, one after the other.
// It returns ten probabilities for each image.
func (e *engine) probabilities(parameters, pixels []float32) (ten []float32, err error) {
	images := e.network.imageTensor(pixels)
	vector := e.network.parameterTensor(parameters)
	results, err := e.forward.Call(vector, images)
	defer func() { // at once: waiting for the garbage collector would double the memory
		for _, t := range append(results, vector, images) {
			err = errors.Join(err, t.FinalizeAll())
		}
	}()
	if err != nil {
		return nil, fmt.Errorf("classify: %w", err)
	}
	return tensors.CopyFlatData[float32](results[0])
}
