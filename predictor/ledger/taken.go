package ledger

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/timeline"
)

// Taken is what a run that has ended took, stage by stage, for [predictor.State.ProspectAfter]. What is no task of it
// that succeeded is left out; nothing is told of a run whose attempts are kept no longer.
func (d *Detail) Taken(of RunView) predictor.Taken {
	taken := predictor.Taken{
		Run: of.Run, App: of.App, Pipeline: of.Pipeline, Seconds: d.course.EndedAt.Sub(d.course.StartedAt).Seconds(),
		Cost: of.Totals.Cost,
	}
	byStage := map[string][]timeline.Attempt{}
	var names []string
	for _, one := range d.Attempts(AttemptQuery{}) {
		if len(byStage[one.Stage]) == 0 {
			names = append(names, one.Stage)
		}
		byStage[one.Stage] = append(byStage[one.Stage], one)
	}
	for _, name := range names {
		if stage := d.takenBy(byStage[name]); stage.Tasks > 0 {
			taken.Stages = append(taken.Stages, stage)
		}
	}
	slices.SortStableFunc(taken.Stages, func(a, b predictor.TakenStage) int { return cmp.Compare(a.Start, b.Start) })
	return taken
}

// takenBy is what the attempts of one stage took.
func (d *Detail) takenBy(attempts []timeline.Attempt) (stage predictor.TakenStage) {
	var logs, squares, cores, walls float64
	var begun, ended [2][]time.Time
	cost, mixed := quantity.Money(0), false
	stage.Stage, stage.Start = attempts[0].Stage, math.Inf(1)
	for _, one := range attempts {
		cost = cost.Plus(one.Cost)
		if one.EndedAt.IsZero() || one.StartedAt.IsZero() {
			continue
		}
		stage.Start = min(stage.Start, max(0, one.ScheduledAt.Sub(d.course.StartedAt).Seconds()))
		stage.End = max(stage.End, one.EndedAt.Sub(d.course.StartedAt).Seconds())
		at := 0
		if one.Venue == predictor.Function {
			at = 1
			stage.Class = max(stage.Class, one.Grant.Memory)
		} else {
			mixed = mixed || len(begun[0]) > 0 && one.Grant.DeviceClass != stage.Size.DeviceClass
			stage.Size = one.Grant
		}
		begun[at], ended[at] = append(begun[at], one.StartedAt), append(ended[at], one.EndedAt)
		if one.Outcome != predictor.Succeeded || one.Wall <= 0 {
			continue
		}
		stage.Tasks++
		wall := one.Wall.Seconds()
		walls, logs, squares = walls+wall, logs+math.Log(wall), squares+math.Log(wall)*math.Log(wall)
		cores += coresOf(one)
	}
	if mixed { // what tasks took is that of no class of GPU
		stage.Size.DeviceClass = ""
	}
	n := max(1, float64(stage.Tasks))
	stage.Mean, stage.Cores = walls/n, cores/n
	if !d.together[stage.Stage] { // workers do each other's work: each takes as long as all do in the mean
		stage.Spread = math.Sqrt(max(0, squares/n-logs/n*logs/n))
	}
	stage.Slots, stage.Functions = atOnce(begun[0], ended[0]), atOnce(begun[1], ended[1])
	stage.Seconds, stage.Cost = max(0, stage.End-stage.Start), cost.USD()
	return stage
}

// coresOf is how many cores an attempt had.
func coresOf(one timeline.Attempt) float64 {
	if one.Venue == predictor.Function && one.Grant.CPU == 0 {
		return predictor.ClassCores(one.Grant.Memory)
	}
	return one.Grant.CPU.Cores()
}

// atOnce is how many ran at a time at most.
func atOnce(begun, ended []time.Time) (most int) {
	slices.SortFunc(begun, time.Time.Compare)
	slices.SortFunc(ended, time.Time.Compare)
	over := 0
	for i, at := range begun {
		for over < len(ended) && !ended[over].After(at) {
			over++
		}
		most = max(most, i+1-over)
	}
	return most
}

// together are the stages by whose tasks several workers trained one model.
func (a *account) together() map[string]bool {
	found := map[string]bool{}
	for _, kept := range a.detail.trainings {
		if kept.Training.Workers > 1 {
			found[kept.Stage] = true
		}
	}
	return found
}
