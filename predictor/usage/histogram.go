package usage

import "math"

// histogram counts values in buckets each 5% wider than the one below, and forgets by halving: the estimator of the
// Kubernetes Vertical Pod Autoscaler
// (https://github.com/kubernetes/autoscaler, vertical-pod-autoscaler/pkg/recommender/util/decaying_histogram.go).
// Its bounds are unit * bucketGrowth^k with the first positive value as unit, so that a series in other units gives the
// same buckets.
//
// The zero value is empty. The buckets reach down from the largest value by a factor of bucketGrowth^(bucketCount-1),
// 250,000; what is smaller counts in the lowest, and zeros have their own.
type histogram struct {
	unit float64 // the first positive value; 0 before it
	// the exponent k of the highest bucket, which holds values in (unit*bucketGrowth^(k-1), unit*bucketGrowth^k]
	top     int
	zeros   float64
	weights [bucketCount]float64
}

const (
	bucketGrowth = 1.05
	bucketCount  = 256
)

var logGrowth = math.Log(bucketGrowth)

// add multiplies all weights by fade, 0 to 1, and then counts a value of 0 or more with weight 1.
func (h *histogram) add(value, fade float64) {
	h.zeros *= fade
	for i := range h.weights {
		h.weights[i] *= fade
	}
	if value <= 0 {
		h.zeros++
		return
	}
	if h.unit == 0 {
		h.unit = value
	}
	// The logarithms' difference, as the quotient may overflow; a value on a bound stays below it in spite of rounding.
	exponent := int(math.Ceil((math.Log(value)-math.Log(h.unit))/logGrowth - 1e-9))
	if exponent > h.top {
		h.raise(exponent - h.top)
	}
	h.weights[max(bucketCount-1-(h.top-exponent), 0)]++
}

// raise makes room for up higher buckets: the lowest ones become one.
func (h *histogram) raise(up int) {
	h.top += up
	up = min(up, bucketCount-1)
	var low float64
	for _, weight := range h.weights[:up+1] {
		low += weight
	}
	copy(h.weights[:], h.weights[up:])
	clear(h.weights[bucketCount-up:])
	h.weights[0] = low
}

// percentiles writes to bounds, for each of the rising parts (above 0, to 1), the lowest bucket bound below which at
// least that part of the weight lies: at most 5% above the exact weighted percentile and, but for rounding, never below
// it. All bounds are 0 without weight.
func (h *histogram) percentiles(parts, bounds []float64) {
	total := h.zeros
	for _, weight := range h.weights {
		total += weight
	}
	const rounding = 1 - 1e-12 // so that the sum of all weights reaches the whole
	below, next := h.zeros, 0
	for ; next < len(parts) && below >= parts[next]*total*rounding; next++ {
		bounds[next] = 0
	}
	for i := 0; i < bucketCount && next < len(parts); i++ {
		below += h.weights[i]
		if below < parts[next]*total*rounding {
			continue
		}
		bound := math.Exp(math.Log(h.unit) + float64(h.top-(bucketCount-1-i))*logGrowth)
		for ; next < len(parts) && below >= parts[next]*total*rounding; next++ {
			bounds[next] = bound
		}
	}
}
