package space

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.temporal.io/api/enums/v1"
	workflowpb "go.temporal.io/api/workflow/v1"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/activities/retention"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/exec/torch"
	"github.com/spillway-ml/spillway/workers/exec/torch/torchtest"
	"github.com/spillway-ml/spillway/workers/training"
)

// halfMillion is a training of half a million parameters, whose checkpoints have those of Adam as well.
const halfMillion = `
import torch
from torch import nn

def model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(64, 700), nn.ReLU(), nn.Linear(700, 700), nn.ReLU(), nn.Linear(700, 10))

def data():
    torch.manual_seed(2)
    return torch.randn(512, 64), torch.randint(0, 10, (512,))
`

// TestADiskOfAGigabyteIsEnough has a PyTorch training store 720 checkpoints, as fast as it can, on a file system of a
// gigabyte, while runs come and go that leave artifacts there. Collections come as they do in an engine. No artifact is
// refused, and what a run reaches that has not given back is there at any time.
func TestADiskOfAGigabyteIsEnough(t *testing.T) {
	t.Parallel()
	if os.Getenv("SPILLWAY_MEASURE") != "1" {
		t.Skip("it takes minutes; measures only with SPILLWAY_MEASURE=1")
	}
	python, disk := torchtest.Python(t), gigabyte(t)
	s := newStack(t, withStreams(t))
	var err error
	if s.Store, err = artifact.Open(filepath.Join(disk, "artifacts")); err != nil {
		t.Fatal(err)
	}
	s.StateDir = disk
	s.Policy = retention.Usual(quantity.GiB)
	s.Policy.KeepBytes, s.Policy.KeepLeast, s.Policy.Grace = 300*quantity.MiB, 0, time.Second
	s.since(day)
	c := s.collector()
	ctx, cancel := context.WithCancel(t.Context())
	var beside sync.WaitGroup
	beside.Go(func() {
		c.Run(ctx, func(free *quantity.Bytes) {
			if free != nil {
				t.Errorf("artifacts are refused: %s are free", *free)
			}
		})
	})
	runs := &leavers{stack: s, c: c}
	beside.Go(func() { runs.leave(ctx) })
	most := quantity.Bytes(0)
	beside.Go(func() {
		for ctx.Err() == nil {
			look, err := DiskOf(disk)
			if err != nil {
				t.Error(err)
			}
			most = max(most, look.Size-look.Free)
			pauseFor(ctx, 100*time.Millisecond)
		}
	})
	began := time.Now()
	trainer := s.train(t, c, python)
	took := time.Since(began)
	cancel()
	beside.Wait()
	if trainer.written < 2*int64(quantity.GiB) || runs.left < quantity.GiB/2 {
		t.Errorf("the training wrote %s and the runs %s: that would nearly fit", quantity.Bytes(trainer.written), runs.left)
	}
	if runs.gave() == 0 {
		t.Error("no run has given back")
	}
	t.Logf("%d checkpoints, %s together, and %d runs that left %s in %s: at most %s of a gigabyte were in use; %d runs "+
		"gave back", trainer.stored, quantity.Bytes(trainer.written), len(runs.runs), runs.left, took.Round(time.Second),
		most, runs.gave())
}

