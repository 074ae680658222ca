package workflows

import (
	"errors"

	"github.com/spillway-ml/spillway/activities/wire"
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

// BudgetError is the type of the application error with which a run fails that cannot go on within its budget.
const BudgetError = wire.BudgetError
