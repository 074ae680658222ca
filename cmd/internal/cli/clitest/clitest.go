// Package clitest runs the command line in tests, against a stack in memory behind the real API.
package clitest

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/activities/documents"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/cli"
	"github.com/spillway-ml/spillway/cmd/internal/engine"
	"github.com/spillway-ml/spillway/cmd/internal/teams"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/cmd/internal/web/webtest"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Buffer is a bytes.Buffer for several goroutines.
type Buffer struct {
	mutex sync.Mutex
	text  bytes.Buffer
}

func (b *Buffer) Write(data []byte) (int, error) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return b.text.Write(data)
}

func (b *Buffer) String() string {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return b.text.String()
}

// Stack is a stack in memory behind the real API.
type Stack struct {
	*webtest.Engine
	Server *httptest.Server
	Store  *artifact.Files
	state  string
	Keys   *access.Keys
	lock   *os.File // held, as an engine that lives holds it
	done   chan struct{}
	once   sync.Once
	end    context.CancelFunc // what the contexts of requests end with
	Asked  func()             // called when somebody asks for a run; nil does nothing
}

// Run answers as the engine does and tells asked.
func (s *Stack) Run(ctx context.Context, run string) (ledger.RunView, error) {
	if s.Asked != nil {
		s.Asked()
	}
	return s.Engine.Run(ctx, run)
}

// HTTPAddress is the URL of its API.
func (s *Stack) HTTPAddress() string { return s.Server.URL }

// Done is closed when it has ended.
func (s *Stack) Done() <-chan struct{} { return s.done }

// Err is nil: it never fails.
func (s *Stack) Err() error { return nil }

// Close ends it at once.
func (s *Stack) Close(context.Context) error { return s.Stop() }

// Stop ends it, as an engine does that ends in good order; more than once does nothing.
func (s *Stack) Stop() (err error) {
	s.once.Do(func() {
		s.end() // also of who follows anew between the next two
		s.Server.CloseClientConnections()
		s.Server.Close()
		err = errors.Join(web.RemoveStackFile(s.state), s.lock.Close())
		close(s.done)
	})
	return err
}

// StartStack starts a stack with these apps and writes its file, as the engine does.
func StartStack(t *testing.T, state string, apps ...web.App) *Stack {
	t.Helper()
	return StartStackOf(t, state, nil, apps...)
}

// StartStackOf is StartStack of a stack that these teams share; nil for none.
func StartStackOf(t *testing.T, state string, declared *teams.File, apps ...web.App) *Stack {
	t.Helper()
	stack := &Stack{state: state, done: make(chan struct{}), Engine: webtest.New(web.Stack{
		Version: "v0.1.0", PID: os.Getpid(), StartedAt: time.Now(), StateDir: state, Apps: apps, PoolCPUs: []int{0},
		FunctionCPUs: []int{1},
		Hosts:        []predictor.Host{{ID: "local", PricePerHour: 44 * quantity.USD / 1000}},
	})}
	store, err := artifact.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	stack.Store = store
	if stack.Keys, err = access.Open(state); err != nil {
		t.Fatal(err)
	}
	tokens := access.OpenTokens(documents.Local())
	stack.lock = LockState(t, state)
	stack.Server = httptest.NewUnstartedServer(web.New(web.Options{
		Engine: stack, Keys: stack.Keys, Tokens: tokens, Artifacts: store,
		Feed: &stack.Feed, Teams: declared,
	}))
	requests, end := context.WithCancel(context.WithoutCancel(t.Context()))
	stack.end = end
	stack.Server.Config.BaseContext = func(net.Listener) context.Context { return requests }
	stack.Server.Start()
	stack.SetAddress(stack.Server.URL)
	if err := (web.StackFile{HTTP: stack.Server.URL, PID: os.Getpid()}).Write(state); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stack.Stop(); err != nil {
			t.Error(err)
		}
	})
	return stack
}

