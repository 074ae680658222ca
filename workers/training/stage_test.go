package training_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/exec/exectest"
	"github.com/spillway-ml/spillway/workers/training"
)

// told is what an attempt was told.
type told struct {
	mu          sync.Mutex
	steps       []int
	checkpoints []activities.Ref
	trainings   []predictor.Training
	log         bytes.Buffer
}

func (h *told) newest() activities.Ref {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.checkpoints) == 0 {
		return activities.Ref{}
	}
	return h.checkpoints[len(h.checkpoints)-1]
}

// attempt puts an attempt into the test's context.
func attempt(t *testing.T, store activities.Store, resume activities.Ref) (context.Context, *told) {
	t.Helper()
	var h told
	return activities.NewContext(t.Context(), &activities.Attempt{
		Run: "r", Stage: "train", Task: "t", Number: 1, Store: store, Resume: resume,
		Logger: slog.New(slog.NewTextHandler(&h.log, nil)),
		Progress: func(step, _ int, metrics map[string]float64) {
			h.mu.Lock()
			defer h.mu.Unlock()
			if metrics["loss"] <= 0 || metrics["samples_per_second"] <= 0 || metrics["step_seconds"] <= 0 {
				t.Errorf("step %d: %v", step, metrics)
			}
			h.steps = append(h.steps, step)
		},
		Checkpoint: func(ref activities.Ref, _ ...activities.Ref) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.checkpoints = append(h.checkpoints, ref)
		},
		Trained: func(one predictor.Training) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.trainings = append(h.trainings, one)
		},
	}), &h
}

func openStore(t *testing.T) *artifact.Files {
	t.Helper()
	store, err := artifact.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func TestAStageGoesOnFromTheStoreAfterItsHostIsGone(t *testing.T) {
	t.Parallel()
	whole, err := training.Run(t.Context(), job(t, exectest.Options{}), training.Observer{})
	if err != nil {
		t.Fatal(err)
	}
	store := openStore(t)
	ctx, first := attempt(t, store, activities.Ref{})
	died := errors.New("the host is gone")
	one := job(t, exectest.Options{Fail: func(ctx context.Context, step int64, stage int) error {
		// the first is stored while the second step waits
		for step > 0 && stage == 0 && first.newest() == (activities.Ref{}) && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		if step == 6 {
			return died
		}
		return nil
	}})
	one.Directory = ""
	if _, err := training.InStage(ctx, one); !errors.Is(err, died) {
		t.Fatalf("got the error %v", err)
	}
	ctx, second := attempt(t, store, first.newest())
	again := job(t, exectest.Options{})
	again.Directory, again.Partitions = "", 2
	got, err := training.InStage(ctx, again)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(got.Losses); n < 2 || n > 7 {
		t.Fatalf("%d steps of 8 are repeated; a checkpoint of 1 to 6 was there", n)
	}
	if diff := cmp.Diff(whole.Losses[8-len(got.Losses):], got.Losses); diff != "" {
		t.Errorf("losses (-whole +resumed):\n%s", diff)
	}
	if got.Model != "" || got.Checkpoint != "" {
		t.Errorf("files of a removed directory are named: %q, %q", got.Model, got.Checkpoint)
	}
	model, err := got.Artifact.Get(ctx)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "model")
	if err := os.WriteFile(path, model, 0o600); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(parametersOf(t, whole.Model), parametersOf(t, path)); diff != "" {
		t.Errorf("the models differ:\n%s", diff)
	}
	if last := second.trainings[len(second.trainings)-1]; last.Steps != 8 || last.StepSeconds <= 0 ||
		!slices.IsSorted(second.steps) || second.steps[len(second.steps)-1] != 8 {
		t.Errorf("reported the steps %v and %+v", second.steps, last)
	}
	if diff := cmp.Diff(got.Training, second.trainings[len(second.trainings)-1]); diff != "" {
		t.Errorf("the last report is not the result:\n%s", diff)
	}
}

func TestAStageWithALostOrForeignCheckpointSaysSo(t *testing.T) {
	t.Parallel()
	store := openStore(t)
	put := func(value any) activities.Ref {
		ctx, _ := attempt(t, store, activities.Ref{})
		ref, err := activities.Put(ctx, value)
		if err != nil {
			t.Fatal(err)
		}
		return ref.Ref
	}
	file := func(name string, ref activities.Ref) any {
		return map[string]any{"step": 3, "files": []any{map[string]any{"name": name, "ref": ref}}}
	}
	there := put("something")
	gone := activities.Ref{Digest: strings.Repeat("0", 64), Bytes: 3}
	for name, resume := range map[string]activities.Ref{
		"the list is lost":          gone,
		"a file is lost":            put(file("manifest.json", gone)),
		"no manifest":               put(file("part-0.safetensors", there)),
		"a manifest that is none":   put(file("manifest.json", there)),
		"a name leads out":          put(file("../manifest.json", there)),
		"a name is a path":          put(file("a/manifest.json", there)),
		"there are no files at all": put(map[string]any{"step": 3}),
	} {
		ctx, h := attempt(t, store, resume)
		one := job(t, exectest.Options{})
		one.Steps = 2
		got, err := training.InStage(ctx, one)
		if err != nil || len(got.Losses) != 2 || !strings.Contains(h.log.String(), "training starts anew") {
			t.Errorf("%s: %d steps, the error %v and the log %q", name, len(got.Losses), err, h.log.String())
		}
	}
	ctx, h := attempt(t, store, activities.Ref{})
	if _, err := training.InStage(ctx, job(t, exectest.Options{Model: "batchnorm"})); err != nil {
		t.Fatal(err)
	}
	ctx, _ = attempt(t, store, h.newest())
	if _, err := training.InStage(ctx, job(t, exectest.Options{})); !errors.Is(err, exec.ErrCheckpoint) {
		t.Errorf("a checkpoint of another model: got the error %v", err)
	}
	if _, err := training.InStage(t.Context(), job(t, exectest.Options{})); !errors.Is(err, activities.ErrNoAttempt) {
		t.Errorf("outside a stage: got the error %v", err)
	}
}

