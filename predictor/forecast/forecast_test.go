package forecast_test

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"gonum.org/v1/gonum/stat/distuv"
	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor/forecast"
)

var midnight = time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)

const day = 24 * 60 // minutes

func minute(i int) time.Time { return midnight.Add(time.Duration(i) * time.Minute) }

func newForecaster(tb testing.TB, options forecast.Options) *forecast.Forecaster {
	tb.Helper()
	f, err := forecast.New(options)
	if err != nil {
		tb.Fatal(err)
	}
	return f
}

// levels are those of the interval for 80 % and its middle.
var levels = []float64{0.1, 0.5, 0.9}

func poisson(random *rand.Rand, mean float64) float64 {
	if mean <= 0 {
		return 0
	}
	return distuv.Poisson{Lambda: mean, Src: random}.Rand()
}

// diurnal is a rate that swings fivefold in a day of minutes around a mean.
func diurnal(mean float64) func(int) float64 {
	return func(minute int) float64 { return mean * (1 + 2.0/3*math.Sin(2*math.Pi*float64(minute)/day)) }
}

func TestNothingIsKnownBeforeAnythingWasSeen(t *testing.T) {
	t.Parallel()
	f := newForecaster(t, forecast.Options{})
	if d := f.Ahead(1); d.Known() || !math.IsNaN(d.Quantile(0.5)) {
		t.Errorf("an empty forecast says %v", d.Quantile(0.5))
	}
	if fan := f.Fan(levels...); fan != nil {
		t.Errorf("an empty forecast has the fan %v", fan)
	}
	if !f.Newest().IsZero() {
		t.Errorf("the newest bucket of none is %v", f.Newest())
	}
	f.Observe(minute(0), 100)
	if !f.Ahead(1).Known() {
		t.Error("nothing is known after a bucket")
	}
	for _, past := range []time.Time{minute(0), minute(-100), {}} {
		if f.At(past).Known() {
			t.Errorf("a forecast of %v after %v", past, f.Newest())
		}
	}
}

func TestOneBucketGivesAWideInterval(t *testing.T) {
	t.Parallel()
	f := newForecaster(t, forecast.Options{})
	f.Observe(minute(0), 100)
	d := f.Ahead(10)
	low, middle, high := d.Quantile(0.1), d.Quantile(0.5), d.Quantile(0.9)
	if low > 60 || high < 150 || math.Abs(middle-100) > 5 {
		t.Errorf("after a bucket of 100 the interval is %.0f to %.0f around %.0f, want a wide one", low, high, middle)
	}
	for i := 1; i < 120; i++ {
		f.Observe(minute(i), 100)
	}
	if narrow := f.Ahead(10); narrow.Quantile(0.9)-narrow.Quantile(0.1) > (high-low)/3 {
		t.Errorf("two hours of 100 leave the interval %.0f to %.0f", narrow.Quantile(0.1), narrow.Quantile(0.9))
	}
}

// A first day must be honest as well: of many stages, eight of ten first counts are within the interval for 80 %.
func TestTheFirstHourIsWithinItsIntervals(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(3, 4))
	within, all := 0, 0
	for range 400 {
		mean := math.Exp(random.Float64() * 7)
		f := newForecaster(t, forecast.Options{})
		for i := range 60 {
			count := poisson(random, mean)
			if d := f.At(minute(i)); d.Known() {
				all++
				if d.Quantile(0.1) <= count && count <= d.Quantile(0.9) {
					within++
				}
			}
			mean *= math.Exp(0.02 * random.NormFloat64())
			f.Observe(minute(i), count)
		}
	}
	if share := float64(within) / float64(all); share < 0.77 || share > 0.93 {
		t.Errorf("%.3f of first counts are within the interval for 80 %%, want 0.77 to 0.93", share)
	}
}

func TestAPeriodicLoadIsForecastOnceTwoPeriodsWereSeen(t *testing.T) {
	t.Parallel()
	for name, load := range map[string]struct {
		period int // minutes
		count  func(phase float64) float64
	}{
		"a sine of a day": {day, func(phase float64) float64 { return 500 + 400*math.Sin(2*math.Pi*phase) }},
		"two humps in six hours": {360, func(phase float64) float64 {
			return 500 + 200*math.Sin(2*math.Pi*phase) + 200*math.Sin(4*math.Pi*phase)
		}},
		"a sine of 100 minutes":  {100, func(phase float64) float64 { return 500 + 400*math.Sin(2*math.Pi*phase) }},
		"a peak of half an hour": {30, func(phase float64) float64 { return 100 + 100*math.Round(phase) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newForecaster(t, forecast.Options{})
			at := func(i int) float64 { return load.count(float64(i%load.period) / float64(load.period)) }
			worst := func(from, to int) float64 {
				sum := 0.0
				for i := from; i < to; i++ {
					f.Observe(minute(i), at(i))
					sum += math.Abs(f.Ahead(10).Quantile(0.5)-at(i+10)) / at(i+10)
				}
				return sum / float64(to-from)
			}
			first := worst(0, max(load.period, 240))
			worst(max(load.period, 240), 4*max(load.period, 400))
			later := worst(4*max(load.period, 400), 6*max(load.period, 400))
			if later > 0.05 || later > first {
				t.Errorf("the median is off by %.3f later, by %.3f in the first; want 0.05 at most",
					later, first)
			}
		})
	}
}

