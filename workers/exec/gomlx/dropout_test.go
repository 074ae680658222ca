package gomlx

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestMasksOfABatchAreThoseOfItsMicroBatches(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		samples, size := rapid.IntRange(1, 9).Draw(t, "samples"), rapid.IntRange(1, 17).Draw(t, "size")
		at := rapid.IntRange(0, samples-1).Draw(t, "cut")
		rate, seed := rapid.Float64Range(0, 0.99).Draw(t, "rate"), rapid.Uint64().Draw(t, "seed")
		step, layer := rapid.Int64Range(0, 1<<40).Draw(t, "step"), rapid.Uint64().Draw(t, "layer")
		whole, pieces := make([]float32, samples*size), make([]float32, samples*size)
		mask(whole, samples, 0, rate, seed, step, layer)
		if at > 0 {
			mask(pieces[:at*size], at, 0, rate, seed, step, layer)
		}
		mask(pieces[at*size:], samples-at, at, rate, seed, step, layer)
		if diff := cmp.Diff(whole, pieces); diff != "" {
			t.Fatalf("cut at %d (-whole +pieces):\n%s", at, diff)
		}
	})
}

// TestMasksSilenceTheirShare compares the shares of silenced elements, and of neighbours that share their fate, with
// those of independent draws, within five standard deviations.
func TestMasksSilenceTheirShare(t *testing.T) {
	t.Parallel()
	const samples, size = 100, 1001
	for _, rate := range []float64{0, 0.1, 0.5, 0.9} {
		for name, other := range map[string]struct {
			seed  uint64
			step  int64
			layer uint64
		}{"step": {1, 2, 1}, "seed": {2, 1, 1}, "layer": {1, 1, 2}} {
			one, two := make([]float32, samples*size), make([]float32, samples*size)
			mask(one, samples, 0, rate, 1, 1, 1)
			mask(two, samples, 0, rate, other.seed, other.step, other.layer)
			silent, both, beside, below := 0.0, 0.0, 0.0, 0.0
			for i, v := range one {
				if v != 0 {
					if want := float32(1 / (1 - rate)); v != want {
						t.Fatalf("rate %v: a mask of %v; want %v", rate, v, want)
					}
					continue
				}
				silent++
				both += indicator(two[i] == 0)
				beside += indicator(i+1 < len(one) && one[i+1] == 0)
				below += indicator(i+size < len(one) && one[i+size] == 0)
			}
			const n = samples * size
			for what, c := range map[string]struct{ got, want float64 }{
				"elements": {silent / n, rate}, "elements of another " + name: {both / n, rate * rate},
				"neighbours": {beside / n, rate * rate}, "the same of two samples": {below / (n - size), rate * rate},
			} {
				if bound := 5*math.Sqrt(c.want*(1-c.want)/n) + 1e-4; math.Abs(c.got-c.want) > bound {
					t.Errorf("rate %v: a share of %v of %s is silent; want %v +- %v", rate, c.got, what, c.want, bound)
				}
			}
		}
	}
}

func indicator(fact bool) float64 {
	if fact {
		return 1
	}
	return 0
}

func BenchmarkMask(b *testing.B) {
	values := make([]float32, 64*3136)
	b.SetBytes(int64(4 * len(values)))
	for b.Loop() {
		mask(values, 64, 0, 0.3, 1, 2, 3)
	}
}
