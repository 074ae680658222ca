package arrivals

import (
	"math"
	"time"

	"github.com/spillway-ml/spillway/predictor/forecast"
)

// Ours is predictor/forecast, told of each bucket that is known.
type Ours struct {
	forecaster *forecast.Forecaster
	width      time.Duration
	ahead, now int
}

// NewOurs returns one that forecasts ahead buckets of some width ahead.
func NewOurs(width time.Duration, ahead int) (*Ours, error) {
	forecaster, err := forecast.New(forecast.Options{Bucket: width, Horizon: ahead})
	return &Ours{forecaster: forecaster, width: width, ahead: ahead}, err
}

// Observe takes the count of the next bucket, NaN where it is missing.
func (o *Ours) Observe(count float64) {
	if !math.IsNaN(count) {
		o.forecaster.Observe(o.start(o.now), count)
	}
	o.now++
}

// Quantile is that of the count ahead buckets after the latest; NaN where none is known.
func (o *Ours) Quantile(level float64) float64 {
	return o.forecaster.At(o.start(o.now - 1 + o.ahead)).Quantile(level)
}

func (o *Ours) start(bucket int) time.Time {
	return time.Unix(0, 0).Add(time.Duration(bucket) * o.width)
}
