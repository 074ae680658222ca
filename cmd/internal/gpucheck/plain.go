package gpucheck

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"

	executor "github.com/spillway-ml/spillway/workers/exec"
)

func plainTrials() []trial { return from("large", 8, 4, 2, 1) }

// plain compares a step of the unsplit model in the executor with one of a bare training loop.
func plain(ctx context.Context, s Setup, r *Recorder) error {
	one := s.tried(plainTrials(), alone(1))
	bar := 0.0
	if one.judged() {
		bar = plainBar
	}
	return s.besidePlain(ctx, r, one.recipe(1), "", bar)
}

// variantsMicroBatches is their number in the figures' names, too.
const variantsMicroBatches = 4

func variantsTrials() []trial { return from("medium", 32, 16, 8, 4) }

// variants compares steps of other kinds with those of a bare loop: such as are cut into micro-batches, whose gradients
// are added up, and such as draw masks, which here belong to samples and there to batches. They are told, not judged.
func variants(ctx context.Context, s Setup, r *Recorder) error {
	cut := s.tried(variantsTrials(), alone(variantsMicroBatches)).recipe(variantsMicroBatches)
	dropping := cut
	dropping.function += "_dropout"
	if s.Device == executor.CUDA {
		if err := s.besidePlain(ctx, r, cut, " in 4 micro-batches", 0); err != nil {
			return err
		}
	}
	return s.besidePlain(ctx, r, dropping, " with dropout in 4 micro-batches", 0)
}

// besidePlain compares steps of the unsplit model in the executor and in a bare loop; both take turns on one device.
func (s Setup) besidePlain(ctx context.Context, r *Recorder, how recipe, kind string, bar float64) (err error) {
	if how.precision == "" {
		how.precision = executor.Float32
		if s.BFloat16 {
			how.precision = executor.BFloat16
		}
	}
	path, err := writeModels(s, "plain.py")
	if err != nil {
		return err
	}
	loop, err := startLoop(ctx, s, path, how)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, loop.end()) }()
	e, _, err := s.executor(how)
	if err != nil {
		return err
	}
	ours, err := s.load(ctx, e, executor.Probe{}, how, 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ours.pipeline.Close()) }()
	var bare []float64
	if err := s.takeTurns(func() error {
		if err := ours.step(ctx); err != nil {
			return err
		}
		seconds, err := loop.step()
		bare = append(bare, seconds)
		return err
	}); err != nil {
		return err
	}
	return errors.Join(
		compareSteps(r, "a step of the unsplit model"+kind, ours.seconds[warmSteps:], bare[warmSteps:], bar),
		loop.work.utilisation(r, "a step of the unsplit model"+kind, ours.seconds[warmSteps:], bare[warmSteps:]),
		r.Note("%s parameters, %d samples a step%s, %s, %d steps of each", loop.parameters, how.batch, kind, how.precision,
			len(bare)-warmSteps),
	)
}

// compareSteps records what steps of some kind take in the executor beside those of the bare loop.
func compareSteps(r *Recorder, kind string, ours, bare []float64, bar float64) error {
	return errors.Join(
		r.Figure(kind+" beside one of plain PyTorch, medians", middle(ours)/middle(bare), "times", bar),
		r.Figure(kind+" beside one of plain PyTorch, fastest", slices.Min(ours)/slices.Min(bare), "times", 0),
		r.Figure(kind, middle(ours), "s", 0),
		r.Figure(kind+", in plain PyTorch", middle(bare), "s", 0),
	)
}

// middle is the median, the upper one of two.
func middle(values []float64) float64 {
	values = slices.Clone(values)
	slices.Sort(values)
	return values[len(values)/2]
}

// loop is a bare training loop in a process of its own.
type loop struct {
	cmd        *exec.Cmd
	in         io.WriteCloser
	lines      *bufio.Scanner
	parameters string
	work       work
}

func startLoop(ctx context.Context, s Setup, program string, how recipe) (*loop, error) {
	cmd := exec.CommandContext(ctx, s.Python, "-B", program, how.function, how.data, strconv.Itoa(how.batch),
		strconv.Itoa(how.microBatches), s.Device, string(how.precision), strconv.FormatBool(how.compile))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start plain PyTorch: %w", err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start plain PyTorch: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start plain PyTorch: %w", err)
	}
	l := &loop{cmd: cmd, in: in, lines: bufio.NewScanner(out)}
	if !l.lines.Scan() {
		return nil, errors.Join(errors.New("plain PyTorch ended before its first step"), l.end())
	}
	if l.parameters, l.work, err = parseWork(l.lines.Text()); err != nil {
		return nil, errors.Join(err, l.end())
	}
	return l, nil
}

// step has one step done and returns its seconds.
func (l *loop) step() (float64, error) {
	if _, err := io.WriteString(l.in, "\n"); err != nil || !l.lines.Scan() {
		return 0, errors.New("plain PyTorch ended; the log says why")
	}
	seconds, err := strconv.ParseFloat(l.lines.Text(), 64)
	if err != nil {
		return 0, fmt.Errorf("read the time of a step of plain PyTorch: %w", err)
	}
	return seconds, nil
}

func (l *loop) end() error {
	if err := errors.Join(l.in.Close(), l.cmd.Wait()); err != nil {
		return fmt.Errorf("end plain PyTorch: %w", err)
	}
	return nil
}
