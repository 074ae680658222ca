package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"

	"github.com/spillway-ml/spillway/activities/access/natsaccess"
	"github.com/spillway-ml/spillway/activities/wait"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/build"
	"github.com/spillway-ml/spillway/cmd/internal/temporalproxy"
	"github.com/spillway-ml/spillway/workers/spawn"
)

// workflowWorkers keeps one workflow worker going for every build whose runs may need it: of a binary a process, of a
// chain a part of this one.
type workflowWorkers struct {
	builds      *build.Store
	chains      *chainWorkers
	spawner     *spawn.Spawner
	environment []string // of every worker, the build's own aside
	// admit lets a build's worker connect to NATS until release is called.
	admit     func(app wire.App, build string) (address *url.URL, release func(), err error)
	behind    grpc.ClientConnInterface // what lies behind the workers' proxies of Temporal
	namespace string                   // where runs are
	checks    *inputChecks
	logger    *slog.Logger

	running sync.WaitGroup
	mu      sync.Mutex
	stop    map[buildID]context.CancelFunc // guarded by mu
}

// buildID names one build of an app.
type buildID struct{ app, build string }

func (id buildID) String() string { return id.app + "@" + id.build }

// Bounds of the pause before a worker that ended is started again, and of the time that one is given to end.
const (
	firstPause  = 100 * time.Millisecond
	longPause   = 10 * time.Second
	workerGrace = 5 * time.Second
)

// keep starts the worker of build unless it runs, and starts it again whenever it ends, until stopped or ctx ends.
func (w *workflowWorkers) keep(ctx context.Context, id buildID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, runs := w.stop[id]; runs {
		return
	}
	ctx, stop := context.WithCancel(ctx)
	w.stop[id] = stop
	w.running.Go(func() { w.supervise(ctx, id) })
}

// drop stops the worker of build: no run needs it any more.
func (w *workflowWorkers) drop(id buildID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if stop, runs := w.stop[id]; runs {
		stop()
		delete(w.stop, id)
	}
}

// kept lists the builds whose worker is kept.
func (w *workflowWorkers) kept() []buildID {
	w.mu.Lock()
	defer w.mu.Unlock()
	builds := make([]buildID, 0, len(w.stop))
	for id := range w.stop {
		builds = append(builds, id)
	}
	return builds
}

// wait returns once every worker whose context has ended is gone.
func (w *workflowWorkers) wait() { w.running.Wait() }

func (w *workflowWorkers) supervise(ctx context.Context, id buildID) {
	pause := firstPause
	for ctx.Err() == nil {
		began := time.Now()
		err := w.once(ctx, id)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > longPause {
			pause = firstPause
		}
		now := pauseAfter(err, pause, time.Now())
		w.logger.WarnContext(ctx, "workflow worker ended; it is started again", "build", id.String(), "error", err, "pause",
			now)
		wait.For(ctx, now)
		pause = min(2*pause, longPause)
	}
}

// pauseAfter is for how long a worker that ended with err stays away: for this pause, and for as long as it is not let
// in.
func pauseAfter(err error, pause time.Duration, now time.Time) time.Duration {
	if barred, is := errors.AsType[*natsaccess.BarredError](err); is {
		return max(pause, barred.Until.Sub(now))
	}
	return pause
}

// once runs the worker until it ends or ctx does.
func (w *workflowWorkers) once(ctx context.Context, id buildID) error {
	if c, err := w.chains.stored.Get(id.app, id.build); err == nil {
		return w.chains.run(ctx, id, c)
	} else if !errors.Is(err, build.ErrUnknownBuild) {
		return err
	}
	app, err := w.builds.Get(ctx, id.app, id.build)
	if err != nil {
		return err
	}
	messages, release, err := w.admit(app.Descriptor, id.build)
	if err != nil {
		return err
	}
	defer release()
	entrance, err := temporalproxy.Open(ctx, temporalproxy.Options{
		Temporal: w.behind, Namespace: w.namespace, App: id.app, Build: id.build, Logger: w.logger,
	})
	if err != nil {
		return err
	}
	defer entrance.Close()
	worker := exec.Command(app.Path) //nolint:noctx // it is stopped by a signal first and by force only after a grace
	worker.Env = append(spawn.Environment(spawn.Inherited(os.LookupEnv)), w.environment...)
	worker.Env = append(worker.Env, wire.RoleEnvironment+"="+wire.RoleWorkflows, wire.BuildEnvironment+"="+id.build,
		wire.NATSEnvironment+"="+messages.String(), wire.TemporalEnvironment+"="+entrance.Address(),
		wire.NamespaceEnvironment+"="+w.namespace)
	password, _ := messages.User.Password()
	logs := &lineLogger{logger: w.logger.With("build", id.String()), secret: password}
	worker.Stdout, worker.Stderr = logs, logs
	pipes, err := w.connectChecks(worker, app.Descriptor)
	if err != nil {
		return fmt.Errorf("start workflow worker %s: %w", id, err)
	}
	defer pipes.close()
	err = w.spawner.Start(worker)
	pipes.given()
	if err != nil {
		return fmt.Errorf("start workflow worker %s: %w", id, err)
	}
	deaf := make(chan error, 1)
	if pipes.ask != nil {
		w.running.Go(func() {
			if err := w.checks.serve(id, pipes.ask, pipes.answers); err != nil {
				deaf <- err
			}
		})
	}
	entrance.Admit(worker.Process.Pid)
	ended := make(chan error, 1)
	go func() { ended <- worker.Wait() }()
	select {
	case err := <-ended:
		return err
	case err := <-deaf:
		return errors.Join(err, endWorker(worker.Process, ended))
	case <-ctx.Done():
		return endWorker(worker.Process, ended)
	}
}

// endWorker ends a worker's process and returns how it ended.
func endWorker(process *os.Process, ended <-chan error) error {
	signalProcess(process, syscall.SIGTERM)
	select {
	case err := <-ended:
		return err
	case <-time.After(workerGrace):
		signalProcess(process, syscall.SIGKILL)
		return <-ended
	}
}

// connectChecks gives a worker of which some pipeline checks inputs the pipes for that; the pipes are zero for any
// other.
func (w *workflowWorkers) connectChecks(worker *exec.Cmd, app wire.App) (checkPipes, error) {
	if !slices.ContainsFunc(app.Pipelines, func(p wire.Pipeline) bool { return p.Validates }) {
		return checkPipes{}, nil
	}
	pipes, err := newCheckPipes()
	if err != nil {
		return checkPipes{}, err
	}
	worker.Env = append(worker.Env, wire.ChecksEnvironment+"=1")
	worker.ExtraFiles = []*os.File{wire.QuestionsFD - 3: pipes.theirAsk, wire.AnswersFD - 3: pipes.theirAnswer}
	return pipes, nil
}

func signalProcess(process *os.Process, signal syscall.Signal) {
	if err := process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		// The process cannot be reached; waiting for it is all that is left to do.
		return
	}
}

// lineLogger logs what a process prints, line by line.
type lineLogger struct {
	logger *slog.Logger
	secret string // is not logged; never empty
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
				l.say(l.rest)
				l.rest = nil
			}
			return len(text), nil
		}
		l.say(l.rest[:end])
		l.rest = l.rest[end+1:]
	}
}

// say logs a line. Workers of earlier versions print the address of NATS, with their password, when they cannot
// connect.
func (l *lineLogger) say(line []byte) {
	l.logger.Info("workflow worker says", "line", strings.ReplaceAll(string(line), l.secret, "[hidden]"))
}
