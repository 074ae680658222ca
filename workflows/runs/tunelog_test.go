package runs

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor/search"
)

// TestTheBestKeepTheirOutputs has trials come and go: the first of the candidates is always the best of the furthest,
// and as many others are kept as there is room for.
func TestTheBestKeepTheirOutputs(t *testing.T) {
	t.Parallel()
	output := json.RawMessage(`"` + strings.Repeat("x", maxOutputs/4) + `"`)
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 3))
		var kept []candidate
		alive := map[int]candidate{}
		for job := range 200 {
			one := candidate{Job: job, Trial: r.IntN(40), Rung: r.IntN(4), Objective: r.Float64()}
			if seed%2 == 0 {
				one.Output = output
			}
			if r.IntN(10) == 0 {
				kept = dismiss(kept, one.Trial)
				delete(alive, one.Trial)
				continue
			}
			alive[one.Trial] = one
			kept = nominate(kept, one)
			most := maxCandidates
			if seed%2 == 0 {
				most = 3 // a quarter each, and the quotes
			}
			if len(kept) > most || len(kept) == 0 {
				t.Fatalf("seed %d: %d are kept", seed, len(kept))
			}
			if best := kept[0]; len(kept) < len(alive) && slices.ContainsFunc(kept, func(c candidate) bool {
				return c.Rung > best.Rung || c.Rung == best.Rung && c.Objective < best.Objective
			}) {
				t.Fatalf("seed %d: the first is not the best of %+v", seed, kept)
			}
			for _, c := range kept {
				if want := alive[c.Trial]; c.Job != want.Job || c.Rung != want.Rung || c.Objective != want.Objective {
					t.Fatalf("seed %d: trial %d is kept as it was in job %d, want %d", seed, c.Trial, c.Job, want.Job)
				}
			}
		}
	}
	merged := withOutputs([]candidate{{Job: 7}, {Job: 3}}, []candidate{{Job: 3, Output: output}, {Job: 2, Output: output}})
	if merged[0].Output != nil || merged[1].Output == nil {
		t.Errorf("the output of job 3 is the earlier part's: %d and %d bytes", len(merged[0].Output), len(merged[1].Output))
	}
}

// TestAnotherTrialIsTheBestWhereOneWithALargeOutputDiverges: outputs of a megabyte leave room for others.
func TestAnotherTrialIsTheBestWhereOneWithALargeOutputDiverges(t *testing.T) {
	t.Parallel()
	output := json.RawMessage(`"` + strings.Repeat("x", 1<<20) + `"`)
	var kept []candidate
	for trial := range 3 {
		kept = nominate(kept, candidate{Job: trial, Trial: trial, Objective: float64(trial), Output: output})
	}
	if kept = dismiss(kept, 0); len(kept) == 0 || kept[0].Trial != 1 {
		t.Errorf("after the best %d are kept, want trial 1", len(kept))
	}
}

// TestALogKeepsWhatCurvesSay has two of six trials promoted, one of which its curve leaves behind, passes the log on as
// the parts of a tuning do, and makes the same search again.
func TestALogKeepsWhatCurvesSay(t *testing.T) {
	t.Parallel()
	request := TuneRequest{
		Stage: wire.Stage{Name: "fit"}, Objective: "loss", Space: search.Space{{Name: "x", Kind: search.Float, High: 1}},
		Options: search.Options{Trials: 6, Least: 1, Most: 9}, Input: json.RawMessage("{}"), Turns: true,
	}.WithDefaults()
	s, err := search.New(request.Space, request.Options)
	if err != nil {
		t.Fatal(err)
	}
	var log tuningLog
	before := 1.01
	for reports := 0; ; reports++ {
		job, found := s.Next()
		if !found {
			break
		}
		line := jobLine{After: reports, Report: reports + 1, End: jobTold, Objective: float64(job.Trial)}
		if job.Trial == 1 {
			line.Ahead = &aheadLine{Low: 0.5, High: 0.75, Before: &before}
		}
		log.Jobs = append(log.Jobs, line)
		if err := s.Report(job.Trial, line.reported()); err != nil {
			t.Fatal(err)
		}
		if line.Ahead != nil {
			if err := s.Expect(job.Trial, line.Ahead.of(false)); err != nil {
				t.Fatal(err)
			}
		}
	}
	encoded, err := json.Marshal(log)
	if err != nil {
		t.Fatal(err)
	}
	var again tuningLog
	if err := json.Unmarshal(encoded, &again); err != nil {
		t.Fatal(err)
	}
	restored, jobs, err := again.restore(request)
	if err != nil || !restored.Done() || len(jobs) != 8 { // six, and two more of trial 0
		t.Fatalf("%d jobs, done %v: %v", len(jobs), err == nil && restored.Done(), err)
	}
	trial := again.tuning(request, 0, restored, jobs, EndedDone, time.Time{}).Trials[1]
	if want := "rung 0: predicted 0.5 to 0.75 at 9, and the best so far is 0"; trial.Why != want {
		t.Errorf("trial 1 was stopped, and why: %q, want %q", trial.Why, want)
	}
}