// gigabyte is a directory in a file system of a gigabyte; the test skips where it may mount none.
func gigabyte(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1g"); err != nil {
		if slices.Contains(strings.Split(os.Getenv("SPILLWAY_TEST_REQUIRE"), ","), "mount") {
			t.Fatalf("mount a file system of a gigabyte: %v, and SPILLWAY_TEST_REQUIRE names mount", err)
		}
		t.Skipf("mount a file system of a gigabyte: %v; run it as root", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// pauseFor waits until ctx ends at most.
func pauseFor(ctx context.Context, pause time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(pause):
	}
}

// leavers are runs that leave artifacts and end.
type leavers struct {
	*stack

	c    *Collector
	runs []leaver
	left quantity.Bytes
}

// leaver is a run that has ended and names two artifacts, one by the other.
type leaver struct {
	name     string
	artifact [2]string
}

// leave has runs come and go until ctx ends, and looks after each whether what those reach is there that have not given
// back.
func (l *leavers) leave(ctx context.Context) {
	whole := context.WithoutCancel(ctx)                  // a run that has begun to leave something ends
	content := strings.Repeat("0123456789abcdef", 1<<17) // 2 MiB
	for n := 0; ctx.Err() == nil; n++ {
		run := leaver{name: fmt.Sprint("run-", n)}
		execution := l.temporal.start(run.name, "", time.Now(), "")
		l.temporal.mu.Lock()
		activity := execution.schedule(time.Now())
		l.temporal.mu.Unlock()
		for i, text := range []string{fmt.Sprint(n, content), ""} {
			if i > 0 {
				text = fmt.Sprint(n, " names ", run.artifact[0])
			}
			ref, err := l.Store.Put(whole, strings.NewReader(text))
			if err != nil {
				l.tb.Errorf("%s cannot leave an artifact: %v", run.name, err)
				return
			}
			run.artifact[i] = ref.Digest
			l.left += quantity.Bytes(ref.Bytes)
		}
		l.temporal.mu.Lock()
		execution.complete(activity, run.artifact[1], false)
		execution.end(time.Now(), enums.WORKFLOW_EXECUTION_STATUS_COMPLETED)
		l.temporal.mu.Unlock()
		l.runs = append(l.runs, run)
		l.look(whole)
		pauseFor(ctx, 250*time.Millisecond)
	}
}

// look wants what is reached by those that have not given back.
func (l *leavers) look(ctx context.Context) {
	for _, run := range l.runs {
		for _, digest := range run.artifact {
			if _, err := os.Lstat(filepath.Join(l.StateDir, "artifacts", digest[:2], digest[2:])); err == nil {
				continue
			}
			// it may be aside, and is gone only once its run is said to have given back
			content, err := l.Store.Open(ctx, digest)
			if err == nil {
				_ = content.Close() // it was only read
				continue
			}
			if _, _, gave := l.c.Given(run.name); !gave {
				l.tb.Errorf("%s has not given back, and %s is gone: %v", run.name, digest, err)
			}
		}
	}
}

// gave is how many have given back.
func (l *leavers) gave() (n int) {
	for _, run := range l.runs {
		if _, _, gave := l.c.Given(run.name); gave {
			n++
		}
	}
	return n
}

// trainer is what a training has stored.
type trainer struct {
	stored  int
	written int64
}

// train trains until 720 checkpoints are stored. Each is acknowledged at once, and supersedes those before the last.
func (s *stack) train(t *testing.T, c *Collector, python string) (told trainer) {
	t.Helper()
	const checkpoints = 720
	model := filepath.Join(t.TempDir(), "model.py")
	if err := os.WriteFile(model, []byte(halfMillion), 0o600); err != nil {
		t.Fatal(err)
	}
	executor, err := torch.New(torch.Options{Python: python, Model: model + ":model"})
	if err != nil {
		t.Fatal(err)
	}
	run := s.going("training", "")
	s.temporal.mu.Lock()
	activity := run.schedule(time.Now())
	s.temporal.mu.Unlock()
	type checkpoint struct {
		refs []activities.Ref
		at   time.Time
	}
	var made []checkpoint
	enough := make(chan struct{})
	ctx := activities.NewContext(t.Context(), &activities.Attempt{
		Run: "training", Stage: "train", Task: "t", Number: 1, Store: s.Store,
		Checkpoint: func(saved activities.Ref, parts ...activities.Ref) {
			if told.stored++; told.stored > checkpoints {
				return
			}
			made = append(made, checkpoint{append([]activities.Ref{saved}, parts...), time.Now()})
			for _, ref := range made[len(made)-1].refs {
				told.written += ref.Bytes
			}
			s.temporal.mu.Lock()
			before := run.pending[activity]
			run.pending[activity] = &workflowpb.PendingActivityInfo{
				ActivityId: activity, State: before.GetState(), LastStartedTime: before.GetLastStartedTime(),
				HeartbeatDetails: payloads(saved.Digest),
			}
			s.temporal.mu.Unlock()
			for len(made) > 2 {
				c.Superseded(made[0].refs, made[0].at)
				made = made[1:]
			}
			for _, one := range made {
				for _, ref := range one.refs {
					if !s.has(ref.Digest) {
						t.Errorf("after %d checkpoints one of the last two is not whole", told.stored)
					}
				}
			}
			if told.stored == checkpoints {
				close(enough)
			}
		},
	})
	_, err = training.InStage(ctx, training.Job{
		Executor: executor, Devices: []exec.Device{{ID: "a", Kind: exec.CPU, Threads: 1}},
		Optimizer:  exec.Optimizer{Kind: exec.Adam, LearningRate: 1e-3},
		Directory:  filepath.Join(s.StateDir, "workspace"),
		Partitions: 1, Batch: 16, MicroBatches: 1, Steps: 1 << 30, Seed: 7, CheckpointEvery: time.Nanosecond, Stop: enough,
	})
	if !errors.Is(err, training.ErrStopped) {
		t.Fatalf("the training ended with %v after %d checkpoints", err, told.stored)
	}
	told.stored = checkpoints
	return told
}
