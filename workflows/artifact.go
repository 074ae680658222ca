package workflows

import (
	"context"
	"log/slog"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Artifact is a typed reference to a stored value: tasks pass it instead of the data. The zero value refers to nothing.
type Artifact[T any] = activities.Artifact[T]

// Checkpoint saves and restores the state of a long stage, so that an attempt after a crash goes on where the last one
// was. The zero value is ready to use.
type Checkpoint[T any] = activities.Checkpoint[T]

// Put stores value and returns a reference to it. A []byte is stored as it is, an encoding.BinaryMarshaler by its own
// encoding, all else as JSON.
func Put[T any](ctx context.Context, value T) (Artifact[T], error) { return activities.Put(ctx, value) }

// Progress reports that step of a long stage is done, with its metrics (loss, accuracy). Steps count from 1. It never
// fails.
func Progress(ctx context.Context, step int, metrics map[string]float64) {
	activities.Progress(ctx, step, metrics)
}

// ProgressOf is Progress of a stage that knows how much there is to do: done of so many steps, rows or bytes are. So
// the end of an attempt is predicted where others tell nothing of it: of the first, and of one with another number of
// rows. A total below what is done is none, and one that changes counts from then on, the less surely the further it
// moves.
func ProgressOf(ctx context.Context, done, of int, metrics map[string]float64) {
	activities.ProgressOf(ctx, done, of, metrics)
}

// Secret returns a secret that the stage names in its Hints. It is for this attempt: write it nowhere. What an attempt
// prints, or fails with, is told without it, as far as it is printed as it is.
func Secret(ctx context.Context, name string) (string, error) { return activities.Secret(ctx, name) }

// Log returns the logger of the running attempt.
func Log(ctx context.Context) *slog.Logger { return activities.Log(ctx) }

// Traceparent returns the trace context of the running attempt, as W3C Trace Context writes it: give it to an
// OpenTelemetry SDK, and spans of the stage's own lie below its attempt in the trace of the run.
func Traceparent(ctx context.Context) string { return activities.Traceparent(ctx) }

// Goal is what a run is to achieve: a deadline, a budget, or which of the two to minimise.
type Goal = predictor.Goal

// The objectives of a Goal, and units of hints and goals.
const (
	Cost    = predictor.Cost
	Latency = predictor.Latency
	Core    = quantity.Core
	MiB     = quantity.MiB
	GiB     = quantity.GiB
	USD     = quantity.USD
)
