package engine_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/cmd/internal/cli"
	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workflows/chain"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// descent goes down a parabola, from its checkpoint where it has one; with three layers it fails, and above a learning
// rate of 0.5 it diverges.
const descent = `import argparse, json, os
parse = argparse.ArgumentParser()
for name, kind in ("lr", float), ("layers", int), ("momentum", float), ("opt", str), ("to", int):
    parse.add_argument("--" + name, type=kind, default=None)
given = parse.parse_args()
assert (given.momentum is None) == (given.opt == "adam"), given
if given.layers == 3:
    raise SystemExit("three layers do not work")
done, place = 0, 1.0
if os.environ.get("SPILLWAY_RESUME"):
    done, place = json.load(open(os.environ["SPILLWAY_RESUME"]))
began = done
with open(os.environ["SPILLWAY_REPORT"], "w") as report:
    while done < given.to:
        done, place = done + 1, place * (1 - given.lr)
        loss = place * place if given.lr < 0.5 else float("nan")
        report.write(json.dumps({"progress": done, "metrics": {"loss": loss}}) + "\n")
    json.dump([done, place], open("state.json", "w"))
    report.write(json.dumps({"checkpoint": "state.json"}) + "\n")
    report.write(json.dumps({"result": {"began": began}}) + "\n")
open("model.txt", "w").write(repr(given.lr))
`

func TestACommandIsTunedOnAnEngine(t *testing.T) {
	t.Parallel()
	needPython(t)
	e := sharedEngine(t)
	dir := directory(t, map[string]string{"descent.py": descent})
	code, stdout, stderr := command(t, t.Context(), e.state, "tune", "--code", dir, "--json", "--name", "descent",
		"--space", "lr=log:0.001..1.0", "--space", "layers=1..3", "--space", "opt=adam|sgd",
		"--space", "momentum=0.5..0.9 if opt=sgd", "--trials", "12", "--most", "9", "--seed", "11", "--",
		"python3", "descent.py", "--lr", "{lr}", "--layers", "{layers}", "--opt", "{opt}", "--momentum", "{momentum}",
		"--to", "{to}")
	if code != cli.ExitOK {
		t.Fatalf("exit code %d\n%s\n%s\n%s", code, stdout, stderr, e.printed())
	}
	var report display.Report
	if err := json.Unmarshal([]byte(stdout), &report); err != nil || len(report.Tunings) != 1 {
		t.Fatalf("%v in %s", err, stdout)
	}
	told := report.Tunings[0]
	checkDescent(t, told)

	// The best trial's files are here, and its configuration in the result.
	best := told.Trials[*told.Best]
	lr := best.Configuration["lr"].Number
	if got := contentOf(t, dir)["model.txt"]; got != strconv.FormatFloat(lr, 'g', -1, 64) {
		t.Errorf("model.txt is %q, and the best learning rate %g", got, lr)
	}
	var result chain.Result
	if err := json.Unmarshal(report.Result, &result); err != nil || result.Tuned == nil ||
		result.Tuned.Trial != best.Number || result.Tuned.Ended != runs.EndedDone {
		t.Errorf("result: %+v, %v", result.Tuned, err)
	}
	if began := result.Stages["descent"].Values[0]["began"]; began == 0.0 {
		t.Error("the last job of the best trial began anew, and not from its checkpoint")
	}

	// What is asked for later is the same: of a run that has ended, too.
	later, err := e.client.Tunings(t.Context(), report.Run)
	if err != nil || len(later) != 1 || later[0].Ended != runs.EndedDone {
		t.Fatalf("tunings of an ended run: %+v, %v", later, err)
	}
	checkDescent(t, later[0])
	first, _ := json.Marshal(told)
	second, _ := json.Marshal(later[0])
	if string(first) != string(second) {
		t.Errorf("it is told differently later:\n%s\n%s", first, second)
	}
	if view, err := e.client.Run(t.Context(), report.Run); err != nil || view.State != predictor.RunSucceeded {
		t.Errorf("run: %+v, %v", view, err)
	}
	refused, ok := errors.AsType[*web.Error](func() error {
		_, err := e.client.Tunings(t.Context(), "descent-that-is-none")
		return err
	}())
	if !ok || refused.Status != http.StatusNotFound {
		t.Errorf("tunings of a run that there is not: got %v", refused)
	}
}

// checkDescent checks a tuning of descent that is done.
func checkDescent(t *testing.T, told runs.Tuning) {
	t.Helper()
	if told.Ended != runs.EndedDone || told.Begun != 12 || len(told.Trials) != 12 || told.Best == nil {
		t.Fatalf("tuning: %+v", told)
	}
	for _, trial := range told.Trials {
		layers, lr := trial.Configuration["layers"].Number, trial.Configuration["lr"].Number
		_, momentum := trial.Configuration["momentum"]
		if momentum != (trial.Configuration["opt"].Text == "sgd") {
			t.Errorf("trial %d: %v", trial.Number, trial.Configuration)
		}
		switch {
		case layers == 3:
			if trial.State != runs.TrialFailed || !strings.Contains(trial.Why, "three layers do not work") {
				t.Errorf("trial %d with three layers: %s, %s", trial.Number, trial.State, trial.Why)
			}
		case lr >= 0.5:
			if trial.State != runs.TrialDiverged {
				t.Errorf("trial %d with %g: %s, %s", trial.Number, lr, trial.State, trial.Why)
			}
		case trial.State != runs.TrialStopped && trial.State != runs.TrialFinished:
			t.Errorf("trial %d: %s, %s", trial.Number, trial.State, trial.Why)
		}
	}
	ranked := told.Ranked()
	if ranked[0].Number != *told.Best {
		t.Errorf("the first of the ranked is %d, and the best %d", ranked[0].Number, *told.Best)
	}
	job, _ := ranked[0].Told()
	want := 1.0
	for range 9 {
		want *= 1 - ranked[0].Configuration["lr"].Number
	}
	if job.To != 9 || *job.Objective != want*want {
		t.Errorf("the best told %+v, want %g at 9", job, want*want)
	}
}
