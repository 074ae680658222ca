package workflows_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.temporal.io/sdk/temporal"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	spillway "github.com/spillway-ml/spillway/workflows"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// TestARetryOfATuningTakesTheJobsThatWereDone breaks a tuning after some of its jobs and tries the run again: each job
// is done once, trials go on from the checkpoints that the first run made, and the best is that of an undisturbed one.
func TestARetryOfATuningTakesTheJobsThatWereDone(t *testing.T) {
	t.Parallel()
	var undisturbed spillway.Tuned[fitted]
	for _, stop := range []int{0, 1, 13, 30, 1000} {
		t.Run(strconv.Itoa(stop), func(t *testing.T) {
			var kept memory
			done := map[string]int{} // how often each job was done, by its trial and rung
			start := func(run string, most int) *tuner {
				var f *tuner
				f = newTuner(t, spillway.Goal{}, func(_ context.Context, in fitInput, task wire.Task) (wire.Result, error) {
					kept.mu.Lock()
					defer kept.mu.Unlock()
					if len(done) >= most {
						return wire.Result{}, temporal.NewNonRetryableApplicationError("the disk is full", wire.StageError, nil)
					}
					job := fmt.Sprintf("%d/%d", in.Trial.Number, in.Trial.Rung)
					done[job]++
					if want := fmt.Sprintf("%d/%d", in.Trial.Number, in.Trial.Rung-1); (in.Trial.Rung > 0) !=
						(task.Resume.Digest == want) {
						t.Errorf("run %s: job %s goes on from %q, want %s", run, job, task.Resume.Digest, want)
					}
					result := told(fitLoss(in), 1)
					result.Checkpoint = activities.Ref{Digest: job}
					f.mu.Lock()
					defer f.mu.Unlock()
					kept.kept = append(kept.kept, wire.Kept{
						Key: f.keys[task.ID], Run: run, Output: result.Output, Cost: 1,
						Told: &wire.Told{Checkpoint: result.Checkpoint},
					})
					return result, nil
				})
				return f
			}
			first := start("first", stop)
			if best, err := first.run(t, fitSearch()); stop >= 40 {
				undisturbed = best
			} else if err == nil && len(done) != stop {
				t.Fatalf("%d jobs were done: %v", len(done), err)
			}
			had := len(done)
			second := start("second", 1000)
			second.find = kept.find
			if err := second.env.SetMemoOnStart(map[string]any{
				runs.OptionsMemo: wire.RunOptions{Version: wire.WorkflowVersion, Window: 8, RetryOf: "first"},
			}); err != nil {
				t.Fatal(err)
			}
			best, err := second.run(t, fitSearch())
			if err != nil {
				t.Fatal(err)
			}
			reused := 0
			for _, trial := range best.Tuning.Trials {
				for _, job := range trial.Jobs {
					if job.Reused == "first" {
						reused++
					}
				}
			}
			for job, times := range done {
				if times != 1 {
					t.Errorf("job %s was done %d times", job, times)
				}
			}
			if reused > had || reused < had-5 || int(best.Tuning.Spent) != len(second.tasks) {
				t.Errorf("%d of %d jobs were taken, for %s, and %d were done", reused, had, best.Tuning.Spent, len(second.tasks))
			}
			if stop == 1000 && (best.Objective != undisturbed.Objective || best.Trial != undisturbed.Trial) {
				t.Errorf("trial %d is the best with %g, want %d with %g", best.Trial, best.Objective, undisturbed.Trial,
					undisturbed.Objective)
			}
		})
	}
}

// TestARetryOfATuningDoesJobsAnewThatToldNoObjective tries a run again whose jobs told another metric: the code that
// tells this one is new.
func TestARetryOfATuningDoesJobsAnewThatToldNoObjective(t *testing.T) {
	t.Parallel()
	f := newTuner(t, spillway.Goal{}, func(_ context.Context, in fitInput, _ wire.Task) (wire.Result, error) {
		return told(fitLoss(in), 1), nil
	})
	f.find = func(_ context.Context, lookup wire.Lookup) (all []*wire.Kept, err error) {
		for range lookup.Keys {
			all = append(all, &wire.Kept{Run: "first", Output: json.RawMessage(`{"accuracy":1}`), Told: &wire.Told{}})
		}
		return all, nil
	}
	if err := f.env.SetMemoOnStart(map[string]any{
		runs.OptionsMemo: wire.RunOptions{Version: wire.WorkflowVersion, Window: 8, RetryOf: "first"},
	}); err != nil {
		t.Fatal(err)
	}
	best, err := f.run(t, fitSearch())
	if err != nil {
		t.Fatal(err)
	}
	for _, trial := range best.Tuning.Trials {
		if trial.State == runs.TrialFailed || trial.Jobs[0].Reused != "" {
			t.Errorf("trial %d is %s: %q, taken from %q", trial.Number, trial.State, trial.Why, trial.Jobs[0].Reused)
		}
	}
}

