package gomlx

import (
	"fmt"
	"math"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/gomlx/core/graph"
)

// Dense is x times weights plus bias over the last dimension, which has in numbers and gets out. Weights start normal
// with variance 2/in, which keeps the variance of rectified layers (K. He et al., 2015,
// https://arxiv.org/abs/1502.01852, equation 10), and biases at 0.
func Dense(name string, in, out int) Block {
	return Block{
		Name:       name,
		Parameters: affine("weight", "bias", in, out, math.Sqrt(2/float64(in))),
		Forward: single(func(c *Context, x *graph.Node) *graph.Node {
			return multiply(x, c.Parameter("weight"), c.Parameter("bias"))
		}),
	}
}

// Relu is max(x, 0).
func Relu(name string) Block { return Function(name, rectify) }

// GELU is x times the normal distribution's probability below x (D. Hendrycks, K. Gimpel, 2016,
// https://arxiv.org/abs/1606.08415).
func GELU(name string) Block { return Function(name, gelu) }

// Function is a block without parameters.
func Function(name string, function func(x *graph.Node) *graph.Node) Block {
	return Block{Name: name, Forward: single(func(_ *Context, x *graph.Node) *graph.Node { return function(x) })}
}

// Flatten makes one row of each sample.
func Flatten(name string) Block {
	return Function(name, func(x *graph.Node) *graph.Node { return graph.Reshape(x, x.Shape().Dim(0), -1) })
}

// Dropout silences elements with this probability, see [Context.Dropout].
func Dropout(name string, rate float64) Block {
	return Block{Name: name, Forward: single(func(c *Context, x *graph.Node) *graph.Node { return c.Dropout(x, rate) })}
}

// Convolution slides a square kernel of odd width over images of height x width x in channels, with zeros around them,
// and makes out channels. Every pixel's neighbourhood becomes a row, and one product of matrices does the rest: on this
// backend that is faster than its own convolution by an order of magnitude.
func Convolution(name string, kernel, in, out int) Block {
	rows := kernel * kernel * in
	return Block{
		Name:       name,
		Parameters: affine("weight", "bias", rows, out, math.Sqrt(2/float64(rows))),
		Forward: single(func(c *Context, x *graph.Node) *graph.Node {
			if x.Rank() != 4 || x.Shape().Dim(3) != in || kernel%2 != 1 {
				panic(fmt.Errorf("%w: convolution with a kernel of %d wants an odd one, and samples x height x width x %d channels",
					ErrModel, kernel, in))
			}
			return graph.Add(convolve(x, c.Parameter("weight"), kernel), spread(c.Parameter("bias"), x))
		}),
	}
}

// MaxPool takes the maximum of each square of images of height x width x channels, so both are divided by width. Equal
// maxima share nothing: each gets the whole gradient.
func MaxPool(name string, width int) Block {
	return Function(name, func(x *graph.Node) *graph.Node {
		if x.Rank() != 4 || width < 1 || x.Shape().Dim(1)%width != 0 || x.Shape().Dim(2)%width != 0 {
			panic(fmt.Errorf("%w: the maximum of squares of width %d wants samples x height x width x channels that they fill",
				ErrModel, width))
		}
		return maximum(x, width)
	})
}

// normEpsilon keeps the divisors of normalised numbers from 0, as in torch.nn.
const normEpsilon = 1e-5

// LayerNorm scales the last dimension, which has width numbers, to mean 0 and variance 1, then by weights and biases
// that are learnt (J. Ba et al., 2016, https://arxiv.org/abs/1607.06450).
func LayerNorm(name string, width int) Block {
	return Block{
		Name:       name,
		Parameters: []Parameter{{"weight", []int{width}, Constant(1)}, {"bias", []int{width}, nil}},
		Forward: single(func(c *Context, x *graph.Node) *graph.Node {
			centered := graph.Sub(x, graph.ReduceAndKeep(x, graph.ReduceMean, -1))
			variance := graph.ReduceAndKeep(graph.Square(centered), graph.ReduceMean, -1)
			scaled := graph.Div(centered, graph.Sqrt(graph.AddScalar(variance, normEpsilon)))
			return graph.Add(graph.Mul(scaled, spread(c.Parameter("weight"), x)), spread(c.Parameter("bias"), x))
		}),
	}
}

