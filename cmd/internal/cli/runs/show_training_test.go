package runs_test

import (
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/cli"
	"github.com/spillway-ml/spillway/cmd/internal/cli/clitest"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

func TestShowTellsOfEachTrainingWhatWasPredictedAndWhatCame(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	stack := clitest.StartStack(t, state, clitest.ServedDigits)
	at := time.Now()
	training := func(attempt int, steps int64, step float64, peak quantity.Bytes) predictor.Sampled {
		return predictor.Sampled{
			Run: "r", Stage: predictor.StageID{App: "digits", Build: "0123456789ab", Name: "fit"}, Task: "fit-0",
			Attempt: attempt, Venue: predictor.Pool, At: at,
			Training: &predictor.Training{
				Schedule: "1f1b\x1b[31m", Steps: steps, TotalSteps: 400, PredictedStepSeconds: 0.8, StepSeconds: step,
				Parts: []predictor.TrainingPart{
					{PredictedPeakBytes: quantity.GiB, PeakBytes: peak},
					{PredictedPeakBytes: quantity.MiB, PeakBytes: peak / 2},
				},
			},
		}
	}
	stack.Apply("r", predictor.RunStarted{Run: "r", Pipeline: "digits", App: "digits", Build: "0123456789ab", At: at},
		training(1, 0, 0, 0))
	show := func() string {
		t.Helper()
		code, stdout, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, "show", "r", "--state", state)
		if code != 0 {
			t.Fatalf("show: %d %s", code, stderr)
		}
		return stdout
	}
	if out, want := show(), "fit: 2 parts, 1f1b, step 0/400; a step takes 0.8 s as predicted, not measured yet; the "+
		"fullest part holds 1 GiB as predicted, not measured yet"; !strings.Contains(out, want) {
		t.Errorf("before the first step: got\n%s\nwant %q", out, want)
	}
	stack.Apply("r", training(2, 120, 0.88, 2*quantity.GiB))
	out := show()
	if want := "step 120/400; a step takes 0.88 s, predicted 0.8 s (+10%); the fullest part holds 2 GiB, predicted 1 " +
		"GiB (+100%)"; !strings.Contains(out, want) || strings.Count(out, "  training  ") != 1 {
		t.Errorf("later: got\n%s\nwant one line with %q", out, want)
	}
}

func TestShowTellsHowSeveralWorkersTrain(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	stack := clitest.StartStack(t, state, clitest.ServedDigits)
	at := time.Now()
	stack.Apply("r", predictor.RunStarted{Run: "r", Pipeline: "digits", App: "digits", Build: "0123456789ab", At: at})
	told := func(task string, step, exchange float64) {
		stack.Apply("r", predictor.Sampled{
			Run: "r", Stage: predictor.StageID{App: "digits", Build: "0123456789ab", Name: "fit"}, Task: task,
			Attempt: 1, Venue: predictor.Pool, At: at,
			Training: &predictor.Training{
				Executor: "workers", Workers: 3, ModelBytes: 228 * quantity.KiB, Steps: 7, TotalSteps: 660,
				StepSeconds: step, ExchangeSeconds: exchange, Parts: []predictor.TrainingPart{{Device: "cpu-0"}},
			},
		})
	}
	told("fit-0", 0.0652, 0.0081)
	told("fit-1", 0, 0) // who has done no step has nothing to tell of them
	code, stdout, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, "show", "r", "--state", state)
	want := "fit: 3 workers, step 7/660; a step takes 65.2 ms, 8.1 ms of it to exchange 228 KiB from each\n"
	if code != 0 || !strings.Contains(stdout, want) {
		t.Errorf("show: %d %s, got\n%s\nwant %q", code, stderr, stdout, want)
	}
}
