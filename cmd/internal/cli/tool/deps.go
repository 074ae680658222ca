package tool

import (
	"context"
	"io"
	"log/slog"

	"github.com/spillway-ml/spillway/cmd/internal/engine"
	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/graph"
)

// Deps is what the commands need from outside: it lets tests run them against an engine in memory.
type Deps struct {
	// StartEngine starts the embedded stack and returns once a run could be started. It refuses a state directory that is
	// in use.
	StartEngine func(ctx context.Context, config engine.Config) (RunningEngine, error)
	// ProbeModel looks into the PyTorch model that FILE.py:FUNCTION returns, in batches of so many samples, 1 or more, and
	// returns its op graph; nil when this build cannot.
	ProbeModel func(ctx context.Context, reference string, batch int) (graph.Graph, error)
	// Executor returns what trains the PyTorch model that FILE.py:FUNCTION returns on the data at a path and evaluates it
	// with those at another, empty for none, and logs what the model prints; nil when this build cannot.
	Executor func(reference, data, validation string, logger *slog.Logger) (exec.Executor, error)
	// Version is that of this binary, such as "v0.1.0".
	Version string
	// Stdin is what `--input -` reads; nil is empty.
	Stdin io.Reader
	// Environment looks up an environment variable; nil means that none is set.
	Environment func(name string) (value string, set bool)
	// Environ returns all variables of the environment, each as NAME=VALUE; nil means that none is set.
	Environ func() []string
	// OpenBrowser shows a file of this machine in a browser, and says whether there is one; nil shows nothing.
	OpenBrowser func(ctx context.Context, file string) (shown bool, err error)
	// Interrupted yields a value at each interrupt after the first, which ends the context of Execute: `dev` then stops at
	// once. Nil never yields.
	Interrupted <-chan struct{}
	// Root is true where this process may do whatever root may, and with it the stages that an engine in it runs.
	Root bool
}

// RunningEngine is the embedded stack while it runs.
type RunningEngine interface {
	// HTTPAddress is the URL of its API, such as "http://127.0.0.1:7474".
	HTTPAddress() string
	// Done is closed when the engine has ended, by Close or by a failure.
	Done() <-chan struct{}
	// Err is why it ended; nil before that and after Close.
	Err() error
	// Close drains the engine until ctx ends, then stops what is left. It returns once every process of it has ended.
	Close(ctx context.Context) error
}
