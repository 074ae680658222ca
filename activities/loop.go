package activities

import (
	"context"
	"errors"

	"github.com/spillway-ml/spillway/predictor"
)

// Recorder takes what venues have to tell the loop. Implementations are safe for concurrent use.
type Recorder interface {
	// Record makes the line about a finished attempt durable; it returns once it is. The same line may be recorded again
	// without effect.
	Record(ctx context.Context, record predictor.Record) error
	// Tell publishes a fact whose loss does no harm (hints, samples, starts); it does not wait and drops what cannot be
	// sent.
	Tell(event predictor.Event)
}

// Plans hands out the plan in force.
type Plans interface {
	// Watch calls obey with the current plan and then with every newer one of the same or a higher term, one at a time,
	// until ctx ends.
	Watch(ctx context.Context, obey func(predictor.Plan)) error
}

// ErrUnfit says that a host cannot run a build, however often it is tried: others may.
var ErrUnfit = errors.New("this host cannot run the build")

// Builds finds the binaries of users' apps on this host.
type Builds interface {
	// Path returns the executable file of the build, fetching it first where needed. It wraps ErrUnfit where this host can
	// never run it.
	Path(ctx context.Context, app, build string) (string, error)
}
