package engine_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/activities/natstest"
	"github.com/spillway-ml/spillway/cmd/internal/cli"
	"github.com/spillway-ml/spillway/cmd/internal/engine"
	"github.com/spillway-ml/spillway/cmd/internal/secrecy"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/cmd/internal/web/client"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/workers/enforce"
)

// patience is how long a test waits for what must happen. It decides nothing: a machine may be slow, and a test that
// waits for longer hangs. SPILLWAY_TEST_PATIENCE multiplies it, for emulated machines.
var patience = func() time.Duration {
	factor, err := strconv.Atoi(os.Getenv("SPILLWAY_TEST_PATIENCE"))
	if err != nil || factor < 1 {
		factor = 1
	}
	return time.Duration(factor) * 8 * time.Minute
}()

// asEngine makes this test binary the spillway command, so that tests can kill a whole engine.
const asEngine = "SPILLWAY_TEST_AS_ENGINE"

// asConcealed makes it one that others cannot look into, as the spillway command is.
const asConcealed = "SPILLWAY_TEST_CONCEALED"

func TestMain(m *testing.M) {
	natstest.Main()
	if dir := os.Getenv(asTemporal); dir != "" {
		os.Exit(serveTemporal(dir))
	}
	if os.Getenv(asEngine) != "" {
		if os.Getenv(asConcealed) != "" {
			if err := secrecy.Conceal(); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
		}
		if dir := heapDir(); dir != "" {
			go writeHeaps(dir)
		}
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		code := cli.Execute(ctx, os.Args[1:], os.Stdout, os.Stderr, cli.Deps{
			StartEngine: cli.Embedded, Version: "test", Environment: os.LookupEnv, ProbeModel: engine.ProbeModel,
			Executor: engine.Executor,
		})
		stop()
		os.Exit(code)
	}
	if address := os.Getenv(asBare); address != "" {
		if err := serveBare(address); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	dir, err := os.MkdirTemp("", "spillway-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	binaries.dir = dir
	code := m.Run()
	if err := stopShared(); err != nil {
		fmt.Fprintln(os.Stderr, "the engine that tests share:", err)
		code = 1
	}
	if err := os.RemoveAll(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// binaries keeps the apps that tests share, by their number of wide stages.
var binaries struct {
	sync.Mutex
	dir string
}

// buildApp compiles testdata/app with this many more stages.
func buildApp(tb testing.TB, wide int) string {
	tb.Helper()
	return buildAppWith(tb, fmt.Sprintf("testapp-%d", wide), fmt.Sprintf("-X main.wideStages=%d", wide))
}

// buildAppWith compiles testdata/app with these linker flags, once for each name.
func buildAppWith(tb testing.TB, name, flags string) string {
	tb.Helper()
	return buildPackage(tb, name, "./testdata/app", flags)
}

// builtVar names a directory in which binaries lie that buildPackage need not compile: machines without a compiler have
// one.
const builtVar = "SPILLWAY_TEST_BUILT"

// buildPackage compiles a command with these linker flags, once for each name.
func buildPackage(tb testing.TB, name, command, flags string) string {
	tb.Helper()
	binaries.Lock()
	defer binaries.Unlock()
	if built := os.Getenv(builtVar); built != "" {
		path := filepath.Join(built, name)
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	path := filepath.Join(binaries.dir, name)
	if _, err := os.Stat(path); err == nil {
		return path
	}
	output, err := exec.CommandContext(tb.Context(), "go", "build", "-ldflags", flags, "-o", path, command).
		CombinedOutput()
	if err != nil {
		tb.Fatalf("build the test app: %v\n%s", err, output)
	}
	return path
}

// testEngine is a `spillway dev` in a process of its own.
type testEngine struct {
	t       testing.TB
	state   string
	temp    string // its directory for temporary files; empty for that of all
	command *exec.Cmd
	ended   chan struct{} // closed when the process is gone
	output  *output
	client  *client.Client
	address string // of the API
	token   string // that its owner shows; empty at an engine from before there were any
	shared  bool   // it is that of many tests
	server  bool   // it is `spillway server`, without a pool
	// environment is added to that of this process; concealed has the engine keep its secrets as the spillway command
	// does.
	environment []string
	concealed   bool
}

// output is what the engine has printed so far.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

// Write is called by the goroutine that copies the engine's output.
func (o *output) Write(text []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(text)
}

// String returns it all.
func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

func (e *testEngine) printed() string { return e.output.String() }

// startEngine starts an engine on the state directory and returns once a run could be started. Without an app it serves
// what it has stored.
func startEngine(tb testing.TB, state, app string, flags ...string) *testEngine {
	tb.Helper()
	return startEngineOf(tb, os.Args[0], state, app, flags...)
}

// startEngineOf is startEngine with another program in the place of this one.
func startEngineOf(tb testing.TB, program, state, app string, flags ...string) *testEngine {
	tb.Helper()
	return (&testEngine{t: tb, state: state}).start(program, app, flags...)
}

// start starts an engine that has its directories, which ends with the test.
func (e *testEngine) start(program, app string, flags ...string) *testEngine {
	e.t.Helper()
	e.t.Cleanup(func() {
		if e.command == nil || e.command.Process == nil {
			return
		}
		e.kill()
		if err := e.left(); err != nil {
			e.t.Error(err)
		}
	})
	e.launch(program, app, flags...)
	return e
}

// left says what an engine that has ended has left, and sweeps it.
func (e *testEngine) left() error {
	err := sweepGroups(e.state)
	if strings.Contains(e.printed(), "DATA RACE") {
		err = errors.Join(err, fmt.Errorf("%w:\n%s", errRace, e.printed()))
	}
	return err
}

var errRace = errors.New("the race detector found something in the engine")

// launch starts an engine that has its directories and waits until a run could be started.
func (e *testEngine) launch(program, app string, flags ...string) {
	tb, state := e.t, e.state
	tb.Helper()
	e.ended, e.output = make(chan struct{}), &output{}
	verb := "dev"
	if e.server {
		verb = "server"
	}
	arguments := append([]string{verb, "--state", state, "--no-ui"}, ports(e.shared, flags)...)
	if app != "" {
		arguments = append(arguments, "--app", app)
	}
	arguments = append(arguments, flags...)
	e.command = exec.Command(program, arguments...)
	e.command.Env = append(append(os.Environ(), asEngine+"=1"), e.environment...)
	if e.concealed {
		e.command.Env = append(e.command.Env, asConcealed+"=1")
	}
	if e.temp != "" {
		e.command.Env = append(e.command.Env, "TMPDIR="+e.temp)
	}
	e.command.Stdout, e.command.Stderr = e.output, e.output
	if err := e.command.Start(); err != nil {
		tb.Fatal(err)
	}
	go func() {
		defer close(e.ended)
		_ = e.command.Wait()
	}()
	deadline := time.After(patience)
	for {
		file, err := web.ReadStackFile(state)
		if err == nil && file.PID == e.command.Process.Pid {
			if e.token, err = access.ReadToken(state); err != nil && !errors.Is(err, fs.ErrNotExist) {
				tb.Fatal(err)
			}
			e.address, e.client = file.HTTP, client.New(file.HTTP, e.token)
			if err = e.client.Healthy(tb.Context()); err == nil {
				return
			}
		}
		select {
		case <-e.ended:
			tb.Fatalf("the engine ended before it was ready:\n%s", e.output)
		case <-deadline:
			e.kill()
			tb.Fatalf("the engine was not ready within %s (%v):\n%s", patience, err, e.output)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// sweepGroups removes the groups that a killed engine has left, as the next engine on its state directory would.
func sweepGroups(state string) error {
	for _, owner := range []string{state, filepath.Join(state, "functions")} {
		enforcer, err := enforce.Open(enforce.Options{StateDir: owner})
		if err == nil {
			err = enforcer.Close()
		}
		if err != nil && !errors.Is(err, enforce.ErrOwned) && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("sweep the groups of a killed engine: %w", err)
		}
	}
	return nil
}

// sharing has the one engine of all tests that disturb nobody: those that neither end it nor look at what others do. It
// is started by the first and ended after the last.
var sharing struct {
	sync.Mutex
	engine *testEngine // nil before the first test asks for it
}

// sharedEngine is an engine that serves testdata/app without functions, beside other tests: what a test counts, it
// counts by names of its own. Most of what a test takes that starts an engine is that start, and the end.
func sharedEngine(t *testing.T) *testEngine {
	t.Helper()
	app := buildApp(t, 0)
	sharing.Lock()
	defer sharing.Unlock()
	if sharing.engine == nil {
		sharing.engine = &testEngine{t: t, state: filepath.Join(binaries.dir, "shared"), shared: true}
		sharing.engine.launch(os.Args[0], app, "--no-burst")
	}
	if sharing.engine.client == nil {
		t.Fatal("the engine that tests share did not start, as the first of them says")
	}
	e := *sharing.engine
	e.t = t
	return &e
}

var errUnclean = errors.New("it did not end in good order")

// stopShared ends the engine that tests have shared as Ctrl-C does, and says what it has left.
func stopShared() (err error) {
	sharing.Lock()
	defer sharing.Unlock()
	e := sharing.engine
	if e == nil || e.command == nil || e.command.Process == nil {
		return nil
	}
	select {
	case <-e.ended:
		return fmt.Errorf("%w: it was gone before the last test was over:\n%s", errUnclean, e.output)
	default:
	}
	if err = e.command.Process.Signal(os.Interrupt); err == nil {
		select {
		case <-e.ended:
			err = gone(e.state)
		case <-time.After(patience):
			err = fmt.Errorf("%w: it goes on %s after an interrupt:\n%s", errUnclean, patience, e.output)
		}
	}
	e.kill()
	return errors.Join(err, e.left())
}

// started counts the engines of this test process.
var started atomic.Int64

// slots is how many engines of a test process have ports of their own at a time; the last has the one that tests share,
// which outlives all others.
const slots = 40

// ports gives every engine ports of its own, below those that the kernel hands out: `dev` would have all engines try
// the usual ones.
func ports(shared bool, flags []string) []string {
	slot := int(started.Add(1)) % (slots - 1)
	if shared {
		slot = slots - 1
	}
	first := 20_000 + os.Getpid()%50*slots*5 + slot*5
	chosen := []string{"--http-port", strconv.Itoa(first + 2)}
	if !slices.Contains(flags, "--nats-url") {
		chosen = append(chosen, "--nats-port", strconv.Itoa(first+1))
	}
	if !slices.Contains(flags, "--temporal-address") {
		chosen = append(chosen, "--temporal-port", strconv.Itoa(first))
	}
	return chosen
}

// kill ends the engine as kill -9 does.
func (e *testEngine) kill() {
	_ = e.command.Process.Kill()
	<-e.ended
}

// until waits until holds says so.
func (e *testEngine) until(what string, holds func() bool) {
	e.t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			e.kill()
			e.t.Fatalf("not within %s: %s\n%s", patience, what, e.printed())
		}
	}
}

// get asks the API for what its client has no method for; the caller closes the body.
func (e *testEngine) get(ctx context.Context, path string) *http.Response {
	e.t.Helper()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, e.address+path, http.NoBody)
	if err != nil {
		e.t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+e.token)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		e.t.Fatal(err)
	}
	return answer
}

// series reads /metrics: the value of each series, by its name with its labels.
func (e *testEngine) series() map[string]float64 {
	e.t.Helper()
	answer := e.get(e.t.Context(), "/metrics")
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		e.t.Fatalf("metrics: %s, %v", answer.Status, err)
	}
	all := map[string]float64{}
	for line := range strings.Lines(string(text)) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if number, err := strconv.ParseFloat(value, 64); err == nil {
			all[series] = number
		}
	}
	return all
}

// stop ends the engine as Ctrl-C does and fails the test when it does not end cleanly.
func (e *testEngine) stop() {
	e.t.Helper()
	if err := e.command.Process.Signal(os.Interrupt); err != nil {
		e.t.Error(err)
	}
	select {
	case <-e.ended:
	case <-time.After(patience):
		e.kill()
		e.t.Errorf("the engine did not end within %s of an interrupt:\n%s", patience, e.output)
	}
}

// publish triggers a pipeline. All of its stages run, whatever earlier runs have done.
func (e *testEngine) publish(pipeline, id string, input any) (run string) {
	e.t.Helper()
	encoded, err := json.Marshal(input)
	if err != nil {
		e.t.Fatal(err)
	}
	published, err := e.client.Publish(e.t.Context(), web.Event{Pipeline: pipeline, ID: id, Input: encoded})
	if err != nil {
		e.t.Fatalf("publish %s %s: %v", pipeline, id, err)
	}
	return published.Run
}

// wait waits until the run has ended.
func (e *testEngine) wait(run string, limit time.Duration) ledger.RunView {
	e.t.Helper()
	deadline := time.Now().Add(limit)
	for {
		view, err := e.client.Run(e.t.Context(), run)
		if err == nil && view.State != predictor.RunRunning {
			return view
		}
		if time.Now().After(deadline) {
			e.kill()
			e.t.Fatalf("run %s did not end within %s: %v\n%+v\n%s", run, limit, err, view, e.output)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// succeed waits for the run and decodes its result.
func succeed[Out any](e *testEngine, run string, limit time.Duration) (out Out) {
	e.t.Helper()
	view := e.wait(run, limit)
	if view.State != predictor.RunSucceeded {
		e.kill()
		e.t.Fatalf("run %s %s: %s\n%s", run, view.State, view.Error, e.output)
	}
	if err := json.Unmarshal(view.Result, &out); err != nil {
		e.t.Fatalf("result of run %s: %v", run, err)
	}
	return out
}

// children lists the processes that the engine's death must take along: those that run a stored build.
func children(state string) (found []string) {
	entries, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		panic(err) // a pattern of our own
	}
	for _, entry := range entries {
		if target, err := os.Readlink(entry); err == nil && len(target) > len(state) && target[:len(state)] == state {
			found = append(found, target)
		}
	}
	return found
}

var errStillThere = errors.New("processes of the engine are still there")

// gone waits until no process of the engine is left.
func gone(state string) error {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if len(children(state)) == 0 {
			return nil
		}
	}
	return fmt.Errorf("%w: %v", errStillThere, children(state))
}