// LockState holds the lock of a state directory until it is closed.
func LockState(t *testing.T, state string) *os.File {
	t.Helper()
	lock, err := os.OpenFile(filepath.Join(state, access.LockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil {
		err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX)
	}
	if err != nil {
		t.Fatal(err)
	}
	return lock
}

// ServedDigits is an app with the pipeline digits, as a stack serves it.
var ServedDigits = web.App{
	App:   wire.App{Name: "digits", Pipelines: []wire.Pipeline{{Name: "digits"}}},
	Build: "0123456789ab", Path: "/x", Current: true,
}

// Script is an app's binary as far as a build can tell, with one pipeline of its name.
func Script(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	text := "#!/bin/sh\necho '" + `{"v":1,"name":"` + name + `","pipelines":[{"name":"` + name +
		`","input_schema":null,"goal":{}}],"stages":null}` + "'\n"
	if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// Starter returns a StartEngine that starts stacks in memory and keeps what it was asked for.
func Starter(
	t *testing.T, onStart func(*Stack),
) (start func(context.Context, engine.Config) (cli.RunningEngine, error), configs *[]engine.Config) {
	t.Helper()
	configs = &[]engine.Config{}
	return func(_ context.Context, config engine.Config) (cli.RunningEngine, error) {
		*configs = append(*configs, config)
		var apps []web.App
		for _, app := range config.Apps {
			apps = append(apps, web.App{App: app.Descriptor, Build: app.Digest, Path: app.Path, Current: true})
		}
		stack := StartStack(t, config.StateDir, apps...) //nolint:contextcheck // it ends with its test
		if onStart != nil {
			onStart(stack)
		}
		return stack, nil
	}, configs
}

var errNoEngine = errors.New("this test starts no engine")

// Execute runs one command.
//
//nolint:revive // t first, as in all tests
func Execute(t *testing.T, ctx context.Context, deps cli.Deps, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	if deps.StartEngine == nil {
		deps.StartEngine = func(context.Context, engine.Config) (cli.RunningEngine, error) { return nil, errNoEngine }
	}
	deps.Version = "v0.1.0"
	var out, err Buffer
	code = cli.Execute(ctx, args, &out, &err, deps)
	return code, out.String(), err.String()
}

// Begin is when runs of tests begin.
var Begin = time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)

// Finish plays a whole run with two tasks that began at begin.
func Finish(stack *Stack, run, pipeline, build string, state predictor.RunState, result string, begin time.Time) {
	stage := predictor.StageID{App: pipeline, Build: build, Name: "score"}
	stack.Apply(run,
		predictor.RunStarted{Run: run, Pipeline: pipeline, App: pipeline, Build: build, At: begin},
		predictor.Scheduled{Run: run, Stage: stage, Tasks: 2, At: begin.Add(time.Second)},
	)
	stack.Decide(predictor.Plan{Term: 1, Tick: 1, Decisions: []predictor.Decision{{
		ID: "1-1-1", Stage: stage, Venue: predictor.Function, What: "slots", From: "0 slots", To: "1 slot",
		Reason: "2 tasks wait 2 s", At: begin.Add(time.Second),
	}}})
	for i, venue := range []predictor.Venue{predictor.Pool, predictor.Function} {
		stack.Apply(run, predictor.Record{
			Run: run, Pipeline: pipeline, Stage: stage, Task: "score-" + string(rune('0'+i)), Attempt: 1, Venue: venue,
			Outcome:     predictor.Succeeded,
			ScheduledAt: begin.Add(time.Second), At: begin.Add(3 * time.Second), Cost: 1_000_000,
			Usage: quantity.Usage{Wall: time.Second, CPU: time.Second, PeakMemory: 30 * quantity.MiB},
		})
	}
	ended := predictor.RunEnded{Run: run, State: state, Result: []byte(result), At: begin.Add(4 * time.Second)}
	if state == predictor.RunFailed {
		ended.Error = "stage score: no luck"
	}
	stack.Apply(run, ended)
}

// Contains fails the test for each of the parts that text, which is called what, does not have.
func Contains(t *testing.T, what, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%s has no %q:\n%s", what, part, text)
		}
	}
}

// Directory makes a directory of files.
func Directory(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	Put(t, dir, files)
	return dir
}

// Put puts files into a directory.
func Put(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// Content reads the files of a directory.
func Content(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		files[strings.TrimPrefix(path, dir+"/")] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}
