package engine_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workflows/digits"
)

// tuneLiveVar is how often TestMeasureTuneLive runs the job on each side.
const tuneLiveVar = "SPILLWAY_TUNE_LIVE_REPETITIONS"

// liveTuning is the sample's tuning and training, on one side: what it took by the ledger, and what it found.
type liveTuning struct {
	wall, tuning, training time.Duration
	engine                 time.Duration // of a core, without what the stages took
	cost                   quantity.Money
	byFunctions            int // tasks
	found                  digits.Report
	losses                 map[string]float64 // of each job that told one
}

// TestMeasureTuneLive tunes and trains the sample by a uniform allocation, which is one fixed size for all stages, as
// many slots as that size fits into the machine, no functions and no predictor; as Spillway divides the same two cores
// between pool and functions; and as it does without functions. The sides take turns, each on an engine of its own that
// has seen nothing before the first repetition, and all try the same trials. It tells the wall time and the cost in the
// ledger of each, and fails where one of them found anything else.
func TestMeasureTuneLive(t *testing.T) {
	needMeasure(t)
	repetitions := 3
	if text := os.Getenv(tuneLiveVar); text != "" {
		var err error
		if repetitions, err = strconv.Atoi(text); err != nil || repetitions < 1 {
			t.Fatalf("%s: want how often each side runs, from 1, got %q", tuneLiveVar, text)
		}
	}
	app := buildDigits(t)
	sides := []struct {
		name  string
		flags []string
		e     *testEngine
		all   []liveTuning
	}{
		{name: "uniform", flags: []string{"--predictor", "off", "--no-burst"}},
		{name: "ours"},
		{name: "ours, pool alone", flags: []string{"--no-burst"}},
	}
	for i := range sides {
		sides[i].e = startEngine(t, t.TempDir(), app, sides[i].flags...)
	}
	t.Log("| repetition | allocation | wall | tuning | training | cost | engine | tasks by functions | best trial " +
		"| its loss | accuracy |")
	var first liveTuning
	for n := range repetitions {
		for i := range sides {
			side := &sides[i]
			got := runLiveTuning(t, side.e, fmt.Sprint("live-", n))
			if side.name == "uniform" {
				checkUniform(t, side.e, "digits-live-"+strconv.Itoa(n))
			}
			if first.losses == nil {
				first = got
			}
			checkSame(t, fmt.Sprintf("%s, repetition %d", side.name, n+1), first, got)
			side.all = append(side.all, got)
			t.Logf("| %d | %s | %.1f s | %.1f s | %.1f s | %s | %.1f core-s | %d | %d | %.4f | %.4f |", n+1, side.name,
				got.wall.Seconds(), got.tuning.Seconds(), got.training.Seconds(), got.cost, got.engine.Seconds(),
				got.byFunctions, got.found.Tuned.Trial, got.found.Tuned.Loss, got.found.Accuracy)
		}
	}
	var uniformWall, uniformCost float64
	for _, side := range sides {
		var walls, costs []float64
		for _, one := range side.all {
			walls, costs = append(walls, one.wall.Seconds()), append(costs, one.cost.USD())
		}
		wall, cost := median(walls), median(costs)
		if side.name == "uniform" {
			uniformWall, uniformCost = wall, cost
		}
		t.Logf("%-16s middle of %d: %.1f s, %.2fx that of uniform; $%.6f, %.2fx", side.name, repetitions, wall,
			wall/uniformWall, cost, cost/uniformCost)
	}
	for _, side := range sides {
		side.e.stop()
	}
}

// runLiveTuning runs the job once. It labels the images in one task and one view, so that tuning and training are most
// of it.
func runLiveTuning(t *testing.T, e *testEngine, id string) (got liveTuning) {
	t.Helper()
	before, _ := processUse(t, e.command.Process.Pid)
	run := e.publish("digits", id, digits.Input{Shards: 1, Views: 1})
	got.found = succeed[digits.Report](e, run, patience)
	after, _ := processUse(t, e.command.Process.Pid)
	got.engine = after - before
	view := e.wait(run, patience)
	got.wall, got.cost = view.EndedAt.Sub(view.StartedAt), view.Totals.Cost
	got.byFunctions = view.Totals.Tasks[predictor.Function]
	attempts, err := e.client.Attempts(t.Context(), web.AttemptQuery{Run: run})
	if err != nil {
		t.Fatal(err)
	}
	for stage, took := range map[string]*time.Duration{"tune": &got.tuning, "train": &got.training} {
		var begun, ended time.Time
		for _, a := range attempts {
			if a.Stage != stage {
				continue
			}
			if at := a.ScheduledAt; begun.IsZero() || at.Before(begun) {
				begun = at
			}
			if a.EndedAt.After(ended) {
				ended = a.EndedAt
			}
		}
		*took = ended.Sub(begun)
	}
	tunings, err := e.client.Tunings(t.Context(), run)
	if err != nil || len(tunings) != 1 {
		t.Fatalf("%d tunings of run %s, %v", len(tunings), run, err)
	}
	got.losses = map[string]float64{}
	for _, trial := range tunings[0].Trials {
		for _, job := range trial.Jobs {
			if job.Objective != nil {
				got.losses[fmt.Sprintf("trial %d to %g", trial.Number, job.To)] = *job.Objective
			}
		}
	}
	return got
}

// checkUniform checks that a run had one size, and no functions.
func checkUniform(t *testing.T, e *testEngine, run string) {
	t.Helper()
	attempts, err := e.client.Attempts(t.Context(), web.AttemptQuery{Run: run})
	if err != nil || len(attempts) == 0 {
		t.Fatalf("%d attempts of run %s, %v", len(attempts), run, err)
	}
	for _, a := range attempts {
		if a.Venue != predictor.Pool || a.Grant != attempts[0].Grant {
			t.Errorf("uniform: task %s ran at %s with %v, want the pool and %v", a.Task, a.Venue, a.Grant,
				attempts[0].Grant)
		}
	}
}

// checkSame checks that two runs of the same seed tried and found the same.
func checkSame(t *testing.T, where string, want, got liveTuning) {
	t.Helper()
	encode := func(l liveTuning) string {
		text, err := json.Marshal(map[string]any{"losses": l.losses, "found": l.found})
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	if w, g := encode(want), encode(got); w != g {
		t.Errorf("%s: tried or found something else than the first run:\n%s\nwant\n%s", where, g, w)
	}
}
