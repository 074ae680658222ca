package memory

import (
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// TestTasksThatAreOverAreNoWork has three tasks: what is left of one that ended so, while two wait.
func TestTasksThatAreOverAreNoWork(t *testing.T) {
	t.Parallel()
	begin := time.Date(2026, 11, 24, 9, 0, 0, 0, time.UTC)
	stage := fact.StageID{App: "app", Build: "b", Name: "score"}
	anew := fact.Scheduled{Run: "r", Stage: stage, Tasks: 1, PoolOnly: true, Input: 100 * quantity.MiB, At: begin}
	for _, c := range []struct {
		name    string
		outcome fact.Outcome
		next    fact.Next
		anew    bool // it is hinted anew
		waiting int
		owed    int
		tasks   int // that an earlier run had
	}{
		{"it is done", fact.Succeeded, "", false, 2, 2, 3},
		{"it is tried again", fact.Failed, "", false, 3, 3, 3},
		{"it is lost", fact.Lost, "", false, 3, 3, 3},
		{"it has failed for good", fact.Failed, fact.NextNothing, false, 2, 2, 3},
		{"it never had enough memory", fact.OutOfMemory, fact.NextNothing, false, 2, 2, 3},
		{"it is cancelled", fact.Cancelled, fact.NextNothing, false, 2, 2, 3},
		{"it is cancelled at an engine that did not tell", fact.Cancelled, "", false, 2, 2, 3},
		{"it is refused", fact.Refused, fact.NextPool, true, 3, 3, 3},
		{"it is refused at an engine that did not tell", fact.Refused, "", true, 3, 3, 3},
		{"it took a function too long", fact.TimedOut, fact.NextPool, true, 3, 3, 3},
	} {
		m := New()
		m.Fold(fact.RunStarted{Run: "r", Pipeline: "p", App: "app", At: begin})
		for range 3 {
			first := anew
			first.PoolOnly = false
			m.Fold(first)
		}
		m.Fold(fact.AttemptStarted{Run: "r", Stage: stage, Task: "a", Attempt: 1, Venue: fact.Function, At: begin})
		m.Fold(fact.Record{
			Run: "r", Stage: stage, Task: "a", Attempt: 1, Venue: fact.Function, Outcome: c.outcome, Next: c.next, At: begin,
			Usage: quantity.Usage{Wall: time.Second, Input: 100 * quantity.MiB},
		})
		if c.anew {
			m.Fold(anew)
		}
		st := m.Stages[stage]
		part := st.Shares["r"]
		if got := st.Queues[0].Tasks + st.Queues[1].Tasks; got != c.waiting {
			t.Errorf("%s: %d tasks wait, want %d", c.name, got, c.waiting)
		}
		if got := part.Owed(); got != c.owed {
			t.Errorf("%s: %d tasks are owed, want %d", c.name, got, c.owed)
		}
		if got, want := part.Load.Inputs.Mean(), 100.0*float64(quantity.MiB); got < 0.99*want || got > 1.01*want ||
			part.Load.Inputs.Tasks != c.tasks || part.Load.Input != want*float64(c.tasks) {
			t.Errorf("%s: the inputs are %+v, together %v, want those of %d tasks of 100 MiB", c.name, part.Load.Inputs,
				part.Load.Input, c.tasks)
		}
		for task := range c.owed {
			m.Fold(fact.Record{
				Run: "r", Stage: stage, Task: string(rune('b' + task)), Attempt: 1, Venue: fact.Pool, Outcome: fact.Succeeded,
				At: begin.Add(time.Second), PoolOnly: c.anew && task == 0,
			})
		}
		if part.Works() || st.Owes() {
			t.Errorf("%s: the run works at the stage still: %+v", c.name, part)
		}
		m.Fold(fact.RunEnded{Run: "r", State: fact.RunSucceeded, At: begin.Add(time.Minute)})
		if past := m.Pasts["app/p"].Runs[0].Stages[0]; past.Tasks != c.tasks {
			t.Errorf("%s: the run had %d tasks, want %d", c.name, past.Tasks, c.tasks)
		}
	}
}

// What was refused before it began held nothing: that so much is not enough was told by the attempts before it.
func TestAnAttemptThatDidNotBeginIsNoKill(t *testing.T) {
	t.Parallel()
	var m Model
	e := fact.Record{Venue: fact.Pool, Outcome: fact.OutOfMemory, Cause: fact.CauseImpossible, Next: fact.NextNothing}
	m.learn(e, false, 1)
	if m.OutOfMemory != 0 {
		t.Errorf("%d attempts ran out of memory, want none", m.OutOfMemory)
	}
	e.Cause, e.Next, e.Grant = fact.CauseMemoryLimit, "", quantity.Size{CPU: quantity.Core, Memory: quantity.GiB}
	m.learn(e, false, 2)
	if m.OutOfMemory != 1 {
		t.Errorf("%d attempts ran out of memory, want the one that was killed", m.OutOfMemory)
	}
}
