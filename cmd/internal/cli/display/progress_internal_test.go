package display

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
)

// TestProgressOfRunningAttemptsIsShownEverywhere has a stage with two attempts that say how far they are, one that says
// no more than its steps, and one that says nothing.
func TestProgressOfRunningAttemptsIsShownEverywhere(t *testing.T) {
	t.Parallel()
	began := time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)
	stage := func(name string) ledger.StageView { return ledger.StageView{Name: name, Scheduled: 2, Running: 2} }
	run := ledger.RunView{
		Run: "fit-1", Pipeline: "fit", State: predictor.RunRunning, StartedAt: began,
		Stages: []ledger.StageView{stage("train"), stage("steps"), stage("silent")},
		Progress: []predictor.Progress{
			{
				Stage: "train", Task: "train-1", Attempt: 1, Step: 312, Of: 1000,
				Left:      predictor.Interval{Low: 190, Mid: 245, High: 320},
				PerSecond: map[string]float64{"samples": 127.6, "tokens": 4096},
			},
			{
				Stage: "train", Task: "train-0", Attempt: 1, Step: 900, Of: 1000,
				Left: predictor.Interval{Low: 5, Mid: 9, High: 20},
			},
			{Stage: "steps", Task: "steps-0", Attempt: 1, Step: 1234},
		},
	}
	now := began.Add(time.Minute)
	s := Style{Width: 120}
	const want = "312 of 1,000 (31%), 128 samples/s, 4,096 tokens/s, 4m05s left (3m10s to 5m20s), and 1 other"
	for name, lines := range map[string][]string{
		"top": Top(Overview{Now: now, Runs: []ledger.RunView{run}}, s), "live": Live(Model{Now: now, Run: run}, s),
		"show": Summary(Model{Now: now, Run: run}, s),
	} {
		text := strings.Join(lines, "\n")
		said := strings.Contains(strings.Join(strings.Fields(text), " "), want)
		if !said || !strings.Contains(text, "step 1,234") || strings.Count(text, " left (") != 1 {
			t.Errorf("%s: want %q, the steps of the other stage, and nothing of the third:\n%s", name, want, text)
		}
		if wide := slices.IndexFunc(lines, func(line string) bool { return len(line) >= s.Width }); wide >= 0 {
			t.Errorf("%s: line %d is too long:\n%s", name, wide, lines[wide])
		}
	}
	report := NewReport(Model{Now: now, Run: run}, nil, nil)
	if got := report.Stages[0].Progress; len(got) != 2 || got[0].Step != 312 || len(report.Stages[2].Progress) != 0 {
		t.Errorf("the report has %+v, want that of the two, and nothing of the third stage", got)
	}
	run.State, run.EndedAt = predictor.RunSucceeded, now
	if text := strings.Join(Summary(Model{Now: now, Run: run}, s), "\n"); strings.Contains(text, "left (") {
		t.Errorf("a run that is over tells what is left:\n%s", text)
	}
}
