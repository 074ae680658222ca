package engine_test

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/cmd/internal/proctest"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/cmd/internal/web/client"
	"github.com/spillway-ml/spillway/predictor/search"
	"github.com/spillway-ml/spillway/workflows/chain"
	"github.com/spillway-ml/spillway/workflows/digits"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// kills are the ways in which an engine and what it has started end without a word.
var kills = map[string]func(*testEngine){
	"the engine is killed": (*testEngine).kill, // what it has started ends with it
	"everything is killed": (*testEngine).killFamily,
}

// killFamily kills all processes of the engine, those that it has started first.
func (e *testEngine) killFamily() {
	family := proctest.Family(e.t, e.command.Process.Pid)
	for i := range family {
		_ = syscall.Kill(family[len(family)-1-i], syscall.SIGKILL)
	}
	e.kill()
}

// slowly is a training that takes a tenth of a second of a core for each epoch, and saves each.
const slowly = `import argparse, json, os, time
parse = argparse.ArgumentParser()
parse.add_argument("--lr", type=float)
parse.add_argument("--to", type=int)
given = parse.parse_args()
done, place = 0, 1.0
if os.environ.get("SPILLWAY_RESUME"):
    done, place = json.load(open(os.environ["SPILLWAY_RESUME"]))
with open(os.environ["SPILLWAY_REPORT"], "a", buffering=1) as report:
    while done < given.to:
        end = time.process_time() + 0.1
        while time.process_time() < end:
            pass
        done, place = done + 1, place * (1 - given.lr)
        json.dump([done, place], open("state.json", "w"))
        told = {"progress": done, "metrics": {"loss": place * place}, "checkpoint": "state.json"}
        report.write(json.dumps(told) + "\n")
`

// startTuning starts "spillway tune" on a state directory where no engine runs, and returns it once it has begun a run.
func startTuning(t *testing.T, state, dir string, arguments ...string) (e *testEngine, run string) {
	t.Helper()
	e = &testEngine{t: t, state: state, ended: make(chan struct{}), output: &output{}}
	arguments = append(ports(false, nil), arguments...)
	arguments = append([]string{"tune", "--state", state, "--no-ui", "--code", dir}, arguments...)
	e.command = exec.Command(os.Args[0], arguments...)
	e.command.Env = append(os.Environ(), asEngine+"=1")
	e.command.Stdout, e.command.Stderr = e.output, e.output
	if err := e.command.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(e.ended)
		_ = e.command.Wait()
	}()
	t.Cleanup(e.kill)
	e.until("the tuning begins a run", func() bool {
		file, err := web.ReadStackFile(state)
		if err != nil || file.PID != e.command.Process.Pid {
			return false
		}
		token, err := access.ReadToken(state)
		if err != nil {
			return false
		}
		e.client = client.New(file.HTTP, token)
		begun, err := e.client.Runs(t.Context(), web.RunQuery{})
		if err != nil || len(begun) == 0 {
			return false
		}
		run = begun[0].Run
		return true
	})
	return e, run
}