func TestAGapDoesNotTeachZeros(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(5, 6))
	f := newForecaster(t, forecast.Options{})
	for i := range 10 * day {
		if d := i / day; d == 4 || d == 5 || i%day >= 1400 { // two whole days, and the end of each
			continue
		}
		f.Observe(minute(i), poisson(random, 100))
	}
	for _, ahead := range []int64{1, 10, 50, day} {
		if low := f.Ahead(ahead).Quantile(0.1); low < 70 {
			t.Errorf("%d minutes ahead of a load of 100 with gaps, one in ten counts is said to be below %.0f", ahead, low)
		}
	}
}

func TestAJumpIsFollowed(t *testing.T) {
	t.Parallel()
	for name, levels := range map[string][2]float64{
		"ten times as much":  {50, 500},
		"a tenth":            {500, 50},
		"from nothing":       {0, 100},
		"to nothing":         {100, 0},
		"a thousandfold":     {10, 10_000},
		"back to a trickle":  {10_000, 0.1},
		"barely more or not": {100, 105},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(7, 8))
			f := newForecaster(t, forecast.Options{})
			for i := range 2 * day {
				f.Observe(minute(i), poisson(random, levels[0]))
			}
			within := 0
			const after = 60
			for i := 2 * day; i < 2*day+2*after; i++ {
				f.Observe(minute(i), poisson(random, levels[1]))
				if d := f.Ahead(10); i >= 2*day+after && d.Quantile(0.1) <= levels[1] && levels[1] <= d.Quantile(0.9) {
					within++
				}
			}
			if within < after*9/10 {
				t.Errorf("from an hour after the jump on, the new level was within the interval %d of %d times", within, after)
			}
		})
	}
}

func TestWhatCannotBeIsNotTaken(t *testing.T) {
	t.Parallel()
	f := newForecaster(t, forecast.Options{})
	for i := range 100 {
		f.Observe(minute(i), 20)
	}
	before, err := json.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	for name, told := range map[string]struct {
		at    time.Time
		count float64
	}{
		"no number":           {minute(100), math.NaN()},
		"below zero":          {minute(100), -1},
		"infinite":            {minute(100), math.Inf(1)},
		"a bucket again":      {minute(99), 20},
		"before 1678":         {time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC), 20},
		"after 2261":          {time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC), 20},
		"the zero time":       {time.Time{}, 20},
		"the same bucket, on": {minute(99).Add(59 * time.Second), 3},
	} {
		if f.Observe(told.at, told.count) {
			t.Errorf("%s was taken", name)
		}
	}
	after, err := json.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(before), string(after)); diff != "" {
		t.Error(diff)
	}
	if f.Observe(minute(98), 20) || f.Seen() != 100 {
		t.Error("an older bucket was taken")
	}
	if !f.Observe(minute(100), 1e300) || !(f.Ahead(1).Quantile(0.99) < 1e15) {
		t.Error("a count of 1e300 is not taken as 1e12")
	}
}

func TestAClockThatWasSetBackIsFollowed(t *testing.T) {
	t.Parallel()
	for name, away := range map[string]int{"a year ahead before": -365 * day, "a year back before": 365 * day} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newForecaster(t, forecast.Options{})
			for i := range 3 * day {
				f.Observe(minute(i), 50)
			}
			refused := 0
			for i := range 200 {
				if !f.Observe(minute(3*day+away+i), 50) {
					refused++
				}
			}
			if refused != 63 || f.Newest() != minute(3*day+away+199) {
				t.Errorf("%d of 200 were refused and the newest is %v", refused, f.Newest())
			}
			if d := f.Ahead(10); d.Quantile(0.1) < 30 || d.Quantile(0.9) > 70 {
				t.Errorf("the interval is %.0f to %.0f, want it near 50", d.Quantile(0.1), d.Quantile(0.9))
			}
			if f.Observe(minute(3*day), 50) || f.Newest() != minute(3*day+away+199) {
				t.Error("a stray was taken")
			}
		})
	}
}

