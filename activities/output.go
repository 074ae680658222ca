package activities

import (
	"context"
	"io"
)

// Output takes what one attempt prints, so that people can follow it. Its methods may be called concurrently.
type Output interface {
	// Stdout and Stderr are where the attempt's two streams go. A Write never fails and never waits for long.
	Stdout() io.Writer
	Stderr() io.Writer
	// Close makes what was written durable, as far as ctx lasts. Nothing is written after it.
	Close(ctx context.Context) error
}
