package training

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/workers/exec"
)

const (
	// Checkpoints is the directory of checkpoints, below that of the training.
	Checkpoints = "checkpoints"
	// prefix begins the name of each; the number of finished steps follows.
	prefix = "step-"
	// kept is how many complete checkpoints stay.
	kept = 2
)

// keeper makes checkpoints while training goes on, one at a time, and removes those that are too old. One goroutine
// calls its methods.
type keeper struct {
	directory string        // absolute
	every     time.Duration // negative: none but the last; 0: as often as is worth it
	// timeToLoss is how long attempts go on in the mean before they are lost; 0 where that is not known.
	timeToLoss time.Duration
	costs      costs
	resumed    time.Time // when the step that is going on began; the zero time before the first
	meta       exec.Meta
	pipeline   exec.Pipeline
	logger     *slog.Logger

	told func(exec.Checkpoint) // is told of each that is complete, from another goroutine

	complete []exec.Checkpoint // oldest first; those of an earlier run have a directory and a step only
	begun    time.Time         // when the last was begun, or the training
	saving   chan saved        // nil where none is in the making
}

// saved is a checkpoint or why there is none.
type saved struct {
	checkpoint exec.Checkpoint
	copying    time.Duration // for how long the training waited
	took       time.Duration // until it was written
	err        error
}

// newKeeper returns a keeper that takes a checkpoint to cost what is planned until one was made.
func newKeeper(job Job, plan planned, pipeline exec.Pipeline, told func(exec.Checkpoint)) keeper {
	meta := exec.Describe(job.Executor.Name(), plan.layout)
	meta.Plan = plan.kept()
	return keeper{
		directory: filepath.Join(job.Directory, Checkpoints), every: job.CheckpointEvery, timeToLoss: job.TimeToLoss,
		costs:    costs{planned: plan.checkpoint},
		meta:     meta,
		pipeline: pipeline, logger: job.Logger, begun: time.Now(), told: told,
	}
}

// adopt takes the checkpoint that the training goes on from, if it is in its own directory, and those before it there:
// they are removed when two newer ones are complete.
func (k *keeper) adopt(from exec.Checkpoint) error {
	k.meta.Validation = standing(from)
	if !k.owns(from.Directory) {
		k.complete = []exec.Checkpoint{from} // it is somebody else's to remove
		return nil
	}
	entries, err := os.ReadDir(k.directory)
	if err != nil {
		return fmt.Errorf("find earlier checkpoints: %w", err)
	}
	for _, e := range entries {
		step, err := strconv.ParseInt(strings.TrimPrefix(e.Name(), prefix), 10, 64)
		if e.IsDir() && strings.HasPrefix(e.Name(), prefix) && err == nil && step < from.Meta.Step {
			k.complete = append(k.complete, exec.Checkpoint{
				Directory: filepath.Join(k.directory, e.Name()),
				Meta:      exec.Meta{Step: step},
			})
		}
	}
	slices.SortFunc(k.complete, func(a, b exec.Checkpoint) int { return int(a.Meta.Step - b.Meta.Step) })
	k.complete = append(k.complete, from)
	return nil
}

// standing is how evaluations stood at a checkpoint, with where the files of the best step are; nil before the first.
func standing(from exec.Checkpoint) *exec.Standing {
	if from.Meta.Validation == nil {
		return nil
	}
	s := *from.Meta.Validation
	s.From = from.Directory
	if s.BestStep == from.Meta.Step {
		s.BestParts = from.Files
	}
	return &s
}

// paused says that the step that is going on waits for something else, which checkpoints cost nothing.
func (k *keeper) paused(took time.Duration) {
	if !k.resumed.IsZero() {
		k.resumed = k.resumed.Add(took)
	}
}

// best begins a checkpoint of the best step so far, which later ones hold on to. Where one is in the making, it waits
// for that.
func (k *keeper) best(ctx context.Context, step int64, loss float64) {
	k.drain(ctx)
	k.begun = time.Now()
	if err := k.begin(ctx, step, loss); err != nil && ctx.Err() == nil {
		k.logger.WarnContext(ctx, "the checkpoint of the best step could not be made", "step", step, "error", err)
	}
}

// owns reports whether a checkpoint is one of this directory; both are absolute.
func (k *keeper) owns(checkpoint string) bool { return filepath.Dir(checkpoint) == k.directory }

// newest is the directory of the newest complete checkpoint; empty where there is none.
func (k *keeper) newest() string {
	if len(k.complete) == 0 {
		return ""
	}
	return k.complete[len(k.complete)-1].Directory
}

