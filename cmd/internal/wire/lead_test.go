package wire_test

import (
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/client"
	sdklog "go.temporal.io/sdk/log"
)

// dialTemporal connects to the engine's Temporal as any program of a user may.
func (e *engine) dialTemporal() client.Client {
	e.t.Helper()
	stack, err := e.client.Stack(e.t.Context())
	if err != nil {
		e.t.Fatal(err)
	}
	temporal, err := client.DialContext(e.t.Context(), client.Options{
		HostPort: stack.Addresses.Temporal, Logger: sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler)),
	})
	if err != nil {
		e.t.Fatal(err)
	}
	return temporal
}

// metric returns the value of a series without labels, as /metrics writes it; empty when it is not there.
func (e *engine) metric(name string) string {
	e.t.Helper()
	stack, err := e.client.Stack(e.t.Context())
	if err != nil {
		e.t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(e.t.Context(), http.MethodGet, stack.Addresses.HTTP+"/metrics", http.NoBody)
	if err != nil {
		e.t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		e.t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		e.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if value, found := strings.CutPrefix(line, name+" "); found {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// leads waits until the engine leads the loop.
func (e *engine) leads() {
	e.t.Helper()
	for deadline := time.Now().Add(time.Minute); e.metric("spillway_leader") != "1"; time.Sleep(20 * time.Millisecond) {
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
	_, err := temporal.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{ID: "spillway-autoscaler", TaskQueue: "spillway-engine"}, "spillway.autoscaler")
	temporal.Close()
	if err != nil {
		t.Fatal(err)
	}
	e.kill()
	e = startEngine(t, state, "")
	e.leads()
	if failed := e.metric("spillway_leader_failures_total"); failed != "0" {
		t.Errorf("the lead failed %s times", failed)
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