// TestATuningByCommandGoesOnAfterAKill kills `spillway tune` with the stack that it has started, and then the stack by
// which it goes on: no trial is lost or counted twice, each goes on from its checkpoint, and the best is that of the
// search alone.
func TestATuningByCommandGoesOnAfterAKill(t *testing.T) {
	if testing.Short() {
		t.Skip("kills the engine again and again: takes minutes")
	}
	t.Parallel()
	needPython(t)
	for name, kill := range kills {
		t.Run(name, func(t *testing.T) {
			const trials, most, seed = 9, 9, 5
			want, jobs := searched(t, trials, most, seed)
			dir := directory(t, map[string]string{"slowly.py": slowly})
			state := t.TempDir()
			e, run := startTuning(t, state, dir, "--space", "lr=log:0.001..0.4", "--algorithm", "halving",
				"--trials", strconv.Itoa(trials), "--most", strconv.Itoa(most), "--seed", strconv.Itoa(seed), "--",
				"python3", "slowly.py", "--lr", "{lr}", "--to", "{to}")
			for n, done := range []int{3, jobs - 2} {
				e.until(fmt.Sprintf("%d jobs have ended", done), func() bool {
					view, err := e.client.Run(t.Context(), run)
					return err == nil && len(view.Stages) > 0 && view.Stages[0].Done >= done
				})
				kill(e)
				e = goesOn(t, state, run, n)
			}
			result := succeed[chain.Result](e, run, patience)
			tunings, err := e.client.Tunings(t.Context(), run)
			if err != nil || len(tunings) != 1 {
				t.Fatalf("%d tunings, %v", len(tunings), err)
			}
			got := map[string]float64{}
			for _, trial := range tunings[0].Trials {
				for _, job := range trial.Jobs {
					if job.Objective == nil {
						t.Errorf("trial %d told nothing at %g: %+v", trial.Number, job.To, job)
						continue
					}
					got[fmt.Sprint(trial.Number, " to ", job.To)] = *job.Objective
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("what trials told (-undisturbed +killed):\n%s", diff)
			}
			if result.Tuned == nil || result.Tuned.Ended != runs.EndedDone || tunings[0].Best == nil ||
				result.Tuned.Trial != *tunings[0].Best || !least(want, result.Tuned.Trial, most) {
				t.Errorf("the best: %+v, want that of %v", result.Tuned, want)
			}
			if view := e.wait(run, patience); view.Stages[0].Done != jobs {
				t.Errorf("the ledger has %d tasks that are done, want %d", view.Stages[0].Done, jobs)
			}
			e.stop()
		})
	}
}

// begunAfter reports whether an attempt of the run has begun after a moment.
func (e *testEngine) begunAfter(run string, at time.Time) bool {
	attempts, err := e.client.Attempts(e.t.Context(), web.AttemptQuery{Run: run})
	for _, a := range attempts {
		if err == nil && a.StartedAt.After(at) {
			return true
		}
	}
	return false
}

// searched is what the trials of slowly tell where nothing disturbs them, by the search alone, and how many jobs they
// have.
func searched(t *testing.T, trials, most int, seed uint64) (told map[string]float64, jobs int) {
	t.Helper()
	space := search.Space{{Name: "lr", Kind: search.Float, Low: 0.001, High: 0.4, Log: true}}
	s, err := search.New(space, search.Options{
		Algorithm: search.Halving, Trials: trials, Least: 1, Most: float64(most), Seed: seed, Whole: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	told = map[string]float64{}
	for {
		job, found := s.Next()
		if !found {
			return told, jobs
		}
		jobs++
		place := 1.0
		for range int(job.To) {
			place *= 1 - job.Configuration["lr"].Number
		}
		told[fmt.Sprint(job.Trial, " to ", job.To)] = place * place
		if err := s.Report(job.Trial, place*place); err != nil {
			t.Fatal(err)
		}
	}
}

// least reports whether a trial told the least of those that came to the end.
func least(told map[string]float64, trial, most int) bool {
	mine, found := told[fmt.Sprint(trial, " to ", most)]
	for other := range len(told) {
		if theirs, ended := told[fmt.Sprint(other, " to ", most)]; ended && theirs < mine {
			return false
		}
	}
	return found
}

// TestATrainingBySeveralWorkersGoesOnAfterAKill kills the engine while three workers train the sample: the training
// goes on where it was, and learns what it learns undisturbed.
func TestATrainingBySeveralWorkersGoesOnAfterAKill(t *testing.T) {
	if testing.Short() {
		t.Skip("kills the engine again and again: takes minutes")
	}
	t.Parallel()
	app := buildDigits(t)
	for name, kill := range kills {
		t.Run(name, func(t *testing.T) {
			state, in := t.TempDir(), digits.Input{Workers: 3, MaxEpochs: 5, Shards: 2, Views: 1}
			e := startEngine(t, state, app)
			want := succeed[digits.Report](e, e.publish("digits", "undisturbed", in), patience)
			run := e.publish("digits", "killed", in)
			for n, steps := range []int64{20, 60} { // of 110
				e.until(fmt.Sprintf("%d steps are done", steps), func() bool { return e.steps(run) >= steps })
				kill(e)
				e = goesOn(t, state, run, n)
			}
			got := succeed[digits.Report](e, run, patience)
			if math.Abs(got.Loss/want.Loss-1) > 1e-5 || got.Accuracy != want.Accuracy || got.Epochs != want.Epochs {
				t.Errorf("it learned %+v, want %+v", got, want)
			}
			done := map[string]int{}
			for _, stage := range e.wait(run, patience).Stages {
				done[stage.Name] = stage.Done
			}
			if diff := cmp.Diff(map[string]int{
				"load": 1, "preprocess": 1, "train-together": 3, "evaluate": 1, "score": 2,
			}, done); diff != "" {
				t.Errorf("tasks that are done (-want +got):\n%s", diff)
			}
			e.stop()
		})
	}
}

// steps is after how many steps the furthest training of a run is.
func (e *testEngine) steps(run string) (most int64) {
	for _, view := range e.trainings(run) {
		most = max(most, view.Training.Steps)
	}
	return most
}

// goesOn starts an engine where one was killed just now, for the kill of this number from 0 on, and waits until a task
// of the run begins.
func goesOn(t *testing.T, state, run string, number int) *testEngine {
	t.Helper()
	killed := time.Now()
	e := startEngine(t, state, "")
	ready := time.Now()
	e.until("a task begins after the kill", func() bool { return e.begunAfter(run, killed) })
	t.Logf("kill %d: ready after %.1f s, at work %.1f s after that", number+1, ready.Sub(killed).Seconds(),
		time.Since(ready).Seconds())
	return e
}
