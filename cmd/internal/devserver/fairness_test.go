package devserver

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
)

const (
	// ordersQueue is where the workflows of these tests run, tasksQueue where their activities do.
	ordersQueue, tasksQueue = "orders", "tasks"
	// fairnessPatience is how long a test waits for what must happen; it decides nothing.
	fairnessPatience = 2 * time.Minute
)

// order is a workflow with one activity of the priority that it has itself.
func order(ctx workflow.Context, name string) (string, error) {
	var out string
	err := workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		TaskQueue: tasksQueue, StartToCloseTimeout: time.Minute, RetryPolicy: &temporal.RetryPolicy{MaximumAttempts: 1},
		Priority: workflow.GetInfo(ctx).Priority,
	}), "serve", name).Get(ctx, &out)
	return out, err
}

// served notes the workflows whose activities ran, in order.
type served struct {
	mu    sync.Mutex
	names []string
}

func (s *served) serve(_ context.Context, name string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.names = append(s.names, name)
	return name, nil
}

// times counts how often each was served.
func (s *served) times() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	times := map[string]int{}
	for _, name := range s.names {
		times[name]++
	}
	return times
}

// startOrders starts n workflows of a fairness key and returns their names.
func startOrders(tb testing.TB, c client.Client, key string, n int, priority temporal.Priority) (names []string) {
	tb.Helper()
	for i := range n {
		name := fmt.Sprint(key, "-", i)
		if _, err := c.ExecuteWorkflow(tb.Context(), client.StartWorkflowOptions{
			ID: name, TaskQueue: ordersQueue, Priority: priority,
		}, order, name); err != nil {
			tb.Fatalf("start workflow %s: %v", name, err)
		}
		names = append(names, name)
	}
	return names
}

// serveOrders polls for workflows, not for activities.
func serveOrders(tb testing.TB, c client.Client) worker.Worker {
	tb.Helper()
	w := worker.New(c, ordersQueue, worker.Options{})
	w.RegisterWorkflow(order)
	if err := w.Start(); err != nil {
		tb.Fatal(err)
	}
	return w
}

// serveTasks serves activities one after another.
func (s *served) serveTasks(tb testing.TB, c client.Client, parallel int) worker.Worker {
	tb.Helper()
	w := worker.New(c, tasksQueue, worker.Options{
		DisableWorkflowWorker: true, MaxConcurrentActivityExecutionSize: parallel,
		MaxConcurrentActivityTaskPollers: min(parallel, 4),
	})
	w.RegisterActivityWithOptions(s.serve, activity.RegisterOptions{Name: "serve"})
	if err := w.Start(); err != nil {
		tb.Fatal(err)
	}
	return w
}

// awaitBacklog waits until at least this many tasks wait in the queue.
func awaitBacklog(tb testing.TB, c client.Client, queue string, kind client.TaskQueueType, want int64) {
	tb.Helper()
	for deadline := time.Now().Add(fairnessPatience); ; time.Sleep(50 * time.Millisecond) {
		d, err := c.DescribeTaskQueueEnhanced(tb.Context(), client.DescribeTaskQueueEnhancedOptions{
			TaskQueue: queue, TaskQueueTypes: []client.TaskQueueType{kind}, ReportStats: true,
		})
		var got int64
		if err == nil {
			for _, version := range d.VersionsInfo { //nolint:staticcheck // as above
				if stats := version.TypesInfo[kind].Stats; stats != nil {
					got += stats.ApproximateBacklogCount
				}
			}
			if got >= want { // a restart adds the newest again, which are left out when they come to be served
				return
			}
		}
		if time.Now().After(deadline) {
			tb.Fatalf("%d tasks wait in %s, want %d: %v", got, queue, want, err)
		}
	}
}

// TestWhatWaitsInADatabaseFromBeforeFairnessIsServedOnce leaves tasks of both kinds waiting in servers without
// fairness, with it, without it again and with it again.
func TestWhatWaitsInADatabaseFromBeforeFairnessIsServedOnce(t *testing.T) {
	t.Parallel()
	const each = 60
	dir := t.TempDir()
	want := map[string]int{}
	note := func(names []string) {
		for _, name := range names {
			want[name] = 1
		}
	}
	for i, unfair := range []bool{true, false, true} {
		s := start(t, Options{Dir: dir, NoUI: true, unfair: unfair})
		c := dialTemporal(t, s.TemporalAddress(), dir)
		orders := serveOrders(t, c)
		key := fmt.Sprint("tasks", i)
		note(startOrders(t, c, key, each, temporal.Priority{PriorityKey: 1 + i, FairnessKey: key}))
		// with those whose workflows waited before
		awaitBacklog(t, c, tasksQueue, client.TaskQueueTypeActivity, int64(each*(2*i+1)))
		orders.Stop()
		key = fmt.Sprint("workflows", i)
		note(startOrders(t, c, key, each, temporal.Priority{FairnessKey: key}))
		c.Close()
		stop(t, s)
	}
	s := start(t, Options{Dir: dir, NoUI: true})
	c := dialTemporal(t, s.TemporalAddress(), dir)
	defer c.Close()
	var served served
	defer serveOrders(t, c).Stop()
	defer served.serveTasks(t, c, 10).Stop()
	awaitOrders(t, c, slices.Collect(maps.Keys(want)))
	if diff := cmp.Diff(want, served.times()); diff != "" {
		t.Errorf("how often each was served (-want +got):\n%s", diff)
	}
}

// awaitOrders waits until the workflows have completed.
func awaitOrders(tb testing.TB, c client.Client, names []string) {
	tb.Helper()
	for _, name := range names {
		var got string
		if err := c.GetWorkflow(tb.Context(), name, "").Get(tb.Context(), &got); err != nil || got != name {
			tb.Fatalf("result of workflow %s: %q, %v", name, got, err)
		}
	}
}

// TestTasksAreServedByPriorityThenInTurnByKey lets tasks of a flood wait, then some of another key and some of a higher
// priority.
func TestTasksAreServedByPriorityThenInTurnByKey(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := start(t, Options{Dir: dir, NoUI: true})
	c := dialTemporal(t, s.TemporalAddress(), dir)
	defer c.Close()
	defer serveOrders(t, c).Stop()
	const flood, few = 100, 5
	names := startOrders(t, c, "flood", flood, temporal.Priority{FairnessKey: "flood"})
	awaitBacklog(t, c, tasksQueue, client.TaskQueueTypeActivity, flood)
	names = append(names, startOrders(t, c, "small", few, temporal.Priority{FairnessKey: "small"})...)
	names = append(names, startOrders(t, c, "late", few, temporal.Priority{PriorityKey: 1, FairnessKey: "flood"})...)
	awaitBacklog(t, c, tasksQueue, client.TaskQueueTypeActivity, flood+2*few)
	var served served
	defer served.serveTasks(t, c, 1).Stop()
	awaitOrders(t, c, names)
	last := func(key string) (at int) {
		for i, name := range served.names {
			if strings.HasPrefix(name, key) {
				at = i
			}
		}
		return at
	}
	// Order is loose by what is read ahead, not by half of the flood.
	if late, small := last("late"), last("small"); late > 2*few || small > flood/2 {
		t.Errorf("the last of the late was served as number %d and that of the small pipeline as %d of %d, want up to %d "+
			"and %d:\n%v",
			late, small, len(served.names), 2*few, flood/2, served.names)
	}
}
