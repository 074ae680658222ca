package predictor_test

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// training is one in two parts whose steps took so many seconds.
func training(step float64) *predictor.Training {
	part := predictor.TrainingPart{
		Device: "cpu:0", Kind: "cpu", Threads: 1, Ops: 4, First: "embed", Last: "block", PredictedPeakBytes: quantity.GiB,
		PeakBytes:     quantity.GiB + 1,
		CapacityBytes: 2 * quantity.GiB, PredictedBusySeconds: step / 2, BusySeconds: step / 2,
	}
	return &predictor.Training{
		Model: "digest", Executor: "torch", Schedule: "1f1b", Batch: 32, MicroBatches: 4, Steps: 10, TotalSteps: 10,
		PredictedStepSeconds: 1, StepSeconds: step,
		Parts: []predictor.TrainingPart{part, part},
		Alternatives: []predictor.TrainingAlternative{{
			Partitions: 1, MicroBatches: 1, StepSeconds: 3,
			PeakBytes: 4 * quantity.GiB, Reason: "slower",
		}},
		Reason: "the fastest that fits",
	}
}

// trained folds the Record of an attempt that told of a training.
func trained(state predictor.State, stage string, task int, told *predictor.Training) predictor.State {
	e := record("earlier", stage, task, -1000+float64(task), 10)
	e.Training = told
	return predictor.Fold(state, e)
}

// past is what a plan tells of the stage's trainings, by the time of their steps.
func past(plan predictor.Plan, stage string) (steps []float64) {
	for _, row := range plan.Trainings {
		if row.Stage.Name == stage {
			for _, training := range row.Newest {
				steps = append(steps, training.StepSeconds)
			}
		}
	}
	return steps
}

func TestAPlanTellsTheLastTrainingsOfAStageNewestFirst(t *testing.T) {
	t.Parallel()
	var state predictor.State
	for i := range 10 {
		state = trained(state, "train", i, training(float64(i+1)))
	}
	state = trained(state, "train", 9, training(99)) // the same Record again
	state = trained(state, "train", 10, training(0)) // nothing was measured
	state = trained(state, "train", 11, nil)
	state = trained(state, "other", 12, training(50)) // has no work
	state = fold(state, started("r", 0, predictor.Goal{}), hint("r", "train", 1, 0), hint("r", "plain", 1, 0))
	plan, state := predictor.Decide(state, laptop(1, 4))
	if diff := cmp.Diff([]float64{10, 9, 8, 7, 6, 5, 4, 3}, past(plan, "train")); diff != "" {
		t.Errorf("seconds of the steps (-want +got):\n%s", diff)
	}
	if len(plan.Trainings) != 1 {
		t.Errorf("rows: got %d, want one: the other stages trained nothing, or have no work", len(plan.Trainings))
	}
	want := *training(10)
	want.Alternatives, want.Reason = nil, ""
	if diff := cmp.Diff(want, plan.Trainings[0].Newest[0]); diff != "" {
		t.Errorf("the newest (-want +got):\n%s", diff)
	}
	// Another build of the app goes on from the same trainings.
	rebuilt := predictor.Scheduled{
		Run: "r2", Stage: predictor.StageID{App: "app", Build: "b2", Name: "train"}, Tasks: 1,
		At: after(2),
	}
	plan, _ = predictor.Decide(predictor.Fold(state, rebuilt), laptop(3, 4))
	if len(plan.Trainings) != 2 || len(plan.Trainings[1].Newest) != predictor.PastTrainings {
		t.Errorf("after a new build: got %d rows, want one for each build", len(plan.Trainings))
	}
}

func TestACheckpointedStateKeepsItsTrainings(t *testing.T) {
	t.Parallel()
	state := trained(predictor.State{}, "train", 0, training(2))
	saved, err := json.Marshal(state)
	if err != nil {
		t.Fatal(err)
	}
	var back predictor.State
	if err := json.Unmarshal(saved, &back); err != nil {
		t.Fatal(err)
	}
	back = fold(back, started("r", 0, predictor.Goal{}), hint("r", "train", 1, 0))
	plan, _ := predictor.Decide(back, laptop(1, 4))
	if diff := cmp.Diff([]float64{2}, past(plan, "train")); diff != "" {
		t.Errorf("seconds of the steps (-want +got):\n%s", diff)
	}
	// A checkpoint of a build that knew no trainings has the same version and is read.
	var older map[string]any
	if err := json.Unmarshal(saved, &older); err != nil {
		t.Fatal(err)
	}
	delete(older["models"].([]any)[0].(map[string]any), "trainings")
	if saved, err = json.Marshal(older); err == nil {
		err = json.Unmarshal(saved, &back)
	}
	if err != nil {
		t.Errorf("an older checkpoint: %v", err)
	}
}

