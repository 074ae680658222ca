package runs_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/cli"
	"github.com/spillway-ml/spillway/cmd/internal/cli/clitest"
	"github.com/spillway-ml/spillway/predictor"
)

func TestShowForecastTellsWhatCameAndWhatIsPredicted(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	stack := clitest.StartStack(t, state, clitest.ServedDigits)
	at := time.Now().Add(-2 * time.Hour).Truncate(time.Minute)
	stage := predictor.StageID{App: "digits", Build: "0123456789ab", Name: "fit"}
	stack.Apply("r", predictor.RunStarted{Run: "r", Pipeline: "digits", App: "digits", Build: "0123456789ab", At: at})
	show := func(args ...string) (code int, stdout, stderr string) {
		t.Helper()
		return clitest.Execute(t, t.Context(), cli.Deps{}, append([]string{"show", "r", "--state", state}, args...)...)
	}
	code, stdout, stderr := show("--forecast")
	if code != 0 {
		t.Fatalf("before anything came: %d %s", code, stderr)
	}
	clitest.Contains(t, "a run without stages", stdout, "r: nothing has come at its stages")
	for i := range 90 {
		at := at.Add(time.Duration(i) * time.Minute)
		if i%3 > 0 {
			stack.Apply("r", predictor.Scheduled{Run: "r", Stage: stage, Tasks: 2, At: at})
		}
		if i == 10 {
			_, stdout, _ = show("--forecast")
			clitest.Contains(t, "after ten minutes", stdout, "by so little nothing is decided: 30 minutes have to be known")
		}
	}
	code, stdout, stderr = show("--forecast")
	if code != 0 {
		t.Fatalf("%d %s", code, stderr)
	}
	clitest.Contains(t, "the table", stdout, "fit  80 tasks in 60 minutes, of which ", "minute", "predicted",
		"chance of any", "2 so far", "tasks of all runs")
	code, stdout, stderr = show("--forecast", "--json")
	var told struct {
		Run    string
		Stages []predictor.Arriving
	}
	if err := json.Unmarshal([]byte(stdout), &told); code != 0 || err != nil || told.Run != "r" || len(told.Stages) != 1 {
		t.Fatalf("--json: %d %v %s %s", code, err, stdout, stderr)
	}
	if got := told.Stages[0]; len(got.Came) != 60 || len(got.Next) != 30 || got.Known != 88 || got.Count != 2 ||
		got.Came[59].Predicted == nil {
		t.Errorf("--json: got %s", fmt.Sprintf("%+v", got))
	}
	code, _, stderr = clitest.Execute(t, t.Context(), cli.Deps{}, "show", "none", "--forecast", "--state", state)
	if code != 2 {
		t.Errorf("a run that is not there: %d %s", code, stderr)
	}
	if code, _, stderr = show("--forecast", "--why"); code != 2 {
		t.Errorf("--forecast and --why: %d %s", code, stderr)
	}
}