// BatchNorm scales each of the width numbers of the last dimension to mean 0 and variance 1 over all else of the
// micro-batch, then by weights and biases that are learnt (S. Ioffe, C. Szegedy, 2015,
// https://arxiv.org/abs/1502.03167). A trained model uses running statistics instead: those of torch.nn.BatchNorm1d,
// with momentum 0.1 and the variance over n-1. Results depend on how a batch is cut into micro-batches, as in any
// pipeline.
func BatchNorm(name string, width int) Block {
	const momentum = 0.1
	return Block{
		Name:       name,
		Parameters: []Parameter{{"weight", []int{width}, Constant(1)}, {"bias", []int{width}, nil}},
		Buffers:    []Parameter{{"running_mean", []int{width}, nil}, {"running_var", []int{width}, Constant(1)}},
		Forward: single(func(c *Context, x *graph.Node) *graph.Node {
			var mean, variance *graph.Node
			if c.Training() {
				rows := graph.Reshape(x, -1, x.Shape().Dim(-1))
				count := rows.Shape().Dim(0)
				mean = graph.ReduceMean(rows, 0)
				variance = graph.ReduceMean(graph.Square(graph.Sub(rows, spread(mean, rows))), 0)
				c.Average("running_mean", mean, momentum)
				c.Average("running_var", graph.MulScalar(variance, float64(count)/float64(max(1, count-1))), momentum)
			} else {
				mean, variance = c.Buffer("running_mean"), c.Buffer("running_var")
			}
			scaled := graph.Div(graph.Sub(x, spread(mean, x)), spread(graph.Sqrt(graph.AddScalar(variance, normEpsilon)), x))
			return graph.Add(graph.Mul(scaled, spread(c.Parameter("weight"), x)), spread(c.Parameter("bias"), x))
		}),
	}
}

// Embedding replaces integers from 0 to count-1 by rows of width numbers that are learnt, which start normal with a
// standard deviation of 0.02.
func Embedding(name string, count, width int) Block {
	return Block{
		Name:       name,
		Parameters: []Parameter{{"weight", []int{count, width}, Normal(0.02)}},
		Forward: single(func(c *Context, x *graph.Node) *graph.Node {
			if x.DType() != dtypes.Int32 {
				panic(fmt.Errorf("%w: an embedding wants integers", ErrModel))
			}
			return graph.Gather(c.Parameter("weight"), graph.InsertAxes(x, -1))
		}),
	}
}

// Positions adds a row that is learnt to each place of sequences of length x width, which start normal with a standard
// deviation of 0.02.
func Positions(name string, length, width int) Block {
	return Block{
		Name:       name,
		Parameters: []Parameter{{"weight", []int{length, width}, Normal(0.02)}},
		Forward: single(func(c *Context, x *graph.Node) *graph.Node {
			return graph.Add(x, graph.InsertAxes(c.Parameter("weight"), 0))
		}),
	}
}

// single is the forward function of a block with one input and one output.
func single(function func(c *Context, x *graph.Node) *graph.Node) func(*Context, []*graph.Node) []*graph.Node {
	return func(c *Context, inputs []*graph.Node) []*graph.Node {
		if len(inputs) != 1 {
			panic(fmt.Errorf("%w: it wants one input", ErrModel))
		}
		return []*graph.Node{function(c, inputs[0])}
	}
}

// affine are the weights and the bias of a product.
func affine(weight, bias string, in, out int, deviation float64) []Parameter {
	return []Parameter{{weight, []int{in, out}, Normal(deviation)}, {bias, []int{out}, nil}}
}

// spread gives a vector the rank of x, so that it meets x's last dimension.
func spread(vector, x *graph.Node) *graph.Node {
	dimensions := make([]int, x.Rank())
	for i := range dimensions {
		dimensions[i] = 1
	}
	dimensions[len(dimensions)-1] = vector.Shape().Dim(0)
	return graph.Reshape(vector, dimensions...)
}
