package frontier_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/spillway-ml/spillway/predictor/frontier"
)

// profiled are allocations of 1 to 128 workers and 1 to 8 cores at two stores, whose times are of no form that is
// fitted, and what was measured of them.
func profiled(seed uint64, noise float64) (truth []float64, measured []frontier.Profile) {
	r := rand.New(rand.NewPCG(seed, 3))
	work, exchange := math.Exp(5+2*r.Float64()), math.Exp(-2+2*r.Float64())
	for store := range 2 {
		for workers := 1.0; workers <= 128; workers *= 2 {
			for _, cores := range []float64{1, 2, 3, 4, 6, 8} {
				// A core more than four brings nothing, and exchange grows with workers.
				seconds := work/(workers*min(cores, 4)) + exchange*math.Log2(workers)*float64(1+3*store) + 0.01*workers
				truth = append(truth, seconds)
				measured = append(measured, frontier.Profile{
					At: []float64{math.Log(workers), math.Log(cores)}, Kind: store,
					Seconds: seconds * math.Exp(noise*r.NormFloat64()), Spread: noise,
				})
			}
		}
	}
	return truth, measured
}

func TestNeighboursTellWhichMeasurementIsWrong(t *testing.T) {
	t.Parallel()
	const noise = 0.1
	squares, told, within, total := 0.0, 0.0, 0, 0
	for seed := range uint64(20) {
		truth, measured := profiled(seed, noise)
		estimates, err := frontier.Smooth(measured)
		if err != nil {
			t.Fatal(err)
		}
		for i, e := range estimates {
			off := math.Log(e.Seconds / truth[i])
			squares += off * off
			told += e.Spread * e.Spread
			if math.Abs(off) <= 1.645*e.Spread {
				within++
			}
			total++
		}
	}
	off, said := math.Sqrt(squares/float64(total)), math.Sqrt(told/float64(total))
	if off > 0.75*noise {
		t.Errorf("estimates are off by %.3f, measurements by %.3f", off, noise)
	}
	if part := float64(within) / float64(total); part < 0.8 || part > 0.97 {
		t.Errorf("%.2f are within what is said to hold nine of ten (off %.3f, said %.3f)", part, off, said)
	}
}

func TestWhatIsExactStaysAndTeaches(t *testing.T) {
	t.Parallel()
	truth, measured := profiled(1, 0.2)
	before, err := frontier.Smooth(measured)
	if err != nil {
		t.Fatal(err)
	}
	for i := range measured {
		if i%2 == 0 {
			measured[i].Seconds, measured[i].Spread = truth[i], 0
		}
	}
	after, err := frontier.Smooth(measured)
	if err != nil {
		t.Fatal(err)
	}
	off := func(estimates []frontier.Estimate) (sum float64) {
		for i, e := range estimates {
			if i%2 == 1 {
				sum += math.Abs(math.Log(e.Seconds / truth[i]))
			} else if measured[i].Spread != 0 || after[i].Seconds != truth[i] || after[i].Spread != 0 {
				t.Fatalf("measurement %d, which is exact, became %+v", i, after[i])
			}
		}
		return sum
	}
	if off(after) > 0.8*off(before) {
		t.Errorf("the others are off by %g, before by %g", off(after), off(before))
	}
}

func TestWhatIsNoProfileIsNamed(t *testing.T) {
	t.Parallel()
	ok := frontier.Profile{At: []float64{1}, Seconds: 1, Spread: 0.1}
	for _, wrong := range []frontier.Profile{
		{At: []float64{1}},
		{At: []float64{1}, Seconds: math.NaN()},
		{At: []float64{1}, Seconds: math.Inf(1)},
		{At: []float64{1, 2}, Seconds: 1},
		{At: []float64{1}, Seconds: 1, Spread: -1},
		{At: []float64{1}, Seconds: 1, Spread: math.NaN()},
	} {
		if _, err := frontier.Smooth([]frontier.Profile{ok, wrong}); !errors.Is(err, frontier.ErrProfile) {
			t.Errorf("%+v: %v, want %v", wrong, err, frontier.ErrProfile)
		}
	}
	if none, err := frontier.Smooth(nil); len(none) != 0 || err != nil {
		t.Errorf("of nothing: %v, %v", none, err)
	}
	if one, err := frontier.Smooth([]frontier.Profile{ok}); err != nil || math.Abs(one[0].Seconds-1) > 1e-2 {
		t.Errorf("of one: %+v, %v", one, err)
	}
}

func BenchmarkSmooth(b *testing.B) {
	_, measured := profiled(1, 0.1)
	for b.Loop() {
		if _, err := frontier.Smooth(measured); err != nil {
			b.Fatal(err)
		}
	}
}
