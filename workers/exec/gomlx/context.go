package gomlx

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
)

// Context is what a block builds its graph with. It is valid during one call of Forward.
type Context struct {
	recipe *recipe
	block  string // the full name
	arrays map[string]shapes.Shape
	used   map[string]bool
	drops  int
}

// recipe collects what a graph needs besides the inputs.
type recipe struct {
	graph    *graph.Graph
	training bool
	nodes    map[string]*graph.Node // parameters, and buffers out of training, by full name
	drops    []drop
	averages []average
}

// drop is a place where dropout happens.
type drop struct {
	layer uint64
	rate  float64
	shape shapes.Shape
	node  *graph.Node
}

// average is a buffer's way to follow a value.
type average struct {
	name     string
	value    *graph.Node
	momentum float64
}

// Training says whether the graph is built for training; else for use of the trained model.
func (c *Context) Training() bool { return c.recipe.training }

// Parameter returns a parameter that the block declares. It panics for others.
func (c *Context) Parameter(name string) *graph.Node {
	c.declared(name)
	return c.recipe.nodes[c.block+"."+name]
}

// Buffer returns a buffer that the block declares, as training left it. It panics for others, and in training: a
// micro-batch's results must not depend on those that were computed before it.
func (c *Context) Buffer(name string) *graph.Node {
	c.declared(name)
	if c.Training() {
		panic(fmt.Errorf("%w: buffer %q is read in training; ask Training first", ErrModel, c.block+"."+name))
	}
	return c.recipe.nodes[c.block+"."+name]
}

// Average moves a buffer towards a value of its shape once for every micro-batch, in their order: buffer =
// (1-momentum)*buffer + momentum*value, with momentum from 0 to 1. It does nothing out of training.
func (c *Context) Average(name string, value *graph.Node, momentum float64) {
	c.declared(name)
	if want := c.arrays[name]; !value.Shape().Equal(want) {
		panic(fmt.Errorf("%w: buffer %q of shape %v follows a value of shape %v", ErrModel, c.block+"."+name, want,
			value.Shape()))
	}
	if c.Training() {
		c.recipe.averages = append(c.recipe.averages, average{c.block + "." + name, value, momentum})
	}
}

// Dropout silences elements of x with this probability, from 0 and below 1, and scales the others up, so that the
// expectation stays. It returns x out of training. x's first dimension is the samples.
func (c *Context) Dropout(x *graph.Node, rate float64) *graph.Node {
	if !(rate >= 0 && rate < 1) {
		panic(fmt.Errorf("%w: dropout at rate %v in block %q; want 0 or more and less than 1", ErrModel, rate, c.block))
	}
	c.drops++
	if !c.Training() || rate == 0 {
		return x
	}
	name := c.block + "#" + strconv.Itoa(c.drops)
	node := graph.Parameter(c.recipe.graph, "dropout "+name, x.Shape())
	c.recipe.drops = append(c.recipe.drops, drop{key("dropout", name), rate, x.Shape(), node})
	return graph.Mul(x, node)
}

func (c *Context) declared(name string) {
	if _, known := c.arrays[name]; !known {
		panic(fmt.Errorf("%w: block %q uses %q and does not declare it", ErrModel, c.block, name))
	}
	c.used[name] = true
}

// Run builds a block inside of this one, whose parameters and buffers this one declares, with the inner block's name
// and a dot before theirs; [Sequence] does.
func (c *Context) Run(inner Block, inputs ...*graph.Node) []*graph.Node {
	for _, p := range slices.Concat(inner.Parameters, inner.Buffers) {
		c.declared(inner.Name + "." + p.Name)
	}
	return c.recipe.run(c.block+"."+inner.Name, inner, inputs)
}

// run builds a block of this full name. It panics with an error that names the block and the shapes of its inputs.
func (r *recipe) run(name string, b Block, inputs []*graph.Node) []*graph.Node {
	c := &Context{recipe: r, block: name, arrays: map[string]shapes.Shape{}, used: map[string]bool{}}
	for _, p := range b.Parameters {
		c.arrays[p.Name] = shapes.Make(dtypes.Float32, p.Shape...)
	}
	for _, p := range b.Buffers {
		c.arrays[p.Name] = shapes.Make(dtypes.Float32, p.Shape...)
	}
	var outputs []*graph.Node
	err := attempt(func() { outputs = b.Forward(c, inputs) })
	if err == nil {
		err = c.check(b, outputs)
	}
	if err != nil {
		panic(fmt.Errorf("block %q with inputs of shape %v: %w", name, nodeShapes(inputs), err))
	}
	return outputs
}

func (c *Context) check(b Block, outputs []*graph.Node) error {
	for _, p := range b.Parameters {
		if !c.used[p.Name] {
			return fmt.Errorf("%w: it declares %q and does not use it", ErrModel, p.Name)
		}
	}
	for _, p := range b.Buffers {
		if !c.used[p.Name] {
			return fmt.Errorf("%w: it declares buffer %q and does not use it", ErrModel, p.Name)
		}
	}
	if len(outputs) == 0 {
		return fmt.Errorf("%w: it returns nothing", ErrModel)
	}
	for i, o := range outputs {
		switch {
		case o == nil:
			return fmt.Errorf("%w: its output %d is nil", ErrModel, i)
		case o.Graph() != c.recipe.graph:
			return fmt.Errorf("%w: its output %d is of another graph", ErrModel, i)
		case o.IsScalar():
			return fmt.Errorf("%w: its output %d is a single number; want one row for each sample", ErrModel, i)
		}
	}
	return nil
}

func nodeShapes(nodes []*graph.Node) []shapes.Shape {
	var found []shapes.Shape
	for _, n := range nodes {
		found = append(found, n.Shape())
	}
	return found
}

// attempt turns a panic into an error.
func attempt(do func()) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			var is bool
			if err, is = cause.(error); !is {
				err = fmt.Errorf("%v", cause)
			}
		}
	}()
	do()
	return nil
}
