package engine_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
)

// tasksDone counts the finished tasks of runs.
func (e *testEngine) tasksDone(runs ...string) (done, scheduled int) {
	e.t.Helper()
	for _, run := range runs {
		view, err := e.client.Run(e.t.Context(), run)
		if err != nil {
			continue // its event has not started it yet
		}
		for _, stage := range view.Stages {
			done, scheduled = done+stage.Done, scheduled+stage.Scheduled
		}
	}
	return done, scheduled
}

// TestAFloodOfOnePipelineHoldsUpNoOther lets runs of one pipeline fill the queue of a stage. Behind it come a small run
// of another pipeline and then a large one that is late: the first gets its turn, the second is served before the
// flood. What counts is how much of the flood is served meanwhile.
func TestAFloodOfOnePipelineHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	e := startEngine(t, t.TempDir(), buildApp(t, 0), "--no-burst")
	const runs, each, milliseconds = 24, 60, 20 // a window has 64 tasks, so that all wait at once
	shards := func(n int) map[string]int { return map[string]int{"shards": n, "milliseconds": milliseconds} }
	var flood []string
	for i := range runs {
		flood = append(flood, e.publish("fan", fmt.Sprint("flood-", i), shards(each)))
	}
	e.until("the flood waits", func() bool {
		_, scheduled := e.tasksDone(flood...)
		return scheduled == runs*each
	})

	before, _ := e.tasksDone(flood...)
	small := e.publish("fan-too", "small", shards(10))
	if view := e.wait(small, patience); view.State != predictor.RunSucceeded {
		t.Fatalf("the small run %s: %s", view.State, view.Error)
	}
	between, _ := e.tasksDone(flood...)
	t.Logf("the flood had %d of %d tasks done when a run of 10 began and %d when it ended", before, runs*each, between)
	if between-before > (runs*each-before)/2 {
		t.Errorf("a small run of another pipeline waited for %d of %d tasks of the flood", between-before, runs*each-before)
	}

	const many = 400
	goal := predictor.Goal{Deadline: time.Second}
	published, err := e.client.Publish(t.Context(), web.Event{
		Pipeline: "fan-too", ID: "late", Input: fmt.Appendf(nil, `{"shards":%d,"milliseconds":%d}`, many, milliseconds),
		Goal: &goal,
	})
	if err != nil {
		t.Fatal(err)
	}
	if view := e.wait(published.Run, patience); view.State != predictor.RunSucceeded {
		t.Fatalf("the late run %s: %s", view.State, view.Error)
	}
	after, _ := e.tasksDone(flood...)
	t.Logf("the flood had %d tasks done when a late run of %d ended", after, many)
	if after == runs*each {
		t.Error("the flood was over before the late run was: nothing is shown")
	}
	// In turn with the flood, as without a deadline, it would have waited for as many as it has itself.
	if after-between > many*6/10 {
		t.Errorf("a late run of %d tasks waited for %d of the flood", many, after-between)
	}
	for _, run := range flood {
		if err := e.client.Cancel(t.Context(), run); err != nil {
			t.Log(err) // it may have ended
		}
	}
	e.kill()
}
