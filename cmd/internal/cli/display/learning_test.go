package display_test

import (
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
)

func TestASummarySaysHowTrainingsGo(t *testing.T) {
	t.Parallel()
	told := func(phase string, value, best float64) predictor.Learning {
		return predictor.Learning{
			Stage: "train", Task: "t1", Attempt: 1, Metric: "loss", Better: "lower", Step: 1312, Value: &value, Best: &best,
			Phase: phase,
		}
	}
	expected := told("learning", 0.25, 0.24)
	expected.Final, expected.Planned, expected.Earlier = &predictor.Interval{Low: 0.09, Mid: 0.1, High: 0.125}, 5000, 1
	lost := told("diverged", 0, 0.3)
	lost.Value = nil
	run := ledger.RunView{
		Run: "r", State: predictor.RunRunning,
		Learning: []predictor.Learning{lost, told("diverged", 3, 0.5), told("plateaued", 0.5, 0.5), expected, expected},
	}
	run.Learning[1].Stage = "fit"
	summary := func() string { // without its breaks of lines
		lines := display.Summary(display.Model{Run: run}, display.Style{Width: 100})
		return strings.Join(strings.Fields(strings.Join(lines, " ")), " ")
	}
	text := summary()
	for _, want := range []string{
		"notice train has diverged: loss is not finite at step 1,312, its best was 0.3 ",
		"notice fit has diverged, and goes on getting worse: loss 3 at step 1,312, its best 0.5 ",
		"notice train has plateaued, hardly better since half of its steps: loss 0.5 at step 1,312 ",
		"train learns: loss 0.25 at step 1,312, its best 0.24; 0.1 (0.09 to 0.125) at step 5,000 by its curve and 1 " +
			"earlier task, and 1 other",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the summary has no %q:\n%s", want, text)
		}
	}
	run.State = predictor.RunSucceeded
	if text := summary(); strings.Contains(text, "diverged") {
		t.Errorf("of a run that has ended it says how trainings go:\n%s", text)
	}
}
