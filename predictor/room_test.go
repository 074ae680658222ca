package predictor_test

import (
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// behind is a task of score that waits behind an attempt which holds all cores of the host and has 55 of its 60 s left.
func behind(goal predictor.Goal) predictor.State {
	state := learn(learn(predictor.State{}, "score", 10, 1), "large", 10, 60)
	earlier := record("one", "score", 0, -50, 1)
	large := start("other", "large", 0, 0)
	large.Grant = quantity.Size{CPU: 2 * quantity.Core, Memory: 7 * quantity.GiB}
	return fold(
		state, started("one", -60, predictor.Goal{}), hint("one", "score", 1, -60), earlier,
		predictor.RunEnded{Run: "one", State: predictor.RunSucceeded, At: after(-49)},
		started("other", 0, predictor.Goal{Minimise: predictor.Cost}), hint("other", "large", 1, 0), large,
		started("r", 5, goal), hint("r", "score", 1, 5),
	)
}

func TestATaskThatWaitsBehindALargeAttemptGoesToAFunction(t *testing.T) {
	t.Parallel()
	state := behind(predictor.Goal{})
	plan, state := predictor.Decide(state, laptop(5, 2))
	told := strings.Join(reasons(plan), "\n")
	if slots(plan, "score", predictor.Function) != 1 || slots(plan, "score", predictor.Pool) != 0 {
		t.Errorf("a task that waits 55 s for room: got\n%s\nwant a function slot and none at the pool", told)
	}
	if !strings.Contains(told, "1 task waits 56 s") || !strings.Contains(told, "no room for 55 s") {
		t.Errorf("the reasons are\n%s\nwant how long the pool has no room", told)
	}
	ended := record("other", "large", 0, 6, 60)
	plan, _ = predictor.Decide(fold(state, ended), laptop(6, 2))
	if slots(plan, "score", predictor.Pool) != 1 {
		t.Errorf("once there is room: got\n%s\nwant a pool slot", strings.Join(reasons(plan), "\n"))
	}
}

func TestATaskThatWaitsBehindALargeAttemptHasItsSlotWhereFunctionsDoNotPay(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*predictor.Snapshot){
		"no functions":  func(s *predictor.Snapshot) { s.Functions.Enabled = false },
		"dear ones":     func(s *predictor.Snapshot) { s.Functions.PerGiBSecond *= 1e6; s.Functions.PerRequest *= 1e6 },
		"predictor off": func(s *predictor.Snapshot) { s.Policy.Static = true },
	} {
		snapshot := laptop(5, 2)
		change(&snapshot)
		plan, _ := predictor.Decide(behind(predictor.Goal{}), snapshot)
		if slots(plan, "score", predictor.Function) != 0 || slots(plan, "score", predictor.Pool) != 1 {
			t.Errorf("%s: got\n%s\nwant one pool slot", name, strings.Join(reasons(plan), "\n"))
		}
		for _, decision := range plan.Decisions {
			if decision.Stage.Name == "score" && decision.What == "slots" && decision.Venue == predictor.Pool &&
				decision.Predicted.Mid < 55 {
				t.Errorf("%s: predicted %+v, want no less than the 55 s without room: %s", name, decision.Predicted,
					decision.Reason)
			}
		}
	}
}

func TestAForecastCountsTheWaitForRoom(t *testing.T) {
	t.Parallel()
	snapshot := laptop(5, 2)
	snapshot.Functions.Enabled = false
	for name, events := range map[string][]predictor.Event{
		"queued": nil,
		// The host has taken it and has no room: the queue is empty.
		"taken": {predictor.BacklogObserved{Stage: stageNamed("score"), At: after(40)}},
	} {
		state, now := behind(predictor.Goal{Deadline: time.Minute}), 5.0
		if events != nil {
			state, now = fold(state, events...), 40
		}
		snapshot.Now = after(now)
		outlook := state.Outlook("r", predictor.Goal{Deadline: 30 * time.Second}, snapshot)
		if !outlook.Known || outlook.Chosen.FinishSeconds.Mid < 55 || outlook.Feasible {
			t.Errorf("%s: got %+v (%s), want an end after 55 s or more", name, outlook.Chosen.FinishSeconds, outlook.Summary)
		}
	}
}

// TestWithheldSlotsDoNotFlap lets large attempts of 3 s follow each other while functions serve the tasks of another
// stage: the pool has room for them for a moment between two.
func TestWithheldSlotsDoNotFlap(t *testing.T) {
	t.Parallel()
	state := learn(learn(predictor.State{}, "score", 10, 1), "large", 10, 3)
	state = fold(
		state, started("other", 0, predictor.Goal{Minimise: predictor.Cost}), hint("other", "large", 100, 0),
		started("r", 0, predictor.Goal{Minimise: predictor.Latency}), hint("r", "score", 5000, 0),
	)
	var changes []float64
	withheld := 0
	for large := range 60 {
		at := 3.1 * float64(large)
		holds := start("other", "large", large, at)
		holds.Grant = quantity.Size{CPU: 2 * quantity.Core, Memory: 7 * quantity.GiB}
		state = fold(state, holds)
		for _, now := range []float64{at + 0.01, at + 0.5, at + 1.5, at + 2.5, at + 2.9, at + 3.01} {
			if now == at+3.01 {
				state = fold(state, record("other", "large", large, at+3, 3))
			}
			var plan predictor.Plan
			plan, state = predictor.Decide(state, laptop(now, 2))
			if slots(plan, "score", predictor.Function) == 0 {
				t.Fatalf("at %.1f s nothing spills: %v", now, reasons(plan))
			}
			if slots(plan, "score", predictor.Pool) == 0 {
				withheld++
			}
			for _, d := range plan.Decisions {
				if d.Stage.Name == "score" && d.What == "slots" && d.Venue == predictor.Pool && now > 30 {
					changes = append(changes, now)
				}
			}
		}
	}
	if got := most(changes); got > 10 {
		t.Errorf("the pool slots changed %d times within a minute, want at most 10", got)
	}
	if withheld == 0 {
		t.Error("no slot was ever withheld")
	}
}

func TestATaskWaitsForRoomAsLongAsTheStepsOfTheAttemptBeforeItSay(t *testing.T) {
	t.Parallel()
	state := predictor.State{}
	for i := range 10 {
		line := record("earlier", "large", i, -1000+float64(i), 60)
		line.Step = 60
		state = predictor.Fold(state, line)
	}
	large := start("other", "large", 0, 0)
	large.Grant = quantity.Size{CPU: 2 * quantity.Core, Memory: 7 * quantity.GiB}
	at := func(step int, seconds float64) predictor.Sampled {
		return predictor.Sampled{
			Run: "other", Stage: stageNamed("large"), Task: "large-0", Attempt: 1, Venue: predictor.Pool, Host: "laptop",
			Grant: large.Grant, Step: step, At: after(seconds),
		}
	}
	state = fold(
		learn(state, "score", 10, 1), started("other", 0, predictor.Goal{}), hint("other", "large", 1, 0), large,
		at(3, 1), at(15, 5),
		started("r", 5, predictor.Goal{}), hint("r", "score", 1, 5),
	)
	plan, _ := predictor.Decide(state, laptop(5, 2))
	if told := strings.Join(reasons(plan), "\n"); !strings.Contains(told, "no room for 15 s") {
		t.Errorf("a quarter of the steps in 5 s: the reasons are\n%s\nwant no room for 15 s", told)
	}
}
