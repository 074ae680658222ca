package wire_test

import (
	"context"
	"log/slog"
	"slices"
	"strconv"
	"testing"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	sdklog "go.temporal.io/sdk/log"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/spillway-ml/spillway/workflows/trigger"
)

// TestOverheadOfOneStage runs the same one-stage workflow through Spillway and as a bare Temporal activity, in turn and on the same server,
// and tells the ratio of the medians. Both are started through the client and waited for in the same way; both carry an input and an output of
// the same size. What Spillway adds is the child process, admission, the durable Record and the run's own start and end.
func TestOverheadOfOneStage(t *testing.T) {
	needMeasure(t)
	const runs = 300
	e := startEngine(t, t.TempDir(), buildApp(t, 0))
	stack, err := e.client.Stack(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	temporal, err := client.DialContext(t.Context(), client.Options{
		HostPort: stack.Addresses.Temporal, Logger: sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler)),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer temporal.Close()
	bare := worker.New(temporal, "bare", worker.Options{DisableEagerActivities: true})
	bare.RegisterActivityWithOptions(func(_ context.Context, in map[string]int) (map[string]int, error) { return in, nil }, activity.RegisterOptions{Name: "echo"})
	bare.RegisterWorkflowWithOptions(func(ctx workflow.Context, in map[string]int) (out map[string]int, err error) {
		ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{StartToCloseTimeout: time.Minute})
		return out, workflow.ExecuteActivity(ctx, "echo", in).Get(ctx, &out)
	}, workflow.RegisterOptions{Name: "bare"})
	if err := bare.Start(); err != nil {
		t.Fatal(err)
	}
	defer bare.Stop()

	app := stack.Apps[0]
	once := func(queue, kind, id string) time.Duration {
		began := time.Now()
		run, err := temporal.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{ID: id, TaskQueue: queue}, kind, map[string]int{"index": 1})
		if err != nil {
			t.Fatal(err)
		}
		if err := run.Get(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		return time.Since(began)
	}
	queue := app.Name + "@" + app.Build
	succeed[map[string]int](e, e.publish("echo", "warm", map[string]int{"index": 1}), time.Minute)
	var through, plain []time.Duration
	for i := range runs {
		through = append(through, once(queue, "echo", trigger.RunID("echo", "o"+strconv.Itoa(i))))
		plain = append(plain, once("bare", "bare", "bare-"+strconv.Itoa(i)))
	}
	slices.Sort(through)
	slices.Sort(plain)
	t.Logf("one-stage run, %d each, in turn: p50 %s through Spillway, %s bare, ratio %.2f; p99 %s and %s", runs,
		through[runs/2].Round(10*time.Microsecond), plain[runs/2].Round(10*time.Microsecond), float64(through[runs/2])/float64(plain[runs/2]),
		through[runs*99/100].Round(10*time.Microsecond), plain[runs*99/100].Round(10*time.Microsecond))
}
