package predictor_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

var epoch = time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)

// after is the time so many seconds after the epoch.
func after(seconds float64) time.Time {
	return epoch.Add(time.Duration(seconds * float64(time.Second)))
}

func stageNamed(name string) predictor.StageID {
	return predictor.StageID{App: "app", Build: "b1", Name: name}
}

// laptop is a snapshot of one host with cores, and Lambda's functions at its price.
func laptop(now float64, cores int) predictor.Snapshot {
	room := quantity.Size{CPU: quantity.Milli(cores) * quantity.Core, Memory: quantity.Bytes(cores) * 4 * quantity.GiB}
	return predictor.Snapshot{
		Now:   after(now),
		Term:  1,
		Hosts: []predictor.Host{{ID: "laptop", Capacity: room, Free: room}},
		Functions: predictor.FunctionVenue{
			Enabled: true, Concurrency: 8, MaxMemory: 10 * quantity.GiB, MaxDuration: 15 * time.Minute,
			Classes: []quantity.Bytes{
				512 * quantity.MiB, quantity.GiB, 1769 * quantity.MiB, 4 * quantity.GiB,
				10 * quantity.GiB,
			},
			PerGiBSecond: 16_666_700, PerRequest: 200_000, ColdStart: 100 * time.Millisecond,
		},
		Policy: predictor.DefaultPolicy(),
	}
}

func started(run string, at float64, goal predictor.Goal) predictor.RunStarted {
	return predictor.RunStarted{Run: run, Pipeline: "p", App: "app", Build: "b1", Goal: goal, At: after(at)}
}

func hint(run, stage string, tasks int, at float64) predictor.Scheduled {
	return predictor.Scheduled{Run: run, Stage: stageNamed(stage), Tasks: tasks, At: after(at)}
}

func start(run, stage string, task int, at float64) predictor.AttemptStarted {
	return predictor.AttemptStarted{
		Run: run, Stage: stageNamed(stage), Task: fmt.Sprintf("%s-%d", stage, task), Attempt: 1, Venue: predictor.Pool,
		Host: "laptop", At: after(at),
	}
}

// record is a success that took wall seconds, one core and 100 MiB.
func record(run, stage string, task int, at, wall float64) predictor.Record {
	took := time.Duration(wall * float64(time.Second))
	return predictor.Record{
		Run: run, Pipeline: "p", Stage: stageNamed(stage), Task: fmt.Sprintf("%s-%d", stage, task), Attempt: 1,
		Venue: predictor.Pool, Host: "laptop",
		Outcome: predictor.Succeeded, At: after(at),
		Usage: quantity.Usage{CPU: took, Wall: took, PeakMemory: 100 * quantity.MiB},
	}
}

// learn folds n successes of a run long over, so that the stage's model is known.
func learn(state predictor.State, stage string, n int, wall float64) predictor.State {
	for i := range n {
		state = predictor.Fold(state, record("earlier", stage, i, -1000+float64(i), wall))
	}
	return state
}

func fold(state predictor.State, events ...predictor.Event) predictor.State {
	for _, event := range events {
		state = predictor.Fold(state, event)
	}
	return state
}

// slots returns the slots of a stage at a venue.
func slots(plan predictor.Plan, stage string, venue predictor.Venue) int {
	for _, grant := range plan.Grants {
		if grant.Stage.Name == stage && grant.Venue == venue {
			return grant.Slots
		}
	}
	return 0
}

func reasons(plan predictor.Plan) []string {
	var lines []string
	for _, d := range plan.Decisions {
		lines = append(lines, fmt.Sprintf("%s %s %s: %s -> %s: %s", d.Stage.Name, d.Venue, d.What, d.From, d.To, d.Reason))
	}
	return lines
}

func encode(tb testing.TB, value any) []byte {
	tb.Helper()
	data, err := json.Marshal(value)
	if err != nil {
		tb.Fatalf("encode %T: %v", value, err)
	}
	return data
}
