package engine_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
)

// needMeasure skips what takes minutes and prints figures; `make measure` runs it.
func needMeasure(t *testing.T) {
	t.Helper()
	if os.Getenv("SPILLWAY_MEASURE") == "" {
		t.Skip("a measurement of minutes: run it with make measure")
	}
}

// TestTenThousandShards maps over 10,000 shards with a kill at half and tells what that takes.
func TestTenThousandShards(t *testing.T) {
	needMeasure(t)
	const shards = 10_000
	state, app := t.TempDir(), buildApp(t, 0)
	e := startEngine(t, state, app)
	began := time.Now()
	run := e.publish("fan", "many", fanInput{Shards: shards})
	for done := 0; done < shards/2; time.Sleep(50 * time.Millisecond) {
		view, err := e.client.Run(t.Context(), run)
		if err == nil && len(view.Stages) > 0 {
			done = view.Stages[0].Done
		}
	}
	before := peak(t, e.command.Process.Pid)
	e.kill()
	e = startEngine(t, state, app)
	succeed[fanResult](e, run, 10*time.Minute).check(t, shards)
	t.Logf("10,000 shards with a kill at half: %.1f s; peak resident memory of the engine %s before the kill, %s after",
		time.Since(began).Seconds(), before, peak(t, e.command.Process.Pid))
	longest := longestHistory(t, e, run)
	t.Logf("longest history: %d events", longest)
	if longest > 10_240 {
		t.Errorf("a history has %d events, more than the 10,240 at which Temporal warns", longest)
	}
}

// longestHistory is the number of events of the run's longest history: its own and those of its parts.
func longestHistory(t *testing.T, e *testEngine, run string) int {
	t.Helper()
	longest := 0
	children := []string{run}
	for len(children) > 0 {
		raw, err := e.client.History(t.Context(), children[0])
		if err != nil {
			t.Fatal(err)
		}
		children = children[1:]
		var history struct {
			Events []struct {
				Started *struct {
					Execution struct {
						ID string `json:"workflowId"`
					} `json:"workflowExecution"`
				} `json:"childWorkflowExecutionStartedEventAttributes"`
			} `json:"events"`
		}
		if err := json.Unmarshal(raw, &history); err != nil {
			t.Fatal(err)
		}
		longest = max(longest, len(history.Events))
		for _, event := range history.Events {
			if event.Started != nil {
				children = append(children, event.Started.Execution.ID)
			}
		}
	}
	return longest
}

// TestAThousandStages declares 1,000 stages and uses 100 of them.
func TestAThousandStages(t *testing.T) {
	needMeasure(t)
	e := startEngine(t, t.TempDir(), buildApp(t, 1000))
	idle := resident(t, e.command.Process.Pid)
	began := time.Now()
	run := e.publish("wide", "w", fanInput{Shards: 100})
	open := 0
	for {
		open = max(open, len(e.plan().Grants))
		view, err := e.client.Run(t.Context(), run)
		if err == nil && view.State != predictor.RunRunning {
			break
		}
		if time.Since(began) > 5*time.Minute {
			t.Fatalf("the run did not end: %+v", view)
		}
		time.Sleep(20 * time.Millisecond)
	}
	took := time.Since(began)
	if got := succeed[int](e, run, time.Second); got != 100 {
		t.Fatalf("stages that ran: got %d, want 100", got)
	}
	view := e.wait(run, time.Second)
	first := view.Stages[0].QueueSeconds + view.Stages[0].StartSeconds
	t.Logf("1,000 declared stages, 100 used: engine %s at rest and %s after; at most %d stages held slots and open "+
		"polls at a time; first task ran after %.0f ms; all 100 in %.1f s",
		idle, resident(t, e.command.Process.Pid), open, first*1000, took.Seconds())
}

