package forecast_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/spillway-ml/spillway/predictor/forecast"
)

// taught is a forecast after days of a daily load with bursts.
func taught(tb testing.TB, horizon, days int) *forecast.Forecaster {
	tb.Helper()
	random := rand.New(rand.NewPCG(1, 2))
	f := newForecaster(tb, forecast.Options{Horizon: horizon})
	for i := range days * day {
		f.Observe(minute(i), busy(random, i))
	}
	return f
}

func busy(random *rand.Rand, i int) float64 {
	count := poisson(random, diurnal(50)(i))
	if i%120 < 8 {
		count += 200
	}
	return count
}

// An observation includes what it takes to look for periods now and then.
func BenchmarkObserve(b *testing.B) {
	for _, horizon := range []int{1, 10, 60} {
		b.Run(fmt.Sprintf("horizon=%d", horizon), func(b *testing.B) {
			f := taught(b, horizon, 14)
			random := rand.New(rand.NewPCG(3, 4))
			counts := make([]float64, 7*day)
			for i := range counts {
				counts[i] = busy(random, i)
			}
			i := 14 * day
			b.ReportAllocs()
			for b.Loop() {
				if !f.Observe(minute(i), counts[i%len(counts)]) {
					b.Fatal("a bucket was not taken")
				}
				i++
			}
		})
	}
}

func BenchmarkQuantile(b *testing.B) {
	f := taught(b, 10, 14)
	b.ReportAllocs()
	for b.Loop() {
		if !(f.Ahead(10).Quantile(0.9) > 0) {
			b.Fatal("no quantile")
		}
	}
}

func BenchmarkFan(b *testing.B) {
	f := taught(b, 10, 14)
	b.ReportAllocs()
	for b.Loop() {
		if len(f.Fan(levels...)) != 10 {
			b.Fatal("no fan")
		}
	}
}

func TestAForecastTakesNoMoreThanItsDocumentSays(t *testing.T) {
	const many = 64
	all := make([]*forecast.Forecaster, many)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range all {
		all[i] = newForecaster(t, forecast.Options{})
	}
	for i := range 600 {
		for j, f := range all {
			f.Observe(minute(i), float64(100+(i*7+j)%13+i%20/18*500))
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	bytes := (float64(after.HeapAlloc) - float64(before.HeapAlloc)) / many
	runtime.KeepAlive(all)
	if bytes < 15_000 || bytes > 21_000 {
		t.Errorf("a forecast takes %.0f bytes", bytes)
	}
	text, err := json.Marshal(taught(t, 10, 30))
	if err != nil {
		t.Fatal(err)
	}
	if len(text) > 30_000 {
		t.Errorf("a state takes %d bytes", len(text))
	}
	t.Logf("%.0f bytes in memory, %d as JSON", bytes, len(text))
}
