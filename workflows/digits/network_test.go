package digits

import (
	"fmt"
	"math"
	"testing"
)

// naive computes the network in float64 with loops over pixels, as the definition of a convolution reads.
// It returns the ten logits of one image; mask scales the features.
func naive(n network, parameters, image, mask []float64) []float64 {
	var arrays [][]float64
	offset := 0
	for _, dimensions := range n.arrays() {
		arrays = append(arrays, parameters[offset:offset+product(dimensions)])
		offset += product(dimensions)
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
			logits[c] += v * mask[i] * arrays[6][i*classes+c]
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

func naiveLoss(n network, parameters, pixels []float64, labels []int32, mask []float64) float64 {
	loss := 0.0
	for i, label := range labels {
		logits := naive(n, parameters, pixels[i*n.side*n.side:(i+1)*n.side*n.side], mask[i*n.features():(i+1)*n.features()])
		loss += logSum(logits) - logits[label]
	}
	return loss / float64(len(labels))
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
		parameters := e.network.initial(random())
		for i := range parameters {
			parameters[i] += 0.01 // no bias is left at 0
		}
		const images = 3
		pixels := uniform(images * side * side)
		got, err := e.probabilities(parameters, pixels)
		if err != nil {
			t.Fatal(err)
		}
		all := make([]float64, e.network.features())
		for i := range all {
			all[i] = 1
		}
		for i := range images {
			logits := naive(e.network, wide(parameters), wide(pixels[i*side*side:(i+1)*side*side]), all)
			for c := range classes {
				want := math.Exp(logits[c] - logSum(logits))
				if math.Abs(float64(got[i*classes+c])-want) > 1e-4 {
					t.Errorf("side %d, image %d: probability of %d is %g, want %g", side, i, c, got[i*classes+c], want)
				}
			}
		}
	}
}

func TestGradientAgreesWithFiniteDifferences(t *testing.T) {
	t.Parallel()
	e := someEngine(t, 8)
	n := e.network
	parameters := n.initial(random())
	labels := []int32{3, 0, 9}
	pixels := uniform(len(labels) * n.side * n.side)
	mask := uniform(len(labels) * n.features())
	gradient := make([]float32, n.size())
	loss, err := e.gradient(parameters, pixels, labels, mask, gradient)
	if err != nil {
		t.Fatal(err)
	}
	exact, images, kept := wide(parameters), wide(pixels), wide(mask)
	if want := naiveLoss(n, exact, images, labels, kept); math.Abs(loss-want) > 1e-4 {
		t.Errorf("loss is %g, want %g", loss, want)
	}
	source, offset := random(), 0
	for array, dimensions := range n.arrays() {
		for range 12 {
			const step = 1e-6 // of float64: far smaller than the distance to a kink of max
			i := offset + source.IntN(product(dimensions))
			value := exact[i]
			exact[i] = value + step
			above := naiveLoss(n, exact, images, labels, kept)
			exact[i] = value - step
			below := naiveLoss(n, exact, images, labels, kept)
			exact[i] = value
			want := (above - below) / (2 * step)
			if got := float64(gradient[i]); math.Abs(got-want) > 1e-4+1e-3*math.Abs(want) {
				t.Errorf("array %d, parameter %d: gradient is %g, want %g", array, i, got, want)
			}
		}
		offset += product(dimensions)
	}
}

func TestInitialWeightsKeepTheVariance(t *testing.T) {
	t.Parallel()
	n := network{28}
	parameters := n.initial(random())
	if len(parameters) != n.size() {
		t.Fatalf("got %d parameters, want %d", len(parameters), n.size())
	}
	offset := 0
	for i, dimensions := range n.arrays() {
		square := 0.0
		for _, p := range parameters[offset : offset+product(dimensions)] {
			square += float64(p) * float64(p)
		}
		offset += product(dimensions)
		want := 0.0
		if len(dimensions) == 2 {
			want = 2 / float64(dimensions[0])
		}
		if got := square / float64(product(dimensions)); math.Abs(got-want) > 0.2*want {
			t.Errorf("array %d: variance is %g, want about %g", i, got, want)
		}
	}
}

func BenchmarkGradient(b *testing.B) {
	for _, side := range []int{8, 28} {
		e := someEngine(b, side)
		n := e.network
		parameters, gradient := n.initial(random()), make([]float32, n.size())
		pixels, mask := uniform(batch*side*side), uniform(batch*n.features())
		labels := make([]int32, batch)
		b.Run(fmt.Sprintf("side=%d", side), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := e.gradient(parameters, pixels, labels, mask, gradient); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
