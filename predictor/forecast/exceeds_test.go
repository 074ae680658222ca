package forecast_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/spillway-ml/spillway/predictor/forecast"
)

func TestTheChanceOfMoreIsTheInverseOfAQuantile(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(3, 4))
	f := newForecaster(t, forecast.Options{})
	for i := range 3 * day {
		mean := diurnal(20)(i)
		if i%60 < 2 {
			mean = 200
		}
		f.Observe(minute(i), poisson(random, mean))
		if i < 20 || i%97 != 0 {
			continue
		}
		d := f.Ahead(int64(1 + i%10))
		before := 1.0
		for count := range 400 {
			chance := d.Exceeds(float64(count))
			if !(chance <= before && chance >= 0) {
				t.Fatalf("in minute %d more than %d come with a chance of %v, more than %d with %v", i, count, chance, count-1,
					before)
			}
			before = chance
			if level := 1 - chance; level > 0.001 && level < 0.999 {
				// Quantiles that several levels share are those of a lower level, too.
				if low, high := d.Quantile(level-1e-6), d.Quantile(level+1e-6); low > float64(count)+0.5+1e-3 ||
					high < float64(count)+0.5-1e-3 {
					t.Fatalf("in minute %d more than %d come with a chance of %v, and the quantiles there are %v to %v", i, count,
						chance, low, high)
				}
			}
		}
	}
}

func TestTheChanceOfMoreAtItsEdges(t *testing.T) {
	t.Parallel()
	if got := (forecast.Distribution{}).Exceeds(0); !math.IsNaN(got) {
		t.Errorf("of nothing that is known the chance is %v, want NaN", got)
	}
	f := newForecaster(t, forecast.Options{})
	f.Observe(minute(0), 3)
	d := f.Ahead(1)
	for _, one := range []struct{ count, want float64 }{
		{-1, 1},
		{math.Inf(-1), 1},
		{math.Inf(1), 0},
		{1e300, 0},
		{math.NaN(), math.NaN()},
		{0.5, d.Exceeds(0)},
		{0.99, d.Exceeds(0)},
	} {
		if got := d.Exceeds(one.count); got != one.want && !(math.IsNaN(got) && math.IsNaN(one.want)) {
			t.Errorf("more than %v come with a chance of %v, want %v", one.count, got, one.want)
		}
	}
	if chance := d.Exceeds(0); !(chance > 0.5 && chance < 1) {
		t.Errorf("after one bucket of 3, anything comes with a chance of %v, want more than a half and less than 1", chance)
	}
}

// TestWhatIsSaidToComeComesAsOften scores the chance that anything comes within a bucket.
func TestWhatIsSaidToComeComesAsOften(t *testing.T) {
	t.Parallel()
	for _, one := range []struct {
		name  string
		rate  func(minute int) float64
		fixed bool // the rate is the count
		// within is how far what is said may be from what comes, in the mean over a week; least is the part of the variance
		// of what comes that is explained at least (1 less the Brier score over that of the mean).
		within, least float64
	}{
		{"one in twenty minutes", func(int) float64 { return 0.05 }, false, 0.02, -0.01},
		{"one in two minutes", func(int) float64 { return 0.5 }, false, 0.05, -0.015},
		{"one in a day", func(i int) float64 {
			if i%day == 600 {
				return 1
			}
			return 0
		}, true, 0.002, -0.02},
		{"working hours", func(i int) float64 {
			if h := i % day / 60; h >= 9 && h < 17 {
				return 30
			}
			return 0
		}, false, 0.03, 0.85},
		{"forty at each full hour", func(i int) float64 {
			if i%60 == 0 {
				return 40
			}
			return 0
		}, true, 0.01, 0.5},
	} {
		t.Run(one.name, func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(5, 6))
			f := newForecaster(t, forecast.Options{})
			said, came, brier, n := 0.0, 0.0, 0.0, 0.0
			for i := range 14 * day {
				count := one.rate(i)
				if !one.fixed {
					count = poisson(random, count)
				}
				anything := 0.0
				if count > 0 {
					anything = 1
				}
				if i >= 7*day {
					chance := f.Ahead(1).Exceeds(0)
					said, came, n = said+chance, came+anything, n+1
					brier += (chance - anything) * (chance - anything)
				}
				f.Observe(minute(i), count)
			}
			said, came, brier = said/n, came/n, brier/n
			explained := 1 - brier/(came*(1-came))
			t.Logf("said %.4f, came %.4f, explained %.3f", said, came, explained)
			if math.Abs(said-came) > one.within || explained < one.least {
				t.Errorf("anything comes with a chance of %.4f as it is said, and came in %.4f of the buckets, want within %.3f; "+
					"explained %.3f, want %.2f", said, came, one.within, explained, one.least)
			}
		})
	}
}
