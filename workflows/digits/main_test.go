package digits

import (
	"math"
	"math/rand/v2"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// someData returns the first count sample images, prepared.
func someData(tb testing.TB, count int) Dataset {
	tb.Helper()
	d, err := prepare(someImages(tb, count), 1)
	if err != nil {
		tb.Fatal(err)
	}
	return d
}

func someImages(tb testing.TB, count int) Images {
	tb.Helper()
	m, err := sampleImages()
	if err != nil {
		tb.Fatal(err)
	}
	m.Pixels, m.Labels = m.Pixels[:count*m.Width*m.Height], m.Labels[:count]
	return m
}

func someEngine(tb testing.TB, side int) *engine {
	tb.Helper()
	e, err := newEngine(network{side})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(e.close)
	return e
}

// someParameters draws parameters as training starts with them: biases 0 and weights of variance 2/fan-in.
func someParameters(n network) []float32 {
	source := random()
	parameters := make([]float32, 0, n.size())
	for _, a := range n.arrays() {
		for range product(a.dimensions) {
			value := 0.0
			if len(a.dimensions) == 2 {
				value = source.NormFloat64() * math.Sqrt(2/float64(a.dimensions[0]))
			}
			parameters = append(parameters, float32(value))
		}
	}
	return parameters
}

// random returns the random numbers of a test: the same ones in every run.
func random() *rand.Rand { return rand.New(rand.NewPCG(7, 11)) }
