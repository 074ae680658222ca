package training_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/exec/exectest"
	"github.com/spillway-ml/spillway/workers/exec/gomlx"
	"github.com/spillway-ml/spillway/workers/exec/torch"
	"github.com/spillway-ml/spillway/workers/exec/torch/torchtest"
	"github.com/spillway-ml/spillway/workers/schedule"
	"github.com/spillway-ml/spillway/workers/training"
)

const (
	// tooShort is a number of steps for which no plan is tried, whatever a step takes; enough is one for which it is.
	tooShort = 24
	enough   = 160
)

// loads notes the layouts that an executor loads for a trial or a training, and may refuse some.
type loads struct {
	exec.Executor
	refuse func(exec.Layout) error // nil refuses nothing

	mu      sync.Mutex
	layouts []exec.Layout
}

func (l *loads) Load(ctx context.Context, layout exec.Layout) (exec.Pipeline, error) {
	if !layout.Timed {
		l.mu.Lock()
		l.layouts = append(l.layouts, layout)
		l.mu.Unlock()
		if l.refuse != nil {
			if err := l.refuse(layout); err != nil {
				return nil, err
			}
		}
	}
	return l.Executor.Load(ctx, layout)
}

// tried is how often layouts were loaded, and whether the reason says that the plan was tried.
func (l *loads) tried(result training.Result) (count int, said bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.layouts), strings.Contains(result.Training.Reason, "; tried")
}

// everything is what the files of a checkpoint hold but for its manifest.
func everything(t *testing.T, checkpoint string) map[string][]byte {
	t.Helper()
	c, err := exec.OpenCheckpoint(checkpoint)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string][]byte{}
	for _, path := range c.Paths() {
		if found[filepath.Base(path)], err = os.ReadFile(path); err != nil {
			t.Fatal(err)
		}
	}
	return found
}

// untried trains a layout that was never tried, and returns the losses and a checkpoint of the last step.
func untried(t *testing.T, e exec.Executor, layout exec.Layout, clip float64) (losses []float64, checkpoint string) {
	t.Helper()
	order, err := schedule.OneForwardOneBackward(len(layout.Parts), layout.MicroBatches, schedule.Options{})
	if err != nil {
		t.Fatal(err)
	}
	pipeline, err := e.Load(t.Context(), layout)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := pipeline.Close(); err != nil {
			t.Error(err)
		}
	}()
	engine, whole := pipeline.(exec.Stepper)
	if !whole {
		if engine, err = exec.NewEngine(pipeline, order, exec.EngineOptions{ClipNorm: clip, Layout: layout}); err != nil {
			t.Fatal(err)
		}
	}
	for step := range int64(enough) {
		report, err := engine.Step(t.Context(), step)
		if err != nil {
			t.Fatal(err)
		}
		losses = append(losses, report.Loss)
	}
	checkpoint = filepath.Join(t.TempDir(), "last")
	wait, err := exec.Save(t.Context(), pipeline, checkpoint, exec.Describe(e.Name(), layout))
	if err == nil {
		_, err = wait()
	}
	if err != nil {
		t.Fatal(err)
	}
	return losses, checkpoint
}

