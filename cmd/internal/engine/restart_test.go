package engine_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"

	"github.com/spillway-ml/spillway/activities/natstest"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/alerting"
)

// stream opens JetStream on the engine's server.
func (e *testEngine) stream() jetstream.JetStream {
	e.t.Helper()
	connection := e.dialNATS()
	e.t.Cleanup(connection.Close)
	stream, err := jetstream.New(connection)
	if err != nil {
		e.t.Fatal(err)
	}
	return stream
}

// tell puts an event into the loop's stream, and returns without waiting for the server.
func tell(t *testing.T, stream jetstream.JetStream, event predictor.Event) {
	t.Helper()
	kind, data, err := wire.EncodeEvent(event)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.PublishAsync(wire.LoopSubject(kind), data, jetstream.WithStallWait(natstest.Patience)); err !=
		nil {
		t.Fatal(err)
	}
}

// counters reads the counters of Spillway that are not zero.
func (e *testEngine) counters() map[string]float64 {
	e.t.Helper()
	counters := e.series()
	maps.DeleteFunc(counters, func(series string, value float64) bool {
		base, _, _ := strings.Cut(series, "{")
		isCounter := strings.HasSuffix(base, "_total") || strings.HasSuffix(base, "_count")
		return value == 0 || !strings.HasPrefix(base, "spillway_") || !isCounter
	})
	return counters
}

// completions counts the completion events of each run.
func completions(t *testing.T, stream jetstream.JetStream) map[string]int {
	t.Helper()
	done, err := stream.Stream(t.Context(), wire.DoneStream)
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for sequence := uint64(1); sequence <= done.CachedInfo().State.LastSeq; sequence++ {
		message, err := done.GetMsg(t.Context(), sequence)
		if err != nil {
			t.Fatal(err)
		}
		var event wire.Done
		if err := json.Unmarshal(message.Data, &event); err != nil {
			t.Fatal(err)
		}
		counts[event.Run]++
	}
	return counts
}

// yesterday is how many messages lie between the start and the end of a run that the stream of these tests remembers.
const yesterday = 100_000

// rememberYesterday puts a run into the stream of an engine that is off: it was over long ago, in time, and what was
// heard of others lies between its start and its end, so that whoever reads the stream from its beginning believes for
// a while that it goes on.
func rememberYesterday(t *testing.T, state string) {
	t.Helper()
	server := natstest.StartOn(t, filepath.Join(state, "nats"))
	defer server.Stop()
	stream := server.Connect()
	run, begin := "fan-yesterday", time.Now().Add(-24*time.Hour)
	stage := predictor.StageID{App: "testapp", Build: "0123456789ab", Name: "work"}
	tell(t, stream, predictor.RunStarted{
		Run: run, Pipeline: "fan", App: stage.App, Build: stage.Build, At: begin,
		Goal: predictor.Goal{Deadline: time.Hour, Budget: 1},
	})
	for n := range yesterday {
		at := begin.Add(time.Duration(n) * time.Millisecond)
		tell(t, stream, predictor.Sampled{Run: "fan-other", Stage: stage, Task: "work-0", Attempt: 1, Step: n, At: at})
	}
	tell(t, stream, predictor.RunEnded{Run: run, State: predictor.RunSucceeded, At: begin.Add(30 * time.Minute)})
	tell(t, stream, predictor.RunEnded{Run: "fan-other", State: predictor.RunSucceeded, At: begin.Add(30 * time.Minute)})
	select {
	case <-stream.PublishAsyncComplete():
	case <-time.After(2 * time.Minute):
		t.Fatal("the stream did not take 100,000 messages within two minutes")
	}
}

