package trigger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
)

// ErrRefused says that what was asked for cannot be, however often it is tried: a run, because of what is in its event,
// which becomes a dead letter; a target or a binding.
var ErrRefused = errors.New("the run was refused")

// refused is an error that reads as its reason alone, and wraps ErrRefused.
type refused struct{ reason error }

func (r refused) Error() string   { return r.reason.Error() }
func (r refused) Unwrap() []error { return []error{ErrRefused, r.reason} }

// Refuse returns an error that wraps ErrRefused, and reads and wraps as fmt.Errorf says: the reason of a dead letter.
func Refuse(format string, of ...any) error { return refused{fmt.Errorf(format, of...)} }

// Start is all that is needed to start one run.
type Start struct {
	// Run is the workflow ID: RunID(Pipeline, Event).
	Run string
	// Pipeline is the workflow type.
	Pipeline string
	// App and Build name the binary that the run executes.
	App, Build string
	// TaskQueue is where that binary polls for workflow tasks: "App@Build".
	TaskQueue string
	// Input is the encoded input, checked against the pipeline's schema.
	Input json.RawMessage
	// Validates says that the pipeline's own code checks the input as well (see Options.Check).
	Validates bool
	// Goal is the goal of the run; the zero value has neither deadline nor budget.
	Goal predictor.Goal
	// Version is the newest version of steps that the binary takes.
	Version int
	// Options is how the run is started besides.
	Options wire.RunOptions
	// Event is the ID of the event, and Binding the Key of the binding that read it.
	Event, Binding string
}

// Starter starts runs and knows which go on. Implementations must allow concurrent calls.
type Starter interface {
	// Start starts a run. It reports false when a run with the same ID exists, going on or ended; it then changes nothing.
	// An error that wraps ErrRefused is final; after any other the run may or may not have been started, and Start is
	// called again with the same ID.
	Start(ctx context.Context, start Start) (started bool, err error)
	// Running returns the IDs of the runs of pipeline that go on and were started with this binding's key. It may be a few
	// seconds behind.
	Running(ctx context.Context, pipeline, binding string) (runs []string, err error)
	// Find reports whether there is a run of this ID, and whether it goes on. It must not be behind.
	Find(ctx context.Context, run string) (exists, going bool, err error)
	// Conflict returns an error that wraps ErrRefused where the run's ID is that of one that was started with another
	// input. It returns nil where there is no such run, or nobody knows its input any more, and any other error where that
	// cannot be told now.
	Conflict(ctx context.Context, start Start) error
}

// Schedule is a cron expression in UTC with the event that each firing publishes.
type Schedule struct {
	// Key is the key of the binding; there is one schedule for a key.
	Key string `json:"key"`
	// Cron is the expression.
	Cron string `json:"cron"`
	// Subject is where the event is published, and Input its body; empty is an empty object.
	Subject string          `json:"subject"`
	Input   json.RawMessage `json:"input,omitempty"`
}

// Scheduler keeps schedules that outlive this process. Implementations must allow concurrent calls.
type Scheduler interface {
	// Keys returns the keys of all schedules. It may be a few seconds behind.
	Keys(ctx context.Context) ([]string, error)
	// Put makes the schedule, or changes the one with the same key.
	Put(ctx context.Context, schedule Schedule) error
	// Delete removes a schedule; one that does not exist is no error.
	Delete(ctx context.Context, key string) error
}