// TestARetryOfATuningThatIsCancelledTellsWhatItTook cancels a run that has begun no job when it has taken five from the
// one before; it may take more until it hears of that.
func TestARetryOfATuningThatIsCancelledTellsWhatItTook(t *testing.T) {
	t.Parallel()
	f := newTuner(t, spillway.Goal{}, func(context.Context, fitInput, wire.Task) (wire.Result, error) {
		return told(1, 1), nil
	})
	answered, taken := 0, 0
	f.find = func(context.Context, wire.Lookup) (all []*wire.Kept, err error) {
		if answered++; answered == 6 {
			f.env.CancelWorkflow()
		}
		return []*wire.Kept{{
			Run: "first", Output: fmt.Appendf(nil, `{"loss":%d}`, answered), Cost: 2, Told: &wire.Told{},
		}}, nil
	}
	f.tell = func(event predictor.Event) {
		if reused, is := event.(predictor.Reused); is {
			taken += reused.Tasks
		}
	}
	if err := f.env.SetMemoOnStart(map[string]any{
		runs.OptionsMemo: wire.RunOptions{Version: wire.WorkflowVersion, Window: 8, RetryOf: "first"},
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.run(t, fitSearch()); !temporal.IsCanceledError(err) || taken < 5 || len(f.tasks) > 0 {
		t.Errorf("%d jobs were told to be taken, %d begun, and the run ended with %v; want 5 or more, none, and a "+
			"cancellation", taken, len(f.tasks), err)
	}
}

// TestARetryOfATuningSendsWhatItTakesInPieces takes jobs with outputs of 60 KB, which are there at once: the server
// takes no workflow task of more than 4 MiB.
func TestARetryOfATuningSendsWhatItTakesInPieces(t *testing.T) {
	t.Parallel()
	const large = 60 << 10
	f := newTuner(t, spillway.Goal{}, func(context.Context, fitInput, wire.Task) (wire.Result, error) {
		return told(1, 1), nil
	})
	answered := 0
	f.find = func(context.Context, wire.Lookup) (all []*wire.Kept, err error) {
		answered++
		output := fmt.Sprintf(`{"loss":%d,"text":%q}`, answered, strings.Repeat("a", large))
		return []*wire.Kept{{Run: "first", Output: json.RawMessage(output), Told: &wire.Told{}}}, nil
	}
	pieces := 0
	f.env.SetOnTimerScheduledListener(func(string, time.Duration) { pieces++ })
	if err := f.env.SetMemoOnStart(map[string]any{
		runs.OptionsMemo: wire.RunOptions{Version: wire.WorkflowVersion, Window: 8, RetryOf: "first"},
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.run(t, fitSearch()); err != nil {
		t.Fatal(err)
	}
	if most := answered * large / (2 << 20); len(f.tasks) > 0 || pieces < most {
		t.Errorf("%d jobs of %d bytes were taken in %d pieces, and %d done; want %d pieces at least", answered, large,
			pieces+1, len(f.tasks), most+1)
	}
}

// TestARetryOfATuningGoesByCurvesOfTheSameTraining takes jobs of a tuning whose trials end at nine: what their curves
// say counts where those of the other tuning do, too.
func TestARetryOfATuningGoesByCurvesOfTheSameTraining(t *testing.T) {
	t.Parallel()
	for most, out := range map[float64]bool{9: true, 27: false} {
		t.Run(fmt.Sprint(most), func(t *testing.T) {
			t.Parallel()
			var kept memory
			search := fitSearch()
			search.Trials, search.Most, search.Least = 6, 9, 1
			start := func(run string) *tuner {
				var f *tuner
				f = newTuner(t, spillway.Goal{}, func(_ context.Context, in fitInput, task wire.Task) (wire.Result, error) {
					turn, loss := in.Trial, 1.0
					if n := turn.Number; n == 2 || n == 3 {
						loss = []float64{0.3, 0.4}[n-2] - 0.1*float64(turn.Rung)
					}
					result, told := told(loss, 1), wire.Told{}
					if task.Stretch != nil {
						stretch, before := *task.Stretch, 0.41
						stretch.Most = most
						told.Stretch = &stretch
						if turn.Number == 3 && run == "first" {
							told.Prospect = &predictor.Prospect{Metric: "loss", Value: loss, Low: 0.35, High: 0.38, Before: &before}
							result.Prospect = told.Prospect
						}
					}
					f.mu.Lock()
					defer f.mu.Unlock()
					kept.mu.Lock()
					defer kept.mu.Unlock()
					kept.kept = append(kept.kept, wire.Kept{Key: f.keys[task.ID], Run: run, Output: result.Output, Told: &told})
					return result, nil
				})
				options := wire.RunOptions{Version: wire.WorkflowVersion, Window: 1}
				if run != "first" {
					f.find, options.RetryOf = kept.find, "first"
				}
				if err := f.env.SetMemoOnStart(map[string]any{runs.OptionsMemo: options}); err != nil {
					t.Fatal(err)
				}
				return f
			}
			for _, run := range []string{"first", "second"} {
				best, err := start(run).run(t, search)
				if err != nil {
					t.Fatal(err)
				}
				want := out || run == "first"
				if trial := best.Tuning.Trials[3]; (len(trial.Jobs) == 1) != want {
					t.Errorf("run %s: a trial had %d jobs: %q; want it out %v", run, len(trial.Jobs), trial.Why, want)
				}
			}
		})
	}
}

// TestATuningThatIsCancelledBeginsNoOtherJob cancels the run while jobs are under way.
func TestATuningThatIsCancelledBeginsNoOtherJob(t *testing.T) {
	t.Parallel()
	var f *tuner
	f = newTuner(t, spillway.Goal{}, func(ctx context.Context, in fitInput, _ wire.Task) (wire.Result, error) {
		if in.Trial.Number < 3 {
			return told(1, quantity.USD/100), nil
		}
		if in.Trial.Number == 3 {
			f.env.CancelWorkflow()
		}
		<-ctx.Done()
		return wire.Result{}, temporal.NewCanceledError("stopped")
	})
	_, err := f.run(t, fitSearch())
	if !temporal.IsCanceledError(err) {
		t.Errorf("got %v, want that it was cancelled", err)
	}
	if f.mu.Lock(); len(f.tasks) > 3+8 {
		t.Errorf("%d jobs were begun, of a window of 8", len(f.tasks))
	}
	f.mu.Unlock()
}
