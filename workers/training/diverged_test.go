package training_test

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/exec/torch"
	"github.com/spillway-ml/spillway/workers/exec/torch/torchtest"
	"github.com/spillway-ml/spillway/workers/training"
)

// Nothing is clipped, so that the gradient that is not finite is applied, and may even be in a checkpoint, before a
// loss tells.
func TestAStepThatLeftAParameterWithoutANumberIsFoundByRepeatingIt(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		every time.Duration
	}{{"from the start", -1}, {"from checkpoints, of which the newest is of no use", time.Nanosecond}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e, err := torch.New(torch.Options{
				Python: torchtest.Python(t), Data: "root", Repeats: 1,
				Model: filepath.Join("..", "exec", "torch", "testdata", "not_finite.py:root"),
			})
			if err != nil {
				t.Fatal(err)
			}
			_, err = training.Run(t.Context(), training.Job{
				Executor: e, Devices: devices("a"), Partitions: 1, Batch: 8, MicroBatches: 2, Steps: 8, Seed: 4,
				Optimizer: exec.Optimizer{Kind: exec.SGD, LearningRate: 1e-3}, CheckpointEvery: tt.every, Directory: t.TempDir(),
			}, training.Observer{})
			var loss *exec.LossError
			if !errors.As(err, &loss) || loss.Found == nil || errors.Is(loss.Found, exec.ErrLossBefore) || loss.Updated {
				t.Fatalf("got %v", err)
			}
			for _, want := range []string{
				"operation sqrt: the gradient of sqrt has", "not_finite.py:34", "step 1: ", "micro-batch 0",
			} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got %v; want %q", err, want)
				}
			}
			if strings.Count(err.Error(), "step 1") != 1 {
				t.Errorf("it names the step more than once: %v", err)
			}
			bad := "step-000000002"
			if strings.Contains(err.Error(), "good checkpoint is") && strings.Contains(err.Error(), bad) {
				t.Errorf("%s is called good: %v", bad, err)
			}
		})
	}
}

// The first steps overflow, as the loss is scaled by 65536.
func TestATrainingInFloat16IsRehearsedAsItIsTrained(t *testing.T) {
	t.Parallel()
	e, err := torch.New(torch.Options{
		Python: torchtest.Python2(t), Repeats: 1, Model: filepath.Join("..", "exec", "torch", "testdata", "half.py:build"),
	})
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	result, err := training.Run(t.Context(), training.Job{
		Executor: e, Devices: devices("a"), Partitions: 1, Batch: 16, Steps: 12, Seed: 4, Precision: exec.Float16,
		CheckpointEvery: -1, Directory: t.TempDir(), Logger: slog.New(slog.NewTextHandler(&log, nil)),
	}, training.Observer{})
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(log.String(), "cannot be tried out") || len(result.Losses) != 12 ||
		!(result.Losses[11] < result.Losses[0]) {
		t.Errorf("losses %v, and it says %s", result.Losses, log.String())
	}
}

// stoppedLater is an executor that a stop comes to when it loads parts after a training has begun.
type stoppedLater struct {
	*torch.Executor

	begun atomic.Bool
	stop  chan struct{}
}

// Load stops, then loads.
func (s *stoppedLater) Load(ctx context.Context, layout exec.Layout) (exec.Pipeline, error) {
	if s.begun.Load() {
		close(s.stop)
		<-ctx.Done()
	}
	return s.Executor.Load(ctx, layout)
}

// A stop is not kept waiting by steps that are repeated, and what is lost is not called stopped.
func TestAStopEndsTheRepeatingOfSteps(t *testing.T) {
	t.Parallel()
	e, err := torch.New(torch.Options{
		Python: torchtest.Python(t), Data: "root", Repeats: 1,
		Model: filepath.Join("..", "exec", "torch", "testdata", "not_finite.py:root"),
	})
	if err != nil {
		t.Fatal(err)
	}
	s := &stoppedLater{Executor: e, stop: make(chan struct{})}
	_, err = training.Run(t.Context(), training.Job{
		Executor: s, Devices: devices("a"), Partitions: 1, Batch: 8, MicroBatches: 2, Steps: 8, Seed: 4, Stop: s.stop,
		Optimizer: exec.Optimizer{Kind: exec.SGD, LearningRate: 1e-3}, CheckpointEvery: -1, Directory: t.TempDir(),
	}, training.Observer{Progressed: func(training.Progress) { s.begun.Store(true) }})
	const want = "as that was stopped; there is no checkpoint"
	if !errors.Is(err, exec.ErrLoss) || errors.Is(err, training.ErrStopped) || !strings.Contains(err.Error(), want) {
		t.Errorf("got the error %v; want one of the loss that says %q", err, want)
	}
}
