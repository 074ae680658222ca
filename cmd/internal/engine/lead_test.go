package engine_test

import (
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/client"
	sdklog "go.temporal.io/sdk/log"
)

// dialTemporal connects to the engine's Temporal as any program of its owner may.
func (e *testEngine) dialTemporal() client.Client {
	e.t.Helper()
	stack, err := e.client.Stack(e.t.Context())
	if err != nil {
		e.t.Fatal(err)
	}
	temporal, err := dialTemporal(stack.Addresses.Temporal, e.token)
	if err != nil {
		e.t.Fatal(err)
	}
	return temporal
}

// dialTemporal connects with the owner's token, and logs nothing.
func dialTemporal(address, token string) (client.Client, error) {
	return client.Dial(client.Options{
		HostPort: address, Logger: sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler)),
		Credentials: client.NewAPIKeyStaticCredentials(token), ConnectionOptions: client.ConnectionOptions{TLSDisabled: true},
	})
}

// metric is the sum of a metric's series with all of these labels, each written as /metrics does.
func (e *testEngine) metric(name string, labels ...string) (sum float64) {
	e.t.Helper()
	for series, value := range e.series() {
		if found, _, _ := strings.Cut(series, "{"); found == name &&
			!slices.ContainsFunc(labels, func(label string) bool { return !strings.Contains(series, label) }) {
			sum += value
		}
	}
	return sum
}

// leads waits until the engine leads the loop.
func (e *testEngine) leads() {
	e.t.Helper()
	for deadline := time.Now().Add(time.Minute); e.metric("spillway_leader") != 1; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			e.t.Fatalf("the engine does not lead after a minute:\n%s", e.printed())
		}
	}
}

func TestAnEngineLeadsAfterAKilledOneAndEndsTheWorkflowThatLedBefore(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	e := startEngine(t, state, "")
	e.leads()
	temporal := e.dialTemporal()
	// What an engine of before the lease leaves behind.
	options := client.StartWorkflowOptions{ID: "spillway-autoscaler", TaskQueue: "spillway-engine"}
	_, err := temporal.ExecuteWorkflow(t.Context(), options, "spillway.autoscaler")
	temporal.Close()
	if err != nil {
		t.Fatal(err)
	}
	e.kill()
	e = startEngine(t, state, "")
	e.leads()
	if failed := e.metric("spillway_leader_failures_total"); failed != 0 {
		t.Errorf("the lead failed %v times", failed)
	}
	temporal = e.dialTemporal()
	defer temporal.Close()
	former, err := temporal.DescribeWorkflowExecution(t.Context(), "spillway-autoscaler", "")
	if err != nil {
		t.Fatal(err)
	}
	if status := former.GetWorkflowExecutionInfo().GetStatus(); status != enumspb.WORKFLOW_EXECUTION_STATUS_TERMINATED {
		t.Errorf("the workflow of an earlier engine is %s", status)
	}
}
