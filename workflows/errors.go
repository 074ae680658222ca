package workflows

import (
	"errors"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/workflows/engine"
)

// Errors that a stage may wrap to say what kind of failure it had, and a step of Repeat to end it.
var (
	// ErrPermanent says that trying again cannot help.
	ErrPermanent = errors.New("permanent")
	// ErrOutOfMemory says that memory was refused; the next attempt is given more.
	ErrOutOfMemory = errors.New("out of memory")
	// ErrStop ends a Repeat: the step that returns it, or an error that wraps it, was the last.
	ErrStop = errors.New("stop")
)

// Types of the application errors with which runs fail.
const (
	// BudgetError is that of a run that cannot go on within its budget.
	BudgetError = wire.BudgetError
	// InputError is that of a run whose input its own Validate refuses.
	InputError = engine.InputError
	// PanicError is that of a run whose pipeline panics. Its details are the stack.
	PanicError = engine.PanicError
)
