package workflows_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/interceptor"
	sdklog "go.temporal.io/sdk/log"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	spillway "github.com/spillway-ml/spillway/workflows"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// crowd counts how many attempts run at a time.
type crowd struct{ now, most atomic.Int64 }

func (c *crowd) attempt(_ context.Context, _ wire.Task, input json.RawMessage) (wire.Result, error) {
	c.most.Store(max(c.most.Load(), c.now.Add(1)))
	defer c.now.Add(-1)
	time.Sleep(time.Millisecond) // so that attempts overlap: the window is what keeps them apart
	var in square
	if err := json.Unmarshal(input, &in); err != nil {
		return wire.Result{}, err
	}
	output, err := json.Marshal(in.Number * in.Number)
	return wire.Result{Output: output}, err
}

// windowRun maps over 400 shards with a window of 8, which an update changes to another one at once.
func windowRun(t *testing.T, change int) (most int64, err error) {
	t.Helper()
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	env := suite.NewTestWorkflowEnvironment()
	env.SetTestTimeout(time.Minute)
	ports := runs.Ports{Stages: []runs.AnyStage{squared, total, sum}, Window: 8}
	env.SetWorkerOptions(worker.Options{
		Interceptors:             []interceptor.WorkerInterceptor{runs.NewInterceptor(ports)},
		DeadlockDetectionTimeout: time.Minute, // a busy machine is no deadlock
	})
	pipeline := spillway.NewPipeline("squares", mapOnly)
	runs.Register(env, ports, []runs.AnyPipeline{pipeline})
	var seen crowd
	env.RegisterActivityWithOptions(seen.attempt, activity.RegisterOptions{Name: squared.Name()})
	var refused error
	if change != 0 {
		env.RegisterDelayedCallback(func() {
			env.UpdateWorkflow(runs.WindowUpdate, "w1", &testsuite.TestUpdateCallback{
				OnAccept: func() {}, OnReject: func(err error) { refused = err }, OnComplete: func(any, error) {},
			}, predictor.Window{Stage: predictor.StageID{Name: squared.Name()}, Tasks: change})
		}, 0)
	}
	env.ExecuteWorkflow(pipeline.Name(), 400)
	if err := env.GetWorkflowError(); err != nil {
		t.Fatal(err)
	}
	return seen.most.Load(), refused
}

func TestAWindowBoundsTheTasksInFlightAndFollowsUpdates(t *testing.T) {
	t.Parallel()
	if most, _ := windowRun(t, 0); most > 8 {
		t.Errorf("with a window of 8, %d attempts ran at a time", most)
	}
	if most, err := windowRun(t, 2); most > 8 || err != nil {
		t.Errorf("lowered to 2: %d attempts at a time, refused: %v", most, err)
	}
	if most, err := windowRun(t, 100); most <= 8 || err != nil {
		t.Errorf("raised to 100: %d attempts at a time, refused: %v; want more than the 8 of before", most, err)
	}
	if _, err := windowRun(t, -1); err == nil {
		t.Error("a window of -1 was accepted")
	}
}

// TestTheNewestPriorityOfAStageReachesItsTasks maps over shards in chunks while an update makes the run urgent, in runs
// of either version.
func TestTheNewestPriorityOfAStageReachesItsTasks(t *testing.T) {
	t.Parallel()
	for version, want := range map[int]map[temporal.Priority]bool{
		0: {temporal.Priority{}: true},
		1: {temporal.Priority{FairnessKey: "squares"}: true, temporal.Priority{PriorityKey: 1, FairnessKey: "squares"}: true},
		2: {temporal.Priority{FairnessKey: "squares"}: true, temporal.Priority{PriorityKey: 1, FairnessKey: "squares"}: true},
	} {
		t.Run(fmt.Sprint("version ", version), func(t *testing.T) {
			t.Parallel()
			var suite testsuite.WorkflowTestSuite
			suite.SetLogger(sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler)))
			env := suite.NewTestWorkflowEnvironment()
			env.SetTestTimeout(time.Minute)
			ports := runs.Ports{Stages: []runs.AnyStage{squared, total, sum}, Window: 8}
			options := &scheduled{seen: map[temporal.Priority]int{}}
			env.SetWorkerOptions(worker.Options{
				Interceptors:             []interceptor.WorkerInterceptor{runs.NewInterceptor(ports), options},
				DeadlockDetectionTimeout: time.Minute, // a busy machine is no deadlock
			})
			if err := env.SetMemoOnStart(map[string]any{runs.OptionsMemo: wire.RunOptions{Version: version}}); err != nil {
				t.Fatal(err)
			}
			pipeline := spillway.NewPipeline("squares", mapOnly)
			runs.Register(env, ports, []runs.AnyPipeline{pipeline})
			var refused error
			var once sync.Once
			env.RegisterActivityWithOptions(func(context.Context, wire.Task, json.RawMessage) (wire.Result, error) {
				once.Do(func() {
					for i, priority := range []int{1, 6} {
						env.UpdateWorkflow(runs.WindowUpdate, fmt.Sprint("w", i), &testsuite.TestUpdateCallback{
							OnAccept: func() {}, OnReject: func(err error) { refused = err }, OnComplete: func(any, error) {},
						}, predictor.Window{Stage: predictor.StageID{Name: squared.Name()}, Tasks: 8, Priority: priority})
					}
				})
				return wire.Result{Output: json.RawMessage("1")}, nil
			}, activity.RegisterOptions{Name: squared.Name()})
			env.ExecuteWorkflow(pipeline.Name(), 400)
			if err := env.GetWorkflowError(); err != nil {
				t.Fatal(err)
			}
			seen := map[temporal.Priority]bool{}
			for priority := range options.seen {
				seen[priority] = true
			}
			if diff := cmp.Diff(want, seen); diff != "" {
				t.Errorf("priorities of the tasks (-want +got):\n%s", diff)
			}
			if refused == nil {
				t.Error("a priority of 6 was accepted")
			}
		})
	}
}