func TestARestartTellsNothingOfYesterdayAgain(t *testing.T) {
	t.Parallel()
	var alerted atomic.Int64
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var alert alerting.Alert
		if json.NewDecoder(r.Body).Decode(&alert) == nil && alert.Run == "fan-yesterday" {
			alerted.Add(1)
		}
	}))
	defer hook.Close()
	state := t.TempDir()
	e := startEngine(t, state, buildApp(t, 0), "--no-burst", "--alert-webhook", hook.URL)
	succeed[fanResult](e, e.publish("fan", "before", fanInput{Shards: 3, Milliseconds: 1}), time.Minute).check(t, 3)
	failed := e.wait(e.publish("fail", "before", map[string]int{"index": 1}), time.Minute)
	late, err := e.client.Publish(t.Context(), web.Event{ // it misses its deadline, and is told of
		Pipeline: "fan", ID: "late", Input: json.RawMessage(`{"shards":1,"milliseconds":3000}`),
		Goal: &predictor.Goal{Deadline: time.Second},
	})
	if err != nil {
		t.Fatal(err)
	}
	e.wait(late.Run, time.Minute)
	before, err := e.client.Alerts(t.Context(), 1000)
	if err != nil || len(before) == 0 {
		t.Fatalf("alerts before the restart: %d, %v; want those of the run that was late", len(before), err)
	}
	if counts := e.counters(); counts[`spillway_runs_total{state="succeeded"}`] != 2 ||
		counts[`spillway_runs_total{state="failed"}`] != 1 {
		t.Errorf("counted before the restart: %v", counts)
	}
	e.kill()
	rememberYesterday(t, state)

	began := time.Now()
	e = startEngine(t, state, "", "--no-burst", "--alert-webhook", hook.URL)
	t.Logf("ready %s after its start, with %d messages before", time.Since(began).Round(time.Millisecond), yesterday)
	logged, err := os.ReadFile(filepath.Join(state, "spillway.log"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(logged)) {
		if strings.Contains(line, "caught up with what happened before") || strings.Contains(line, "msg=ready") {
			t.Log(line)
		}
	}
	counts := e.counters()
	for name := range counts {
		if !strings.HasPrefix(name, "spillway_decisions_total") && !strings.HasPrefix(name, "spillway_leader") &&
			!strings.HasPrefix(name, "spillway_tick_seconds") {
			t.Errorf("after the restart, before anything happened: %s is %v, want 0", name, counts[name])
		}
	}
	succeed[fanResult](e, e.publish("fan", "after", fanInput{Shards: 3, Milliseconds: 1}), time.Minute).check(t, 3)
	if counts = e.counters(); counts[`spillway_runs_total{state="succeeded"}`] != 1 ||
		counts[`spillway_runs_total{state="running"}`] != 1 {
		t.Errorf("after one more run: %v, want one that was started and succeeded", counts)
	}
	after, err := e.client.Alerts(t.Context(), 1000)
	if err != nil || len(after) != len(before) || alerted.Load() != 0 {
		t.Errorf("alerts: %d before and %d after the restart (%v), %d of the run of yesterday: want no new one", len(before),
			len(after), err, alerted.Load())
	}
	told := completions(t, e.stream())
	for _, run := range []string{"fan-before", "fan-after", failed.Run, late.Run} {
		if told[run] != 1 {
			t.Errorf("run %s: %d completion events, want 1", run, told[run])
		}
	}
	e.stop()
}

func TestARunWhoseWorkflowIsGoneOrWasTerminatedEnds(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	e := startEngine(t, state, buildApp(t, 0), "--no-burst")
	runs := map[string]string{}
	for _, id := range []string{"terminated", "cancelled", "gone", "on"} {
		runs[id] = e.publish("fan", id, fanInput{Shards: 1, Milliseconds: 600_000})
		e.scheduled(runs[id])
	}
	e.stop() // so that no event is delivered again, which would start the run anew that is deleted below

	// While the engine is off nobody can hear what becomes of the runs: the workflows end before the observer looks.
	e = startEngine(t, state, "", "--no-burst")
	calls := e.temporal()
	for id, reason := range map[string]string{
		"terminated": "by hand", "cancelled": "it was cancelled while it was blocked",
	} {
		if err := calls.TerminateWorkflow(t.Context(), runs[id], "", reason); err != nil {
			t.Fatal(err)
		}
	}
	description, err := calls.DescribeWorkflowExecution(t.Context(), runs["gone"], "")
	if err != nil {
		t.Fatal(err)
	}
	_, err = calls.WorkflowService().DeleteWorkflowExecution(t.Context(), &workflowservice.DeleteWorkflowExecutionRequest{
		Namespace: client.DefaultNamespace, WorkflowExecution: description.GetWorkflowExecutionInfo().GetExecution(),
	})
	if err != nil {
		t.Fatal(err)
	}
	e.kill()
	e = startEngine(t, state, "", "--no-burst")
	for id, want := range map[string]string{
		"terminated": "terminated from outside",
		"gone":       "gone from Temporal: deleted, or past retention",
	} {
		view := e.wait(runs[id], 3*time.Minute)
		if view.State != predictor.RunFailed || !strings.Contains(view.Error, want) {
			t.Errorf("the run that was %s: got %s, %q, want failed with %q", id, view.State, view.Error, want)
		}
		if _, err := e.client.Retry(t.Context(), runs[id], web.Retry{}); err == nil && id == "gone" {
			t.Error("a run whose history is gone was started again without its input")
		}
	}
	if view := e.wait(runs["cancelled"], 3*time.Minute); view.State != predictor.RunCancelled {
		t.Errorf("the run that was cancelled while it was blocked: got %s, %q, want cancelled", view.State, view.Error)
	}
	view, err := e.client.Run(t.Context(), runs["on"])
	if err != nil || view.State != predictor.RunRunning {
		t.Fatalf("the run that goes on: %v, %s", err, view.State)
	}
	if err := e.client.Cancel(t.Context(), runs["on"]); err != nil {
		t.Errorf("cancel the run that goes on: %v", err)
	}
	if view := e.wait(runs["on"], 3*time.Minute); view.State != predictor.RunCancelled {
		t.Errorf("the run that was cancelled: %s, %q", view.State, view.Error)
	}
	stream := e.stream()
	for id, run := range runs {
		if got := completions(t, stream)[run]; got != 1 {
			t.Errorf("the run that was %s: %d completion events, want 1", id, got)
		}
	}
	e.stop()
}

// scheduled waits until a task of the run is known.
func (e *testEngine) scheduled(run string) {
	e.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		view, err := e.client.Run(e.t.Context(), run)
		if err == nil && len(view.Stages) > 0 {
			return
		}
		if time.Now().After(deadline) {
			e.t.Fatal(fmt.Errorf("run %s has no task after a minute: %w", run, err))
		}
	}
}
