package agent

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/enforce/enforcetest"
)

// pasts is a plan that tells stage how long the steps of its trainings were.
func pasts(sizing predictor.Sizing, steps ...float64) predictor.Plan {
	plan := placement(1, sizing)
	plan.Trainings = []predictor.PastTraining{{
		Stage:  predictor.StageID{App: "another"},
		Newest: []predictor.Training{{StepSeconds: 99}},
	}, {Stage: stage}}
	for _, step := range steps {
		plan.Trainings[1].Newest = append(plan.Trainings[1].Newest, predictor.Training{StepSeconds: step})
	}
	return plan
}

// obeyed hands out a plan and returns once it is obeyed: a second one is only taken then.
func (h *host) obeyed(plan predictor.Plan) {
	h.plans <- plan
	h.plans <- plan
}

// tellings are the samples that tell how a training goes.
func (h *host) tellings() (found []predictor.Training) {
	for _, sample := range told[predictor.Sampled](h.recorder) {
		if sample.Training != nil {
			found = append(found, *sample.Training)
		}
	}
	return found
}

func TestATrainingIsSampledOnceForEachReportAndKeptInTheRecord(t *testing.T) {
	t.Parallel()
	h := start(t, 1, nil)
	plan := pasts(predictor.Sizing{Stage: stage, Base: of(1, 64)}, 2, 3)
	plan.TimesToLoss = []predictor.TimeToLoss{{Mean: 36 * time.Hour}}
	h.obeyed(plan)
	a := h.submit(t, order{Do: "train"}, nil)
	first := predictor.Training{Executor: "gomlx", Steps: 1, TotalSteps: 2}
	await[predictor.Sampled](t, h.recorder, "a sample with the training", func(s predictor.Sampled) bool {
		return s.Training != nil
	})
	later := len(told[predictor.Sampled](h.recorder)) + 3
	await[predictor.Sampled](t, h.recorder, "three samples more", func(predictor.Sampled) bool {
		return len(told[predictor.Sampled](h.recorder)) >= later
	})
	if diff := cmp.Diff([]predictor.Training{first}, h.tellings()); diff != "" {
		t.Errorf("told while it ran (-want +got):\n%s", diff)
	}
	h.obeyed(pasts(predictor.Sizing{Stage: stage, Base: of(2, 64)}))
	out, _ := decoded(t, h, a)
	if out.ToLoss != 36*time.Hour {
		t.Errorf("the attempt knew that it is lost in %s, want a day and a half", out.ToLoss)
	}
	if out.Past != 2 {
		t.Errorf("the attempt knew %d trainings, want the 2 of its stage", out.Past)
	}
	want := predictor.Training{Executor: "gomlx", Steps: 2, TotalSteps: 2}
	if diff := cmp.Diff(&want, h.records()[0].Training); diff != "" {
		t.Errorf("the Record's training (-want +got):\n%s", diff)
	}
	h.seen(out.PID)
	if out, _ := h.done(t, order{}); out.Past != 0 || out.ToLoss != predictor.UsualTimeToLoss {
		t.Errorf("the next attempt knew %d trainings and %s to a loss, want those of the newest plan, none and a day",
			out.Past, out.ToLoss)
	}
	if told := h.records()[1].Training; told != nil {
		t.Errorf("the next Record's training: %+v, want none", told)
	}
}

