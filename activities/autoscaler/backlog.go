package autoscaler

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	taskqueuepb "go.temporal.io/api/taskqueue/v1"
	"go.temporal.io/api/workflowservice/v1"

	"github.com/spillway-ml/spillway/predictor"
)

const (
	// lookEvery is how often the backlog of one stage is looked at. Temporal caches the numbers for five seconds, so
	// looking at the same stage more often tells nothing new.
	lookEvery = 250 * time.Millisecond
	// idleTurn makes every fourth look one at a stage that holds nothing: that finds tasks whose hints were all lost.
	idleTurn = 4
	// lookWait bounds one look.
	lookWait = 2 * time.Second
	// rememberFor is how long a stage is looked at after it was last heard of, when it is not served by this process.
	rememberFor = time.Hour
)

// backlog returns how many tasks wait in a task queue, as Temporal estimates it.
func (l *Leader) backlog(ctx context.Context, queue string) (int, error) {
	answer, err := l.options.Client.WorkflowService().DescribeTaskQueue(ctx, &workflowservice.DescribeTaskQueueRequest{
		Namespace:     l.options.Namespace,
		TaskQueue:     &taskqueuepb.TaskQueue{Name: queue, Kind: enumspb.TASK_QUEUE_KIND_NORMAL},
		TaskQueueType: enumspb.TASK_QUEUE_TYPE_ACTIVITY,
		ReportStats:   true,
	})
	if err != nil {
		return 0, fmt.Errorf("describe task queue %s: %w", queue, err)
	}
	if answer.GetStats() == nil {
		return 0, fmt.Errorf("describe task queue %s: the server reports no statistics; Temporal 1.25 or later does", queue)
	}
	return int(max(answer.GetStats().GetApproximateBacklogCount(), 0)), nil
}

// rotation says whose backlog to look at next. Its methods are safe for concurrent use.
type rotation struct {
	served func() []predictor.StageID

	mu     sync.Mutex
	active []predictor.StageID             // with rows in the plan in force
	heard  map[predictor.StageID]time.Time // when a stage was last heard of
	turn   int
	next   [2]predictor.StageID // the stage looked at last: active, idle
}

func newRotation(served func() []predictor.StageID) *rotation {
	return &rotation{served: served, heard: map[predictor.StageID]time.Time{}}
}

// hear remembers a stage that an event named.
func (r *rotation) hear(stage predictor.StageID, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.heard[stage] = now
}

// setActive takes the stages that hold something in the plan in force, and forgets those not heard of for long.
func (r *rotation) setActive(grants []predictor.Grant, now time.Time) {
	active := make([]predictor.StageID, 0, len(grants))
	for _, grant := range grants {
		active = append(active, grant.Stage)
	}
	slices.SortFunc(active, compareStages)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.active = slices.Compact(active)
	for stage, at := range r.heard {
		if now.Sub(at) > rememberFor {
			delete(r.heard, stage)
		}
	}
}

// pick returns the stage to look at now and whether it is active; ok is false when there is none.
func (r *rotation) pick() (stage predictor.StageID, active, ok bool) {
	served := r.served()
	r.mu.Lock()
	defer r.mu.Unlock()
	idle := slices.Clone(served)
	for stage := range r.heard {
		idle = append(idle, stage)
	}
	slices.SortFunc(idle, compareStages)
	idle = slices.DeleteFunc(slices.Compact(idle), func(stage predictor.StageID) bool {
		_, found := slices.BinarySearchFunc(r.active, stage, compareStages)
		return found
	})
	r.turn++
	if len(r.active) > 0 && (r.turn%idleTurn != 0 || len(idle) == 0) {
		r.next[0] = after(r.active, r.next[0])
		return r.next[0], true, true
	}
	if r.turn%idleTurn != 0 || len(idle) == 0 {
		return predictor.StageID{}, false, false
	}
	r.next[1] = after(idle, r.next[1])
	return r.next[1], false, true
}

// after returns the first of the sorted stages behind last, and the first of all behind the end.
func after(stages []predictor.StageID, last predictor.StageID) predictor.StageID {
	i, found := slices.BinarySearchFunc(stages, last, compareStages)
	if found {
		i++
	}
	return stages[i%len(stages)]
}

// compareStages tells apart the queues of a stage that teams have: the rotation goes on from where it was.
func compareStages(a, b predictor.StageID) int {
	return cmp.Or(cmp.Compare(a.App, b.App), cmp.Compare(a.Build, b.Build), cmp.Compare(a.Name, b.Name),
		cmp.Compare(a.Team, b.Team))
}

// watchBacklog looks at one stage after another until ctx ends and tells what it saw.
func (l *Leader) watchBacklog(
	ctx context.Context, stages *rotation, look func(ctx context.Context, queue string) (int, error),
	tell func(predictor.Event),
) {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		stage, active, ok := stages.pick()
		if !ok {
			continue
		}
		for _, poolOnly := range []bool{false, true} {
			l.lookAt(ctx, stage, poolOnly, active, look, tell)
		}
	}
}

// lookAt tells the backlog of one queue. An empty queue of a stage that holds nothing is no news.
func (l *Leader) lookAt(
	ctx context.Context, stage predictor.StageID, poolOnly, active bool,
	look func(ctx context.Context, queue string) (int, error), tell func(predictor.Event),
) {
	queue := stage.Queue()
	if poolOnly {
		queue = stage.PoolQueue()
	}
	ctx, cancel := context.WithTimeout(ctx, lookWait)
	defer cancel()
	tasks, err := look(ctx, queue)
	if err != nil {
		l.options.Logger.DebugContext(ctx, "backlog is unknown", "queue", queue, "error", err)
		return
	}
	if active || tasks > 0 {
		tell(predictor.BacklogObserved{Stage: stage, PoolOnly: poolOnly, Tasks: tasks, At: l.options.Now()})
	}
}
