package hindsight

import (
	"cmp"
	"slices"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/usage"
)

// Attempt is one attempt that has ended, as far as it is compared.
type Attempt struct {
	Stage   string
	Venue   fact.Venue
	Outcome fact.Outcome
	Cause   fact.Cause
	// Names are the numbers that were known before attempts of the stage ran, and Values those of this one. A value that
	// is missing at the end was not known.
	Names  []string
	Values []float32
	// PredictedMemory, in bytes, and PredictedWall, in seconds, are what was expected; the zero Interval where nothing
	// was.
	PredictedMemory, PredictedWall fact.Interval
	// Peak is the most memory that it took, and Granted what it held last.
	Peak, Granted quantity.Bytes
	// Wall is how long the user's code ran, in seconds.
	Wall float64
	// Cores is the share of cores that it held last; 0 where it is not known.
	Cores float64
}

// Known is what is known by now of how long attempts of a stage run, and how fast with so many cores. The zero value
// knows nothing.
type Known struct {
	Duration usage.Duration
	Speed    usage.Speed
}

// Stage is what was predicted of the attempts of one stage beside what came.
type Stage struct {
	// Stage is the stage's own name.
	Stage string `json:"stage"`
	// Attempts is how many of them have ended, in whatever way.
	Attempts int `json:"attempts"`
	// Memory compares peaks of memory, in bytes, of the attempts that succeeded or were killed at their limit.
	Memory Comparison `json:"memory_bytes"`
	// Wall compares run times, in seconds, of the attempts that succeeded.
	Wall Comparison `json:"wall_seconds"`
	// Speed compares how fast they were at each size; see speeds. Its zero value is left out: one size was tried, and
	// nothing is known of others.
	Speed Comparison `json:"speed,omitzero"`
}

// Comparison is one quantity of the attempts of a stage, over what explains it.
type Comparison struct {
	// Feature is what was known before the attempts ran and explains best what came: "input_bytes", or a number of their
	// input by name. It is empty where nothing does: then attempts are counted, from 1, in the order in which they ended.
	Feature string `json:"feature,omitempty"`
	// Attempts is how many are compared, Killed how many of them were killed at their limit.
	Attempts int `json:"attempts"`
	Killed   int `json:"killed"`
	// Predicted is how many had a prediction and were not killed, Within how many of these came within its middle 80
	// percent.
	Predicted int `json:"predicted"`
	Within    int `json:"within"`
	// Curve is what is predicted over the feature, between those that were drawn too; empty where it is not known.
	Curve []CurvePoint `json:"curve,omitempty"`
	// Points are the attempts, or some of them where they are many, by the value of the feature.
	Points []Point `json:"points"`
}

// IsZero reports whether there is nothing to compare.
func (c Comparison) IsZero() bool { return c.Attempts == 0 }

// CurvePoint is what is predicted at a value of the feature.
type CurvePoint struct {
	At        float64       `json:"at"`
	Predicted fact.Interval `json:"predicted"`
}

// Point is one attempt in a Comparison.
type Point struct {
	// At is the value of the Comparison's feature.
	At    float64    `json:"at"`
	Venue fact.Venue `json:"venue"`
	// Predicted is what was expected; left out where nothing was.
	Predicted fact.Interval `json:"predicted,omitzero"`
	// Actual is what came; of an attempt that was killed, the limit that was not enough.
	Actual float64 `json:"actual"`
	// Granted is the limit of memory that the attempt held last; 0 for run times, and where it had none.
	Granted float64 `json:"granted,omitempty"`
	// Killed says that it was killed at its limit: it needed more than Actual.
	Killed bool `json:"killed,omitempty"`
}

// MostPoints bounds the points of all stages together, but that each may have leastPoints.
const (
	MostPoints  = 50_000
	leastPoints = 20
)