func TestWhatNoTrainingCanBeIsRefusedAndNotKept(t *testing.T) {
	t.Parallel()
	for name, harm := range map[string]func(*predictor.Training){
		"not a number":         func(t *predictor.Training) { t.PredictedStepSeconds = math.NaN() },
		"infinite":             func(t *predictor.Training) { t.StepSeconds = math.Inf(1) },
		"negative time":        func(t *predictor.Training) { t.StepSeconds = -1 },
		"negative steps":       func(t *predictor.Training) { t.Steps = -1 },
		"negative batch":       func(t *predictor.Training) { t.MicroBatches = -1 },
		"less than no replica": func(t *predictor.Training) { t.Replicas = -1 },
		"endless replicas":     func(t *predictor.Training) { t.Replicas = 1 << 20 },
		"a long sharding":      func(t *predictor.Training) { t.Sharding = strings.Repeat("s", 1<<11) },
		"more bubble than all": func(t *predictor.Training) { t.Bubble = 1.5 },
		"bubble of nothing":    func(t *predictor.Training) { t.Bubble = math.NaN() },
		"many parts":           func(t *predictor.Training) { t.Parts = make([]predictor.TrainingPart, 65) },
		"many alternatives":    func(t *predictor.Training) { t.Alternatives = make([]predictor.TrainingAlternative, 65) },
		"a long text":          func(t *predictor.Training) { t.Reason = strings.Repeat("x", 1025) },
		"a long device":        func(t *predictor.Training) { t.Parts[1].Device = strings.Repeat("x", 1025) },
		"negative memory":      func(t *predictor.Training) { t.Parts[1].PeakBytes = -1 },
		"negative operations":  func(t *predictor.Training) { t.Parts[1].Ops = -1 },
		"busy without end":     func(t *predictor.Training) { t.Parts[0].BusySeconds = math.Inf(1) },
		"an alternative":       func(t *predictor.Training) { t.Alternatives[0].StepSeconds = math.NaN() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			told := training(2)
			harm(told)
			if err := told.Validate(); err == nil {
				t.Errorf("%+v is valid, want an error", told)
			}
			state := trained(predictor.State{}, "train", 0, told)
			plan, _ := predictor.Decide(fold(state, started("r", 0, predictor.Goal{}), hint("r", "train", 1, 0)), laptop(1, 4))
			if len(plan.Trainings) != 0 {
				t.Errorf("told on: %+v, want nothing", plan.Trainings)
			}
		})
	}
	if err := training(2).Validate(); err != nil {
		t.Errorf("a sound training: %v", err)
	}
}

// A plan is one message of NATS, which takes a mebibyte.
func TestTheTrainingsOfAPlanAreBounded(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		stages, parts := rapid.IntRange(1, 40).Draw(t, "stages"), rapid.IntRange(1, 64).Draw(t, "parts")
		told := training(1)
		told.Parts = make([]predictor.TrainingPart, parts)
		state := fold(predictor.State{}, started("r", 0, predictor.Goal{}))
		for i := range stages {
			name := fmt.Sprintf("train-%02d", i)
			for task := range rapid.IntRange(0, 12).Draw(t, "trainings") {
				state = trained(state, name, task, told)
			}
			state = predictor.Fold(state, hint("r", name, 1, 0))
		}
		plan, _ := predictor.Decide(state, laptop(1, 4))
		total := 0
		for _, row := range plan.Trainings {
			if len(row.Newest) == 0 || len(row.Newest) > predictor.PastTrainings {
				t.Errorf("%s: %d trainings, want 1 to %d", row.Stage, len(row.Newest), predictor.PastTrainings)
			}
			total += len(row.Newest) * parts
		}
		if total > 1024 {
			t.Errorf("%d parts in one plan, want at most 1024", total)
		}
	})
}
