package training

import (
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/spillway-ml/spillway/predictor/curve"
)

// Run is one recorded training.
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

// seen is the points up to a step.
func (r Run) seen(until float64) []curve.Point {
	for i, point := range r.Points {
		if point.Step > until {
			return r.Points[:i]
		}
	}
	return r.Points
}

// first is the step at which the run first reaches a level; +Inf if it never does.
func first(points []curve.Point, direction curve.Direction, level float64) float64 {
	for _, point := range points {
		if reached(direction, point.Value, level) {
			return point.Step
		}
	}
	return math.Inf(1)
}

func reached(direction curve.Direction, value, level float64) bool {
	if direction == curve.Maximise {
		return value >= level
	}
	return value <= level
}

// best is the best value of points; NaN if there is none.
func best(points []curve.Point, direction curve.Direction) float64 {
	best := math.NaN()
	for _, point := range points {
		if !math.IsNaN(point.Value) && (math.IsNaN(best) || reached(direction, point.Value, best)) {
			best = point.Value
		}
	}
	return best
}

// Protocol says what of a workload is told and asked.
type Protocol struct {
	// Seed draws which runs are earlier ones.
	Seed uint64
	// Earlier is how many earlier runs there are at most, Scored how many others of a workload are scored at most.
	Earlier, Scored int
}

// split divides the runs of a workload into earlier ones and those that are scored. Where there are too few for both,
// each run is scored with all others as earlier ones.
type split struct {
	run     Run
	earlier []Run
}

// fewest is the number of runs below which each is scored against all others: half of them would be too few to learn
// from.
const fewest = 24

func (p Protocol) splits(of Workload) []split {
	random := p.random(of.Name)
	order := random.Perm(len(of.Runs))
	var all []split
	if len(of.Runs) < fewest {
		for i, run := range of.Runs {
			earlier := slices.Delete(slices.Clone(of.Runs), i, i+1)
			all = append(all, split{run, earlier})
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
	_, _ = sum.Write([]byte(name))
	return rand.New(rand.NewPCG(p.Seed, sum.Sum64()))
}

// ladderParts are the parts of earlier runs at which levels are taken, and rungs the quantiles of all these levels that
// are asked.
var (
	ladderParts = [...]float64{0.5, 0.7, 0.9}
	rungs       = [...]float64{0.1, 0.3, 0.5, 0.7, 0.9}
)

// Ladder is the levels that are asked of a workload with these earlier runs.
func Ladder(earlier []Run, direction curve.Direction) []float64 {
	var levels []float64
	for _, run := range earlier {
		for _, part := range ladderParts {
			if level := best(run.seen(part*run.last()), direction); !math.IsNaN(level) {
				levels = append(levels, level)
			}
		}
	}
	if len(levels) == 0 {
		return nil
	}
	slices.Sort(levels)
	var ladder []float64
	for _, rung := range rungs {
		level := levels[int(rung*float64(len(levels)-1)+0.5)]
		if !slices.Contains(ladder, level) {
			ladder = append(ladder, level)
		}
	}
	return ladder
}
