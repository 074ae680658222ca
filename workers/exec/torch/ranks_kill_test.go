package torch_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	spillway "github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/exec/torch"
	"github.com/spillway-ml/spillway/workers/exec/torch/torchtest"
	"github.com/spillway-ml/spillway/workers/training"
)

// hunted is an executor whose ranks somebody kills.
type hunted struct {
	*torch.Executor

	mutex sync.Mutex
	ranks []int // processes of the pipeline that was loaded last
}

// Load loads, and remembers the processes.
func (h *hunted) Load(ctx context.Context, layout spillway.Layout) (spillway.Pipeline, error) {
	p, err := h.Executor.Load(ctx, layout)
	if err == nil && layout.Replicas > 1 {
		h.mutex.Lock()
		defer h.mutex.Unlock()
		h.ranks = torch.Processes(p)
	}
	return p, err
}

// kill ends one of them; false where there is none.
func (h *hunted) kill(random *rand.Rand) bool {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if len(h.ranks) == 0 {
		return false
	}
	process := h.ranks[random.IntN(len(h.ranks))]
	h.ranks = nil
	return syscall.Kill(process, syscall.SIGKILL) == nil
}

// TestKilledRanksLoseASegmentAtMost trains two replicas of two parts and kills one of the four processes at a random
// moment; each time the training goes on from its newest checkpoint, as the attempts of a run do. SPILLWAY_MEASURE=1
// has 20 seeds and kills every few seconds to the end; else there is one, with a kill.
func TestKilledRanksLoseASegmentAtMost(t *testing.T) {
	t.Parallel()
	python := torchtest.Python2(t)
	seeds, steps, kills := 1, int64(36), 1
	if measures {
		seeds, steps, kills = 20, 600, 1000
	}
	job := func(e spillway.Executor) training.Job {
		return training.Job{
			Executor: e, Partitions: 2, Replicas: 2, MicroBatches: 2, Batch: 16, Steps: steps, Seed: 5,
			CheckpointEvery: 100 * time.Millisecond, Directory: t.TempDir(),
			Devices: []spillway.Device{{ID: "a", Threads: 1}, {ID: "b", Threads: 1}},
		}
	}
	e := &hunted{Executor: executorOf(t, python, "training.py:mlp", "points")}
	begun := t.TempDir() // gets the first checkpoint, with the plan
	var copying error
	whole := job(e)
	undisturbed, err := training.Run(t.Context(), whole, training.Observer{Checkpointed: func(directory string, _ int64) {
		if training.NewestCheckpoint(begun) == "" {
			_, copying = training.CopyCheckpoint(directory, begun, true)
		}
	}})
	if err = errors.Join(err, copying); err != nil {
		t.Fatal(err)
	}
	for seed := range seeds {
		name := fmt.Sprintf("seed %d", seed)
		random := rand.New(rand.NewPCG(uint64(seed), 17)) //nolint:gosec // a test repeats what it draws
		j, left := job(e), kills
		j.Resume = training.NewestCheckpoint(begun)
		for attempt := 0; ; attempt++ {
			if attempt > int(steps) {
				t.Fatalf("%s: %d attempts have not ended it", name, attempt)
			}
			var done, kept int64 // steps of this attempt, and of its newest checkpoint
			at := steps/3 + random.Int64N(steps/3)
			observer := training.Observer{
				Progressed: func(p training.Progress) {
					done = p.Training.Steps
					if left > 0 && done >= at && kept > 0 && e.kill(random) {
						left--
					}
				},
				Checkpointed: func(_ string, step int64) { kept = step },
			}
			if from := training.NewestCheckpoint(filepath.Join(j.Directory, training.Checkpoints)); from != "" {
				j.Resume = from
			}
			result, err := training.Run(t.Context(), j, observer)
			if err == nil {
				alike(t, name, undisturbed.Losses[steps-int64(len(result.Losses)):], result.Losses, 1e-6)
				if left == kills {
					t.Errorf("%s: nobody was killed", name)
				}
				break
			}
			if !strings.Contains(err.Error(), "replica ") || errors.Is(err, spillway.ErrRequest) {
				t.Fatalf("%s: got the error %v; want one that names a rank", name, err)
			}
			if kept == 0 {
				continue // the one that it began with
			}
			opened, err := spillway.OpenCheckpoint(training.NewestCheckpoint(filepath.Join(j.Directory, training.Checkpoints)))
			if err != nil {
				t.Fatal(err)
			}
			// What was saved is not lost: only what came since the newest one that is complete.
			if opened.Meta.Step < kept {
				t.Errorf("%s: checkpoint %d was complete, and the newest is %d of %d steps", name, kept, opened.Meta.Step, done)
			}
		}
	}
}