func TestWhatThePlanOfATrainingTookIsNotLearnedAsItsPeak(t *testing.T) {
	t.Parallel()
	h, _, _ := startWithStore(t, 1, nil)
	directory := t.TempDir()
	until := func(name string) string { return "until [ -e " + directory + "/" + name + " ]; do sleep 0.01; done" }
	tell := func(name string) {
		if err := os.WriteFile(filepath.Join(directory, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const planned = 8 * quantity.MiB // that the variable takes, and more
	activity := h.command(t, "train-1", shell(`(x=$(head -c 8388608 /dev/zero | tr '\0' x); `+until("planned")+`)
		echo '{"training": {"executor": "torch"}}' >$SPILLWAY_REPORT
		`+until("trained")), nil)
	await[predictor.Sampled](t, h.recorder, "a sample of the plan", func(s predictor.Sampled) bool {
		return s.Memory > planned
	})
	tell("planned")
	await[predictor.Sampled](t, h.recorder, "a sample with the training", func(s predictor.Sampled) bool {
		return s.Training != nil
	})
	tell("trained")
	if _, err := activity.Wait(t); err != nil {
		t.Fatal(err)
	}
	if peak := h.records()[0].Usage.PeakMemory; peak <= 0 || peak >= planned {
		t.Errorf("a peak of %v is learned; the plan took more than %v, the training next to nothing", peak, planned)
	}
}

// A training is refused the workers of its loader while it plans, and goes on with fewer.
func TestAnAttemptThatWasRefusedProcessesWhileItPlannedIsToldWhy(t *testing.T) {
	t.Parallel()
	enforcetest.Need(t)
	h, _, _ := startWithStore(t, 1, func(o *Options) { o.Processes = 8 })
	trained := filepath.Join(t.TempDir(), "trained")
	activity := h.command(t, "train-1", shell(`sh -c 'trap "kill \$pids; wait" EXIT
			for i in 1 2 3 4 5 6 7 8 9 10; do sleep 60 & pids="$pids $!"; done'
		echo '{"training": {"executor": "torch"}}' >$SPILLWAY_REPORT
		until [ -e `+trained+` ]; do sleep 0.01; done
		exit 3`), nil)
	await[predictor.Sampled](t, h.recorder, "the peak of the plan to be forgotten", func(s predictor.Sampled) bool {
		return s.Training != nil
	})
	if err := os.WriteFile(trained, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	const why = "to start a process or thread for it, as it had the 8 that an attempt may have at once"
	_, err := activity.Wait(t)
	if got := h.records()[0].Error; err == nil || !strings.Contains(got, why) {
		t.Errorf("it failed with %v, and its Record says %q; want %q", err, got, why)
	}
}

func TestACommandTellsItsTrainingAndKnowsThoseBefore(t *testing.T) {
	t.Parallel()
	h, printed, _ := startWithStore(t, 1, nil)
	plan := pasts(predictor.Sizing{}, 2, 3)
	plan.TimesToLoss = []predictor.TimeToLoss{{Mean: 36 * time.Hour}, {DeviceClass: "h200", Mean: time.Hour}}
	h.obeyed(plan)
	result, err := h.command(t, "train-1",
		shell(`printf '{"result": {"past": %s, "to_loss": %s}}\n' "$SPILLWAY_TRAININGS" "$SPILLWAY_TIME_TO_LOSS_SECONDS" \
			>$SPILLWAY_REPORT
		echo '{"training": {"executor": "torch", "steps": 7, "step_seconds": 0.5}}' >$SPILLWAY_REPORT
		echo '{"training": {"steps": -7}}' >$SPILLWAY_REPORT`), nil).Wait(t)
	if err != nil {
		t.Fatal(err)
	}
	var out wire.CommandResult
	if err := json.Unmarshal(result.Output, &out); err != nil {
		t.Fatal(err)
	}
	known, err := json.Marshal(out.Values["past"])
	if err != nil {
		t.Fatal(err)
	}
	var past []predictor.Training
	if err := json.Unmarshal(known, &past); err != nil {
		t.Fatal(err)
	}
	if seconds, err := json.Marshal(out.Values["to_loss"]); err != nil || string(seconds) != "129600" {
		t.Errorf("the command knew that it is lost in %s s, %v, want a day and a half", seconds, err)
	}
	if diff := cmp.Diff([]predictor.Training{{StepSeconds: 2}, {StepSeconds: 3}}, past); diff != "" {
		t.Errorf("what the command knew (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(&predictor.Training{Executor: "torch", Steps: 7, StepSeconds: 0.5},
		h.records()[0].Training); diff != "" {
		t.Errorf("the Record's training (-want +got):\n%s", diff)
	}
	if got := printed("train-1", 1); got != "spillway: report line 3: \"training\": -7 steps of 0 are done: neither can "+
		"be negative\n" {
		t.Errorf("printed: %q, want what is wrong with the last report", got)
	}
}
