package gpucheck

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	executor "github.com/spillway-ml/spillway/workers/exec"
)

func precisionsTrials() []trial { return from("medium", 16, 8, 4) }

// precisions compares steps of the unsplit model with those of a bare loop in each precision that is half as wide,
// compiled on both sides and on neither. They are told, not judged.
func precisions(ctx context.Context, s Setup, r *Recorder) error {
	wanted := []executor.Precision{executor.Float32} // what CPUs imitate tells nothing
	if s.Device == executor.CUDA {
		wanted = []executor.Precision{executor.Float16}
		if s.BFloat16 {
			wanted = []executor.Precision{executor.BFloat16, executor.Float16}
		}
	}
	for _, precision := range wanted {
		for _, compile := range []bool{false, true} {
			how := s.tried(precisionsTrials(), alone(1)).recipe(1)
			how.precision, how.compile = precision, compile
			kind := " in " + string(precision)
			if compile {
				kind += ", compiled,"
			}
			if err := s.besidePlain(ctx, r, how, kind, 0); err != nil {
				return fmt.Errorf("a step%s: %w", kind, err)
			}
		}
	}
	return nil
}

// work is what a step of a model computes and how fast the device multiplies matrices, as plain.py tells it.
type work struct {
	// flops are those of the passes of a step, of its products alone; rate is how many a second a product of large
	// matrices reaches in the precision of the step.
	flops, rate float64
}

// utilisation records what part of the rate of products steps reach.
func (w work) utilisation(r *Recorder, kind string, ours, bare []float64) error {
	return errors.Join(
		r.Figure(kind+", model FLOP utilisation", w.flops/w.rate/middle(ours), "of what products reach", 0),
		r.Figure(kind+", model FLOP utilisation in plain PyTorch", w.flops/w.rate/middle(bare), "of what products reach", 0),
	)
}

// parseWork reads "parameters N flops F rate R".
func parseWork(line string) (parameters string, w work, err error) {
	words := strings.Fields(line)
	if len(words) != 6 || words[0] != "parameters" || words[2] != "flops" || words[4] != "rate" {
		return "", work{}, fmt.Errorf("plain PyTorch began with %q", line)
	}
	var ofFlops, ofRate error
	w.flops, ofFlops = strconv.ParseFloat(words[3], 64)
	w.rate, ofRate = strconv.ParseFloat(words[5], 64)
	if err := errors.Join(ofFlops, ofRate); err != nil || !(w.flops > 0 && w.rate > 0) {
		return "", work{}, fmt.Errorf("plain PyTorch began with %q: %w", line, err)
	}
	return words[1], w, nil
}

// compiles says whether a version of torch compiles models as the executor has it do.
func compiles(torch string) bool {
	var major, minor int
	if n, _ := fmt.Sscanf(torch, "%d.%d", &major, &minor); n != 2 {
		return false
	}
	return major > 2 || major == 2 && minor >= 4
}
