package digits

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"

	"github.com/gomlx/compute/dtypes"
	"github.com/gomlx/compute/shapes"
	"github.com/gomlx/gomlx/core/graph"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/spillway-ml/spillway/workers/exec/gomlx"
	"github.com/spillway-ml/spillway/workers/exec/state"
)

// classes is the number of digits.
const classes = 10

// The channels of the three convolution layers.
const (
	channels1 = 32
	channels2 = 64
	channels3 = 64
)

// kernel is the width and height of a convolution kernel in pixels.
const kernel = 3

// network is the shape of the classifier for images of side x side pixels: three 3x3 convolutions with rectifiers, the
// first two followed by a 2x2 maximum, dropout, and a dense layer with softmax. Training computes it as blocks, which
// may be on several devices; a trained one is one vector of parameters, which an artifact handles as plain numbers.
type network struct {
	side int // a multiple of 4
}

// blocks are the network in training, up to the softmax, of whose features dropout silences this part. They are where
// it can be split.
func (n network) blocks(dropout float64) []gomlx.Block {
	return []gomlx.Block{
		gomlx.Sequence("layer1", gomlx.Convolution("convolution", kernel, 1, channels1), gomlx.Relu("relu"),
			gomlx.MaxPool("pool", 2)),
		gomlx.Sequence("layer2", gomlx.Convolution("convolution", kernel, channels1, channels2), gomlx.Relu("relu"),
			gomlx.MaxPool("pool", 2)),
		gomlx.Sequence("layer3", gomlx.Convolution("convolution", kernel, channels2, channels3), gomlx.Relu("relu"),
			gomlx.Flatten("features")),
		gomlx.Sequence("out", gomlx.Dropout("dropout", dropout), gomlx.Dense("dense", n.features(), classes)),
	}
}

// array is some parameters of the network.
type array struct {
	name       string
	dimensions []int
}

// arrays returns the parameter arrays in the order in which the vector holds them: weights, then biases, layer by
// layer.
func (n network) arrays() []array {
	var all []array
	for _, b := range n.blocks(DefaultDropout) {
		for _, p := range b.Parameters {
			all = append(all, array{b.Name + "." + p.Name, p.Shape})
		}
	}
	return all
}

// features is the number of values of one image that reach the dense layer.
func (n network) features() int { return n.side / 4 * (n.side / 4) * channels3 }

// size is the number of parameters.
func (n network) size() int {
	total := 0
	for _, a := range n.arrays() {
		total += product(a.dimensions)
	}
	return total
}

// gather copies the parameters that a stage exported to their places in the vector.
func (n network) gather(path string, parameters []float32) (err error) {
	file, err := state.Open(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	offset := 0
	for _, a := range n.arrays() {
		into := parameters[offset : offset+product(a.dimensions)]
		offset += len(into)
		tensor, err := file.Read("parameter/" + a.name)
		switch {
		case errors.Is(err, fs.ErrNotExist): // another part has it
			continue
		case err != nil:
			return err
		case len(tensor.Data) != 4*len(into):
			return fmt.Errorf("%q has %d bytes, expected %d: %w", tensor.Name, len(tensor.Data), 4*len(into), errEncoding)
		}
		for i := range into {
			into[i] = math.Float32frombits(binary.LittleEndian.Uint32(tensor.Data[4*i:]))
		}
	}
	return nil
}

func (n network) parameterTensor(parameters []float32) *tensors.Tensor {
	return tensors.FromFlatDataAndDimensions(parameters, n.size())
}

func (n network) imageTensor(pixels []float32) *tensors.Tensor {
	return tensors.FromFlatDataAndDimensions(pixels, len(pixels)/(n.side*n.side), n.side, n.side, 1)
}

// forwardGraph builds the graph from a batch of images to ten probabilities each.
func (n network) forwardGraph(parameters, images *graph.Node) *graph.Node {
	return graph.Softmax(n.logitsGraph(parameters, images), -1)
}

// logitsGraph builds the graph up to the softmax.
func (n network) logitsGraph(parameters, images *graph.Node) *graph.Node {
	arrays := n.split(parameters)
	x := pool(rectify(convolve(images, arrays[0], arrays[1])))
	x = pool(rectify(convolve(x, arrays[2], arrays[3])))
	x = rectify(convolve(x, arrays[4], arrays[5]))
	x = graph.Reshape(x, x.Shape().Dim(0), n.features())
	return dense(x, arrays[6], arrays[7])
}

// split cuts the vector of parameters into its arrays.
func (n network) split(parameters *graph.Node) []*graph.Node {
	var arrays []*graph.Node
	offset := 0
	for _, a := range n.arrays() {
		end := offset + product(a.dimensions)
		arrays = append(arrays, graph.Reshape(graph.Slice(parameters, graph.AxisRange(offset, end)), a.dimensions...))
		offset = end
	}
	return arrays
}

// convolve is a 3x3 convolution with zero padding: every pixel's neighbourhood becomes a row, and one product of
// matrices does the rest, which the Go backend computes 17 times faster than its own convolution. weights has a row for
// each (neighbour, channel).
func convolve(x, weights, bias *graph.Node) *graph.Node {
	batch, height, width, channels := x.Shape().Dim(0), x.Shape().Dim(1), x.Shape().Dim(2), x.Shape().Dim(3)
	g := x.Graph()
	row := graph.Zeros(g, shapes.Make(dtypes.Float32, batch, 1, width, channels))
	x = graph.Concatenate([]*graph.Node{row, x, row}, 1)
	column := graph.Zeros(g, shapes.Make(dtypes.Float32, batch, height+2, 1, channels))
	x = graph.Concatenate([]*graph.Node{column, x, column}, 2)
	var neighbours []*graph.Node
	for dy := range kernel {
		for dx := range kernel {
			neighbours = append(neighbours, graph.Slice(x,
				graph.AxisRange(), graph.AxisRange(dy, dy+height), graph.AxisRange(dx, dx+width), graph.AxisRange()))
		}
	}
	rows := graph.Reshape(graph.Concatenate(neighbours, -1), batch*height*width, kernel*kernel*channels)
	return graph.Reshape(dense(rows, weights, bias), batch, height, width, weights.Shape().Dim(1))
}

// dense is x times weights plus bias.
func dense(x, weights, bias *graph.Node) *graph.Node {
	return graph.Add(graph.MatMul(x, weights), graph.Reshape(bias, 1, bias.Shape().Dim(0)))
}

// rectify is max(x, 0).
func rectify(x *graph.Node) *graph.Node { return graph.MaxScalar(x, 0) }

// pool halves height and width by the maximum of each 2x2 block.
func pool(x *graph.Node) *graph.Node {
	batch, height, width, channels := x.Shape().Dim(0), x.Shape().Dim(1), x.Shape().Dim(2), x.Shape().Dim(3)
	return graph.ReduceMax(graph.Reshape(x, batch, height/2, 2, width/2, 2, channels), 2, 4)
}

func product(dimensions []int) int {
	total := 1
	for _, d := range dimensions {
		total *= d
	}
	return total
}