// plan is the plan in force.
func (e *testEngine) plan() (plan predictor.Plan) {
	e.t.Helper()
	answer := e.get(e.t.Context(), "/api/v1/plan")
	if err := errors.Join(json.NewDecoder(answer.Body).Decode(&plan), answer.Body.Close()); err != nil {
		e.t.Fatal(err)
	}
	return plan
}

// TestEventToFirstCode measures from publishing an event to the first line of stage code, at rest and at 50 events a
// second.
func TestEventToFirstCode(t *testing.T) {
	needMeasure(t)
	e := startEngine(t, t.TempDir(), buildApp(t, 0))
	succeed[time.Time](e, e.publish("stamp", "warm", map[string]int{"index": 0}), time.Minute)
	measure := func(name string, n int, pause time.Duration) {
		sent := map[string]time.Time{}
		ticker := time.NewTicker(pause)
		defer ticker.Stop()
		for i := range n {
			<-ticker.C
			id := name + strconv.Itoa(i)
			at := time.Now()
			sent[e.publish("stamp", id, map[string]int{"index": i})] = at
		}
		var took []time.Duration
		for run, at := range sent {
			took = append(took, succeed[time.Time](e, run, time.Minute).Sub(at))
		}
		slices.Sort(took)
		t.Logf("%s, %d events: p50 %s, p99 %s", name, n, took[n/2].Round(100*time.Microsecond),
			took[n*99/100].Round(100*time.Microsecond))
	}
	measure("at rest", 50, 500*time.Millisecond)
	measure("50 events a second", 1000, 20*time.Millisecond)
}

// TestNoTaskSpillsWhenItMustNot runs the same work with functions off and with functions at a thousand times their
// price.
func TestNoTaskSpillsWhenItMustNot(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		flags []string
		spill bool
	}{
		"as usual":                {nil, true},
		"without burst":           {[]string{"--no-burst"}, false},
		"at a thousandfold price": {[]string{"--function-price-factor", "1000"}, false},
		"without the predictor":   {[]string{"--predictor=off"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := startEngine(t, t.TempDir(), buildApp(t, 0), test.flags...)
			run := e.publish("fan", "f", fanInput{Shards: 120, Milliseconds: 60})
			succeed[fanResult](e, run, 2*time.Minute).check(t, 120)
			spilled := e.wait(run, time.Second).Totals.Tasks[predictor.Function]
			if (spilled > 0) != test.spill {
				decisions, _ := e.client.Decisions(t.Context(), run)
				t.Errorf("%d tasks ran as functions, want some: %t; decisions:\n%s", spilled, test.spill, reasons(decisions))
			}
		})
	}
}

func reasons(decisions []predictor.Decision) string {
	var text strings.Builder
	for _, d := range decisions {
		fmt.Fprintf(&text, "  %s at %s: %s -> %s: %s\n", d.Stage.Name, d.Venue, d.From, d.To, d.Reason)
	}
	return text.String()
}

func TestDeadLettersAreListedAndReplayed(t *testing.T) {
	t.Parallel()
	e := startEngine(t, t.TempDir(), buildApp(t, 0))
	e.publishRaw("events.echo", "bad", "{not json")
	e.publishRaw("events.nobody", "lost", "{}")
	e.publishRaw("events.echo", "good", `{"index":4}`)
	succeed[map[string]int](e, "echo-good", time.Minute)
	var dead []web.DeadLetter
	var err error
	for deadline := time.Now().Add(patience); len(dead) < 2 &&
		time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if dead, err = e.client.Dead(t.Context(), 10); err != nil {
			t.Fatal(err)
		}
	}
	if len(dead) != 2 {
		t.Fatalf("dead letters: got %+v, want the malformed event and the one of an unknown pipeline", dead)
	}
	replayed, err := e.client.Replay(t.Context(), dead[0].Sequence)
	if err != nil || len(replayed.Outcomes) != 1 || replayed.Outcomes[0].Refused != dead[0].Reason {
		t.Errorf("replay: got %+v, %v; want that it is refused again: %s", replayed, err, dead[0].Reason)
	}
}
