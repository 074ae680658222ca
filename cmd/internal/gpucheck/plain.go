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
	"strings"

	executor "github.com/spillway-ml/spillway/workers/exec"
)

// plain compares a step of the unsplit model in the executor with one of a bare training loop; both take turns on one
// device.
func plain(ctx context.Context, s Setup, r *Recorder) (err error) {
	size, batch, precision := s.size(true), 8, executor.Float32
	if s.Device == executor.CUDA && s.Memory < largeBatches {
		batch = 2
	}
	if s.BFloat16 {
		precision = executor.BFloat16
	}
	how := recipe{file: "language.py", function: size, data: size, batch: batch, microBatches: 1, precision: precision}
	path, err := writeModels(s, "plain.py")
	if err != nil {
		return err
	}
	loop, err := startLoop(ctx, s, path, size, batch, precision)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, loop.end()) }()
	if err := r.Note("%s parameters, %d samples a step, %s", loop.parameters, batch, precision); err != nil {
		return err
	}
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
	return compareSteps(r, ours.seconds[warmSteps:], bare[warmSteps:])
}

// compareSteps records what steps of the executor take beside those of the bare loop.
func compareSteps(r *Recorder, ours, bare []float64) error {
	return errors.Join(
		r.Figure("a step of the unsplit model beside one of plain PyTorch, medians", middle(ours)/middle(bare), "times",
			plainBar),
		r.Figure("the same of the fastest steps", slices.Min(ours)/slices.Min(bare), "times", 0),
		r.Figure("a step of the unsplit model", middle(ours), "s", 0),
		r.Figure("a step of plain PyTorch", middle(bare), "s", 0),
		r.Note("%d steps of each", len(ours)),
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
}

func startLoop(
	ctx context.Context, s Setup, program, size string, batch int, precision executor.Precision,
) (*loop, error) {
	cmd := exec.CommandContext(ctx, s.Python, "-B", program, size, strconv.Itoa(batch), s.Device, string(precision))
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
	l.parameters = strings.TrimPrefix(l.lines.Text(), "parameters ")
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