func TestReportsAreLinesThatACommandStageReads(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "report")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	past := `[{"model": "m", "executor": "torch", "step_seconds": 2}, {"model": "n"}]`
	environment := map[string]string{
		wire.ReportEnvironment: path, wire.ResumeEnvironment: "/somewhere/step-1",
		wire.TrainingsEnvironment: past,
	}
	resume, trainings, report, err := training.FromCommand(func(name string) (string, bool) {
		value, set := environment[name]
		return value, set
	})
	if err != nil {
		t.Fatal(err)
	}
	if resume != "/somewhere/step-1" || len(trainings) != 2 || trainings[0].StepSeconds != 2 || trainings[1].Model != "n" {
		t.Errorf("got %q and %+v", resume, trainings)
	}
	result, err := training.Run(t.Context(), job(t, exectest.Options{}), training.Reports(report))
	if err != nil {
		t.Fatal(err)
	}
	if err := report.Close(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	type line struct {
		Progress   int                 `json:"progress"`
		Metrics    map[string]float64  `json:"metrics"`
		Checkpoint string              `json:"checkpoint"`
		Training   *predictor.Training `json:"training"`
	}
	var last line
	lines := 0
	for text := range strings.Lines(string(text)) {
		var one line
		decoder := json.NewDecoder(strings.NewReader(text))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&one); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if one.Progress > 0 {
			last.Progress, last.Metrics = one.Progress, one.Metrics
		}
		if one.Checkpoint != "" {
			last.Checkpoint = one.Checkpoint
		}
		if one.Training != nil {
			last.Training = one.Training
		}
		lines++
	}
	want := line{8, last.Metrics, result.Checkpoint, &result.Training}
	if diff := cmp.Diff(want, last); diff != "" || last.Metrics["loss"] != result.Loss || lines < 5 {
		t.Errorf("the last of %d lines (-want +got):\n%s", lines, diff)
	}
}

func TestOutsideACommandStageNothingIsResumedAndReportsGoNowhere(t *testing.T) {
	t.Parallel()
	resume, past, report, err := training.FromCommand(func(string) (string, bool) { return "", false })
	if err != nil || resume != "" || past != nil {
		t.Fatalf("got %q, %v and the error %v", resume, past, err)
	}
	if _, err := report.Write([]byte("a line\n")); err != nil {
		t.Error(err)
	}
	if err := report.Close(); err != nil {
		t.Error(err)
	}
	for name, value := range map[string]string{
		wire.TrainingsEnvironment: `{"model"`,
		wire.ReportEnvironment:    "/nowhere/at/all",
	} {
		if _, _, _, err := training.FromCommand(func(asked string) (string, bool) {
			return value, asked == name
		}); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s=%s: got the error %v", name, value, err)
		}
	}
}

func TestACommandIsToldHowOftenAttemptsAreLost(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"": 0, "86400": 24 * time.Hour, "0.5": time.Second / 2, "0": -1, "-3": -1, "NaN": -1, "1e300": -1, "soon": -1,
	} {
		got, err := training.TimeToLoss(func(asked string) (string, bool) {
			return text, asked == wire.TimeToLossEnvironment && text != ""
		})
		if err == nil && got != want || err != nil && (want >= 0 || !strings.Contains(err.Error(), "leave it out")) {
			t.Errorf("%q: got %v and the error %v, want %v", text, got, err, want)
		}
	}
}

func FuzzFromCommand(f *testing.F) {
	f.Add(`[{"model": "m", "parts": [{"threads": 1}]}]`)
	f.Add(`[]`)
	f.Fuzz(func(t *testing.T, text string) {
		_, past, report, err := training.FromCommand(func(name string) (string, bool) {
			return text, name == wire.TrainingsEnvironment
		})
		if err != nil {
			return
		}
		if err := report.Close(); err != nil {
			t.Error(err)
		}
		if _, _, err := training.Plan(t.Context(), training.Job{
			Executor: exectest.Reference(exectest.Options{}),
			Devices:  devices("a"), Batch: 8, MicroBatches: 1, Past: past,
		}); err != nil {
			t.Fatal(err)
		}
	})
}
