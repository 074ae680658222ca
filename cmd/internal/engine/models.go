package engine

import (
	"context"
	"log/slog"

	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/exec/torch"
	"github.com/spillway-ml/spillway/workers/graph"
)

// ProbeModel looks into the PyTorch model that FILE.py:FUNCTION returns, in batches of so many samples.
func ProbeModel(ctx context.Context, reference string, batch int) (graph.Graph, error) {
	found, _, err := torch.Probe(ctx, torch.Options{Model: reference, Batch: batch})
	return found, err
}

// Executor returns what trains the PyTorch model that FILE.py:FUNCTION returns on the data at a path and evaluates it
// with those at another, empty for none. logger gets what the model prints.
func Executor(reference, data, validation string, logger *slog.Logger) (exec.Executor, error) {
	return torch.New(torch.Options{Model: reference, Data: data, Validation: validation, Logger: logger})
}

// Torch is a PyTorch that was found.
type Torch = torch.Installation

// ErrNoTorch is wrapped by the error of PyTorch where there is none.
var ErrNoTorch = torch.ErrNoTorch

// PyTorch finds the PyTorch that trains where no Python is named. With devices it is loaded, and tells those of CUDA.
// The error wraps [ErrNoTorch] where there is none.
func PyTorch(ctx context.Context, devices bool) (Torch, error) { return torch.Installed(ctx, devices) }
