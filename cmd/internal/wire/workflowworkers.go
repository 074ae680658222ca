package wire

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/workers/spawn"
)

// workflowWorkers keeps one workflow-worker process going for every build whose runs may need it.
type workflowWorkers struct {
	builds      activities.Builds
	spawner     *spawn.Spawner
	environment []string // of every worker, the build's own aside
	logger      *slog.Logger

	running sync.WaitGroup
	mu      sync.Mutex
	stop    map[buildID]context.CancelFunc // guarded by mu
}

// buildID names one build of an app.
type buildID struct{ app, build string }

func (b buildID) String() string { return b.app + "@" + b.build }

// Bounds of the pause before a worker that ended is started again, and of the time that one is given to end.
const (
	firstPause  = 100 * time.Millisecond
	longPause   = 10 * time.Second
	workerGrace = 5 * time.Second
)

func newWorkflowWorkers(builds activities.Builds, spawner *spawn.Spawner, environment []string, logger *slog.Logger) *workflowWorkers {
	return &workflowWorkers{builds: builds, spawner: spawner, environment: environment, logger: logger, stop: map[buildID]context.CancelFunc{}}
}

// keep starts the worker of build unless it runs, and starts it again whenever it ends, until stopped or ctx ends.
func (w *workflowWorkers) keep(ctx context.Context, build buildID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, runs := w.stop[build]; runs {
		return
	}
	ctx, stop := context.WithCancel(ctx)
	w.stop[build] = stop
	w.running.Go(func() { w.supervise(ctx, build) })
}

// drop stops the worker of build: no run needs it any more.
func (w *workflowWorkers) drop(build buildID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if stop, runs := w.stop[build]; runs {
		stop()
		delete(w.stop, build)
	}
}

// kept lists the builds whose worker is kept.
func (w *workflowWorkers) kept() []buildID {
	w.mu.Lock()
	defer w.mu.Unlock()
	builds := make([]buildID, 0, len(w.stop))
	for build := range w.stop {
		builds = append(builds, build)
	}
	return builds
}

// wait returns once every worker whose context has ended is gone.
func (w *workflowWorkers) wait() { w.running.Wait() }

func (w *workflowWorkers) supervise(ctx context.Context, build buildID) {
	pause := firstPause
	for ctx.Err() == nil {
		began := time.Now()
		err := w.once(ctx, build)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > longPause {
			pause = firstPause
		}
		w.logger.WarnContext(ctx, "workflow worker ended; it is started again", "build", build.String(), "error", err, "pause", pause)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, longPause)
	}
}

// once runs the worker until it ends or ctx does.
func (w *workflowWorkers) once(ctx context.Context, build buildID) error {
	path, err := w.builds.Path(ctx, build.app, build.build)
	if err != nil {
		return err
	}
	worker := exec.Command(path) //nolint:noctx // it is stopped by a signal first and by force only after a grace
	worker.Env = append(hostEnvironment(), w.environment...)
	worker.Env = append(worker.Env, wire.RoleEnvironment+"="+wire.RoleWorkflows, wire.BuildEnvironment+"="+build.build)
	logs := &lineLogger{logger: w.logger.With("build", build.String())}
	worker.Stdout, worker.Stderr = logs, logs
	if err := w.spawner.Start(worker); err != nil {
		return fmt.Errorf("start workflow worker %s: %w", build, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- worker.Wait() }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	signalProcess(worker.Process, syscall.SIGTERM)
	select {
	case err := <-ended:
		return err
	case <-time.After(workerGrace):
		signalProcess(worker.Process, syscall.SIGKILL)
		return <-ended
	}
}

func signalProcess(process *os.Process, signal syscall.Signal) {
	if err := process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		// The process cannot be reached; waiting for it is all that is left to do.
		return
	}
}

// hostEnvironment is the part of this process's environment that users' processes get: nothing that could be a secret.
func hostEnvironment() []string {
	var kept []string
	for _, name := range []string{"PATH", "HOME", "TMPDIR", "LANG", "TZ"} {
		if value, set := os.LookupEnv(name); set {
			kept = append(kept, name+"="+value)
		}
	}
	return kept
}

// lineLogger logs what a process prints, line by line.
type lineLogger struct {
	logger *slog.Logger
	rest   []byte
}

// longestLine bounds what is kept of a line without an end.
const longestLine = 16 << 10

// Write is called by one goroutine at a time.
func (l *lineLogger) Write(text []byte) (int, error) {
	l.rest = append(l.rest, text...)
	for {
		end := -1
		for i, c := range l.rest {
			if c == '\n' {
				end = i
				break
			}
		}
		if end < 0 {
			if len(l.rest) > longestLine {
				l.logger.Info("workflow worker says", "line", string(l.rest))
				l.rest = nil
			}
			return len(text), nil
		}
		l.logger.Info("workflow worker says", "line", string(l.rest[:end]))
		l.rest = l.rest[end+1:]
	}
}
