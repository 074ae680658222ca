package workflows

import "errors"

// Errors that a stage may wrap to say what kind of failure it had.
var (
	// ErrPermanent says that trying again cannot help.
	ErrPermanent = errors.New("permanent")
	// ErrOutOfMemory says that memory was refused; the next attempt is given more.
	ErrOutOfMemory = errors.New("out of memory")
)
