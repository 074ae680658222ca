package training

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workers/exec"
)

// A plan is tried: the layouts that come near the best are loaded one after another and trained for a few steps, as
// they will be, with a checkpoint where those come beside the steps. Then the plan says what came: how long a step
// takes and what each part held, with all that allocators and schedulers make of it and no sum of operations tells. The
// one that is most likely to win is tried last, so that it need not be loaded again: it goes back to the state that it
// had before its trial.

const (
	// mostTried bounds the layouts that are tried.
	mostTried = 3
	// nearBest is by how much a layout may be priced longer than the best and be tried all the same: prices are off by as
	// much (see "Predictions" in the README of workers/exec).
	nearBest = 1.25
	// triedShare is the part of the steps to come that trials may take: below that, knowing better does not pay.
	triedShare = 0.2
	// leastTriedSteps and mostTriedSteps are how many steps are measured of each, after one that allocates; between them,
	// as many as their share leaves and as are done in triedFor.
	leastTriedSteps = 3
	mostTriedSteps  = 64
	triedFor        = 2 * time.Second
	// heapGrowth is by how much a process on CPUs holds more in the end than in its trial: the C library cannot use all
	// that it was given back (see "Predictions" in the README of workers/exec).
	heapGrowth = 1.03
	// written is how fast a checkpoint is taken to be brought to the disk where that was not tried, in bytes a second.
	written = 200e6
)

// contenders are the layouts that are worth a trial, the best last: those priced near it, of other numbers of replicas
// and parts before those of as many in other micro-batches, as far as all trials together take no more than their share
// of the steps that are left; steps is how many steps of each that leaves room for. There are none where it is too
// little for the best alone.
func (s setup) contenders(c choice, left int64) (chosen []candidate, steps int) {
	budget := triedShare * float64(left) * c.best.seconds
	if budget -= s.trialSeconds(c.best); !(budget >= 0) {
		return nil, 0
	}
	near := slices.DeleteFunc(slices.Clone(c.fitting), func(other candidate) bool {
		return other.alike(c.best) || other.seconds > nearBest*c.best.seconds
	})
	slices.SortStableFunc(near, func(a, b candidate) int { return cmp.Compare(a.seconds, b.seconds) })
	seen := map[[3]int]bool{c.best.shape(): true}
	var others, again []candidate
	for _, other := range near {
		if seen[other.shape()] {
			again = append(again, other)
			continue
		}
		seen[other.shape()] = true
		others = append(others, other)
	}
	chosen = []candidate{c.best}
	each := c.best.seconds
	for _, other := range append(others, again...) {
		// If it wins, it is loaded once more.
		takes := s.trialSeconds(other) + 2*s.loadSeconds(other)
		if len(chosen) == mostTried || takes > budget {
			break
		}
		budget, each = budget-takes, each+other.seconds
		chosen = append(chosen, other)
	}
	slices.Reverse(chosen)
	steps = mostTriedSteps
	if each > 0 {
		steps = int(min(leastTriedSteps+budget/each, mostTriedSteps))
	}
	return chosen, steps
}

// alike reports whether two candidates are of as many replicas, parts and micro-batches: of those, a choice has one.
func (c candidate) alike(other candidate) bool {
	return c.shape() == other.shape() && c.microBatches == other.microBatches
}

// shape is how many replicas of how many parts there are, on how many hosts.
func (c candidate) shape() [3]int { return [3]int{c.count(), len(c.parts), max(c.hosts, 1)} }

// trialSeconds is what a trial takes at least besides loading: its steps, one before them and one beside a checkpoint,
// and what the disk gets.
func (s setup) trialSeconds(c candidate) float64 {
	copied := 0.0
	for _, p := range c.parts {
		copied += p.copied
	}
	return (1+leastTriedSteps+1)*c.seconds + 2*copied/cmp.Or(s.machine.written, written)
}

// loadSeconds is what loading takes by what that of the unsplit model took: ranks load one after another.
func (s setup) loadSeconds(c candidate) float64 {
	one := 0.0
	for _, made := range s.model.performances {
		one = max(one, made.small.load.Seconds(), made.large.load.Seconds())
	}
	return one * float64(c.ranks())
}