func TestOptionsThatAreOutOfRangeAreRefused(t *testing.T) {
	t.Parallel()
	for name, options := range map[string]forecast.Options{
		"a bucket of a microsecond": {Bucket: time.Microsecond},
		"a bucket of two days":      {Bucket: 48 * time.Hour},
		"a negative bucket":         {Bucket: -time.Minute},
		"a negative horizon":        {Horizon: -1},
		"a horizon of a week":       {Horizon: 7 * day},
		"a memory of a bucket":      {Bucket: time.Hour, Remember: time.Hour},
		"a memory of a century":     {Remember: 36525 * 24 * time.Hour},
	} {
		if _, err := forecast.New(options); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
	for _, options := range []forecast.Options{
		{Bucket: time.Millisecond, Horizon: 1440},
		{Bucket: 24 * time.Hour, Horizon: 1},
		{Horizon: 2},
		{Horizon: 5},
		{Remember: 2 * time.Minute},
		{Remember: 3653 * 24 * time.Hour},
	} {
		f := newForecaster(t, options)
		for i := range 50 {
			f.Observe(midnight.Add(time.Duration(i)*f.Options().Bucket), 7)
		}
		if fan := f.Fan(levels...); len(fan) != f.Options().Horizon || !(fan[0][1] > 6 && fan[0][1] < 8) {
			t.Errorf("with %+v the fan begins with %v", options, fan[0])
		}
	}
}

func TestQuantilesAreInOrderWhateverIsTold(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		f, err := forecast.New(forecast.Options{
			Bucket:   time.Duration(rapid.SampledFrom([]int{1, 60, 3600}).Draw(t, "bucket")) * time.Second,
			Horizon:  rapid.IntRange(1, 30).Draw(t, "horizon"),
			Remember: time.Duration(rapid.IntRange(2, 1000).Draw(t, "remember")) * time.Hour,
		})
		if err != nil {
			t.Fatal(err)
		}
		at := midnight
		for range rapid.IntRange(1, 30).Draw(t, "stretches") {
			step := rapid.SampledFrom([]int{1, 1, 1, 1, 7, 500, -3}).Draw(t, "step")
			level := rapid.SampledFrom([]float64{0, 0.3, 5, 100, 1e6, 1e13, math.NaN(), -4, math.Inf(1)}).Draw(t, "level")
			for i := range rapid.IntRange(1, 100).Draw(t, "buckets") {
				at = at.Add(time.Duration(step) * f.Options().Bucket)
				f.Observe(at, level*float64(i%7))
			}
			inOrder(t, f)
		}
	})
}

// inOrder checks every quantile of the next buckets.
func inOrder(t interface{ Fatalf(string, ...any) }, f *forecast.Forecaster) {
	many := []float64{1e-9, 0.01, 0.07, 0.1, 0.5, 0.9, 0.95, 0.99, 0.9999}
	for _, ahead := range []int64{1, 2, 3, int64(f.Options().Horizon), 1000} {
		d := f.Ahead(ahead)
		if !d.Known() {
			continue
		}
		before := 0.0
		for _, level := range many {
			quantile := d.Quantile(level)
			if !(quantile >= before) || math.IsInf(quantile, 0) {
				t.Fatalf("%d buckets ahead the quantile at %v is %v, after %v", ahead, level, quantile, before)
			}
			before = quantile
		}
	}
}

func FuzzObserve(f *testing.F) {
	f.Add(int64(60), 10, 100.0, 3.0, int64(1), 200)
	f.Add(int64(1), 1, 0.0, 1e300, int64(-1), 100)
	f.Add(int64(86400), 1440, math.Inf(1), math.NaN(), int64(1<<60), 70)
	f.Fuzz(func(t *testing.T, bucket int64, horizon int, count, other float64, step int64, times int) {
		f, err := forecast.New(forecast.Options{Bucket: time.Duration(bucket) * time.Second, Horizon: horizon})
		if err != nil {
			return
		}
		at := midnight
		for i := range min(max(times, 1), 300) {
			if i%3 != 2 {
				at = at.Add(f.Options().Bucket)
			} else {
				at = at.Add(time.Duration(step))
			}
			told := count
			if i%5 == 4 {
				told = other
			}
			f.Observe(at, told)
		}
		inOrder(t, f)
		text, err := json.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		read := new(forecast.Forecaster)
		if err := json.Unmarshal(text, read); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		inOrder(t, read)
	})
}

func ExampleForecaster() {
	f, err := forecast.New(forecast.Options{Bucket: 15 * time.Minute, Horizon: 4}) // an hour ahead
	if err != nil {
		panic(err)
	}
	start := time.Date(2026, time.January, 5, 0, 0, 0, 0, time.UTC)
	for i := range 10*96 + 28 { // ten days and until seven, 100 to 300 arrivals in each quarter of an hour
		hour := float64(i%96) / 4
		f.Observe(start.Add(time.Duration(i)*15*time.Minute), math.Round(200-100*math.Cos(2*math.Pi*hour/24)))
	}
	for _, quantiles := range f.Fan(0.1, 0.5, 0.9) {
		fmt.Printf("%.0f %.0f %.0f\n", quantiles[0], quantiles[1], quantiles[2])
	}
	// Output:
	// 226 227 228
	// 233 235 236
	// 239 241 243
	// 244 246 249
}
