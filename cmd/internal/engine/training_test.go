package engine_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workflows/chain"
)

// trained is a command stage that tells how a training of two parts goes: the plan at once, and what came once it has
// seen that the page would show it. Its result is what it was told of the trainings before.
const trained = `import json, os, pathlib, time
def tell(**what):
    with open(os.environ["SPILLWAY_REPORT"], "w") as report:
        report.write(json.dumps(what) + "\n")
plan = {"model": "m", "executor": "torch", "schedule": "1f1b", "batch": 8, "micro_batches": 4, "steps": 0,
        "total_steps": 3,
        "predicted_step_seconds": 0.5, "reason": "the fastest that fits",
        "parts": [{"device": "cpu:%d" % i, "kind": "cpu", "ops": 3 + i, "predicted_peak_bytes": 1 << 20,
                   "predicted_busy_seconds": 0.4} for i in range(2)],
        "alternatives": [{"partitions": 1, "micro_batches": 1, "step_seconds": 0.9,
                          "peak_bytes": 1 << 21, "reason": "slower"}]}
tell(training=plan)
deadline = time.time() + 60
while not os.path.exists(os.environ["SEEN"]) and time.time() < deadline:
    time.sleep(0.02)
for step in range(1, 4):
    plan.update(steps=step, step_seconds=0.25 * step, bubble=0.1)
    for part in plan["parts"]:
        part.update(peak_bytes=1 << 21, busy_seconds=0.2)
    tell(progress=step, metrics={"loss": 1 / step}, training=plan)
past = json.loads(os.environ.get("SPILLWAY_TRAININGS", "null"))
tell(result={"past": past, "attempt": os.environ["SPILLWAY_ATTEMPT"]})
`

// past is what the trainings of a run's stage knew of those before them, by the time of their steps.
func past(t *testing.T, result chain.Result) (steps []float64) {
	t.Helper()
	encoded, err := json.Marshal(result.Stages["fit"].Values[0]["past"])
	if err != nil {
		t.Fatal(err)
	}
	var trainings []predictor.Training
	if err := json.Unmarshal(encoded, &trainings); err != nil {
		t.Fatal(err)
	}
	for _, training := range trainings {
		if training.Model != "m" || len(training.Parts) != 2 || training.Parts[1].PeakBytes != 2*quantity.MiB {
			t.Errorf("a training before: got %+v, want its model and what its parts held", training)
		}
		steps = append(steps, training.StepSeconds)
	}
	return steps
}

// trainings returns how the trainings of a run go.
func (e *testEngine) trainings(run string) []ledger.TrainingView {
	found, err := e.client.Trainings(e.t.Context(), run)
	if err != nil {
		return nil // the run has not begun
	}
	return found
}

func TestWhatATrainingMeasuredReachesTheNextAttempt(t *testing.T) {
	t.Parallel()
	needPython(t)
	state, seen := t.TempDir(), filepath.Join(t.TempDir(), "seen")
	e := startEngine(t, state, "")
	program, err := json.Marshal([]string{"python3", "-c", trained})
	if err != nil {
		t.Fatal(err)
	}
	c := packedChain(t, fmt.Sprintf("name: fitting\ncode: none\nenvironment: {SEEN: %q}\nstages:\n  fit: {run: %s}\n",
		seen, program))
	if _, err := e.client.RegisterChain(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	first := e.publish("fitting", "1", struct{}{})
	e.until("the plan of a training that goes on is shown", func() bool {
		found := e.trainings(first)
		return len(found) == 1 && found[0].Outcome == "" && found[0].Training.Steps == 0 &&
			len(found[0].Training.Alternatives) == 1
	})
	if err := os.WriteFile(seen, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if known := past(t, succeed[chain.Result](e, first, patience)); known != nil {
		t.Errorf("the first attempt knew of trainings of %v s a step, want none", known)
	}
	found := e.trainings(first)
	if len(found) != 1 || found[0].Outcome != predictor.Succeeded || found[0].Training.Steps != 3 ||
		found[0].Training.StepSeconds != 0.75 || found[0].Training.Reason == "" {
		t.Errorf("once it ended: got %+v, want what its Record tells", found)
	}
	e.until("a plan tells of the training", func() bool {
		plan, err := e.client.Plan(t.Context())
		return err == nil && len(plan.Trainings) == 1
	})
	second := succeed[chain.Result](e, e.publish("fitting", "2", struct{}{}), patience)
	if diff := cmp.Diff([]float64{0.75}, past(t, second)); diff != "" {
		t.Errorf("the second attempt knew of steps in seconds (-want +got):\n%s", diff)
	}
	e.kill()
	e = startEngine(t, state, "")
	if _, err := e.client.RegisterChain(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	third := succeed[chain.Result](e, e.publish("fitting", "3", struct{}{}), patience)
	if diff := cmp.Diff([]float64{0.75, 0.75}, past(t, third)); diff != "" {
		t.Errorf("the third attempt, of another engine, knew of steps in seconds (-want +got):\n%s", diff)
	}
}
