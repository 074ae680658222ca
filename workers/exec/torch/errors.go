package torch

import (
	"errors"
	"strings"

	"github.com/spillway-ml/spillway/workers/exec"
)

// ModelError is something that the author of a model, or who installed Python, can change.
type ModelError struct {
	// Kind is what it is about, in one word of spillway_runner.
	Kind string `json:"kind"`
	// Message is what is wrong.
	Message string `json:"message"`
	// Place is a file, or file:line, of the user's; empty where there is none.
	Place string `json:"at"`
	// Hint is what to do; it may be empty.
	Hint string `json:"hint"`
	// Traceback is the end of Python's, where it helps.
	Traceback string `json:"trace"`
}

// kindCollective is the kind of what comes of other processes.
const kindCollective = "collective"

var (
	// ErrNoTorch is matched by the error about a Python that has no PyTorch.
	ErrNoTorch = errors.New("no PyTorch")
	// ErrMemory is [exec.ErrMemory].
	ErrMemory = exec.ErrMemory
	// ErrUntraceable is matched by the error about a model whose operations depend on the values of tensors.
	ErrUntraceable = errors.New("the model cannot be traced")
)

// Error returns the message, the place and the hint on one line, and the traceback below.
func (e *ModelError) Error() string {
	var text strings.Builder
	if e.Place != "" {
		text.WriteString(e.Place + ": ")
	}
	text.WriteString(e.Message)
	if e.Hint != "" {
		text.WriteString("; " + e.Hint)
	}
	if e.Traceback != "" {
		text.WriteString("\n" + e.Traceback)
	}
	return text.String()
}

// Is reports whether the error is one of this package's sentinels, or [exec.ErrRequest].
func (e *ModelError) Is(target error) bool {
	switch target {
	case ErrNoTorch:
		return e.Kind == "no_torch"
	case ErrMemory:
		return e.Kind == "memory"
	case ErrUntraceable:
		return e.Kind == "untraceable"
	case exec.ErrLoss:
		return e.Kind == "not_finite" || e.Kind == "not_finite_before"
	case exec.ErrLossBefore:
		return e.Kind == "not_finite_before"
	case exec.ErrRequest:
		return e.Kind != "memory" && e.Kind != kindCollective
	}
	return false
}
