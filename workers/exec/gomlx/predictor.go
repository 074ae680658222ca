package gomlx

import (
	"errors"
	"fmt"
	"sync"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"

	"github.com/spillway-ml/spillway/workers/exec/state"
)

// Predictor computes the outputs of a trained model. Its methods may be called concurrently; calls wait for each other.
type Predictor struct {
	model  Model
	mu     sync.Mutex
	device *device
	values map[string]tensor
	graphs map[string]*predicting // by the shapes of the inputs
}

// predicting is a compiled graph and the arrays that it reads before the inputs.
type predicting struct {
	graph  *graph.Graph
	arrays []string
}

// Open reads the file of a trained model that training has written. Threads is how many an operation may use; 0 leaves
// it to the backend.
func Open(model Model, path string, threads int) (_ *Predictor, err error) {
	if err := model.validate(); err != nil {
		return nil, fmt.Errorf("model %q: %w", model.Name, err)
	}
	file, err := state.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open model %q: %w", model.Name, err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if metadata := file.Metadata(); metadata[state.FormatKey] != saved || metadata[state.ModelKey] != model.digest() {
		return nil, fmt.Errorf("open model %q: %s is of format %q and of the model %.12q; want %q and %.12q: train the "+
			"model again after it was changed",
			model.Name, path, metadata[state.FormatKey], metadata[state.ModelKey], saved, model.digest())
	}
	d, err := newDevice(threads)
	if err != nil {
		return nil, err
	}
	p := &Predictor{model: model, device: d, values: map[string]tensor{}, graphs: map[string]*predicting{}}
	for _, a := range arrays(model.Blocks) {
		if err := p.read(file, a); err != nil {
			return nil, errors.Join(fmt.Errorf("open model %q: %w", model.Name, err), p.Close())
		}
	}
	return p, nil
}

func (p *Predictor) read(file *state.File, a array) error {
	found, err := file.Read(a.name)
	if err != nil {
		return err
	}
	values, err := decode(found, a.shape)
	if err != nil {
		return err
	}
	t, err := p.device.tensor(shapes.Make(dtypes.Float32, a.shape...))
	if err != nil {
		return err
	}
	copy(t.floats(), values)
	p.values[a.name] = t
	return nil
}

// Predict returns the first output of the model's last block, as Float32, for some samples. A graph is compiled for
// each number of samples that is asked for and kept: ask for few different ones.
func (p *Predictor) Predict(inputs ...Array) (Array, error) {
	output, err := p.predict(inputs)
	if err != nil {
		return Array{}, fmt.Errorf("predict with model %q: %w", p.model.Name, err)
	}
	return output, nil
}

func (p *Predictor) predict(inputs []Array) (Array, error) {
	if len(inputs) == 0 {
		return Array{}, fmt.Errorf("%w: no inputs", ErrModel)
	}
	for i, a := range inputs {
		if err := a.check(max(1, inputs[0].samples())); err != nil {
			return Array{}, fmt.Errorf("%w: input %d: %w", ErrModel, i, err)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	made, err := p.compiled(shapesOf(inputs))
	if err != nil {
		return Array{}, err
	}
	var arguments []argument
	for _, name := range made.arrays {
		arguments = append(arguments, argument{tensor: p.values[name]})
	}
	for _, a := range inputs {
		t, err := p.device.tensor(a.shape())
		if err != nil {
			return Array{}, err
		}
		if err := t.fill(a); err != nil {
			return Array{}, err
		}
		arguments = append(arguments, argument{tensor: t})
	}
	results, err := call(made.graph, arguments)
	if err != nil {
		return Array{}, err
	}
	return Array{Shape: results[0].shape.Dimensions[1:], Float32: results[0].floats()}, nil
}

func (p *Predictor) compiled(inputs []shapes.Shape) (*predicting, error) {
	at := fmt.Sprint(inputs)
	if made := p.graphs[at]; made != nil {
		return made, nil
	}
	var made *predicting
	err := attempt(func() {
		g := graph.NewGraph(p.device.backend, "prediction")
		made = &predicting{graph: g}
		r := &recipe{graph: g, nodes: map[string]*graph.Node{}}
		for _, a := range arrays(p.model.Blocks) {
			r.nodes[a.name] = graph.Parameter(g, a.name, shapes.Make(dtypes.Float32, a.shape...))
			made.arrays = append(made.arrays, a.name)
		}
		var x []*graph.Node
		for i, shape := range inputs {
			x = append(x, graph.Parameter(g, fmt.Sprintf("input %d", i), shape))
		}
		for _, b := range p.model.Blocks {
			x = r.run(b.Name, b, x)
		}
		if !differentiable(x[0].Shape()) {
			panic(fmt.Errorf("%w: its output is %v; want float32", ErrModel, x[0].Shape()))
		}
		if err := g.Compile((stripper{}).node(x[0])); err != nil {
			panic(err)
		}
	})
	if err != nil {
		return nil, err
	}
	p.graphs[at] = made
	return made, nil
}

// Close gives the memory back. It is called once, when nothing is predicted.
func (p *Predictor) Close() error {
	for _, made := range p.graphs {
		made.graph.Finalize()
	}
	p.device.close()
	return nil
}