// showing is what a layout showed in its trial.
type showing struct {
	seconds float64   // of a step, the median; 0 where it was not tried to the end
	busy    []float64 // of each part, in a step
	bubble  float64
	peaks   []float64     // of each part, in bytes; 0 where its executor does not tell
	before  []float64     // the same before a checkpoint was made; nil where none was
	copying time.Duration // for how long one held the training up
	err     error         // why it was not tried to the end
}

// exceeds reports whether the trial showed that a layout takes more than its devices have.
func (came showing) exceeds(s setup, c candidate) bool {
	return errors.Is(came.err, exec.ErrMemory) || came.err == nil && s.showed(c, came).short() > 0
}

// showed is a candidate that is priced by its trial.
func (s setup) showed(c candidate, came showing) candidate {
	c.seconds, c.bubble = came.seconds, came.bubble
	c.parts = slices.Clone(c.parts)
	for i := range c.parts {
		p := &c.parts[i]
		if i < len(came.busy) {
			p.busy = came.busy[i]
		}
		if i >= len(came.peaks) || came.peaks[i] <= 0 {
			continue
		}
		grows := 1.0
		if s.model.measured && p.device.Kind != exec.CUDA { // a process of its own
			grows = heapGrowth
		}
		p.peak = came.peaks[i] * grows
		p.most = s.copies.most(*p)
		if i < len(came.before) {
			// A copy may be there while a step has most, or not: it depends on how long it takes to be written.
			alone := *p
			alone.peak = came.before[i] * grows
			p.most = max(p.peak, s.copies.most(alone))
		}
	}
	return c
}

// after is the choice once layouts were tried, shown[i] of which is that of the i-th of them: the fewest parts within
// 3 % of the shortest step, of those that were tried to the end. What was not tried takes as much longer or shorter as
// the best did. A choice of which nothing was tried to the end stays as it is.
func (c choice) after(s setup, candidates []candidate, shown []showing) choice {
	var fitting, all []candidate
	for i, one := range candidates {
		if shown[i].err != nil || shown[i].seconds <= 0 {
			continue
		}
		made := s.showed(one, shown[i])
		all = append(all, made)
		if made.short() == 0 {
			fitting = append(fitting, made)
		}
	}
	if len(all) == 0 {
		return c
	}
	if len(fitting) == 0 {
		fitting = all
	}
	slices.SortStableFunc(fitting, func(a, b candidate) int { return cmp.Compare(a.seconds, b.seconds) })
	next := c
	next.best, next.trials = fewest(fitting), len(candidates)
	next.priced = candidates[slices.IndexFunc(candidates, next.best.alike)].seconds
	ratio := 1.0
	if next.priced > 0 {
		ratio = next.best.seconds / next.priced
	}
	next.fitting, next.others = nil, nil
	shortest := map[[3]int]candidate{} // of the other shapes
	for _, one := range c.fitting {
		at := slices.IndexFunc(candidates, one.alike)
		switch {
		case at < 0:
			one.seconds *= ratio
		case shown[at].err != nil:
			continue
		default:
			one = s.showed(one, shown[at])
		}
		next.fitting = append(next.fitting, one)
		if known, there := shortest[one.shape()]; !there || one.seconds < known.seconds {
			shortest[one.shape()] = one
		}
	}
	next.fastest = next.best.seconds
	delete(shortest, next.best.shape())
	for _, one := range c.fitting { // in their order
		if other, there := shortest[one.shape()]; there {
			next.others, next.fastest = append(next.others, other), min(next.fastest, other.seconds)
			delete(shortest, one.shape())
		}
	}
	return next
}

// smaller is what is tried next where all that were tried take more than their devices have: the fastest of what was
// not tried whose fullest part is smaller than theirs; none where there is none.
func (c choice) smaller(tried []candidate) []candidate {
	least := math.Inf(1)
	for _, one := range tried {
		least = min(least, one.peak())
	}
	var best []candidate
	for _, one := range c.fitting {
		if !slices.ContainsFunc(tried, one.alike) && one.peak() < least &&
			(len(best) == 0 || one.seconds < best[0].seconds) {
			best = []candidate{one}
		}
	}
	return best
}