// checkTrial trains with a trial, and the same layout without one.
func checkTrial(t *testing.T, e exec.Executor, job training.Job) {
	t.Helper()
	on := &loads{Executor: e}
	job.Executor, job.Directory, job.Seed, job.Steps = on, t.TempDir(), 5, enough
	if d, can := e.(exec.Distributor); can {
		job.Executor = distributing{on, d}
	}
	with, err := training.Run(t.Context(), job, training.Observer{})
	if err != nil {
		t.Fatal(err)
	}
	if left := checkpoints(t, job.Directory); slices.ContainsFunc(left, func(name string) bool {
		return strings.HasPrefix(name, ".")
	}) {
		t.Errorf("a trial leaves %v", left)
	}
	if count, said := on.tried(with); count != 1 || !said {
		t.Fatalf("layouts were loaded %d times, want once; the reason is %q", count, with.Training.Reason)
	}
	losses, checkpoint := untried(t, e, on.layouts[0], job.ClipNorm)
	if diff := cmp.Diff(losses, with.Losses); diff != "" {
		t.Errorf("losses (-without +with a trial):\n%s", diff)
	}
	want := everything(t, checkpoint)
	for file, got := range everything(t, with.Checkpoint) {
		if !bytes.Equal(got, want[file]) {
			t.Errorf("%s is another one after a trial: parameters, buffers, the optimizer's state or the scheduler's", file)
		}
	}
	if with.Training.PredictedStepSeconds <= 0 {
		t.Errorf("a step is predicted to take %v s", with.Training.PredictedStepSeconds)
	}
	for i, p := range with.Training.Parts {
		if predicted := float64(p.PredictedPeakBytes); p.PeakBytes > 0 && predicted > 1.03*float64(p.PeakBytes)+1 {
			t.Errorf("part %d is predicted to hold %v after its trial, in which it held no more than the %v in all", i,
				p.PredictedPeakBytes, p.PeakBytes)
		}
	}
}

func TestATrialLeavesNoTraceInWhatIsTrained(t *testing.T) {
	t.Parallel()
	for _, model := range []string{"mlp", "batchnorm"} {
		for _, every := range []int{-1, 0} { // without and with a checkpoint in the trial
			t.Run(model, func(t *testing.T) {
				t.Parallel()
				checkTrial(t, exectest.Reference(exectest.Options{Model: model}), training.Job{
					Devices: devices("a", "b"), Partitions: 2, Batch: 12, MicroBatches: 4, ClipNorm: 1,
					CheckpointEvery: time.Duration(every),
				})
			})
		}
	}
}

func TestATrialLeavesNoTraceInWhatGomlxTrains(t *testing.T) {
	t.Parallel()
	inputs, labels := gomlx.Array{Shape: []int{6}}, gomlx.Array{}
	for i := range 64 {
		for j := range 6 {
			inputs.Float32 = append(inputs.Float32, float32((i*7+j*3)%11)/11)
		}
		labels.Int32 = append(labels.Int32, int32(i%3))
	}
	e, err := gomlx.New(gomlx.Model{
		Name: "small",
		Blocks: []gomlx.Block{
			gomlx.Dense("in", 6, 16), gomlx.Relu("relu"), gomlx.Dropout("dropout", 0.2), gomlx.Dense("out", 16, 3),
		},
		Optimizer:    exec.Optimizer{Kind: exec.Adam},
		LearningRate: func(step int64) float64 { return 1 / float64(1+step) },
	}, gomlx.InMemory{Inputs: []gomlx.Array{inputs}, Target: labels})
	if err != nil {
		t.Fatal(err)
	}
	checkTrial(t, e, training.Job{Devices: devices("a", "b"), Partitions: 2, Batch: 16, MicroBatches: 2, ClipNorm: 1})
}

// traced is a model whose training has state wherever there may be some: dropout, batch normalization, Adam, a
// scheduler, data in an order of chance, and a stream that has to be begun again.
const traced = `
import torch
from torch import nn

def model():
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2),
        nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))

def optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=0.01)

def scheduler(optimizer):
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)

class Noisy(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        return torch.randn(8) + i % 3, i % 3

def data():
    return torch.utils.data.DataLoader(Noisy(), batch_size=16, shuffle=True)
`

func TestATrialLeavesNoTraceInWhatTorchTrains(t *testing.T) {
	t.Parallel()
	for name, python := range map[string]func(testing.TB) string{"1.13": torchtest.Python, "2": torchtest.Python2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "model.py")
			if err := os.WriteFile(path, []byte(traced), 0o600); err != nil {
				t.Fatal(err)
			}
			e, err := torch.New(torch.Options{Model: path + ":model", Python: python(t)})
			if err != nil {
				t.Fatal(err)
			}
			checkTrial(t, e, training.Job{Devices: devices("a", "b"), Partitions: 2, Batch: 16, MicroBatches: 2, ClipNorm: 1})
		})
	}
}

