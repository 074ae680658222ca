package digits

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/spillway-ml/spillway/workers/exec/gomlx"
)

// naive computes the network in float64 with loops over pixels, as the definition of a convolution reads.
// It returns the ten logits of one image.
func naive(n network, parameters, image []float64) []float64 {
	var arrays [][]float64
	offset := 0
	for _, a := range n.arrays() {
		arrays = append(arrays, parameters[offset:offset+product(a.dimensions)])
		offset += product(a.dimensions)
	}
	x, side, in := image, n.side, 1
	for layer, out := range []int{channels1, channels2, channels3} {
		x = naiveConvolution(x, side, in, out, arrays[2*layer], arrays[2*layer+1])
		if layer < 2 {
			x = naivePool(x, side, out)
			side /= 2
		}
		in = out
	}
	logits := make([]float64, classes)
	copy(logits, arrays[7])
	for i, v := range x {
		for c := range logits {
			logits[c] += v * arrays[6][i*classes+c]
		}
	}
	return logits
}

func naiveConvolution(x []float64, side, in, out int, weights, bias []float64) []float64 {
	y := make([]float64, side*side*out)
	for i := range y {
		row, column, o := i/out/side, i/out%side, i%out
		sum := bias[o]
		for dy := -1; dy <= 1; dy++ {
			for dx := -1; dx <= 1; dx++ {
				if row+dy < 0 || row+dy >= side || column+dx < 0 || column+dx >= side {
					continue
				}
				for c := range in {
					sum += x[((row+dy)*side+column+dx)*in+c] * weights[(((dy+1)*3+dx+1)*in+c)*out+o]
				}
			}
		}
		y[i] = max(sum, 0)
	}
	return y
}

func naivePool(x []float64, side, channels int) []float64 {
	half := side / 2
	y := make([]float64, half*half*channels)
	for i := range y {
		row, column, c := i/channels/half, i/channels%half, i%channels
		at := func(dy, dx int) float64 { return x[((2*row+dy)*side+2*column+dx)*channels+c] }
		y[i] = max(at(0, 0), at(0, 1), at(1, 0), at(1, 1))
	}
	return y
}

func logSum(logits []float64) float64 {
	sum := 0.0
	for _, l := range logits {
		sum += math.Exp(l)
	}
	return math.Log(sum)
}

func wide(values []float32) []float64 {
	out := make([]float64, len(values))
	for i, v := range values {
		out[i] = float64(v)
	}
	return out
}

func uniform(n int) []float32 {
	out := make([]float32, n)
	source := random()
	for i := range out {
		out[i] = source.Float32()
	}
	return out
}

func TestProbabilitiesAgreeWithANaiveConvolution(t *testing.T) {
	t.Parallel()
	for _, side := range []int{8, 12, 28} {
		e := someEngine(t, side)
		parameters := someParameters(e.network)
		for i := range parameters {
			parameters[i] += 0.01 // no bias is left at 0
		}
		const images = 3
		pixels := uniform(images * side * side)
		got, err := e.probabilities(parameters, pixels)
		if err != nil {
			t.Fatal(err)
		}
		for i := range images {
			logits := naive(e.network, wide(parameters), wide(pixels[i*side*side:(i+1)*side*side]))
			for c := range classes {
				want := math.Exp(logits[c] - logSum(logits))
				if math.Abs(float64(got[i*classes+c])-want) > 1e-4 {
					t.Errorf("side %d, image %d: probability of %d is %g, want %g", side, i, c, got[i*classes+c], want)
				}
			}
		}
	}
}

func TestInitialWeightsKeepTheVariance(t *testing.T) {
	t.Parallel()
	r := someTrainer(t, someData(t, 100), 1, DefaultLearningRate, 2)
	_, parameters, err := r.export(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	offset := 0
	for _, a := range r.engine.network.arrays() {
		square := 0.0
		for _, p := range parameters[offset : offset+product(a.dimensions)] {
			square += float64(p) * float64(p)
		}
		offset += product(a.dimensions)
		want := 0.0
		if len(a.dimensions) == 2 {
			want = 2 / float64(a.dimensions[0])
		}
		if got := square / float64(product(a.dimensions)); math.Abs(got-want) > 0.2*want {
			t.Errorf("%s: variance is %g, want about %g", a.name, got, want)
		}
	}
}

// TestClassifyingComputesWhatTrainingLearns compares the two ways in which the network is written down: as a graph that
// classifies and as blocks that learn.
func TestClassifyingComputesWhatTrainingLearns(t *testing.T) {
	t.Parallel()
	for _, side := range []int{8, 12} {
		d := Dataset{Side: side, Pixels: make([]byte, fewestImages*side*side), Labels: make([]byte, fewestImages)}
		for i := range d.Pixels {
			d.Pixels[i] = byte(i * i)
		}
		r := someTrainer(t, d, 1, DefaultLearningRate, 3)
		state := start(side)
		if err := r.run(t.Context(), &state, r.maxEpochs, func(float64, float64) error { return nil }); err != nil {
			t.Fatal(err)
		}
		var paths []string
		for i, part := range state.parts {
			paths = append(paths, filepath.Join(t.TempDir(), strconv.Itoa(i)))
			if err := os.WriteFile(paths[i], part, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		whole := filepath.Join(t.TempDir(), "network")
		if err := r.pipeline.Write(t.Context(), paths, whole); err != nil {
			t.Fatal(err)
		}
		blocks, err := gomlx.Open(gomlx.Model{Name: "digits", Blocks: r.engine.network.blocks(DefaultDropout)}, whole, 1)
		if err != nil {
			t.Fatal(err)
		}
		pixels := uniform(2 * side * side)
		logits, err := blocks.Predict(gomlx.Array{Shape: []int{side, side, 1}, Float32: pixels})
		if err != nil {
			t.Fatal(err)
		}
		got, err := r.engine.probabilities(state.bestSoFar, pixels)
		if err != nil {
			t.Fatal(err)
		}
		for i := range got {
			image := i / classes * classes
			want := math.Exp(float64(logits.Float32[i]) - logSum(wide(logits.Float32[image:image+classes])))
			if math.Abs(float64(got[i])-want) > 1e-5 {
				t.Errorf("side %d, image %d: probability of %d is %g, and %g by the blocks", side, i/classes, i%classes, got[i],
					want)
			}
		}
		if err := blocks.Close(); err != nil {
			t.Error(err)
		}
	}
}

// BenchmarkStep takes a step of the unsplit network.
func BenchmarkStep(b *testing.B) {
	for _, side := range []int{8, 28} {
		d := Dataset{Side: side, Pixels: make([]byte, 2*batch*side*side), Labels: make([]byte, 2*batch)}
		r := someTrainer(b, d, 1, DefaultLearningRate, 1)
		step := int64(0)
		b.Run(fmt.Sprintf("side=%d", side), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := r.steps.Step(b.Context(), step); err != nil {
					b.Fatal(err)
				}
				step++
			}
		})
	}
}
