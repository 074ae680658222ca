package training

import (
	"math"

	"github.com/spillway-ml/spillway/predictor/curve"
)

// Finish predicts from the points of a run so far the step at which it first reaches a level; +Inf for never.
type Finish func(seen []curve.Point, direction curve.Direction, level float64) float64

// Measured says the first measurement at or after what is said, if they go on as far apart as the latest eight mostly
// were.
func (f Finish) Measured() Finish {
	return func(seen []curve.Point, direction curve.Direction, level float64) float64 {
		said := f(seen, direction, level)
		var apart []float64
		for i := max(1, len(seen)-8); i < len(seen); i++ {
			if d := seen[i].Step - seen[i-1].Step; d > 0 {
				apart = append(apart, d)
			}
		}
		if len(apart) == 0 || math.IsInf(said, 1) {
			return said
		}
		every, now := quantile(apart, 0.5), seen[len(seen)-1].Step
		return now + every*math.Max(1, math.Ceil((said-now)/every-0.01))
	}
}

// form is a family with an offset below the losses: what is above the offset is a line after a change of scales. Of
// many offsets the one whose errors, relative to what is above it, have the least squares counts.
type form struct {
	// along is the scale of steps, up that of the loss above the offset, and down its inverse.
	along, up, down func(float64) float64
	// back is the inverse of along.
	back func(float64) float64
}

// Power is c + a k^-b, a line over logarithms.
func Power() Finish { return form{math.Log, math.Log, math.Exp, math.Exp}.finish }

// Exponential is c + a e^(-k/t), a line over the steps.
func Exponential() Finish { return form{same, math.Log, math.Exp, same}.finish }

// Optimus is 1 / (a k + b) + c, of Peng et al. (EuroSys 2018).
func Optimus() Finish { return form{same, inverse, inverse, same}.finish }

func same(x float64) float64    { return x }
func inverse(x float64) float64 { return 1 / x }

// Multiple says that every level is reached after a constant multiple of the steps seen.
func Multiple(times float64) Finish {
	return func(seen []curve.Point, _ curve.Direction, _ float64) float64 {
		return times * seen[len(seen)-1].Step
	}
}

// bestSoFar is the losses of points, the best so far at each step above 0.
func bestSoFar(seen []curve.Point, direction curve.Direction) (steps, losses []float64) {
	lowest := math.Inf(1)
	for _, point := range seen {
		loss := lossOf(direction, point.Value)
		if math.IsNaN(loss) {
			continue
		}
		lowest = math.Min(lowest, loss)
		if point.Step > 0 {
			steps, losses = append(steps, point.Step), append(losses, lowest)
		}
	}
	return steps, losses
}

const (
	// offsets is how many offsets are tried, and nearest and farthest how far they are below the best loss, as a part of
	// what the losses span. An offset is not below 0 where losses are above it.
	offsets  = 200
	nearest  = 1e-4
	farthest = 10
	// warmUp is the part of the points that is left out at the start, where losses fall from where the parameters were
	// drawn: no family has that.
	warmUp = 0.1
)

func (f form) finish(seen []curve.Point, direction curve.Direction, level float64) float64 {
	steps, losses := bestSoFar(seen, direction)
	level = lossOf(direction, level)
	if cut := int(math.Ceil(warmUp * float64(len(steps)))); len(steps)-cut >= fewestSeen {
		steps, losses = steps[cut:], losses[cut:]
	}
	if len(steps) < 2 || losses[0] == losses[len(losses)-1] {
		return math.Inf(1)
	}
	now, lowest := steps[len(steps)-1], losses[len(losses)-1]
	finish, least := math.Inf(1), math.Inf(1)
	for i := range offsets {
		below := nearest * math.Pow(farthest/nearest, float64(i)/(offsets-1))
		offset := lowest - (losses[0]-lowest)*below
		if lowest > 0 && offset < 0 {
			break
		}
		start, slope := f.line(steps, losses, offset)
		residual := 0.0
		for j, step := range steps {
			off := math.Log(f.down(start+slope*f.along(step)) / (losses[j] - offset))
			residual += off * off
		}
		if residual < least { // not NaN
			least, finish = residual, math.Inf(1)
			if level > offset && slope != 0 {
				finish = math.Max(now, f.back((f.up(level-offset)-start)/slope))
			}
		}
	}
	return finish
}

// line is the least squares of what is above an offset.
func (f form) line(steps, losses []float64, offset float64) (start, slope float64) {
	var n, sx, sy, xx, xy float64
	for i, step := range steps {
		x, y := f.along(step), f.up(losses[i]-offset)
		n, sx, sy, xx, xy = n+1, sx+x, sy+y, xx+x*x, xy+x*y
	}
	slope = (xy - sx*sy/n) / (xx - sx*sx/n)
	return (sy - slope*sx) / n, slope
}

// medianOf says that a level is reached when the middle one of the earlier runs reached it.
func medianOf(earlier []Run) Finish {
	return func(seen []curve.Point, direction curve.Direction, level float64) float64 {
		steps := make([]float64, len(earlier))
		for i, run := range earlier {
			steps[i] = first(run.Points, direction, level)
		}
		if len(steps) == 0 {
			return math.Inf(1)
		}
		return math.Max(quantile(steps, 0.5), seen[len(seen)-1].Step)
	}
}
