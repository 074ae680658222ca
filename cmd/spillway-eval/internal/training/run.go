package training

import (
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/spillway-ml/spillway/predictor/curve"
)

// Run is one recorded training, with at least one point.
type Run struct {
	Name   string
	Points []curve.Point
}

// Workload is trainings that are alike.
type Workload struct {
	Name      string
	Direction curve.Direction
	Runs      []Run
}

// last is the step at which the run ends.
func (r Run) last() float64 { return r.Points[len(r.Points)-1].Step }

// seen is the points of a part of the steps.
func (r Run) seen(part float64) []curve.Point {
	for i, point := range r.Points {
		if point.Step > part*r.last() {
			return r.Points[:i]
		}
	}
	return r.Points
}

// first is the step at which points first reach a level; +Inf if they never do.
func first(points []curve.Point, direction curve.Direction, level float64) float64 {
	for _, point := range points {
		if lossOf(direction, point.Value) <= lossOf(direction, level) {
			return point.Step
		}
	}
	return math.Inf(1)
}

// lossOf is a value of which less is better.
func lossOf(direction curve.Direction, value float64) float64 {
	if direction == curve.Maximise {
		return -value
	}
	return value
}

// best is the best value of points; NaN if there is none.
func best(points []curve.Point, direction curve.Direction) float64 {
	best := math.NaN()
	for _, point := range points {
		if value := point.Value; math.IsNaN(best) || lossOf(direction, value) < lossOf(direction, best) {
			best = value
		}
	}
	return best
}

// Protocol says what of a workload is told and asked.
type Protocol struct {
	// Seed draws which runs are earlier ones.
	Seed uint64
	// Earlier is how many earlier runs there are at most, Scored how many others of a workload are scored at most; both
	// 1 or more.
	Earlier, Scored int
	// Measured has the steps of others, too, rounded up to the run's next measurements.
	Measured bool
}

// split is a run that is scored, and the earlier ones.
type split struct {
	run     Run
	earlier []Run
}

// fewestToHalve is the number of runs below which each is scored with all others as earlier ones: half of them would be
// too few to learn from.
const fewestToHalve = 24

func (p Protocol) splits(of Workload) []split {
	order := p.random(of.Name).Perm(len(of.Runs))
	var all []split
	if len(order) < fewestToHalve {
		for i, run := range of.Runs {
			all = append(all, split{run, slices.Delete(slices.Clone(of.Runs), i, i+1)})
		}
		return all[:min(len(all), p.Scored)]
	}
	n := min(len(order)/2, p.Earlier)
	earlier := make([]Run, n)
	for i := range earlier {
		earlier[i] = of.Runs[order[i]]
	}
	for _, i := range order[n:min(len(order), n+p.Scored)] {
		all = append(all, split{of.Runs[i], earlier})
	}
	return all
}

func (p Protocol) random(name string) *rand.Rand {
	sum := fnv.New64a()
	_, _ = sum.Write([]byte(name)) // it returns no error
	return rand.New(rand.NewPCG(p.Seed, sum.Sum64()))
}

// The levels of a workload are the rungs, quantiles of what earlier runs had reached after these parts of their steps.
var (
	ladderParts = [...]float64{0.5, 0.7, 0.9}
	rungs       = [...]float64{0.1, 0.3, 0.5, 0.7, 0.9}
)

// Ladder is the levels that are asked of a run after these earlier ones.
func Ladder(earlier []Run, direction curve.Direction) []float64 {
	var levels []float64
	for _, run := range earlier {
		for _, part := range ladderParts {
			if level := best(run.seen(part), direction); !math.IsNaN(level) {
				levels = append(levels, level)
			}
		}
	}
	var ladder []float64
	for _, rung := range rungs {
		if level := quantile(levels, rung); !math.IsNaN(level) && !slices.Contains(ladder, level) {
			ladder = append(ladder, level)
		}
	}
	return ladder
}

// quantile is the value at a level of values, without interpolation, since some are infinite; NaN of none.
func quantile(values []float64, level float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[int(level*float64(len(sorted)-1)+0.5)]
}