// drop forgets a checkpoint that turned out to be of no use, and all that are newer. It reports whether it had it.
func (k *keeper) drop(bad exec.Checkpoint) bool {
	at := slices.IndexFunc(k.complete, func(c exec.Checkpoint) bool { return c.Directory == bad.Directory })
	if at >= 0 {
		k.complete = k.complete[:at]
	}
	return at >= 0
}

// due begins a checkpoint if it is time for one and none is in the making. It is called after each step; step is how
// many are finished. What goes wrong is logged: the next one may be made, and the last must.
func (k *keeper) due(ctx context.Context, step int64, loss float64) {
	if now := time.Now(); !k.resumed.IsZero() {
		k.costs.stepped(now.Sub(k.resumed), k.saving != nil)
	}
	k.poll(ctx)
	defer func() { k.resumed = time.Now() }()
	if k.every < 0 || k.saving != nil || time.Since(k.begun) < k.interval() {
		return
	}
	k.begun = time.Now()
	if err := k.begin(ctx, step, loss); err != nil && ctx.Err() == nil {
		k.logger.WarnContext(ctx, "a checkpoint could not be made", "step", step, "error", err)
	}
}

// interval is the time from the beginning of one checkpoint to that of the next.
func (k *keeper) interval() time.Duration {
	if k.every > 0 {
		return k.every
	}
	return Interval(cmp.Or(k.costs.each, k.costs.planned), k.timeToLoss)
}

// begin copies the state; the files are written while training goes on.
func (k *keeper) begin(ctx context.Context, step int64, loss float64) error {
	began := time.Now()
	meta := k.meta
	meta.Step, meta.Loss = step, loss
	if v := meta.Validation; v != nil && v.BestStep == step {
		own := *v
		own.BestParts, own.From = nil, ""
		meta.Validation = &own
	}
	wait, err := exec.Save(ctx, k.pipeline, filepath.Join(k.directory, fmt.Sprintf("%s%09d", prefix, step)), meta)
	if err != nil {
		return err
	}
	copying := time.Since(began)
	done := make(chan saved, 1)
	go func() {
		checkpoint, err := wait()
		if err == nil {
			k.told(checkpoint) // now, as a step may be long
		}
		done <- saved{checkpoint, copying, time.Since(began), err}
	}()
	k.saving = done
	return nil
}

// poll counts in a checkpoint that is complete by now.
func (k *keeper) poll(ctx context.Context) {
	if k.saving == nil {
		return
	}
	select {
	case s := <-k.saving:
		k.take(ctx, s)
	default:
	}
}

// drain waits for the checkpoint in the making. Where the context of the training has ended, that is soon.
func (k *keeper) drain(ctx context.Context) {
	if k.saving != nil {
		k.take(ctx, <-k.saving)
	}
}

// take counts a complete checkpoint in and removes the one that it makes superfluous. That one was not made because ctx
// ended needs no words.
func (k *keeper) take(ctx context.Context, s saved) {
	k.saving = nil
	if s.err != nil {
		k.costs.beside = 0
		if ctx.Err() == nil {
			k.logger.WarnContext(ctx, "a checkpoint could not be made", "error", s.err)
		}
		return
	}
	k.costs.saved(s.copying, s.took)
	// Later checkpoints take the files of the best step from the newest that has them.
	if own, now := standing(s.checkpoint), k.meta.Validation; own != nil && now != nil && own.BestStep == now.BestStep {
		told := *now
		told.From, told.BestParts = own.From, own.BestParts
		k.meta.Validation = &told
	}
	// One of the same step was replaced.
	k.complete = slices.DeleteFunc(k.complete, func(c exec.Checkpoint) bool {
		return c.Directory == s.checkpoint.Directory
	})
	k.complete = append(k.complete, s.checkpoint)
	for len(k.complete) > kept {
		old := k.complete[0]
		k.complete = k.complete[1:]
		if !k.owns(old.Directory) {
			continue
		}
		if err := os.RemoveAll(old.Directory); err != nil {
			k.logger.WarnContext(ctx, "an old checkpoint could not be removed", "checkpoint", old.Directory, "error", err)
		}
	}
}

// last returns the checkpoint of the last step; it makes it where it is not there, or lacks an evaluation that was made
// since.
func (k *keeper) last(ctx context.Context, step int64, loss float64) (exec.Checkpoint, error) {
	k.drain(ctx)
	if n := len(k.complete); n > 0 && k.complete[n-1].Meta.Step == step &&
		(k.meta.Unevaluated || !k.complete[n-1].Meta.Unevaluated) {
		return k.complete[n-1], nil
	}
	if err := k.begin(ctx, step, loss); err != nil {
		return exec.Checkpoint{}, err
	}
	s := <-k.saving
	k.take(ctx, s)
	return s.checkpoint, s.err
}