// trials tries the layouts of a plan that are worth it, and returns the plan as it is by what came. Where the one that
// won is loaded, its pipeline is returned with the state of its first step; the caller loads any other. Trials that
// fail are passed over, and where all do, the plan stays as it was: the training itself tells why. The error is what
// ended ctx; pipelines live as long as life.
func (t *trainer) trials(ctx, life context.Context, left int64, from *exec.Checkpoint) (planned, exec.Pipeline, error) {
	made, log := t.planned, t.job.Logger
	if made.reused {
		return made, t.pipeline, nil
	}
	next, steps := made.setup.contenders(made.choice, left)
	if len(next) == 0 {
		return made, nil, nil
	}
	var candidates []candidate
	var shown []showing
	var loaded exec.Pipeline // the last one's, where its trial went well
	var problems error
	for len(next) > 0 {
		for i, one := range next {
			if loaded != nil {
				problems = errors.Join(problems, loaded.Close())
			}
			log.DebugContext(ctx, "a layout is tried", "replicas", one.count(), "parts", len(one.parts), "micro_batches",
				one.microBatches, "priced_seconds", one.seconds)
			var came showing
			came, loaded = t.try(ctx, life, one, steps, i == len(next)-1 && from == nil)
			if ctx.Err() != nil {
				if loaded != nil {
					problems = errors.Join(problems, loaded.Close())
				}
				return made, nil, errors.Join(context.Cause(ctx), problems)
			}
			t.tell(ctx, one, came)
			candidates, shown = append(candidates, one), append(shown, came)
		}
		next = nil
		if allExceed(made.setup, candidates, shown) {
			next = made.choice.smaller(candidates)
		}
	}
	chosen := made.choice.after(made.setup, candidates, shown)
	if loaded != nil && (chosen.trials == 0 || !chosen.best.alike(candidates[len(candidates)-1])) {
		problems, loaded = errors.Join(problems, loaded.Close()), nil
	}
	if problems != nil {
		return made, loaded, fmt.Errorf("end the parts of a trial: %w", problems)
	}
	if chosen.trials == 0 {
		return made, nil, nil
	}
	after := made.by(chosen, t.job)
	if came := shown[slices.IndexFunc(candidates, chosen.best.alike)]; came.copying > 0 {
		after.checkpoint = came.copying
	}
	return after, loaded, nil
}

// allExceed reports whether trials showed that all layouts take more than their devices have.
func allExceed(s setup, candidates []candidate, shown []showing) bool {
	for i, one := range candidates {
		if !shown[i].exceeds(s, one) {
			return false
		}
	}
	return true
}

// tell logs what a trial showed.
func (t *trainer) tell(ctx context.Context, c candidate, came showing) {
	log := t.job.Logger.With("replicas", c.count(), "parts", len(c.parts), "micro_batches", c.microBatches)
	if came.err != nil {
		log.WarnContext(ctx, "a layout cannot be tried and is passed over", "error", came.err)
		return
	}
	log.DebugContext(ctx, "a layout was tried", "priced_seconds", c.seconds, "seconds", came.seconds, "checkpoint",
		came.copying)
	for i, p := range c.parts {
		log.DebugContext(ctx, "a part was tried", "device", p.device.ID, "priced_bytes", int64(p.peak), "bytes",
			int64(came.peaks[i]), "priced_busy_seconds", p.busy, "busy_seconds", came.busy[i])
	}
}

// try loads a candidate and trains it for so many steps at most. Where that goes well, its pipeline is returned; with
// back, it is as it was loaded again.
func (t *trainer) try(ctx, life context.Context, c candidate, steps int, back bool) (showing, exec.Pipeline) {
	of := t.planned.choice
	of.best = c
	layout := t.planned.by(of, t.job).layout
	pipeline, err := t.job.Executor.Load(life, layout)
	if err != nil {
		return showing{err: fmt.Errorf("load it: %w", err)}, nil
	}
	came, err := t.rehearse(ctx, pipeline, layout, steps, back)
	if err != nil {
		return showing{err: errors.Join(err, pipeline.Close())}, nil
	}
	return came, pipeline
}

