package gomlx

import (
	"fmt"
	"slices"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
)

// part is what is compiled: consecutive blocks of a model.
type part struct {
	model       Model
	blocks      []Block
	first, last bool
}

// source says where an argument of a graph comes from.
type source struct {
	kind  sourceKind
	index int
}

type sourceKind int

const (
	fromParameters   sourceKind = iota // of the part, in their order
	fromInputs                         // of the part
	fromDropout                        // masks, in the order of the recipe's drops
	fromTarget                         // of the micro-batch
	fromKept                           // by the forward graph for the backward graph
	fromCotangents                     // of the part's outputs
	fromAccumulators                   // of the gradients, in the order of the parameters
)

// program is a part that is compiled for one size of micro-batches.
type program struct {
	// forward returns the outputs, or the loss where the part is the last one, then the values that buffers follow.
	// keeping returns what is kept for the backward graph, too.
	forward, keeping *graph.Graph
	// backward returns the cotangents of the inputs that have some, then the accumulated gradients.
	backward *graph.Graph

	arguments     []source // of forward and keeping
	backArguments []source // of backward
	outputs       []shapes.Shape
	inputs        []shapes.Shape
	target        shapes.Shape
	drops         []drop
	averages      []average
	kept          []shapes.Shape
	// again is, for what is kept, the number of the output that it is, else -1.
	again []int
}

// building is the forward pass as a graph, and its arguments so far.
type building struct {
	*recipe
	arguments  []source
	sources    map[*graph.Node]source
	parameters []*graph.Node
	inputs     []*graph.Node
	outputs    []*graph.Node
}

// build compiles a part for inputs of these shapes. The target counts for the last part only.
func build(d *device, p part, inputs []shapes.Shape, target shapes.Shape) (made *program, err error) {
	failed := attempt(func() {
		made = &program{inputs: inputs, target: target}
		err = made.compile(d, p)
	})
	if failed != nil {
		err = failed
	}
	if err != nil {
		made.close()
		return nil, err
	}
	return made, nil
}

// compile builds the forward pass and its gradient in one graph, and cuts that in two: nodes of the forward pass that
// the gradient reads become results of one graph and arguments of the other. Nodes that are quick to compute from
// others are repeated rather than kept.
func (p *program) compile(d *device, of part) error {
	plain := of.forward(graph.NewGraph(d.backend, "forward"), p.inputs, p.target)
	p.forward, p.arguments, p.drops, p.averages = plain.graph, plain.arguments, plain.drops, plain.averages
	p.outputs = nodeShapes(plain.outputs)
	if err := p.forward.Compile((stripper{}).nodes(plain.results())...); err != nil {
		return fmt.Errorf("compile the forward pass: %w", err)
	}

	whole := of.forward(graph.NewGraph(d.backend, "forward that keeps"), p.inputs, p.target)
	p.keeping = whole.graph
	// An output's adjoint is an argument of the gradient; while the graph is whole, a zero stands in for it.
	var adjoints, ends []*graph.Node
	for _, output := range whole.outputs {
		if !differentiable(output.Shape()) {
			continue
		}
		adjoint := graph.Identity(graph.Zeros(whole.graph, output.Shape()))
		adjoints = append(adjoints, adjoint)
		ends = append(ends, graph.ReduceAllSum(graph.IdentityWithCustomGradient(output, func(_, _ *graph.Node) *graph.Node {
			return adjoint
		})))
	}
	if len(ends) == 0 {
		return fmt.Errorf("%w: no output of %q is float32, so it cannot learn", ErrModel, of.blocks[len(of.blocks)-1].Name)
	}
	sum := ends[0]
	for _, end := range ends[1:] {
		sum = graph.Add(sum, end)
	}
	boundary := sum.Id()
	wanted := slices.Clone(whole.parameters)
	if !of.first {
		for _, input := range whole.inputs {
			if differentiable(input.Shape()) {
				wanted = append(wanted, input)
			}
		}
	}
	var gradients []*graph.Node
	if len(wanted) > 0 {
		gradients = graph.Gradient(sum, wanted...)
	}
	cut := &cut{
		graph: graph.NewGraph(d.backend, "backward"), boundary: boundary, sources: whole.sources,
		made: map[*graph.Node]*graph.Node{}, constant: map[*graph.Node]bool{},
	}
	for i, adjoint := range adjoints {
		cut.made[adjoint] = cut.argument(source{fromCotangents, i}, adjoint.Shape())
	}
	return p.separate(whole, cut, gradients)
}

