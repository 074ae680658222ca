package engine_test

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"

	"github.com/spillway-ml/spillway/workflows/trigger"
)

// TestOverheadOfOneStage runs the same one-stage workflow through Spillway and as a bare Temporal activity, in turn and
// on the same server, and tells the ratio of the medians. Both are started through the client and waited for in the
// same way; both carry an input and an output of the same size. What Spillway adds is the child process, admission, the
// durable Record and the run's own start and end.
func TestOverheadOfOneStage(t *testing.T) {
	needMeasure(t)
	const runs = 300
	e := startEngine(t, t.TempDir(), buildApp(t, 0))
	stack, err := e.client.Stack(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	temporal := e.dialTemporal()
	defer temporal.Close()
	bare := worker.New(temporal, bareQueue, worker.Options{DisableEagerActivities: true})
	registerBare(bare)
	if err := bare.Start(); err != nil {
		t.Fatal(err)
	}
	defer bare.Stop()

	app := stack.Apps[0]
	once := func(queue, kind, id string) time.Duration {
		began := time.Now()
		run, err := temporal.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{ID: id, TaskQueue: queue}, kind,
			map[string]int{"index": 1})
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
		plain = append(plain, once(bareQueue, bareRun, "bare-"+strconv.Itoa(i)))
	}
	slices.Sort(through)
	slices.Sort(plain)
	t.Logf("one-stage run, %d each, in turn: p50 %s through Spillway, %s bare, ratio %.2f; p99 %s and %s", runs,
		through[runs/2].Round(10*time.Microsecond), plain[runs/2].Round(10*time.Microsecond),
		float64(through[runs/2])/float64(plain[runs/2]),
		through[runs*99/100].Round(10*time.Microsecond), plain[runs*99/100].Round(10*time.Microsecond))
}
