package training_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/exec/exectest"
	"github.com/spillway-ml/spillway/workers/exec/state"
	"github.com/spillway-ml/spillway/workers/training"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// devices are some of one thread.
func devices(ids ...string) []exec.Device {
	all := make([]exec.Device, len(ids))
	for i, id := range ids {
		all[i] = exec.Device{ID: id, Kind: exec.CPU, Threads: 1}
	}
	return all
}

// job is a small training of the reference.
func job(t *testing.T, o exectest.Options) training.Job {
	t.Helper()
	return training.Job{
		Executor: exectest.Reference(o), Devices: devices("a", "b", "c"), Partitions: 3, Batch: 12, MicroBatches: 4, Steps: 8,
		Seed:            7,
		CheckpointEvery: time.Nanosecond, Directory: t.TempDir(),
	}
}

// behind returns a hook that lets no step begin after the first until there is a checkpoint.
func behind(t *testing.T, directory *string) func(context.Context, int64, int) error {
	t.Helper()
	return func(ctx context.Context, step int64, stage int) error {
		if step == 0 || stage > 0 {
			return nil
		}
		for ctx.Err() == nil {
			// what is unfinished begins with a dot
			if names := checkpoints(t, *directory); len(names) > 0 && strings.HasPrefix(names[len(names)-1], "step-") {
				return nil
			}
			time.Sleep(time.Millisecond)
		}
		return ctx.Err()
	}
}

func checkpointName(step int64) string { return fmt.Sprintf("step-%09d", step) }

// newest is the newest checkpoint of a directory, and how many steps it has.
func newest(t *testing.T, directory string) (path string, step int64) {
	t.Helper()
	names := checkpoints(t, directory)
	if len(names) == 0 {
		t.Fatal("there is no checkpoint")
	}
	c, err := exec.OpenCheckpoint(filepath.Join(directory, "checkpoints", names[len(names)-1]))
	if err != nil {
		t.Fatal(err)
	}
	return c.Directory, c.Meta.Step
}

