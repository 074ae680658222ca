package gomlx

import (
	"fmt"
	"math"

	"github.com/gomlx/gomlx/core/graph"
)

// Sequence makes one block of several that run in turn. The parameters of block b are called b.NAME in it.
func Sequence(name string, blocks ...Block) Block {
	return compose(name, blocks, func(c *Context, inputs []*graph.Node) []*graph.Node {
		for _, b := range blocks {
			inputs = c.Run(b, inputs...)
		}
		return inputs
	})
}

// Residual is x plus what a sequence of blocks makes of it (K. He et al., 2015, https://arxiv.org/abs/1512.03385).
func Residual(name string, blocks ...Block) Block {
	inside := Sequence(name, blocks...)
	forward := inside.Forward
	inside.Forward = single(func(c *Context, x *graph.Node) *graph.Node {
		outputs := forward(c, []*graph.Node{x})
		if len(outputs) != 1 || !outputs[0].Shape().Equal(x.Shape()) {
			panic(fmt.Errorf("%w: its blocks make %v of it; want one output of the same shape", ErrModel, nodeShapes(outputs)))
		}
		return graph.Add(x, outputs[0])
	})
	return inside
}

// SelfAttention lets every place of sequences of length x width look at all others, or with causal at none after it, in
// several heads that share the width (A. Vaswani et al., 2017, https://arxiv.org/abs/1706.03762, section 3.2). Dropout
// silences attention weights.
func SelfAttention(name string, width, heads int, causal bool, dropout float64) Block {
	deviation := math.Sqrt(1 / float64(max(1, width)))
	return Block{
		Name: name,
		Parameters: append(affine("in.weight", "in.bias", width, 3*width, deviation),
			affine("out.weight", "out.bias", width, width, deviation)...),
		Forward: single(func(c *Context, x *graph.Node) *graph.Node {
			if heads < 1 || width%heads != 0 || x.Rank() != 3 || x.Shape().Dim(2) != width {
				panic(fmt.Errorf("%w: attention of %d heads wants samples x length x %d, which the heads divide", ErrModel, heads,
					width))
			}
			samples, length := x.Shape().Dim(0), x.Shape().Dim(1)
			all := graph.Reshape(multiply(x, c.Parameter("in.weight"), c.Parameter("in.bias")), samples, length, 3, heads,
				width/heads)
			take := func(i int) *graph.Node { // (samples x heads) x length x width of a head
				one := graph.Reshape(graph.Slice(all, graph.AxisRange(), graph.AxisRange(), graph.AxisElem(i)), samples, length,
					heads, width/heads)
				return graph.Reshape(graph.TransposeAllAxes(one, 0, 2, 1, 3), samples*heads, length, width/heads)
			}
			query, key, value := take(0), take(1), take(2)
			scores := graph.MulScalar(batchProductTransposed(query, key), 1/math.Sqrt(float64(width/heads)))
			if causal {
				scores = graph.Add(scores, graph.InsertAxes(future(x.Graph(), length), 0))
			}
			weights := graph.Reshape(softmax(scores), samples, heads, length, length)
			weights = graph.Reshape(c.Dropout(weights, dropout), samples*heads, length, length)
			mixed := graph.Reshape(batchProduct(weights, value), samples, heads, length, width/heads)
			mixed = graph.Reshape(graph.TransposeAllAxes(mixed, 0, 2, 1, 3), samples, length, width)
			return multiply(mixed, c.Parameter("out.weight"), c.Parameter("out.bias"))
		}),
	}
}

// TransformerLayer is attention and two dense layers, each normalised before and added to what was there (R. Xiong et
// al., 2020, https://arxiv.org/abs/2002.04745). The dense layers have hidden numbers between them.
func TransformerLayer(name string, width, heads, hidden int, causal bool, dropout float64) Block {
	return Sequence(name,
		Residual("attention", LayerNorm("norm", width), SelfAttention("heads", width, heads, causal, dropout),
			Dropout("dropout", dropout)),
		Residual("dense", LayerNorm("norm", width), Dense("up", width, hidden), GELU("gelu"), Dense("down", hidden, width),
			Dropout("dropout", dropout)))
}

// compose declares the parameters and buffers of inner blocks.
func compose(name string, blocks []Block, forward func(*Context, []*graph.Node) []*graph.Node) Block {
	made := Block{Name: name, Forward: forward}
	for _, b := range blocks {
		for _, p := range b.Parameters {
			p.Name = b.Name + "." + p.Name
			made.Parameters = append(made.Parameters, p)
		}
		for _, p := range b.Buffers {
			p.Name = b.Name + "." + p.Name
			made.Buffers = append(made.Buffers, p)
		}
	}
	return made
}

// softmax is over the last dimension. GoMLX's own is one operation of the backend whose gradient computes it a second
// time.
func softmax(x *graph.Node) *graph.Node {
	powers := graph.Exp(graph.Sub(x, graph.StopGradient(graph.ReduceAndKeep(x, graph.ReduceMax, -1))))
	return graph.Div(powers, graph.ReduceAndKeep(powers, graph.ReduceSum, -1))
}

// future is a square that is 0 on and below the diagonal, and so low above it that the exponential of anything near is
// 0.
func future(g *graph.Graph, length int) *graph.Node {
	const low = -1e9
	values := make([][]float32, length)
	for i := range values {
		values[i] = make([]float32, length)
		for j := i + 1; j < length; j++ {
			values[i][j] = low
		}
	}
	return graph.Const(g, values)
}
