package fact

import (
	"math"
)

// Interval is a prediction with its spread, in the unit of the field that holds it. The zero value predicts nothing.
type Interval struct {
	// Low and High bound the middle 80 percent.
	Low  float64 `json:"low"`
	Mid  float64 `json:"mid"`
	High float64 `json:"high"`
}

// Plus adds two predictions that are independent: their distances from the middle add as squares do.
func (i Interval) Plus(other Interval) Interval {
	mid := i.Mid + other.Mid
	return Interval{
		Low: mid - math.Hypot(i.Mid-i.Low, other.Mid-other.Low), Mid: mid,
		High: mid + math.Hypot(i.High-i.Mid, other.High-other.Mid),
	}
}

// From adds what is certain.
func (i Interval) From(start float64) Interval {
	return Interval{Low: start + i.Low, Mid: start + i.Mid, High: start + i.High}
}

// Latest is the prediction of the later of two.
func (i Interval) Latest(other Interval) Interval {
	return Interval{Low: max(i.Low, other.Low), Mid: max(i.Mid, other.Mid), High: max(i.High, other.High)}
}

// AtLeast raises what is below the least.
func (i Interval) AtLeast(least float64) Interval {
	return Interval{Low: max(i.Low, least), Mid: max(i.Mid, least), High: max(i.High, least)}
}
