package curve

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"github.com/spillway-ml/spillway/predictor/fact"
)

// Trail is how one metric of a training has gone, from the reports of its steps. The zero value has heard of none; the
// first report with a metric of known direction says which one is followed, see [Metric].
type Trail struct {
	Metric string
	// Points are by step, which rises from above 0. A value that was not finite is NaN.
	Points []Point
}

// Direction is which values of the metric are better.
func (t *Trail) Direction() Direction {
	direction, _ := DirectionOf(t.Metric)
	return direction
}

// Tell takes in a report: the step that is done, its metrics, and the names of those that were not finite. About most
// points are kept at most, 16 or more; see [Thinned]. A step that was told before is told again by an attempt that goes
// on from a checkpoint: it takes the place of the earlier one and of all after it. changed says that something new was
// told.
func (t *Trail) Tell(step int, metrics map[string]float64, notFinite []string, most int) (changed bool) {
	if step <= 0 || len(metrics)+len(notFinite) == 0 {
		return false
	}
	if t.Metric == "" {
		t.Metric = Metric(slices.Concat(slices.Collect(maps.Keys(metrics)), notFinite))
	}
	value, told := metrics[t.Metric]
	switch {
	case t.Metric == "":
		return false
	case !told && !slices.Contains(notFinite, t.Metric):
		return false
	case !told:
		value = math.NaN()
	}
	return t.add(Point{Step: float64(step), Value: value}, max(most, leastKept))
}

// MostTrail is how many points of a Trail are kept while its training runs: four times what a [fact.Curve] tells.
const MostTrail = 4 * fact.MostCurve

// leastKept is how many points are kept at least.
const leastKept = 16

func (t *Trail) add(point Point, most int) (changed bool) {
	from, _ := slices.BinarySearchFunc(t.Points, point.Step, func(p Point, step float64) int {
		return cmp.Compare(p.Step, step)
	})
	if n := len(t.Points); n > 0 && same(t.Points[n-1].Step, point.Step) && same(t.Points[n-1].Value, point.Value) {
		return false // looked at again
	}
	if from < len(t.Points) {
		t.Points = slices.Clip(t.Points[:from]) // who was given them keeps them as they were
	}
	if from >= most {
		t.Points = Thinned(t.Points, most/2, t.Direction())
	}
	t.Points = append(t.Points, point)
	return true
}

// same tells numbers apart as single precision does, in which points are remembered.
func same(a, b float64) bool { return float32(a) == float32(b) || math.IsNaN(a) && math.IsNaN(b) }

// Follow takes in how the metric went in an attempt, as its end tells it: what was heard of the same steps before, and
// of later ones, is replaced. One of another metric, or that makes no sense, is passed over.
func (t *Trail) Follow(told fact.Curve, most int) (changed bool) {
	if t.Metric == "" {
		if _, known := DirectionOf(told.Metric); !known {
			return false
		}
		t.Metric = told.Metric
	}
	points := pointsOf(told)
	if len(points) == 0 || told.Metric != t.Metric {
		return false
	}
	most = max(most, leastKept)
	from, _ := slices.BinarySearchFunc(t.Points, points[0].Step, func(p Point, step float64) int {
		return cmp.Compare(p.Step, step)
	})
	t.Points = append(t.Points[:from], points...)
	if len(t.Points) > most {
		t.Points = Thinned(t.Points, most, t.Direction())
	}
	return true
}

// pointsOf are the points of a curve by step; none of one that makes no sense.
func pointsOf(told fact.Curve) []Point {
	if len(told.Steps) != len(told.Values) || len(told.Steps)+len(told.NotFinite) > fact.MostCurve {
		return nil
	}
	points := make([]Point, 0, len(told.Steps)+len(told.NotFinite))
	for i, step := range told.Steps {
		points = append(points, Point{Step: float64(step), Value: told.Values[i]})
	}
	for _, step := range told.NotFinite {
		points = append(points, Point{Step: float64(step), Value: math.NaN()})
	}
	slices.SortFunc(points, func(a, b Point) int { return cmp.Compare(a.Step, b.Step) })
	for i, point := range points {
		if point.Step <= 0 || i > 0 && point.Step == points[i-1].Step {
			return nil
		}
	}
	return points
}

// Curve is the trail as it is told at the end of an attempt, thinned to [fact.MostCurve] points; nil below two of them,
// which say no more than the last report.
func (t *Trail) Curve() *fact.Curve {
	if len(t.Points) < 2 {
		return nil
	}
	told := &fact.Curve{Metric: t.Metric}
	for _, point := range Thinned(t.Points, fact.MostCurve, t.Direction()) {
		if finite(point.Value) {
			told.Steps, told.Values = append(told.Steps, int64(point.Step)), append(told.Values, point.Value)
		} else {
			told.NotFinite = append(told.NotFinite, int64(point.Step))
		}
	}
	return told
}
