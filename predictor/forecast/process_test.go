package forecast_test

import (
	"cmp"
	"math"
	"math/rand/v2"
	"testing"

	"gonum.org/v1/gonum/stat/distuv"

	"github.com/spillway-ml/spillway/predictor/forecast"
)

// process is counts whose distribution is known.
type process struct {
	name string
	// rate is that of a minute; the count is Poisson of it.
	rate func(random *rand.Rand) func(minute int) float64
	// worst is the pinball loss over that of the true quantiles, at most.
	worst float64
	// ahead is how many minutes ahead is forecast; ten where it is 0.
	ahead int
}

func processes() []process {
	fixed := func(rate func(int) float64) func(*rand.Rand) func(int) float64 {
		return func(*rand.Rand) func(int) float64 { return rate }
	}
	return []process{
		{"a constant rate", fixed(func(int) float64 { return 5 }), 1.05, 0},
		{"a rate of one in twenty minutes", fixed(func(int) float64 { return 0.05 }), 1.05, 0},
		{"a day", fixed(diurnal(20)), 1.03, 0},
		{"a day of many", fixed(diurnal(2000)), 1.10, 0},
		{"a burst at each full hour", fixed(func(i int) float64 {
			if i%60 < 2 {
				return 200
			}
			return 10
		}), 1.06, 0},
		{"a burst at each full hour, a minute ahead", fixed(func(i int) float64 {
			if i%60 < 4 {
				return 200
			}
			return 10
		}), 1.06, 1},
		{"a day, an hour ahead", fixed(diurnal(20)), 1.03, 60},
		{"ten minutes at three each night", fixed(func(i int) float64 {
			if m := i % day; m >= 180 && m < 190 {
				return 300
			}
			return 10
		}), 1.06, 0},
		{"a day and a week", fixed(func(i int) float64 {
			if i/day%7 >= 5 {
				return 0.4 * diurnal(50)(i)
			}
			return diurnal(50)(i)
		}), 1.15, 0},
		{"working hours", fixed(func(i int) float64 {
			if h := i % day / 60; h >= 9 && h < 17 {
				return 30
			}
			return 0
		}), 1.60, 0},
		{"levels that change tenfold", fixed(func(i int) float64 {
			if i/4000%2 == 1 {
				return 200
			}
			return 20
		}), 1.30, 0},
	}
}

// lossAgainst scores a forecast from a minute on: the share within the interval for 80 % and the
// pinball loss over that of the true quantiles.
func lossAgainst(t *testing.T, p process, from, to int) (covered, ratio float64) {
	t.Helper()
	ahead := cmp.Or(p.ahead, 10)
	random := rand.New(rand.NewPCG(1, 2))
	rate := p.rate(random)
	f := newForecaster(t, forecast.Options{Horizon: ahead})
	var said [][]float64
	ours, least, n, in := 0.0, 0.0, 0.0, 0.0
	for i := range to {
		mean := rate(i)
		count := poisson(random, mean)
		if i >= max(from, ahead) {
			quantiles := said[i-ahead]
			for j, level := range levels {
				ours += pinball(level, quantiles[j], count)
				least += pinball(level, poissonQuantile(mean, level), count)
			}
			n++
			if quantiles[0] <= count && count <= quantiles[2] {
				in++
			}
		}
		f.Observe(minute(i), count)
		d := f.Ahead(int64(ahead))
		said = append(said, []float64{d.Quantile(0.1), d.Quantile(0.5), d.Quantile(0.9)})
	}
	return in / n, ours / least
}

func pinball(level, quantile, count float64) float64 {
	return math.Max(level*(count-quantile), (level-1)*(count-quantile))
}

// poissonQuantile is the smallest whole number that a Poisson count is at most with a chance of level.
func poissonQuantile(mean, level float64) float64 {
	if mean > 500 {
		return mean + math.Sqrt(mean)*distuv.UnitNormal.Quantile(level)
	}
	term := math.Exp(-mean)
	k, sum := 0.0, term
	for sum < level {
		k++
		term *= mean / k
		sum += term
	}
	return k
}

func TestQuantilesAreThoseOfKnownProcesses(t *testing.T) {
	t.Parallel()
	for _, p := range processes() {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			covered, ratio := lossAgainst(t, p, 7*day, 14*day)
			t.Logf("within the interval for 80 %%: %.3f; pinball loss over the least: %.3f", covered, ratio)
			// Counts are whole: of few, more than 80 % are within the true interval too.
			if most := 0.83; covered < 0.77 || p.rate(nil)(day/2) >= 5 && p.rate(nil)(0) >= 5 && covered > most {
				t.Errorf("%.3f of counts are within the interval for 80 %%, want 0.77 to %.2f", covered, most)
			}
			if ratio > p.worst {
				t.Errorf("the pinball loss is %.3f of that of the true quantiles, want %.2f at most", ratio, p.worst)
			}
		})
	}
}