// checkpoints lists what is in the directory of checkpoints.
func checkpoints(t *testing.T, directory string) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(directory, "checkpoints"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	names := []string{}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestATrainingThatDiesAtAnyStepGoesOnWithTheSameLosses(t *testing.T) {
	t.Parallel()
	whole, err := training.Run(t.Context(), job(t, exectest.Options{}), training.Observer{})
	if err != nil {
		t.Fatal(err)
	}
	if len(whole.Losses) != 8 || whole.Losses[7] != whole.Loss {
		t.Fatalf("the losses are %v, the last is %v", whole.Losses, whole.Loss)
	}
	died := errors.New("the machine is gone")
	for step := int64(1); step < 8; step++ {
		for _, parts := range []int{3, 1} {
			var directory string
			first := job(t, exectest.Options{Fail: func(ctx context.Context, at int64, stage int) error {
				if at == step && stage == 1 {
					return died
				}
				return behind(t, &directory)(ctx, at, stage)
			}})
			directory = first.Directory
			_, err := training.Run(t.Context(), first, training.Observer{})
			from, done := newest(t, directory)
			if !errors.Is(err, died) || !strings.Contains(err.Error(), from) || done > step {
				t.Fatalf("died at step %d: got the error %v; the newest checkpoint is of step %d", step, err, done)
			}
			second := job(t, exectest.Options{})
			second.Directory, second.Resume, second.Partitions = directory, from, parts
			second.MicroBatches = 0 // those of the checkpoint
			got, err := training.Run(t.Context(), second, training.Observer{})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(whole.Losses[done:], got.Losses); diff != "" {
				t.Errorf("died at step %d and went on with %d parts: losses (-whole +resumed):\n%s", step, parts, diff)
			}
			if got.Training.Steps != 8 || got.Training.TotalSteps != 8 {
				t.Errorf("steps are %d of %d", got.Training.Steps, got.Training.TotalSteps)
			}
			if diff := cmp.Diff(parametersOf(t, whole.Model), parametersOf(t, got.Model)); diff != "" {
				t.Errorf("died at step %d: the models differ:\n%s", step, diff)
			}
		}
	}
}

// parametersOf reads a model's file.
func parametersOf(t *testing.T, path string) map[string][]byte {
	t.Helper()
	file, err := state.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string][]byte{}
	for _, name := range file.Names() {
		tensor, err := file.Read(name)
		if err != nil {
			t.Fatal(err)
		}
		found[name] = tensor.Data
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	return found
}

func TestAFinishedTrainingIsNotRepeated(t *testing.T) {
	t.Parallel()
	first, err := training.Run(t.Context(), job(t, exectest.Options{}), training.Observer{})
	if err != nil {
		t.Fatal(err)
	}
	again := job(t, exectest.Options{Fail: func(context.Context, int64, int) error {
		return errors.New("a step is done")
	}})
	again.Resume = first.Checkpoint
	second, err := training.Run(t.Context(), again, training.Observer{})
	if err != nil {
		t.Fatal(err)
	}
	if second.Loss != first.Loss || len(second.Losses) != 0 || second.Checkpoint != first.Checkpoint {
		t.Errorf("got the loss %v of %v more steps in %s, want %v of none in %s", second.Loss, len(second.Losses),
			second.Checkpoint, first.Loss, first.Checkpoint)
	}
	if diff := cmp.Diff(parametersOf(t, first.Model), parametersOf(t, second.Model)); diff != "" {
		t.Errorf("the models differ:\n%s", diff)
	}
}

func TestTheLastTwoCheckpointsAreKept(t *testing.T) {
	t.Parallel()
	var directory string
	one := job(t, exectest.Options{Fail: behind(t, &directory)})
	directory = one.Directory
	var told []int64
	result, err := training.Run(t.Context(), one, training.Observer{Checkpointed: func(at string, step int64) {
		if _, err := exec.OpenCheckpoint(at); err != nil {
			t.Errorf("told of step %d: %v", step, err)
		}
		told = append(told, step)
	}})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.IsSorted(told) || len(told) < 2 || told[0] != 1 || told[len(told)-1] != 8 {
		t.Fatalf("told of %v, want the first, the last and some between", told)
	}
	if got, want := checkpoints(t, directory), []string{
		checkpointName(told[len(told)-2]),
		checkpointName(8),
	}; !slices.Equal(got, want) {
		t.Errorf("%v are there, want %v", got, want)
	}
	if filepath.Base(result.Checkpoint) != checkpointName(8) {
		t.Errorf("the last is %s", result.Checkpoint)
	}
}

func TestOnlyTheLastCheckpointIsMadeWhereNoneIsWanted(t *testing.T) {
	t.Parallel()
	one := job(t, exectest.Options{})
	one.CheckpointEvery = -1
	if _, err := training.Run(t.Context(), one, training.Observer{}); err != nil {
		t.Fatal(err)
	}
	if got, want := checkpoints(t, one.Directory), []string{checkpointName(8)}; !slices.Equal(got, want) {
		t.Errorf("%v are there, want %v", got, want)
	}
}

func TestALossThatIsNoNumberEndsTheTrainingAndKeepsWhatWasGood(t *testing.T) {
	t.Parallel()
	var directory string
	one := job(t, exectest.Options{
		NaN:  func(step int64) bool { return step == 5 },
		Fail: behind(t, &directory),
	})
	directory = one.Directory
	_, err := training.Run(t.Context(), one, training.Observer{})
	good, step := newest(t, directory)
	if !errors.Is(err, exec.ErrLoss) || !strings.Contains(err.Error(), "step 5") || !strings.Contains(err.Error(), good) ||
		step > 5 {
		t.Fatalf("the newest checkpoint is of step %d; got the error %v", step, err)
	}
}

func TestACancelledTrainingReturnsSoonAndLeavesWholeCheckpointsOnly(t *testing.T) {
	t.Parallel()
	for step := int64(1); step < 6; step++ {
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("enough")
		one := job(t, exectest.Options{Fail: func(ctx context.Context, at int64, stage int) error {
			if at == step && stage == 2 {
				cancel(why)
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}})
		if _, err := training.Run(ctx, one, training.Observer{}); !errors.Is(err, why) {
			t.Errorf("got the error %v, want %v", err, why)
		}
		for _, name := range checkpoints(t, one.Directory) {
			if _, err := exec.OpenCheckpoint(filepath.Join(one.Directory, "checkpoints", name)); err != nil {
				t.Errorf("cancelled at step %d: %v", step, err)
			}
		}
	}
}

func TestAStoppedTrainingMakesACheckpointAndGoesOnWithTheSameLosses(t *testing.T) {
	t.Parallel()
	whole, err := training.Run(t.Context(), job(t, exectest.Options{}), training.Observer{})
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	first := job(t, exectest.Options{Fail: func(_ context.Context, step int64, stage int) error {
		if step == 3 && stage == 0 {
			close(stop)
		}
		return nil
	}})
	first.CheckpointEvery, first.Stop, first.MicroBatches = -1, stop, 1
	var told []int64
	_, err = training.Run(t.Context(), first, training.Observer{Checkpointed: func(_ string, step int64) {
		told = append(told, step)
	}})
	from, done := newest(t, first.Directory)
	if !errors.Is(err, training.ErrStopped) || !strings.Contains(err.Error(), from) || done != 4 ||
		!slices.Equal(told, []int64{4}) {
		t.Fatalf("got the error %v, a checkpoint of step %d, and was told of %v; want the one of the step that was "+
			"going on, 4", err, done, told)
	}
	again := first
	again.Resume = from
	if _, err = training.Run(t.Context(), again, training.Observer{}); !errors.Is(err, training.ErrStopped) {
		t.Errorf("stopped before it began: got %v", err)
	}
	second := job(t, exectest.Options{})
	second.Directory, second.Resume = first.Directory, from
	got, err := training.Run(t.Context(), second, training.Observer{})
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Losses) != 4 || math.Abs(got.Loss-whole.Loss) > 1e-9 {
		t.Errorf("the losses are %v; want the end of %v", got.Losses, whole.Losses)
	}
}

func TestACancelledTrainingComplainsOfNoCheckpoint(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var log strings.Builder
	j := job(t, exectest.Options{Fail: func(_ context.Context, step int64, stage int) error {
		if step == 2 && stage == 2 {
			cancel()
		}
		return nil
	}})
	j.Logger = slog.New(slog.NewTextHandler(&log, nil))
	if _, err := training.Run(ctx, j, training.Observer{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if strings.Contains(log.String(), "WARN") {
		t.Errorf("the log is %s", log.String())
	}
}

func TestObserversAreToldThePlanThenHowItGoes(t *testing.T) {
	t.Parallel()
	one := job(t, exectest.Options{})
	var said []string
	var last training.Progress
	result, err := training.Run(t.Context(), one, training.Observer{
		Planned: func(p predictor.Training) {
			said = append(said, "planned")
			if p.TotalSteps != 8 || p.Steps != 0 || len(p.Parts) != 3 || p.MicroBatches != 4 || p.PredictedStepSeconds <= 0 ||
				p.StepSeconds != 0 || p.Reason == "" {
				t.Errorf("planned %+v", p)
			}
		},
		Progressed: func(p training.Progress) {
			said = append(said, "progressed")
			if p.Training.Steps < last.Training.Steps || p.SamplesPerSecond <= 0 || p.Data < 0 || p.Data > 1 {
				t.Errorf("progressed from %+v to %+v", last, p)
			}
			last = p
		},
		Checkpointed: func(string, int64) {},
	})
	if err != nil {
		t.Fatal(err)
	}
	if said[0] != "planned" || slices.Contains(said[1:], "planned") || len(said) < 3 {
		t.Errorf("told %v", said)
	}
	if diff := cmp.Diff(result.Training, last.Training); diff != "" || last.Loss != result.Loss {
		t.Errorf("the last progress is not the result:\n%s", diff)
	}
	got := result.Training
	if err := got.Validate(); err != nil {
		t.Error(err)
	}
	if got.StepSeconds <= 0 || got.Bubble <= 0 || got.Bubble > 1 || got.Parts[0].BusySeconds <= 0 ||
		got.Parts[2].PeakBytes <= 0 {
		t.Errorf("measured %+v", got)
	}
}

func TestEpochsAreCountedByTheData(t *testing.T) {
	t.Parallel()
	one := job(t, exectest.Options{Samples: 50})
	one.Steps, one.Epochs, one.CheckpointEvery = 0, 2, -1
	result, err := training.Run(t.Context(), one, training.Observer{})
	if err != nil {
		t.Fatal(err)
	}
	if len(result.Losses) != 8 || result.Training.TotalSteps != 8 { // 2 x 50/12
		t.Errorf("%d steps of %d, want 8", len(result.Losses), result.Training.TotalSteps)
	}
}

func TestSchedulesAndRecomputationChangeNoLoss(t *testing.T) {
	t.Parallel()
	var want []float64
	for _, change := range []func(*training.Job){
		func(*training.Job) {},
		func(j *training.Job) { j.Schedule = training.GPipe },
		func(j *training.Job) { j.Recompute = training.RecomputeAlways },
		func(j *training.Job) { j.Partitions = 1 },
		func(j *training.Job) {
			j.Partitions = 2
			j.Schedule = training.GPipe
			j.Recompute = training.RecomputeAlways
		},
		func(j *training.Job) { j.Partitions = 0 },
	} {
		one := job(t, exectest.Options{})
		one.CheckpointEvery = -1
		change(&one)
		result, err := training.Run(t.Context(), one, training.Observer{})
		if err != nil {
			t.Fatal(err)
		}
		if want == nil {
			want = result.Losses
		}
		if diff := cmp.Diff(want, result.Losses); diff != "" {
			t.Errorf("%d parts, %s, recompute %q:\n%s", one.Partitions, one.Schedule, one.Recompute, diff)
		}
	}
}

func TestWhatMakesNoSenseIsRefusedAtTheDoor(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		change func(*testing.T, *training.Job)
		want   string
	}{
		{func(_ *testing.T, j *training.Job) { j.Executor = nil }, "no executor"},
		{func(_ *testing.T, j *training.Job) { j.Partitions = -1 }, "partitions is -1"},
		{func(_ *testing.T, j *training.Job) { j.Partitions = 4 }, "4 parts on 3 devices"},
		{func(_ *testing.T, j *training.Job) {
			j.Partitions, j.Devices = 10, devices("a", "b", "c", "d", "e", "f", "g", "h", "i", "j")
		}, "10 parts of a model of 9 operations"},
		{func(_ *testing.T, j *training.Job) { j.Batch = -3 }, "batch is -3"},
		{func(_ *testing.T, j *training.Job) { j.Batch = 300 }, "a batch of 300 of 240 samples"},
		{func(_ *testing.T, j *training.Job) { j.MicroBatches = 13 }, "13 micro-batches of a batch of 12"},
		{func(_ *testing.T, j *training.Job) { j.MicroBatches = -1 }, "micro-batches is -1"},
		{func(_ *testing.T, j *training.Job) { j.Epochs = 2 }, "both 8 steps and 2 epochs"},
		{func(_ *testing.T, j *training.Job) { j.Steps = -1 }, "steps is -1"},
		{func(_ *testing.T, j *training.Job) { j.ClipNorm = -1 }, "clip norm is -1"},
		{func(_ *testing.T, j *training.Job) { j.Optimizer.LearningRate = -0.1 }, "learning rate is -0.1"},
		{func(_ *testing.T, j *training.Job) { j.Optimizer.Kind = "adm" }, "did you mean adam"},
		{func(_ *testing.T, j *training.Job) { j.Schedule = "1f1" }, "did you mean 1f1b"},
		{func(_ *testing.T, j *training.Job) { j.Recompute = "sometimes" }, "want auto, never, always"},
		{func(_ *testing.T, j *training.Job) { j.Precision = "float23" }, "did you mean float32"},
		{func(_ *testing.T, j *training.Job) { j.Devices = devices("a", "b", "a") }, `"a" is named twice`},
		{func(_ *testing.T, j *training.Job) { j.Devices = []exec.Device{} }, "no devices"},
		{func(_ *testing.T, j *training.Job) { j.Devices[1].ID = "" }, "device 1 has no ID"},
		{func(_ *testing.T, j *training.Job) { j.Devices[1].Kind = "cdua" }, "did you mean cuda"},
		{func(_ *testing.T, j *training.Job) { j.Devices[1].Memory = 1000 }, "device a: memory of 0 B"},
		{func(_ *testing.T, j *training.Job) { j.Directory = "" }, "no directory"},
		{func(t *testing.T, j *training.Job) {
			t.Helper()
			j.Directory = filepath.Join(file(t), "below")
		}, "directory of checkpoints"},
		{func(t *testing.T, j *training.Job) { t.Helper(); j.Resume = filepath.Join(t.TempDir(), "absent") }, "absent"},
		{func(t *testing.T, j *training.Job) { t.Helper(); j.Resume = t.TempDir() }, "manifest.json"},
		{func(t *testing.T, j *training.Job) { t.Helper(); j.Resume = file(t) }, "no directory"},
	} {
		one := job(t, exectest.Options{Fail: func(context.Context, int64, int) error { return errors.New("it was let in") }})
		c.change(t, &one)
		if _, err := training.Run(t.Context(), one, training.Observer{}); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("want an error with %q, got %v", c.want, err)
		}
	}
}

// file makes an empty file.
func file(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestACheckpointOfAnotherModelOrCutShortIsRefused(t *testing.T) {
	t.Parallel()
	first, err := training.Run(t.Context(), job(t, exectest.Options{}), training.Observer{})
	if err != nil {
		t.Fatal(err)
	}
	other := job(t, exectest.Options{Model: "batchnorm"})
	other.Resume = first.Checkpoint
	if _, err := training.Run(t.Context(), other, training.Observer{}); !errors.Is(err, exec.ErrCheckpoint) ||
		!strings.Contains(err.Error(), "model") {
		t.Errorf("another model: got the error %v", err)
	}
	parts, err := filepath.Glob(filepath.Join(first.Checkpoint, "*.safetensors"))
	if err != nil || len(parts) == 0 {
		t.Fatal(parts, err)
	}
	if err := os.Truncate(parts[0], 10); err != nil {
		t.Fatal(err)
	}
	cut := job(t, exectest.Options{})
	cut.Resume = first.Checkpoint
	if _, err := training.Run(t.Context(), cut, training.Observer{}); !errors.Is(err, exec.ErrCheckpoint) ||
		!strings.Contains(err.Error(), "cut short") {
		t.Errorf("cut short: got the error %v", err)
	}
}

func TestTrainingLowersTheLoss(t *testing.T) {
	t.Parallel()
	one := job(t, exectest.Options{})
	one.Steps, one.CheckpointEvery, one.Optimizer = 200, -1, exec.Optimizer{Kind: exec.Adam, LearningRate: 0.01}
	result, err := training.Run(t.Context(), one, training.Observer{})
	if err != nil {
		t.Fatal(err)
	}
	mean := func(losses []float64) (sum float64) {
		for _, loss := range losses {
			sum += loss / float64(len(losses))
		}
		return sum
	}
	if first, last := mean(result.Losses[:20]), mean(result.Losses[180:]); last > first/2 {
		t.Errorf("the mean loss is %v in the first steps and %v in the last", first, last)
	}
}

func TestMeasurePredictionsOfTheReference(t *testing.T) {
	if os.Getenv("SPILLWAY_MEASURE") == "" {
		t.Skip("SPILLWAY_MEASURE is not set")
	}
	var past []predictor.Training
	for _, parts := range []int{1, 2} {
		for range 3 {
			one := job(t, exectest.Options{})
			one.Partitions, one.MicroBatches, one.Batch, one.Steps, one.CheckpointEvery, one.Past = parts, 4, 240, 200, -1, past
			result, err := training.Run(t.Context(), one, training.Observer{})
			if err != nil {
				t.Fatal(err)
			}
			got := result.Training
			t.Logf("%d parts: %.3f ms predicted, %.3f ms measured, bubble %.2f; %s", parts, 1000*got.PredictedStepSeconds,
				1000*got.StepSeconds, got.Bubble, got.Reason)
			past = append([]predictor.Training{got}, past...)
		}
	}
}

func TestAttackAPlantedLinkLeadsNoModelAway(t *testing.T) {
	t.Parallel()
	one := job(t, exectest.Options{})
	precious := filepath.Join(t.TempDir(), "precious")
	if err := os.WriteFile(precious, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	const model = "model.safetensors"
	for _, name := range []string{model, model + ".tmp", "unfinished-" + model, "unfinished-" + model + ".tmp"} {
		if err := os.Symlink(precious, filepath.Join(one.Directory, name)); err != nil {
			t.Fatal(err)
		}
	}
	result, err := training.Run(t.Context(), one, training.Observer{})
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Lstat(result.Model); err != nil || !info.Mode().IsRegular() {
		t.Errorf("the model is %v, %v", info, err)
	}
	if text, err := os.ReadFile(precious); err != nil || string(text) != "precious" {
		t.Errorf("the file of another is %.40q, %v", text, err)
	}
	if left, err := filepath.Glob(filepath.Join(one.Directory, ".*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestAttackCheckpointsAreNotLedAway(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root makes a link of another user")
	}
	one := job(t, exectest.Options{})
	victim, link := t.TempDir(), filepath.Join(one.Directory, "checkpoints")
	if err := errors.Join(os.Symlink(victim, link), os.Lchown(link, 65534, 65534)); err != nil {
		t.Fatal(err)
	}
	_, err := training.Run(t.Context(), one, training.Observer{})
	if err == nil || !strings.Contains(err.Error(), link+" is a link of user ") {
		t.Errorf("got %v", err)
	}
	if entries, err := os.ReadDir(victim); err != nil || len(entries) > 0 {
		t.Errorf("in the directory of another: %v, %v", entries, err)
	}
}
