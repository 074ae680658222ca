package gomlx

import (
	"math"

	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
)

// multiply is x times weights plus bias over the last dimension.
func multiply(x, weights, bias *graph.Node) *graph.Node {
	dimensions := x.Shape().Clone().Dimensions
	y := matrixProduct(graph.Reshape(x, -1, dimensions[len(dimensions)-1]), weights)
	dimensions[len(dimensions)-1] = weights.Shape().Dim(1)
	return graph.Reshape(graph.Add(y, spread(bias, y)), dimensions...)
}

// matrixProduct is x times weights for matrices. GoMLX's own gradient transposes both operands and the result, which on
// this backend takes longer than the products.
func matrixProduct(x, weights *graph.Node) *graph.Node {
	return withGradients(x, weights, graph.MatMul,
		func(v *graph.Node) *graph.Node { return dot(v, 1, weights, 1) },
		func(v *graph.Node) *graph.Node { return weightGradient(x, v) })
}

// weightGradient is the transpose of x times v. Of two ways, it takes the one that transposes fewer numbers.
func weightGradient(x, v *graph.Node) *graph.Node {
	rows, in, out := x.Shape().Dim(0), x.Shape().Dim(1), v.Shape().Dim(1)
	if rows*in <= rows*out+in*out {
		return dot(graph.TransposeAllAxes(x, 1, 0), 1, v, 0)
	}
	return graph.TransposeAllAxes(dot(graph.TransposeAllAxes(v, 1, 0), 1, x, 0), 1, 0)
}

// convolve is a convolution by a square kernel of odd width, with zeros around the images: the neighbourhoods of all
// pixels times the weights. The gradient of the images is the same with that of the result, and weights whose rows and
// columns are reversed and whose channels change places; GoMLX's own would add up one image for each place of the
// kernel.
func convolve(x, weights *graph.Node, kernel int) *graph.Node {
	n, h, w, in, out := x.Shape().Dim(0), x.Shape().Dim(1), x.Shape().Dim(2), x.Shape().Dim(3), weights.Shape().Dim(1)
	var rows *graph.Node
	y := withGradients(x, weights,
		func(x, weights *graph.Node) *graph.Node {
			rows = graph.Reshape(neighbourhoods(x, kernel), n*h*w, kernel*kernel*in)
			return dot(rows, 1, weights, 0)
		},
		func(v *graph.Node) *graph.Node {
			around := graph.Reshape(neighbourhoods(graph.Reshape(v, n, h, w, out), kernel), n*h*w, kernel*kernel*out)
			turned := graph.Reverse(graph.Reshape(weights, kernel, kernel, in, out), 0, 1)
			turned = graph.Reshape(graph.TransposeAllAxes(turned, 0, 1, 3, 2), kernel*kernel*out, in)
			return graph.Reshape(dot(around, 1, turned, 0), n, h, w, in)
		},
		func(v *graph.Node) *graph.Node { return weightGradient(rows, v) })
	return graph.Reshape(y, n, h, w, out)
}

// maximum is that of each square of width x width pixels. Its gradient goes to all numbers that are equal to the
// maximum.
func maximum(x *graph.Node, width int) *graph.Node {
	n, h, w, channels := x.Shape().Dim(0), x.Shape().Dim(1)/width, x.Shape().Dim(2)/width, x.Shape().Dim(3)
	var most, adjoint *graph.Node
	squares := shapes.Make(x.DType(), n, h, width, w, width, channels)
	wide := func(of *graph.Node) *graph.Node {
		return graph.BroadcastToShape(graph.Reshape(of, n, h, 1, w, 1, channels), squares)
	}
	marked := graph.IdentityWithCustomGradient(x, func(_, _ *graph.Node) *graph.Node {
		chosen := graph.Equal(graph.ReshapeWithShape(x, squares), wide(most))
		return graph.ReshapeWithShape(graph.Where(chosen, wide(adjoint), graph.Zeros(x.Graph(), squares)), x.Shape())
	})
	most = graph.ReduceMax(graph.ReshapeWithShape(marked, squares), 2, 4)
	return graph.IdentityWithCustomGradient(most, func(_, v *graph.Node) *graph.Node {
		adjoint = v
		return v
	})
}

