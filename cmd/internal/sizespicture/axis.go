package sizespicture

import (
	"math"

	"github.com/spillway-ml/spillway/cmd/internal/svg"
	"github.com/spillway-ml/spillway/predictor/hindsight"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/usage"
)

// wideRange is by how many times the largest value is above the least where an axis is logarithmic: below it the least
// is still seen beside the largest.
const wideRange = 100

// roomAbove is how much of the upright axis is left free above the highest, as a part of its extent.
const roomAbove = 0.06

// far is how large values are at most: differences of two are finite.
const far = 1e300

// box is a part of the picture.
type box struct{ left, top, right, bottom float64 }

// axis maps values from least to most to pixels between from and to. A value of 0 or less lies at the end of a
// logarithmic one.
type axis struct {
	least, most, from, to float64
	log                   bool
	binary                bool // values are bytes: ticks are whole in KiB, MiB and so on
	whole                 bool // values are counts: ticks are whole
}

// axesOf are those of a comparison: across for its feature, up for its quantity.
func axesOf(c hindsight.Comparison, area box) (across, up axis) {
	inputs, values := newRange(), newRange()
	isMemory, whole := false, true
	for _, point := range c.Points {
		inputs.add(point.At)
		whole = whole && point.At == math.Trunc(point.At)
		for _, value := range []float64{point.Actual, point.Predicted.Low, point.Predicted.High, point.Granted} {
			if value > 0 {
				values.add(value)
			}
		}
		isMemory = isMemory || point.Granted > 0
	}
	for _, point := range c.Curve {
		inputs.add(point.At)
		values.add(point.Predicted.High)
	}
	const inside = 10 // from the frame to the first and the last attempt
	across = inputs.axis(area.left+inside, area.right-inside, false, c.Feature != "")
	across.binary, across.whole = c.Feature == usage.InputBytes, whole
	up = values.axis(area.bottom, area.top+inside, true, true)
	up.binary = isMemory
	return across, up
}

// extent is the extent of values.
type extent struct{ least, most float64 }

func newRange() extent { return extent{math.Inf(1), math.Inf(-1)} }

func (r *extent) add(value float64) {
	if math.Abs(value) <= far {
		r.least, r.most = min(r.least, value), max(r.most, value)
	}
}

// axis is that of an extent: logarithmic where it may be and the extent is wide, else from zero where that is wanted.
func (r *extent) axis(from, to float64, zero, mayLog bool) axis {
	a := axis{least: r.least, most: r.most, from: from, to: to}
	if a.least > a.most { // nothing is there
		a.least, a.most = 0, 1
	}
	switch {
	case mayLog && a.least > 0 && a.most/a.least >= wideRange:
		a.log = true
		if zero { // nothing lies upon the frame or against the head
			a.least /= 1.3
			a.most = min(a.most*math.Exp(roomAbove*(math.Log(a.most)-math.Log(a.least))), 10*far)
		}
	case zero:
		a.least = min(0, a.least)
		a.most += roomAbove * (a.most - a.least)
	}
	if a.most <= a.least { // the one value is in the middle
		around := max(0.5, math.Abs(a.least)/100)
		a.least, a.most = a.least-around, a.most+around
	}
	return a
}

// at is the pixel of a value; of what is no number, that of the least.
func (a axis) at(value float64) float64 {
	least, most := a.least, a.most
	if math.IsNaN(value) {
		return a.from
	}
	if a.log {
		value, least, most = math.Log(max(value, a.least)), math.Log(a.least), math.Log(a.most)
	}
	return a.from + (min(max(value, least), most)-least)/(most-least)*(a.to-a.from)
}

// ticks are values at which the axis is marked: about most of them, and never more than twice as many.
func (a axis) ticks(most int) []float64 {
	if a.log {
		return a.logTicks(most)
	}
	unit := 1.0
	if a.binary {
		unit = unitOf(a.most)
	}
	step := svg.NiceStep((a.most-a.least)/unit/float64(most)) * unit
	if a.whole || a.binary && unit == 1 {
		step = max(step, 1)
	}
	if step <= 0 {
		return []float64{a.least}
	}
	var ticks []float64
	for n := math.Ceil(a.least/step - 1e-9); n*step <= a.most*(1+1e-9) && len(ticks) <= 2*most; n++ {
		ticks = append(ticks, n*step+0) // no -0
	}
	return ticks
}

// logTicks are powers of ten, or of two where values are bytes, with as many left out between them as it takes; where
// there are few powers of ten, two and five times them as well.
func (a axis) logTicks(most int) []float64 {
	base := 10.0
	if a.binary {
		base = 2
	}
	if !a.binary && 3*math.Log10(a.most/a.least) <= float64(most) {
		var ticks []float64
		for power := math.Pow(10, math.Floor(math.Log10(a.least))); power <= a.most; power *= 10 {
			for _, times := range []float64{1, 2, 5} {
				if tick := times * power; tick >= a.least && tick <= a.most {
					ticks = append(ticks, tick)
				}
			}
		}
		return ticks
	}
	first, last := math.Ceil(math.Log(a.least)/math.Log(base)-1e-9), math.Floor(math.Log(a.most)/math.Log(base)+1e-9)
	stride := max(1, math.Ceil((last-first+1)/float64(most)))
	var ticks []float64
	for power := first; power <= last; power += stride {
		ticks = append(ticks, math.Pow(base, power))
	}
	return ticks
}

// unitOf is the largest unit of bytes that is not above a value.
func unitOf(value float64) float64 {
	unit := 1.0
	for _, one := range []quantity.Bytes{quantity.KiB, quantity.MiB, quantity.GiB, quantity.TiB} {
		if float64(one) <= value {
			unit = float64(one)
		}
	}
	return unit
}
