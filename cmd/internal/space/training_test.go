package space

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/exec/exectest"
	"github.com/spillway-ml/spillway/workers/training"
)

// TestATrainingThatKeepsMakingCheckpointsDoesNotFillTheStore trains until 120 checkpoints are stored, as fast as they
// are. The heartbeat names the newest, and collections come now and then: there is never more than a small part of what
// was written, and what the next attempt would start from is there at any time.
func TestATrainingThatKeepsMakingCheckpointsDoesNotFillTheStore(t *testing.T) {
	t.Parallel()
	s := newStack(t, withStreams(t))
	s.since(day)
	c := s.collector()
	const (
		checkpoints  = 120
		collectAfter = 8  // of them
		held         = 24 // at most as much as so many take
	)
	type checkpoint struct {
		refs []activities.Ref
		at   time.Time
	}
	var (
		last    checkpoint
		stored  int
		one     int64 // bytes of a checkpoint
		most    int64
		written int64
		enough  = make(chan struct{})
	)
	usage := func() int64 {
		used, err := s.Store.Usage(t.Context())
		if err != nil {
			t.Error(err)
		}
		most = max(most, used)
		return used
	}
	run := s.going("going", "")
	activity := run.schedule(time.Now())
	ctx := activities.NewContext(t.Context(), &activities.Attempt{
		Run: "going", Stage: "train", Task: "t", Number: 1, Store: s.Store,
		Checkpoint: func(saved activities.Ref, parts ...activities.Ref) {
			if stored++; stored > checkpoints {
				return
			}
			next := checkpoint{append([]activities.Ref{saved}, parts...), time.Now()}
			for _, ref := range next.refs {
				written += ref.Bytes
			}
			if one == 0 {
				one = written
			}
			run.pending[activity].HeartbeatDetails = payloads(saved.Digest)
			c.Superseded(last.refs, last.at)
			last = next
			usage()
			if stored%collectAfter == 0 {
				if _, err := c.Collect(t.Context(), false); err != nil {
					t.Error(err)
				}
				for _, ref := range last.refs {
					if !s.has(ref.Digest) {
						t.Errorf("after %d checkpoints the newest is not whole", stored)
					}
				}
			}
			if stored == checkpoints {
				close(enough)
			}
		},
	})
	_, err := training.InStage(ctx, training.Job{
		Executor: exectest.Reference(exectest.Options{}), Devices: []exec.Device{{ID: "a", Kind: exec.CPU, Threads: 1}},
		Partitions: 1, Batch: 12, MicroBatches: 1, Steps: 1 << 30, Seed: 7, CheckpointEvery: time.Nanosecond, Stop: enough,
	})
	if !errors.Is(err, training.ErrStopped) || errors.Is(err, context.Canceled) {
		t.Fatalf("the training ended with %v after %d checkpoints", err, stored)
	}
	if bound := held * one; most > bound || written < 4*bound {
		t.Errorf("%d checkpoints wrote %d bytes, and up to %d were there; want at most %d, and a quarter of that",
			stored, written, most, bound)
	}
	t.Logf("%d checkpoints of %d bytes: up to %d bytes were there", stored, one, most)
}
