package runs_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/predictor/search"
	"github.com/spillway-ml/spillway/workflows/runs"
)

func TestWhatRungsCameToIsAddedUpAndTrialsAreRanked(t *testing.T) {
	t.Parallel()
	begin := time.Date(2026, 11, 27, 9, 0, 0, 0, time.UTC)
	job := func(rung int, objective *float64, seconds int) runs.TrialJob {
		to := []float64{1, 3, 9}[rung]
		made := runs.TrialJob{Rung: rung, To: to, Objective: objective, Spent: 5, StartedAt: begin}
		if seconds > 0 {
			made.EndedAt = begin.Add(time.Duration(seconds) * time.Second)
		}
		return made
	}
	tuning := runs.Tuning{Trials: []runs.Trial{
		{Number: 0, State: runs.TrialFailed, Jobs: []runs.TrialJob{job(0, nil, 2)}},
		{Number: 1, State: runs.TrialStopped, Jobs: []runs.TrialJob{job(0, new(0.5), 3)}},
		{Number: 2, State: runs.TrialRunning, Jobs: []runs.TrialJob{job(0, new(0.3), 4), job(1, nil, 0)}},
		{Number: 3, State: runs.TrialStopped, Jobs: []runs.TrialJob{job(0, new(0.4), 4), job(1, new(0.45), 8)}},
		{Number: 4, State: runs.TrialStopped, Jobs: []runs.TrialJob{job(0, new(0.5), 1)}},
		{Number: 5, State: runs.TrialDiverged, Jobs: []runs.TrialJob{job(0, new(0.1), 1), job(1, nil, 1)}},
	}}
	want := []runs.TuningRung{
		{Rung: 0, To: 1, Begun: 6, Told: 5, Best: new(0.1), Seconds: 15, Spent: 30},
		{Rung: 1, To: 3, Begun: 3, Told: 1, Best: new(0.45), Seconds: 9, Spent: 15},
	}
	if diff := cmp.Diff(want, tuning.Rungs()); diff != "" {
		t.Errorf("rungs (-want +got):\n%s", diff)
	}
	ranked := func() (numbers []int) {
		for _, trial := range tuning.Ranked() {
			numbers = append(numbers, trial.Number)
		}
		return numbers
	}
	if got := ranked(); !slices.Equal(got, []int{3, 2, 1, 4, 0, 5}) {
		t.Errorf("ranked %v: the furthest comes first, then the least, then the first, and what diverged is none", got)
	}
	tuning.Options = search.Options{Maximise: true}
	if got := ranked(); !slices.Equal(got, []int{3, 1, 4, 2, 0, 5}) {
		t.Errorf("ranked %v where more is better", got)
	}
	if best := *tuning.Rungs()[0].Best; best != 0.5 {
		t.Errorf("the best of the first rung is %g where more is better", best)
	}
	if got := (runs.Tuning{}).Rungs(); len(got) != 0 {
		t.Errorf("rungs of no trial: %v", got)
	}
}