// Of compares attempts, which are in the order in which they ended, by stage. Stages are in the order in which they
// first ended one. Of each Comparison at most most points are answered, fewer where there are so many stages that they
// would be more than MostPoints together; its counts are of all attempts. Known is what is known by now of stages, by
// their names.
func Of(attempts []Attempt, most int, known map[string]Known) []Stage {
	stages := []Stage{}
	places := map[string]int{}
	by := [][]*Attempt{}
	for i := range attempts {
		a := &attempts[i]
		place, known := places[a.Stage]
		if !known {
			place = len(by)
			places[a.Stage] = place
			by = append(by, nil)
		}
		by[place] = append(by[place], a)
	}
	if len(by) > 0 {
		most = min(most, max(leastPoints, MostPoints/len(by)))
	}
	for _, of := range by {
		stages = append(stages, Stage{
			Stage: of[0].Stage, Attempts: len(of),
			Memory: compare(of, memoryOf, most), Wall: compare(of, wallOf, most),
			Speed: speeds(of, known[of[0].Stage], most),
		})
	}
	return stages
}

// memoryOf is the point of an attempt's peak; compared is false where it says nothing.
func memoryOf(a *Attempt) (point Point, compared bool) {
	point = Point{
		Venue: a.Venue, Predicted: a.PredictedMemory, Actual: float64(a.Peak), Granted: float64(max(0, a.Granted)),
	}
	switch {
	case a.Outcome == fact.Succeeded:
		return point, point.Actual > 0
	case a.Outcome == fact.OutOfMemory && a.Cause != fact.CauseDeviceMemory:
		point.Killed, point.Actual = true, max(point.Actual, point.Granted)
		return point, point.Actual > 0
	default:
		return Point{}, false
	}
}

// wallOf is the point of an attempt's run time.
func wallOf(a *Attempt) (point Point, compared bool) {
	return Point{Venue: a.Venue, Predicted: a.PredictedWall, Actual: a.Wall}, a.Outcome == fact.Succeeded && a.Wall > 0
}

// compare makes the Comparison of one quantity.
func compare(attempts []*Attempt, pointOf func(*Attempt) (Point, bool), most int) Comparison {
	var c Comparison
	var among []*Attempt
	points := []Point{}
	for _, a := range attempts {
		point, compared := pointOf(a)
		if !compared {
			continue
		}
		among, points = append(among, a), append(points, point)
	}
	c.count(points)
	var values []float64
	c.Feature, values = explaining(among, points)
	for i := range points {
		points[i].At = values[i]
	}
	c.Points = thinned(sorted(points), most)
	return c
}

// count counts the points.
func (c *Comparison) count(points []Point) {
	c.Attempts = len(points)
	for _, point := range points {
		expected := point.Predicted
		switch {
		case point.Killed:
			c.Killed++
		case expected.High > 0:
			c.Predicted++
			if point.Actual >= expected.Low && point.Actual <= expected.High {
				c.Within++
			}
		}
	}
}

// sorted puts points in their order over the feature.
func sorted(points []Point) []Point {
	slices.SortStableFunc(points, func(a, b Point) int {
		return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.Actual, b.Actual))
	})
	return points
}

// thinned keeps at most most points: those that were killed, as far as they take half of the room, and of the others
// evenly many from everywhere, with the first and the last.
func thinned(points []Point, most int) []Point {
	if len(points) <= most || most <= 0 {
		return points[:min(len(points), max(0, most))]
	}
	var killed, others []int
	for i, point := range points {
		if point.Killed {
			killed = append(killed, i)
		} else {
			others = append(others, i)
		}
	}
	killed = evenly(killed, max(most/2, most-len(others)))
	kept := slices.Concat(killed, evenly(others, most-len(killed)))
	slices.Sort(kept)
	few := make([]Point, len(kept))
	for i, place := range kept {
		few[i] = points[place]
	}
	return few
}

// evenly keeps at most most of the values, from everywhere in their order.
func evenly(values []int, most int) []int {
	if len(values) <= most {
		return values
	}
	if most == 1 {
		return values[:1]
	}
	kept := make([]int, 0, max(0, most))
	for i := range most {
		kept = append(kept, values[i*(len(values)-1)/(most-1)])
	}
	return kept
}
