package baseline

import (
	"math"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/series"
)

// Static never changes its limit.
type Static float64

// Limit is the constant.
func (s Static) Limit() float64 { return float64(s) }

// Observe learns nothing.
func (s Static) Observe(series.Point, bool) {}

// Hindsight is the constant that the whole series just stays within: what the best constant could have been, known only
// afterwards.
func Hindsight(of series.Series) Static {
	var largest float64
	for _, point := range of.Points {
		largest = max(largest, point.Value)
	}
	return Static(largest)
}

// Maximum is the largest use of the latest span, plus a margin.
type Maximum struct {
	limit, margin float64
	span          time.Duration
	warm          int
	points        []series.Point
}

// NewMaximum returns the policy; the limit is first until warm points are known.
func NewMaximum(span time.Duration, margin, first float64, warm int) *Maximum {
	return &Maximum{limit: first, margin: margin, span: span, warm: warm}
}

// Limit is the largest use of the span and the margin.
func (m *Maximum) Limit() float64 { return m.limit }

// Observe drops what no longer matters: points older than the span, and points that a later one reaches.
func (m *Maximum) Observe(use series.Point, _ bool) {
	kept := len(m.points)
	for kept > 0 && m.points[kept-1].Value <= use.Value {
		kept--
	}
	m.points = append(m.points[:kept], use)
	for !m.points[0].At.After(use.At.Add(-m.span)) {
		m.points = m.points[1:]
	}
	if m.warm > 1 {
		m.warm--
		return
	}
	m.limit = m.points[0].Value * (1 + m.margin)
}

// Percentile is a percentile of the past, whose weights halve with their age, plus a margin: what the Vertical Pod
// Autoscaler's estimator does with every sample, without its daily peaks.
type Percentile struct {
	limit, part, margin, raise float64
	halfLife                   time.Duration
	warm                       int
	last                       time.Time
	floor                      float64
	floorUntil                 time.Time
	unit                       float64
	weights                    [buckets]float64
}

// Buckets are 5% wide and reach from a 100,000th of the first limit to 200 times it.
const (
	bucketWidth = 1.05
	buckets     = 350
	lowest      = 1e-5
)

// NewPercentile returns the policy. The limit is first, a positive number, until warm points are known; after a tick
// over the limit it is at least raise times the limit that was exceeded, for as long as the half-life.
func NewPercentile(part float64, halfLife time.Duration, margin, raise, first float64, warm int) *Percentile {
	return &Percentile{
		limit: first, part: part, margin: margin, raise: raise, halfLife: halfLife, warm: warm,
		unit: first * lowest,
	}
}

// Limit is the percentile and the margin.
func (p *Percentile) Limit() float64 { return p.limit }

// Observe counts the use.
func (p *Percentile) Observe(use series.Point, over bool) {
	if !p.last.IsZero() {
		fade := math.Exp2(-use.At.Sub(p.last).Seconds() / p.halfLife.Seconds())
		for i := range p.weights {
			p.weights[i] *= fade
		}
	}
	p.last = use.At
	p.count(use.Value)
	if over {
		p.floor, p.floorUntil = p.limit*p.raise, use.At.Add(p.halfLife)
	}
	if p.warm > 1 {
		p.warm--
		return
	}
	p.limit = p.percentile() * (1 + p.margin)
	if use.At.Before(p.floorUntil) {
		p.limit = max(p.limit, p.floor)
	}
}

func (p *Percentile) count(value float64) {
	bucket := 0
	if value > p.unit {
		bucket = int(math.Ceil(math.Log(value/p.unit) / math.Log(bucketWidth)))
	}
	p.weights[min(bucket, buckets-1)]++
}

// percentile is the upper bound of the bucket that holds the part.
func (p *Percentile) percentile() float64 {
	var total, below float64
	for _, weight := range p.weights {
		total += weight
	}
	for i, weight := range p.weights {
		if below += weight; below >= p.part*total {
			return p.unit * math.Pow(bucketWidth, float64(i))
		}
	}
	return p.unit * math.Pow(bucketWidth, buckets-1)
}
