package gpucheck

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	executor "github.com/spillway-ml/spillway/workers/exec"
)

const (
	// comparedFor bounds the time in which steps are compared, comparedSteps their number; the first warmSteps allocate.
	comparedFor   = 15 * time.Second
	comparedSteps = 30
	warmSteps     = 3
)

// sharedMicroBatches keep four parts at work, of mostShared.
const sharedMicroBatches, mostShared = 8, 4

func sharedTrials() []trial { return from("medium", 32, 16, 8) }

// shared compares steps of two and of four parts on one device with those of the unsplit model, the same micro-batches
// in each. The unsplit model takes turns with one split at a time, so that small GPUs hold both.
func shared(ctx context.Context, s Setup, r *Recorder) error {
	one := s.tried(sharedTrials(), beside(mostShared, sharedMicroBatches))
	how := one.recipe(sharedMicroBatches)
	e, _, err := s.executor(how)
	if err != nil {
		return err
	}
	probe, err := s.probe(ctx, e, how)
	if err != nil {
		return err
	}
	if err := r.Note("the %s model of %d million parameters, %d samples a step", one.name, one.parameters()/1e6,
		one.batch); err != nil {
		return err
	}
	numbers := []int{2, mostShared}
	if s.Device == executor.CPU {
		numbers = numbers[1:]
	}
	for _, parts := range numbers {
		if needs := beside(parts, sharedMicroBatches)(one); s.Device == executor.CUDA && needs > s.Memory {
			if err := r.Note("%d parts are left out: they take %s, and %s are free", parts, needs, s.Memory); err != nil {
				return err
			}
			continue
		}
		whole, split, err := s.compared(ctx, e, probe, how, parts)
		if err != nil {
			return fmt.Errorf("%d parts: %w", parts, err)
		}
		bar := 0.0
		if one.judged() {
			bar = sharedBar
		}
		name := "a step of " + strconv.Itoa(parts) + " parts"
		if err := errors.Join(
			r.Figure(name+" on one device beside one of the unsplit model, medians",
				middle(split.seconds[warmSteps:])/middle(whole.seconds[warmSteps:]), "times", bar),
			r.Figure(name, middle(split.seconds[warmSteps:]), "s", 0),
			r.Figure("a step of the unsplit model in turn with "+strconv.Itoa(parts)+" parts",
				middle(whole.seconds[warmSteps:]), "s", 0),
			r.Figure("losses of "+strconv.Itoa(parts)+" parts beside the unsplit model's, farthest apart",
				100*apart(split.losses, whole.losses), "%", lossBar),
			r.Note("%d steps of each", len(whole.seconds)-warmSteps),
		); err != nil {
			return err
		}
	}
	return nil
}

// compared trains the unsplit model and one in so many parts, both on the one device and in turn.
func (s Setup) compared(
	ctx context.Context, e executor.Executor, probe executor.Probe, how recipe, parts int,
) (whole, split *loaded, err error) {
	if whole, err = s.load(ctx, e, probe, how, 1); err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, whole.pipeline.Close()) }()
	if split, err = s.load(ctx, e, probe, how, parts); err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, split.pipeline.Close()) }()
	err = s.takeTurns(func() error {
		if err := whole.step(ctx); err != nil {
			return err
		}
		return split.step(ctx)
	})
	return whole, split, err
}

// takeTurns calls round until enough was compared; on CPUs, where nothing is judged by it, a few are enough.
func (s Setup) takeTurns(round func() error) error {
	few := 2 * warmSteps
	if s.Device == executor.CPU {
		few = warmSteps + 1
	}
	began := time.Now()
	for rounds := range warmSteps + comparedSteps {
		if rounds >= few && (s.Device == executor.CPU || time.Since(began) > comparedFor) {
			return nil
		}
		if err := round(); err != nil {
			return err
		}
	}
	return nil
}