// separate compiles the graph that keeps and the backward graph.
func (p *program) separate(whole *building, cut *cut, gradients []*graph.Node) error {
	count := len(whole.parameters)
	results := make([]*graph.Node, 0, len(gradients))
	for _, gradient := range gradients[min(count, len(gradients)):] {
		results = append(results, cut.node(gradient))
	}
	for i, gradient := range gradients[:min(count, len(gradients))] {
		sum := cut.argument(source{fromAccumulators, i}, gradient.Shape())
		results = append(results, graph.Add(sum, cut.node(gradient)))
	}
	p.backward, p.backArguments = cut.graph, cut.arguments
	if len(results) == 0 { // nothing to learn and nothing to hand on
		results = append(results, graph.Const(cut.graph, float32(0)))
	}
	if err := p.backward.Compile(results...); err != nil {
		return fmt.Errorf("compile the backward pass: %w", err)
	}
	p.kept = nodeShapes(cut.kept)
	strip := stripper{}
	outputs := strip.nodes(whole.results())
	for _, node := range strip.nodes(cut.kept) {
		p.again = append(p.again, slices.Index(outputs[:len(whole.outputs)], node))
		if p.again[len(p.again)-1] < 0 {
			outputs = append(outputs, node)
		}
	}
	if err := p.keeping.Compile(outputs...); err != nil {
		return fmt.Errorf("compile the forward pass: %w", err)
	}
	return nil
}

// reads says that the backward graph has arguments of this kind.
func (p *program) reads(kind sourceKind) bool {
	return slices.ContainsFunc(p.backArguments, func(from source) bool { return from.kind == kind })
}

func (p *program) close() {
	for _, g := range []*graph.Graph{p.forward, p.keeping, p.backward} {
		if g != nil && g.IsCompiled() {
			g.Finalize()
		}
	}
}

// forward builds the blocks of the part and, in the last one, the loss.
func (p part) forward(g *graph.Graph, inputs []shapes.Shape, target shapes.Shape) *building {
	b := &building{
		recipe:  &recipe{graph: g, training: true, nodes: map[string]*graph.Node{}},
		sources: map[*graph.Node]source{},
	}
	add := func(name string, shape shapes.Shape, from source) *graph.Node {
		node := graph.Parameter(g, name, shape)
		b.arguments, b.sources[node] = append(b.arguments, from), from
		return node
	}
	for _, a := range arrays(p.blocks) {
		if !a.buffer {
			node := add(a.name, shapes.Make(dtypes.Float32, a.shape...), source{fromParameters, len(b.parameters)})
			b.parameters, b.nodes[a.name] = append(b.parameters, node), node
		}
	}
	for i, shape := range inputs {
		b.inputs = append(b.inputs, add(fmt.Sprintf("input %d", i), shape, source{fromInputs, i}))
	}
	x := b.inputs
	for _, block := range p.blocks {
		x = b.run(block.Name, block, x)
	}
	for i, d := range b.drops {
		b.arguments, b.sources[d.node] = append(b.arguments, source{fromDropout, i}), source{fromDropout, i}
	}
	b.outputs = x
	if p.last {
		b.outputs = []*graph.Node{p.model.loss(x, add("target", target, source{fromTarget, 0}))}
	}
	return b
}

// results are what the forward graph returns.
func (b *building) results() []*graph.Node {
	results := slices.Clone(b.outputs)
	for _, a := range b.averages {
		results = append(results, a.value)
	}
	return results
}

// cut copies the gradient's nodes from one graph to another.
type cut struct {
	graph     *graph.Graph
	boundary  graph.NodeId // the last node of the forward pass
	sources   map[*graph.Node]source
	arguments []source
	kept      []*graph.Node
	made      map[*graph.Node]*graph.Node // the copies, by what they are copies of
	constant  map[*graph.Node]bool
}

func (c *cut) argument(from source, shape shapes.Shape) *graph.Node {
	c.arguments = append(c.arguments, from)
	return graph.Parameter(c.graph, fmt.Sprintf("argument %d", len(c.arguments)), shape)
}