// rehearse trains a loaded layout for a few steps from the one on that the training begins with.
func (t *trainer) rehearse(
	ctx context.Context, pipeline exec.Pipeline, layout exec.Layout, steps int, back bool,
) (came showing, err error) {
	scratch, remove, err := t.scratch()
	if err != nil {
		return came, err
	}
	defer func() { err = errors.Join(err, remove()) }()
	meta := exec.Describe(t.job.Executor.Name(), layout)
	var start exec.Checkpoint
	if back {
		wait, err := exec.Save(ctx, pipeline, filepath.Join(scratch, "start"), meta)
		if err == nil {
			start, err = wait()
		}
		if err != nil {
			return came, fmt.Errorf("keep the state that it begins with: %w", err)
		}
	}
	if came, err = t.measure(ctx, pipeline, layout, steps, filepath.Join(scratch, "beside")); err != nil {
		return came, err
	}
	if back {
		if err := exec.Restore(ctx, pipeline, start); err != nil {
			return came, fmt.Errorf("go back to the state that it began with: %w", err)
		}
	}
	// Reading state takes memory, too.
	came.peaks, err = peaksOf(ctx, pipeline, len(layout.Parts))
	return came, err
}

// peaksOf asks the stages of a pipeline what each part has held at most, in any of its replicas.
func peaksOf(ctx context.Context, pipeline exec.Pipeline, parts int) ([]float64, error) {
	peaks := make([]float64, parts)
	for i, stage := range pipeline.Stages() {
		usage, err := stage.Usage(ctx)
		if err != nil {
			return nil, fmt.Errorf("ask stage %d what it holds: %w", i, err)
		}
		peaks[i%parts] = max(peaks[i%parts], float64(usage.Peak))
	}
	return peaks, nil
}

// scratch makes a directory among the checkpoints, where what a crash leaves is swept away by the next one.
func (t *trainer) scratch() (path string, remove func() error, err error) {
	among := filepath.Join(t.job.Directory, Checkpoints)
	if err := os.MkdirAll(among, 0o777); err != nil { //nolint:gosec // the user's umask decides, as for checkpoints
		return "", nil, fmt.Errorf("make a directory for a trial: %w", err)
	}
	if path, err = os.MkdirTemp(among, ".trial.unfinished-"); err != nil {
		return "", nil, fmt.Errorf("make a directory for a trial: %w", err)
	}
	return path, func() error { return os.RemoveAll(path) }, nil
}

// measure trains and looks at it; where checkpoints come beside the steps, one is made.
func (t *trainer) measure(
	ctx context.Context, pipeline exec.Pipeline, layout exec.Layout, steps int, checkpoint string,
) (came showing, err error) {
	engine, err := newEngine(t.job, pipeline, layout)
	if err != nil {
		return came, err
	}
	step := t.start
	next := func() (exec.StepReport, error) {
		report, err := engine.Step(ctx, step)
		step++
		return report, err
	}
	if _, err := next(); err != nil { // it allocates
		return came, err
	}
	meter, began := NewMeter(len(layout.Parts)), time.Now()
	for done := 0; done < leastTriedSteps || done < steps && time.Since(began) < triedFor; done++ {
		report, err := next()
		if err != nil {
			return came, err
		}
		meter.Add(report)
	}
	if t.planned.setup.copies == copiesBeside {
		if came.before, err = peaksOf(ctx, pipeline, len(layout.Parts)); err != nil {
			return came, err
		}
		copying := time.Now()
		wait, err := exec.Save(ctx, pipeline, checkpoint, exec.Describe(t.job.Executor.Name(), layout))
		if err != nil {
			return came, err
		}
		came.copying = time.Since(copying)
		_, stepping := next()
		_, err = wait()
		if err := errors.Join(stepping, err); err != nil {
			return came, err
		}
	}
	told := predictor.Training{Parts: make([]predictor.TrainingPart, len(layout.Parts))}
	meter.Fill(&told)
	came.seconds, came.bubble = told.StepSeconds, told.Bubble
	for _, p := range told.Parts {
		came.busy = append(came.busy, p.BusySeconds)
	}
	return came, nil
}
