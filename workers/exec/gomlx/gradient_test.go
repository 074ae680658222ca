package gomlx_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/exec/exectest"
	"github.com/spillway-ml/spillway/workers/exec/gomlx"
	"github.com/spillway-ml/spillway/workers/exec/state"
)

// images are random ones with random numbers to learn.
func images(samples, side, channels, targets int) gomlx.InMemory {
	random := rand.New(rand.NewPCG(3, 4))
	x, y := gomlx.Array{Shape: []int{side, side, channels}}, gomlx.Array{Shape: []int{targets}}
	for range samples * side * side * channels {
		x.Float32 = append(x.Float32, float32(random.NormFloat64()))
	}
	for range samples * targets {
		y.Float32 = append(y.Float32, float32(random.NormFloat64()))
	}
	return gomlx.InMemory{Inputs: []gomlx.Array{x}, Target: y}
}

// sentences are sequences of integers, each of which is the target of the one before.
func sentences(samples, length, words int) gomlx.InMemory {
	random := rand.New(rand.NewPCG(5, 6))
	x, y := gomlx.Array{Shape: []int{length}}, gomlx.Array{Shape: []int{length}}
	for range samples {
		word := random.IntN(words)
		for range length {
			x.Int32 = append(x.Int32, int32(word))
			word = (3*word + 1 + random.IntN(2)) % words
			y.Int32 = append(y.Int32, int32(word))
		}
	}
	return gomlx.InMemory{Inputs: []gomlx.Array{x}, Target: y}
}

// TestGradientsAreThoseOfFiniteDifferences compares, for each standard block, the update of plain gradient descent with
// central differences of the loss.
func TestGradientsAreThoseOfFiniteDifferences(t *testing.T) {
	t.Parallel()
	word := func(blocks ...gomlx.Block) []gomlx.Block {
		words, places := gomlx.Embedding("words", 7, 8), gomlx.Positions("places", 5, 8)
		// The usual small numbers make a loss whose curvature defeats differences once they are normalised.
		words.Parameters[0].Initial, places.Parameters[0].Initial = gomlx.Normal(0.7), gomlx.Normal(0.7)
		blocks = append([]gomlx.Block{words, places}, blocks...)
		return append(blocks, gomlx.Dense("out", 8, 7))
	}
	for name, c := range map[string]struct {
		blocks []gomlx.Block
		data   gomlx.InMemory
	}{
		"dense": {[]gomlx.Block{gomlx.Dense("a", 4, 5), gomlx.Dense("b", 5, 3)}, points(6, 4, 3)},
		"relu":  {[]gomlx.Block{gomlx.Dense("a", 4, 5), gomlx.Relu("r"), gomlx.Dense("b", 5, 3)}, points(6, 4, 3)},
		"gelu":  {[]gomlx.Block{gomlx.Dense("a", 4, 5), gomlx.GELU("g"), gomlx.Dense("b", 5, 3)}, points(6, 4, 3)},
		"dropout": {
			[]gomlx.Block{gomlx.Dense("a", 4, 5), gomlx.Dropout("d", 0.4), gomlx.Dense("b", 5, 3)},
			points(6, 4, 3),
		},
		"layer norm": {
			[]gomlx.Block{gomlx.Dense("a", 4, 5), gomlx.LayerNorm("n", 5), gomlx.Dense("b", 5, 3)},
			points(6, 4, 3),
		},
		"batch norm": {
			[]gomlx.Block{gomlx.Dense("a", 4, 5), gomlx.BatchNorm("n", 5), gomlx.Dense("b", 5, 3)},
			points(6, 4, 3),
		},
		"convolution": {[]gomlx.Block{
			gomlx.Convolution("a", 3, 2, 3), gomlx.Convolution("b", 1, 3, 2), gomlx.MaxPool("m", 2),
			gomlx.Flatten("f"), gomlx.Dense("c", 8, 2),
		}, images(6, 4, 2, 2)},
		"residual": {[]gomlx.Block{
			gomlx.Dense("a", 4, 3),
			gomlx.Residual("r", gomlx.Dense("x", 3, 4), gomlx.GELU("g"), gomlx.Dense("y", 4, 3)),
		}, points(6, 4, 3)},
		"embedding":   {word(), sentences(6, 5, 7)},
		"attention":   {word(gomlx.SelfAttention("s", 8, 2, false, 0.2)), sentences(6, 5, 7)},
		"transformer": {word(gomlx.TransformerLayer("t", 8, 2, 12, true, 0.2)), sentences(6, 5, 7)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			model := gomlx.Model{Name: name, Blocks: c.blocks}
			sizes := make([]int, len(c.blocks))
			for i := range sizes {
				sizes[i] = 1
			}
			for numbers, parts := range map[int][]exec.Part{3: cut(model, len(c.blocks)), 1: cut(model, sizes...)} {
				compareGradients(t, model, c.data, numbers, exec.Layout{
					Parts: parts, Batch: 6, MicroBatches: 2, Seed: 11, Optimizer: exec.Optimizer{Kind: exec.SGD, LearningRate: 1},
				})
			}
		})
	}
}

// compareGradients looks at count numbers of each parameter.
func compareGradients(t *testing.T, model gomlx.Model, data gomlx.Dataset, count int, layout exec.Layout) {
	t.Helper()
	pipeline := load(t, model, data, layout)
	stages := pipeline.Stages()
	before := export(t, stages)
	train(t, pipeline, layout, 0, 1)
	after := export(t, stages)
	lossOf := func(tensors map[string]state.Tensor) float64 {
		importAll(t, pipeline, tensors)
		return train(t, pipeline, layout, 0, 1)[0]
	}
	random := rand.New(rand.NewPCG(1, 1))
	for name, from := range before {
		if from.Type != "F32" || name[:7] == "buffer/" {
			continue
		}
		start, stepped := numbers(t, from), numbers(t, after[name])
		for range min(count, len(start)) {
			i := random.IntN(len(start))
			const h = 4e-3
			want := (lossOf(moved(before, name, i, h)) - lossOf(moved(before, name, i, -h))) / (2 * h)
			if got := start[i] - stepped[i]; math.Abs(got-want) > 2e-3*math.Max(0.2, math.Abs(want)) {
				t.Errorf("the gradient of %s[%d] in %d parts is %v; differences of the loss say %v", name, i, len(stages), got,
					want)
			}
		}
	}
}

func numbers(tb testing.TB, tensor state.Tensor) []float64 {
	tb.Helper()
	values, err := exectest.Numbers(tensor)
	if err != nil {
		tb.Fatal(err)
	}
	return values
}
