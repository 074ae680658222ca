package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Limits of native histograms. Where observations spread so far that there would be more buckets, the histogram is
// begun anew, but not within nativeMinReset; until then its buckets become wider.
const (
	nativeBucketFactor = 1.1 // each bucket is at most 10 percent wider than the one below
	nativeMaxBuckets   = 100
	nativeMinReset     = time.Hour
)

// declared is what Series lists, registered, by name.
type declared struct {
	counters   map[string]*prometheus.CounterVec
	gauges     map[string]*prometheus.GaugeVec
	histograms map[string]*prometheus.HistogramVec
}

// register registers every declaration.
func register(registry *prometheus.Registry, series []Declaration) declared {
	all := declared{
		counters: map[string]*prometheus.CounterVec{}, gauges: map[string]*prometheus.GaugeVec{},
		histograms: map[string]*prometheus.HistogramVec{},
	}
	for _, one := range series {
		options := prometheus.Opts{Name: one.Name, Help: one.Help}
		var collector prometheus.Collector
		switch one.Kind {
		case Counter:
			vec := prometheus.NewCounterVec(prometheus.CounterOpts(options), one.Labels)
			all.counters[one.Name], collector = vec, vec
		case Gauge:
			vec := prometheus.NewGaugeVec(prometheus.GaugeOpts(options), one.Labels)
			all.gauges[one.Name], collector = vec, vec
		case Histogram:
			vec := prometheus.NewHistogramVec(prometheus.HistogramOpts{
				Name: one.Name, Help: one.Help, Buckets: one.Buckets,
				NativeHistogramBucketFactor: nativeBucketFactor, NativeHistogramMaxBucketNumber: nativeMaxBuckets,
				NativeHistogramMinResetDuration: nativeMinReset,
			}, one.Labels)
			all.histograms[one.Name], collector = vec, vec
		}
		registry.MustRegister(collector)
	}
	return all
}
