package activities

import (
	"context"
	"errors"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Functions runs users' binaries, and commands, as Lambda-style functions. Implementations are safe for concurrent use.
type Functions interface {
	// Ensure deploys the build with this much memory, once, and returns the function's name.
	// Memory is one of the classes of the venue.
	Ensure(ctx context.Context, app, build string, memory quantity.Bytes) (name string, err error)
	// EnsureCommands is Ensure of what runs the commands of all apps whose main program is this one: a language that the
	// venue has is beside it.
	EnsureCommands(ctx context.Context, program string, memory quantity.Bytes) (name string, err error)
	// Invoke calls the function and waits for its answer. It wraps ErrThrottled or ErrTooLarge where these are the cause.
	Invoke(ctx context.Context, name string, payload []byte) (FunctionAnswer, error)
}

// FunctionAnswer is what one invoke returned.
type FunctionAnswer struct {
	// Payload is what the function returned, or the description of its error.
	Payload []byte
	// Error is empty when the function returned, else "Handled" or "Unhandled".
	Error string
	// ErrorType is the venue's own word for why the environment was lost, such as "Runtime.OutOfMemory"; empty when it was
	// not, or where the venue does not say.
	ErrorType string
	// Init is the time to start the environment when the invoke was cold; 0 otherwise.
	Init time.Duration
	// Duration is the time that the function ran; Billed is what is paid for, initialisation included.
	Duration, Billed time.Duration
	// Memory is the class; PeakMemory is what was used at most.
	Memory, PeakMemory quantity.Bytes
	// Log is the tail of the function's log.
	Log string
}

// Errors of Functions.
var (
	// ErrThrottled says that the venue takes no more invokes now; try again later.
	ErrThrottled = errors.New("function is throttled")
	// ErrTooLarge says that the payload is over the venue's limit.
	ErrTooLarge = errors.New("function payload is too large")
)
