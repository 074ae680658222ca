package usage_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/spillway-ml/spillway/predictor/usage"
)

// Two run times that are alike by chance promise no third: of stages whose run times differ by the usual 5 percent,
// most thirds are within the interval that such two lead to, and it narrows as more are alike.
func TestTwoAlikeRunTimesAreNoPromise(t *testing.T) {
	t.Parallel()
	alike := func(n int) (low, high float64) {
		got, _ := learnedOf(t, timesOf(n, func(int) (float64, float64) { return 1e6, 10 })).At(usage.Features{})
		return got.Low / 10, got.High / 10
	}
	for _, c := range []struct {
		attempts    int
		least, most float64 // how far the ends are from the middle
	}{{2, 0.06, 0.12}, {3, 0.03, 0.07}, {5, 0.01, 0.03}, {32, 0, 0.006}} {
		low, high := alike(c.attempts)
		for _, away := range []float64{1 - low, high - 1} {
			if away < c.least || away > c.most {
				t.Errorf("after %d alike: %.4f to %.4f of the middle, want %v to %v away", c.attempts, low, high, c.least, c.most)
			}
		}
	}

	random := rand.New(rand.NewPCG(1, 2))
	within, pairs := 0, 0
	for pairs < 2000 {
		draw := func() float64 { return 10 * math.Exp(0.05*random.NormFloat64()) }
		first, second, third := draw(), draw(), draw()
		if math.Abs(math.Log(first/second)) > 0.01 {
			continue
		}
		pairs++
		got, _ := learnedOf(t, timesOf(2, func(i int) (float64, float64) {
			return 1e6, []float64{first, second}[i]
		})).At(usage.Features{})
		if third >= got.Low && third <= got.High {
			within++
		}
	}
	t.Logf("%.3f of the thirds are within the interval of two that are alike", float64(within)/float64(pairs))
	if share := float64(within) / float64(pairs); share < 0.75 {
		t.Errorf("%.3f of the thirds are within the interval of two that are alike, want 0.75 or more", share)
	}
}