// batchProduct multiplies the matrices of two stacks pairwise: x times y.
func batchProduct(x, y *graph.Node) *graph.Node {
	return withGradients(x, y, func(x, y *graph.Node) *graph.Node { return dot(x, 2, y, 1, 0) },
		func(v *graph.Node) *graph.Node { return dot(v, 2, y, 2, 0) },
		func(v *graph.Node) *graph.Node { return dot(graph.TransposeAllAxes(x, 0, 2, 1), 2, v, 1, 0) })
}

// batchProductTransposed multiplies the matrices of two stacks pairwise: x times the transpose of y.
func batchProductTransposed(x, y *graph.Node) *graph.Node {
	return withGradients(x, y, func(x, y *graph.Node) *graph.Node { return dot(x, 2, y, 2, 0) },
		func(v *graph.Node) *graph.Node { return dot(v, 2, y, 1, 0) },
		func(v *graph.Node) *graph.Node { return dot(graph.TransposeAllAxes(v, 0, 2, 1), 2, x, 1, 0) })
}

// dot sums over one axis of each.
func dot(x *graph.Node, axis int, y *graph.Node, other int, batch ...int) *graph.Node {
	return graph.DotGeneral(x, []int{axis}, batch, y, []int{other}, batch)
}

// withGradients computes a function of two nodes whose gradients, given that of the result, are those of left and
// right.
func withGradients(
	x, y *graph.Node, function func(x, y *graph.Node) *graph.Node, left, right func(v *graph.Node) *graph.Node,
) *graph.Node {
	var adjoint *graph.Node // known when GoMLX, which goes from the result to the inputs, asks for the others
	x = graph.IdentityWithCustomGradient(x, func(_, _ *graph.Node) *graph.Node { return left(adjoint) })
	y = graph.IdentityWithCustomGradient(y, func(_, _ *graph.Node) *graph.Node { return right(adjoint) })
	return graph.IdentityWithCustomGradient(function(x, y), func(_, v *graph.Node) *graph.Node {
		adjoint = v
		return v
	})
}

// rectify is max(x, 0). Its gradient keeps one truth value for each number; that of GoMLX's maximum would keep the
// numbers.
func rectify(x *graph.Node) *graph.Node {
	return graph.Where(graph.GreaterThan(x, graph.ScalarZero(x.Graph(), x.DType())), x, graph.ZerosLike(x))
}

func gelu(x *graph.Node) *graph.Node {
	return graph.Mul(x, graph.MulScalar(graph.OnePlus(graph.Erf(graph.MulScalar(x, 1/math.Sqrt2))), 0.5))
}

// neighbourhoods are, for every pixel, those around it, and zeros beyond the border. GoMLX has no gradient of its Pad,
// so the zeros are concatenated.
func neighbourhoods(x *graph.Node, kernel int) *graph.Node {
	n, h, w, channels := x.Shape().Dim(0), x.Shape().Dim(1), x.Shape().Dim(2), x.Shape().Dim(3)
	if kernel == 1 {
		return x
	}
	border := kernel / 2
	row := graph.Zeros(x.Graph(), shapes.Make(x.DType(), n, border, w, channels))
	x = graph.Concatenate([]*graph.Node{row, x, row}, 1)
	column := graph.Zeros(x.Graph(), shapes.Make(x.DType(), n, h+2*border, border, channels))
	x = graph.Concatenate([]*graph.Node{column, x, column}, 2)
	var around []*graph.Node
	for dy := range kernel {
		for dx := range kernel {
			around = append(around, graph.Slice(x, graph.AxisRange(), graph.AxisRange(dy, dy+h), graph.AxisRange(dx, dx+w),
				graph.AxisRange()))
		}
	}
	return graph.Concatenate(around, -1)
}
