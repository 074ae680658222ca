// Package fault holds the errors with which commands end: what was wrong, what to do about it, and the exit code.
package fault

import (
	"errors"
	"fmt"
	"net/http"
	"os"

	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/cmd/internal/web/client"
)

// UsageError is an error of whoever typed the command; it makes the exit code 2.
type UsageError struct {
	Problem, Hint string
}

// Error returns the problem.
func (u *UsageError) Error() string { return u.Problem }

// Advice returns the hint.
func (u *UsageError) Advice() string { return u.Hint }

// advised is an error with what to do about it, for errors that do not bring their own.
type advised struct {
	error
	hint string
}

// Advise returns err with a hint of what to do about it.
func Advise(err error, hint string) error { return &advised{err, hint} }

// Unwrap returns the error without the hint.
func (a *advised) Unwrap() error { return a.error }

// Advice returns the hint.
func (a *advised) Advice() string { return a.hint }

// ErrReported ends a command with exit code 1 when everything has been said already.
var ErrReported = errors.New("reported")

// ExitError ends a command with the exit code of the program that it has run, when everything has been said already.
type ExitError struct{ Code int }

// Error names the code.
func (e *ExitError) Error() string { return fmt.Sprintf("the program ended with exit code %d", e.Code) }

// adviser is an error that says what to do.
type adviser interface {
	error
	Advice() string
}

// AdviceOf returns what to do about err: the hint that it brings, or empty.
func AdviceOf(err error) string {
	if adviser, ok := errors.AsType[adviser](err); ok {
		return adviser.Advice()
	}
	if errors.Is(err, client.ErrUnreachable) {
		return "see whether the stack still runs; `spillway dev` starts it"
	}
	return ""
}

// IsUsage reports whether err was refused at the door, here or by the engine: because of what the command says, or
// because what it names is not there. What an engine of another version does not have is not of the command's making.
func IsUsage(err error) bool {
	if _, ok := errors.AsType[*UsageError](err); ok {
		return true
	}
	refused, ok := errors.AsType[*web.Error](err)
	if !ok {
		return false
	}
	switch refused.Status {
	case http.StatusBadRequest, http.StatusUnprocessableEntity:
		return true
	case http.StatusNotFound:
		return !refused.NoRoute
	default:
		return false
	}
}

// WithoutPath is the cause in an error of a file whose name the message says already.
func WithoutPath(err error) error {
	if pathError, ok := errors.AsType[*os.PathError](err); ok {
		return pathError.Err
	}
	return err
}