// TestAPriorityReachesTheOpenChunksWhileOthersAreStillToBeOpened: a Map of four chunks, of which two are open at a
// time, becomes urgent as its first task runs.
func TestAPriorityReachesTheOpenChunksWhileOthersAreStillToBeOpened(t *testing.T) {
	t.Parallel()
	const shards, perChunk = 2000, 500
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	env := suite.NewTestWorkflowEnvironment()
	env.SetTestTimeout(time.Minute)
	ports := runs.Ports{Stages: []runs.AnyStage{squared}, Window: 8}
	options := &scheduled{seen: map[temporal.Priority]int{}}
	env.SetWorkerOptions(worker.Options{
		Interceptors:             []interceptor.WorkerInterceptor{runs.NewInterceptor(ports), options},
		DeadlockDetectionTimeout: time.Minute, // a busy machine is no deadlock
	})
	if err := env.SetMemoOnStart(map[string]any{runs.OptionsMemo: wire.RunOptions{Version: wire.WorkflowVersion}}); err !=
		nil {
		t.Fatal(err)
	}
	pipeline := spillway.NewPipeline("squares", mapOnly)
	runs.Register(env, ports, []runs.AnyPipeline{pipeline})
	var once sync.Once
	env.RegisterActivityWithOptions(func(context.Context, wire.Task, json.RawMessage) (wire.Result, error) {
		once.Do(func() {
			env.UpdateWorkflow(runs.WindowUpdate, "w1", &testsuite.TestUpdateCallback{
				OnAccept: func() {}, OnReject: func(err error) { t.Error(err) }, OnComplete: func(any, error) {},
			}, predictor.Window{Stage: predictor.StageID{Name: squared.Name()}, Tasks: 16, Priority: 1})
		})
		return wire.Result{Output: json.RawMessage("1")}, nil
	}, activity.RegisterOptions{Name: squared.Name()})
	env.ExecuteWorkflow(pipeline.Name(), shards)
	if err := env.GetWorkflowError(); err != nil {
		t.Fatal(err)
	}
	usual := options.seen[temporal.Priority{FairnessKey: "squares"}]
	urgent := options.seen[temporal.Priority{PriorityKey: 1, FairnessKey: "squares"}]
	if usual+urgent != shards || usual >= perChunk {
		t.Errorf("%d tasks went without the priority and %d with it; want fewer than the %d of one chunk of %d without",
			usual, urgent, perChunk, shards)
	}
}

// scheduled notes the priorities with which tasks are scheduled.
type scheduled struct {
	interceptor.WorkerInterceptorBase
	mu   sync.Mutex
	seen map[temporal.Priority]int // how many tasks
}

func (s *scheduled) InterceptWorkflow(
	_ workflow.Context, next interceptor.WorkflowInboundInterceptor,
) interceptor.WorkflowInboundInterceptor {
	return &scheduledInbound{
		WorkflowInboundInterceptorBase: interceptor.WorkflowInboundInterceptorBase{Next: next},
		scheduled:                      s,
	}
}

type scheduledInbound struct {
	interceptor.WorkflowInboundInterceptorBase
	scheduled *scheduled
}

func (i *scheduledInbound) Init(outbound interceptor.WorkflowOutboundInterceptor) error {
	return i.Next.Init(&scheduledOutbound{
		WorkflowOutboundInterceptorBase: interceptor.WorkflowOutboundInterceptorBase{Next: outbound}, scheduled: i.scheduled,
	})
}

type scheduledOutbound struct {
	interceptor.WorkflowOutboundInterceptorBase
	scheduled *scheduled
}

func (o *scheduledOutbound) ExecuteActivity(ctx workflow.Context, name string, arguments ...any) workflow.Future {
	o.scheduled.mu.Lock()
	o.scheduled.seen[workflow.GetActivityOptions(ctx).Priority]++
	o.scheduled.mu.Unlock()
	return o.Next.ExecuteActivity(ctx, name, arguments...)
}