// node returns the copy of a node.
func (c *cut) node(n *graph.Node) *graph.Node {
	if made, known := c.made[n]; known {
		return made
	}
	from, argued := c.sources[n]
	var made *graph.Node
	switch {
	case argued:
		made = c.argument(from, n.Shape())
	case n.Type() == graph.NodeTypeIdentity:
		made = c.node(n.Inputs()[0])
	case n.Type() == graph.NodeTypeConstant:
		made = graph.ConstTensor(c.graph, n.ConstantValue())
	case len(n.Inputs()) > 0 && (n.Id() > c.boundary || repeated(n) || c.isConstant(n)):
		inputs := make([]*graph.Node, len(n.Inputs()))
		for i, input := range n.Inputs() {
			inputs[i] = c.node(input)
		}
		made = n.CloneWithInputs(inputs...)
	default:
		made = c.argument(source{fromKept, len(c.kept)}, n.Shape())
		c.kept = append(c.kept, n)
	}
	c.made[n] = made
	return made
}

// stripper leaves out the nodes that do nothing, in the same graph: they mark where gradients are not what they would
// be, and the backend would copy numbers for them. It holds what it has replaced.
type stripper map[*graph.Node]*graph.Node

func (s stripper) nodes(all []*graph.Node) []*graph.Node {
	stripped := make([]*graph.Node, len(all))
	for i, n := range all {
		stripped[i] = s.node(n)
	}
	return stripped
}

func (s stripper) node(n *graph.Node) *graph.Node {
	if known, is := s[n]; is {
		return known
	}
	inputs := s.nodes(n.Inputs())
	made := n
	switch {
	case n.Type() == graph.NodeTypeIdentity:
		made = inputs[0]
	case !slices.Equal(inputs, n.Inputs()):
		made = n.CloneWithInputs(inputs...)
	}
	s[n] = made
	return made
}

// repeated says that a node is cheaper to compute again than to keep.
func repeated(n *graph.Node) bool {
	switch n.Type() {
	case graph.NodeTypeReshape, graph.NodeTypeBroadcastInDim:
		return true
	default:
		return false
	}
}

// isConstant says that a node depends on constants only, which the other graph can have, too.
func (c *cut) isConstant(n *graph.Node) bool {
	known, seen := c.constant[n]
	if seen {
		return known
	}
	known = n.Type() == graph.NodeTypeConstant || len(n.Inputs()) > 0
	for _, input := range n.Inputs() {
		known = known && c.isConstant(input)
	}
	c.constant[n] = known
	return known
}

// loss builds the loss of a model's outputs.
func (m Model) loss(outputs []*graph.Node, target *graph.Node) *graph.Node {
	last := m.Blocks[len(m.Blocks)-1].Name
	if len(outputs) != 1 {
		panic(fmt.Errorf("%w: the last block %q returns %d outputs; the loss reads one", ErrModel, last, len(outputs)))
	}
	loss := m.Loss
	if loss == nil {
		loss = usualLoss
	}
	var scalar *graph.Node
	err := attempt(func() { scalar = loss(outputs[0], target) })
	if err == nil && (scalar == nil || !scalar.IsScalar() || !differentiable(scalar.Shape())) {
		err = fmt.Errorf("%w: it is no single float32", ErrModel)
	}
	if err != nil {
		panic(fmt.Errorf("loss of the output of %q, of shape %v, and a target of shape %v: %w", last, outputs[0].Shape(),
			target.Shape(), err))
	}
	return scalar
}

// usualLoss is the one that Model.Loss describes for nil.
func usualLoss(output, target *graph.Node) *graph.Node {
	if target.DType() != dtypes.Int32 {
		if !slices.Equal(output.Shape().Dimensions, target.Shape().Dimensions) {
			panic(fmt.Errorf("%w: squared errors want an output of the target's shape", ErrModel))
		}
		return graph.ReduceAllMean(graph.Square(graph.Sub(output, target)))
	}
	if !slices.Equal(output.Shape().Dimensions[:output.Rank()-1], target.Shape().Dimensions) {
		panic(fmt.Errorf("%w: cross entropy wants one row of logits for each number of the target", ErrModel))
	}
	chosen := graph.OneHot(target, output.Shape().Dim(-1), dtypes.Float32)
	return graph.Neg(graph.ReduceAllMean(graph.ReduceSum(graph.Mul(chosen, graph.LogSoftmax(output, -1)), -1)))
}
