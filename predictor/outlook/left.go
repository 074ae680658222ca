package outlook

import (
	"maps"
	"math"
	"math/rand/v2"
	"slices"
)

// Left is what is expected to be left of one stage of a run. Times are in seconds.
type Left struct {
	Stage string
	// Called says that the run has called it; it is the i-th of its stages then.
	Called bool
	// Tasks is how many do not run yet.
	Tasks int
	// Mean is what a task takes in the mean, as those of earlier runs and of this one did wherever they ran; 0 where
	// nothing tells. Spread is the standard deviation of the logarithm of one, Doubt that of all together: what their
	// number and their mean are uncertain by.
	Mean, Spread, Doubt float64
	// Start and End are when it is called and done, from now on, as the latest run that is alike had it once the called
	// stages were done. Stages that the run has called go on now.
	Start, End float64
}

// beside is for how long called stages are said to go on, so that they overlap and nothing else does.
const beside = 1e-6

// Left is what is expected to be left of the stages of a run, in the order in which they are called, and for how many
// seconds the run goes on after the last of them. names are those of the stages that the run has called. What follows
// these is what followed in the latest run that is alike, with as many tasks as this one lets expect, and as long ones.
func (j Journey) Left(names []string) (all []Left, after float64) {
	random := rand.New(rand.NewPCG(j.Seed, uint64(len(j.Called))))
	with := make(map[string]float64, len(j.With)+1)
	maps.Copy(with, j.With)
	for i, leg := range j.Called {
		if !leg.goes() {
			continue
		}
		left := Left{Stage: names[i], Called: true, Tasks: leg.Waiting, Spread: leg.Task, End: beside}
		if means := leg.means(j.With, random); len(means) > 0 {
			left.Mean, left.Doubt = middle(slices.Sorted(slices.Values(means))).Mid, scatter(means)
		}
		all = append(all, left)
	}
	if len(j.Ways) == 0 {
		return all, 0
	}
	way := j.Ways[len(j.Ways)-1]
	called := 0.0
	for _, stage := range way.Stages[:min(len(j.Called), len(way.Stages))] {
		called = max(called, stage.End)
	}
	if len(all) == 0 && len(j.Called) > 0 {
		called += j.quiet()
	}
	for _, stage := range way.Stages[min(len(j.Called), len(way.Stages)):] {
		left := j.later(stage, with, random)
		left.Start = max(beside, stage.Start-called)
		left.End = max(left.Start, stage.End-called)
		all = append(all, left)
	}
	return all, max(0, way.Seconds-max(way.last(), called))
}

// later is a stage that the run has not called yet.
func (j Journey) later(stage Passed, with map[string]float64, random *rand.Rand) Left {
	leg := j.Later[stage.Name]
	counts, means, works := make([]float64, resamples), make([]float64, resamples), make([]float64, resamples)
	for i := range counts {
		counts[i] = math.Round(min(max(1, leg.Count.Draw(with, random)), mostDrawn))
		own := make(map[string]float64, len(with)+2)
		maps.Copy(own, with)
		if leg.Input.Known() {
			own[TaskInput] = leg.Input.Draw(with, random) / counts[i]
		}
		own[TaskPart] = 1 / counts[i]
		means[i] = leg.Mean.Draw(own, random)
		works[i] = counts[i] * means[i]
	}
	left := Left{Stage: stage.Name, Tasks: int(middle(slices.Sorted(slices.Values(counts))).Mid), Spread: leg.Task}
	if leg.Mean.Known() {
		left.Mean, left.Doubt = middle(slices.Sorted(slices.Values(means))).Mid, scatter(works)
	}
	with[TasksBefore] = float64(left.Tasks)
	return left
}
