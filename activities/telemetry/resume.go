package telemetry

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Followed is what the series follow from message to message, without what is counted: who begins with it need not
// replay the messages of before. Its lists are sorted.
type Followed struct {
	// Stages and Pipelines are those with series of their own, as their labels say.
	Stages    []FollowedStage
	Pipelines []string
	Runs      []FollowedRun
	Queues    []FollowedQueue
	Hosts     []predictor.HostHeld
}

// FollowedStage is a stage with the highest memory of its latest attempt by venue, in bytes; 0 where none has ended.
type FollowedStage struct {
	App, Stage             string
	PoolPeak, FunctionPeak float64
}

// FollowedRun is a run that goes on.
type FollowedRun struct {
	Run, Pipeline string
	Start         time.Time
	Goal          predictor.Goal
	Cost          quantity.Money
	Traceparent   string
}

// FollowedQueue is how many tasks of a stage wait in the shared queue and in the pool's own.
type FollowedQueue struct {
	Stage        predictor.StageID
	Shared, Pool int
}

// Follows is what the series follow now.
func (m *Metrics) Follows() Followed {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := Followed{Pipelines: slices.Sorted(maps.Keys(m.pipelines))}
	for labels := range m.stages {
		f.Stages = append(f.Stages, FollowedStage{
			App: labels.app, Stage: labels.stage, PoolPeak: m.peaks[grantLabels{labels, predictor.Pool}],
			FunctionPeak: m.peaks[grantLabels{labels, predictor.Function}],
		})
	}
	for id, run := range m.going {
		f.Runs = append(f.Runs, FollowedRun{id, run.pipeline, run.start, run.goal, run.cost, run.traceparent})
	}
	for stage, sizes := range m.waiting {
		f.Queues = append(f.Queues, FollowedQueue{stage, sizes.shared, sizes.pool})
	}
	for _, held := range m.hosts {
		f.Hosts = append(f.Hosts, held)
	}
	slices.SortFunc(f.Stages, func(a, b FollowedStage) int {
		return cmp.Or(cmp.Compare(a.App, b.App), cmp.Compare(a.Stage, b.Stage))
	})
	slices.SortFunc(f.Runs, func(a, b FollowedRun) int { return cmp.Compare(a.Run, b.Run) })
	slices.SortFunc(f.Queues, func(a, b FollowedQueue) int { return cmp.Compare(a.Stage.Queue(), b.Stage.Queue()) })
	slices.SortFunc(f.Hosts, func(a, b predictor.HostHeld) int { return cmp.Compare(a.Host, b.Host) })
	return f
}

// Resume goes on with what other Metrics have followed. It is called before anything else.
func (m *Metrics) Resume(f Followed) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range f.Pipelines {
		m.knownPipeline(name)
	}
	for _, stage := range f.Stages {
		labels := m.known(predictor.StageID{App: stage.App, Name: stage.Stage})
		m.showPeak(labels, predictor.Pool, stage.PoolPeak)
		m.showPeak(labels, predictor.Function, stage.FunctionPeak)
	}
	for _, queue := range f.Queues {
		m.followBacklog(predictor.BacklogObserved{Stage: queue.Stage, Tasks: queue.Shared})
		m.followBacklog(predictor.BacklogObserved{Stage: queue.Stage, Tasks: queue.Pool, PoolOnly: true})
	}
	for _, run := range f.Runs {
		m.followRunStarted(predictor.RunStarted{
			Run: run.Run, Pipeline: run.Pipeline, Goal: run.Goal, Traceparent: run.Traceparent, At: run.Start,
		})
		if going, known := m.going[run.Run]; known {
			going.cost = run.Cost
		}
	}
	for _, host := range f.Hosts {
		m.followHostHeld(host)
	}
}
