package display

import (
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/alerting"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// TestOneMissIsToldWithOneAdvice has a run that will miss its deadline, of which its forecast warns and an alert tells,
// whichever comes first.
func TestOneMissIsToldWithOneAdvice(t *testing.T) {
	t.Parallel()
	hopeless := ledger.RunView{
		Run: "r", State: predictor.RunRunning, Goal: predictor.Goal{Deadline: 4e9, Budget: quantity.USD},
		Predicted: ledger.RunPrediction{FinishSeconds: predictor.Interval{Low: 5, Mid: 10, High: 17}, Late: 0.95},
	}
	late := alerting.Alert{Run: "r", Kind: alerting.KindDeadlineAtRisk}
	var warned Misses
	if got := strings.Join(warned.Expected(hopeless), "\n"); !strings.Contains(got, "--deadline 19s there") {
		t.Errorf("it is warned of with %q, want the deadline that the alert advises, too", got)
	}
	for i, c := range []struct {
		kind alerting.Kind
		news bool
	}{
		{alerting.KindDeadlineAtRisk, false},
		{alerting.KindBudgetAtRisk, true},
		{alerting.KindRecovered, true},
		{alerting.KindDeadlineAtRisk, true},
	} {
		if got := warned.News(alerting.Alert{Run: "r", Kind: c.kind}); got != c.news {
			t.Errorf("alert %d, %s: told %v, want %v", i, c.kind, got, c.news)
		}
	}
	var alerted Misses
	if !alerted.News(late) {
		t.Error("an alert before any warning is not told")
	}
	if got := alerted.Expected(hopeless); len(got) != 1 || strings.Contains(got[0], "warning") {
		t.Errorf("after the alert it is told %q, want what is expected and no other advice", got)
	}
	dear := hopeless
	dear.Predicted.Dear, dear.Predicted.Cost = 0.9, predictor.Interval{Low: 1, Mid: 2, High: 3}
	var other Misses
	other.News(late)
	if got := other.Expected(dear); len(got) != 2 {
		t.Errorf("after the alert of its deadline it is told %q, want a warning of its budget", got)
	}
}

func TestAFailureForWantOfMoneySaysOnceWhatHelps(t *testing.T) {
	t.Parallel()
	run := ledger.RunView{
		Run: "r", State: predictor.RunFailed, Goal: predictor.Goal{Budget: quantity.USD},
		Error: "the run's budget of $1.00 is used up: raise --budget (1 of 1 attempt failed)",
	}
	for name, text := range map[string]string{
		"summary": strings.Join(Summary(Model{Run: run}, Style{Width: 100}), "\n"),
		"command": CommandEnd(run) + "\n" + CommandAdvice(run),
	} {
		if strings.Count(text, "--budget") != 1 || !strings.Contains(text, "used up (1 of 1") {
			t.Errorf("%s: want one advice:\n%s", name, text)
		}
	}
}