// distributing is loads of an executor that has replicas.
type distributing struct {
	*loads
	exec.Distributor
}

func TestATrialLeavesNoTraceInWhatReplicasTrain(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "model.py")
	if err := os.WriteFile(path, []byte(traced), 0o600); err != nil {
		t.Fatal(err)
	}
	e, err := torch.New(torch.Options{Model: path + ":model", Python: torchtest.Python2(t)})
	if err != nil {
		t.Fatal(err)
	}
	checkTrial(t, e, training.Job{
		Devices: devices("a", "b"), Partitions: 1, Replicas: 2, Batch: 16, MicroBatches: 2, ClipNorm: 1,
	})
}

func TestALayoutThatRunsOutOfMemoryInItsTrialIsPassedOver(t *testing.T) {
	t.Parallel()
	on := &loads{Executor: exectest.Reference(exectest.Options{})}
	on.refuse = func(exec.Layout) error {
		if len(on.layouts) == 1 { // the first one that is tried
			return exec.ErrMemory
		}
		return nil
	}
	result, err := training.Run(t.Context(), training.Job{
		Executor: on, Devices: devices("a", "b"), Batch: 12, Steps: 4000, Directory: t.TempDir(), CheckpointEvery: -1,
	}, training.Observer{})
	if err != nil {
		t.Fatal(err)
	}
	count, said := on.tried(result)
	if count < 2 || !said {
		t.Fatalf("%d layouts were loaded, and the reason is %q", count, result.Training.Reason)
	}
	first := on.layouts[0]
	if len(first.Parts) == len(result.Training.Parts) && first.MicroBatches == result.Training.MicroBatches {
		t.Errorf("what ran out of memory is trained: %+v", first)
	}
}

func TestATrainingThatIsShorterThanAFewTrialsIsNotTried(t *testing.T) {
	t.Parallel()
	on := &loads{Executor: exectest.Reference(exectest.Options{})}
	result, err := training.Run(t.Context(), training.Job{
		Executor: on, Devices: devices("a", "b"), Batch: 12, Steps: tooShort, Directory: t.TempDir(),
	}, training.Observer{})
	if err != nil {
		t.Fatal(err)
	}
	if count, said := on.tried(result); count != 1 || said {
		t.Errorf("layouts were loaded %d times; the reason is %q", count, result.Training.Reason)
	}
}

func TestATrialThatFailsEndsNoTraining(t *testing.T) {
	t.Parallel()
	on := &loads{Executor: exectest.Reference(exectest.Options{})}
	on.refuse = func(exec.Layout) error {
		if len(on.layouts) == 1 {
			return errors.New("not now")
		}
		return nil
	}
	result, err := training.Run(t.Context(), training.Job{
		Executor: on, Devices: devices("a"), Partitions: 1, Batch: 12, MicroBatches: 1, Steps: enough,
		Directory: t.TempDir(), CheckpointEvery: -1,
	}, training.Observer{})
	if err != nil {
		t.Fatal(err)
	}
	if count, said := on.tried(result); count != 2 || said {
		t.Errorf("layouts were loaded %d times, want the trial and the training; the reason is %q", count,
			result.Training.Reason)
	}
}

func TestATrainingThatIsStoppedInATrialMakesNoCheckpoint(t *testing.T) {
	t.Parallel()
	stop := make(chan struct{})
	on := &loads{Executor: exectest.Reference(exectest.Options{})}
	on.refuse = func(exec.Layout) error {
		if len(on.layouts) == 1 {
			close(stop)
		}
		return nil
	}
	directory := t.TempDir()
	_, err := training.Run(t.Context(), training.Job{
		Executor: on, Devices: devices("a"), Partitions: 1, Batch: 12, MicroBatches: 1, Steps: 1 << 20, Directory: directory,
		Stop: stop,
	}, training.Observer{})
	if !errors.Is(err, training.ErrStopped) {
		t.Errorf("got %v", err)
	}
	if left := checkpoints(t, directory); len(left) > 0 {
		t.Errorf("it leaves %v", left)
	}
}
