package hindsight

import (
	"math"
	"slices"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/usage"
)

// Cores is the feature of a comparison of speeds: no input has a number of that name.
const Cores = "cores held"

// curvePoints is at how many sizes the curve of a speed is told: so many that it looks round.
const curvePoints = 49

// leastDrawn is the least size at which a curve is told, in cores, where none smaller was tried.
const leastDrawn = 0.5

// speeds compares how fast the attempts of a stage at the pool were that succeeded: as many times as fast as one with
// their input is thought to be with one core, over the cores that they held. What is thought is what is known by now,
// of earlier and of these attempts, so the picture tells whether they follow one curve, and not what was thought when
// each began. Where no curve is known, speed is relative to that of the middle of those at the size that most had.
// There is nothing to compare where nothing is known and all had the same size.
func speeds(attempts []*Attempt, known Known, most int) (c Comparison) {
	attempts = slices.DeleteFunc(slices.Clone(attempts), func(a *Attempt) bool {
		return a.Venue != fact.Pool || a.Outcome != fact.Succeeded || !(a.Wall > 0) || !(a.Cores > 0)
	})
	sizes := map[float64][]float64{}
	for _, a := range attempts {
		sizes[a.Cores] = append(sizes[a.Cores], a.Wall)
	}
	if len(attempts) == 0 || len(sizes) < 2 && !known.Speed.Known() {
		return Comparison{}
	}
	usual := 0.0 // the size that most had, the smallest where several do
	for cores, walls := range sizes {
		if more := len(walls) - len(sizes[usual]); usual == 0 || more > 0 || more == 0 && cores < usual {
			usual = cores
		}
	}
	slices.Sort(sizes[usual])
	walls := sizes[usual]
	points := make([]Point, len(attempts))
	for i, a := range attempts {
		alone, expected := known.times(a, usual, walls[len(walls)/2])
		points[i] = Point{At: a.Cores, Venue: a.Venue, Actual: alone / a.Wall}
		if expected.Low > 0 {
			points[i].Predicted = fact.Interval{
				Low: alone / expected.High, Mid: alone / expected.Mid, High: alone / expected.Low,
			}
		}
	}
	c.count(points)
	c.Feature, c.Points = Cores, thinned(sorted(points), most)
	if known.Speed.Known() {
		c.Curve = curveOf(known.Speed, c.Points[0].At, c.Points[len(c.Points)-1].At)
	}
	return c
}

// times is how long the attempt is thought to take with one core, and the middle 80 percent of that with as many as it
// had: of its own time, and of the speed. Where its input tells nothing, they are what the middle of those takes at the
// usual size, and nothing is known of how far others lie from it.
func (k Known) times(a *Attempt, usual, middle float64) (alone float64, expected fact.Interval) {
	if !k.Speed.Known() {
		return middle, fact.Interval{}
	}
	features := usage.Features{Named: map[string]float64{}}
	for i, name := range a.Names[:min(len(a.Names), len(a.Values))] {
		if name == usage.InputBytes {
			features.Input = finite(float64(a.Values[i]))
			continue
		}
		features.Named[name] = finite(float64(a.Values[i]))
	}
	from := k.Duration.Cores
	expected, ok := k.Duration.At(features)
	if !ok || !(expected.Low > 0) || !(from > 0) {
		from, expected = usual, fact.Interval{Low: middle, Mid: middle, High: middle}
	}
	return expected.Mid * k.Speed.Slower(from, 1), k.Speed.Brought(expected, from, a.Cores)
}

// curveOf is the curve from the smallest size to the largest that it is followed to, or that was tried.
func curveOf(speed usage.Speed, least, largest float64) []CurvePoint {
	least, largest = min(least, leastDrawn), max(largest, speed.Far, 1)
	curve := make([]CurvePoint, 0, curvePoints)
	for i := range curvePoints {
		cores := least * math.Pow(largest/least, float64(i)/(curvePoints-1))
		curve = append(curve, CurvePoint{cores, speed.At(cores)})
	}
	return curve
}