// TestALogSaysHowItsTrialsStand has nine trials by halving, of which one fails and one diverges, and cuts their log
// anywhere: what is told of jobs that are over is the same as at the end.
func TestALogSaysHowItsTrialsStand(t *testing.T) {
	t.Parallel()
	request := TuneRequest{
		Stage: wire.Stage{Name: "fit"}, Objective: "loss", Space: search.Space{{Name: "x", Kind: search.Float, High: 1}},
		Options: search.Options{Trials: 9, Least: 1, Most: 9, Algorithm: search.Halving}, Input: json.RawMessage("{}"),
		Turns: true,
	}.WithDefaults()
	s, err := search.New(request.Space, request.Options)
	if err != nil {
		t.Fatal(err)
	}
	var log tuningLog
	for reports := 0; ; reports++ {
		job, found := s.Next()
		if !found {
			break
		}
		line := jobLine{
			After: reports, Report: reports + 1, End: jobTold, Objective: float64(job.Trial), From: job.From, Spent: 1,
		}
		switch job.Trial {
		case 4:
			line.End, line.Why = jobFailed, "no such file"
		case 5:
			line.End, line.Why = jobDiverged, "its loss is no finite number"
		}
		log.Jobs = append(log.Jobs, line)
		if err := s.Report(job.Trial, line.reported()); err != nil {
			t.Fatal(err)
		}
	}
	if len(log.Jobs) != 13 {
		t.Fatalf("%d jobs, want 9, 3 and 1", len(log.Jobs))
	}
	for cut := range len(log.Jobs) + 1 {
		part := tuningLog{Jobs: log.Jobs[:cut]}
		restored, jobs, err := part.restore(request)
		if err != nil {
			t.Fatal(err)
		}
		ended := ""
		if cut == len(log.Jobs) {
			ended = EndedDone
		}
		told := part.tuning(request, 40, restored, jobs, ended, time.Time{})
		if int(told.Spent) != cut || told.Begun != min(cut, 9) {
			t.Errorf("after %d jobs: %s spent by %d trials", cut, told.Spent, told.Begun)
		}
		for _, trial := range told.Trials {
			want, why := TrialWaiting, ""
			switch {
			case trial.Number == 4:
				want, why = TrialFailed, "no such file"
			case trial.Number == 5:
				want, why = TrialDiverged, "its loss is no finite number"
			case len(trial.Jobs) == 3:
				want = TrialFinished
			case cut > 9 && trial.Number > 2, cut > 12 && trial.Number > 0:
				want = TrialStopped
			}
			if trial.State != want || !strings.HasPrefix(trial.Why, why) {
				t.Errorf("after %d jobs trial %d is %s, and why: %q; want %s", cut, trial.Number, trial.State, trial.Why, want)
			}
		}
		if cut == len(log.Jobs) {
			if got, want := told.Trials[6].Why, "rung 0: 5th of 9, 3 went on"; got != want {
				t.Errorf("trial 6 was stopped, and why: %q, want %q", got, want)
			}
			if task := told.Trials[0].Jobs[2].Task; task != fmt.Sprint("fit-", 40+12) {
				t.Errorf("the last job is task %s", task)
			}
		}
	}
}
