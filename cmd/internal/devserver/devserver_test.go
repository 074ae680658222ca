package devserver

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.temporal.io/api/enums/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/spillway-ml/spillway/activities/access"
)

// patience is how long a test waits for a server on a busy machine; it decides nothing.
const patience = 5 * time.Minute

// childDir names, in the environment of a test binary, the state directory that it shall serve from until it is killed.
const childDir = "SPILLWAY_TEST_DEVSERVER_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		os.Exit(serveUntilKilled(dir))
	}
	os.Exit(m.Run())
}

// serveUntilKilled is the other process of the tests that need one. It prints its addresses when it is ready.
func serveUntilKilled(dir string) int {
	s, err := Start(context.Background(), Options{Dir: dir, NoUI: true})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(s.TemporalAddress(), s.NATSURL())
	_, _ = io.Copy(io.Discard, os.Stdin) // the end of the parent
	runtime.KeepAlive(s)                 // what is collected gives up its lock of the directory
	return 0
}

// child starts another process that serves from dir. The reader has what it prints.
func child(t *testing.T, dir string) (*exec.Cmd, *bufio.Reader) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childDir+"="+dir)
	cmd.Stderr = os.Stderr
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, bufio.NewReader(out)
}

// kill ends the child as kill -9 does.
func kill(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatalf("kill the child: %v", err)
	}
	_ = cmd.Wait() // the error is the kill
}

// testLog shows in the test's output what the servers log.
func testLog(t *testing.T) *slog.Logger {
	t.Helper()
	return slog.New(slog.NewTextHandler(t.Output(), nil))
}

func start(t *testing.T, o Options) *Server {
	t.Helper()
	if o.Logger == nil {
		o.Logger = testLog(t)
	}
	began := time.Now()
	s, err := Start(t.Context(), o)
	if err != nil {
		t.Fatalf("Start(%+v): %v", o, err)
	}
	t.Logf("started in %v", time.Since(began).Round(time.Millisecond))
	t.Cleanup(func() { stop(t, s) })
	return s
}

func stop(t *testing.T, s *Server) {
	t.Helper()
	began := time.Now()
	if err := s.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	t.Logf("closed in %v", time.Since(began).Round(time.Millisecond))
}

// dialTemporal connects as the owner of the state directory does from outside.
func dialTemporal(t *testing.T, address, dir string) client.Client {
	t.Helper()
	token, err := access.ReadToken(dir)
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.DialContext(t.Context(), client.Options{
		HostPort:          address,
		Namespace:         Namespace,
		Logger:            log.NewStructuredLogger(slog.New(slog.DiscardHandler)),
		Credentials:       client.NewAPIKeyStaticCredentials(token),
		ConnectionOptions: client.ConnectionOptions{TLSDisabled: true, GetSystemInfoTimeout: patience},
	})
	if err != nil {
		t.Fatalf("dial temporal at %s: %v", address, err)
	}
	return c
}

func upper(_ context.Context, s string) (string, error) { return strings.ToUpper(s), nil }

func shout(ctx workflow.Context, s string) (string, error) {
	ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{StartToCloseTimeout: patience})
	var out string
	err := workflow.ExecuteActivity(ctx, upper, s).Get(ctx, &out)
	return out, err
}

// runWorkflow runs shout to its end on the Temporal server at address.
func runWorkflow(t *testing.T, address, dir, id string) {
	t.Helper()
	c := dialTemporal(t, address, dir)
	defer c.Close()
	w := worker.New(c, "queue", worker.Options{})
	w.RegisterWorkflow(shout)
	w.RegisterActivity(upper)
	if err := w.Start(); err != nil {
		t.Fatalf("start a worker: %v", err)
	}
	defer w.Stop()
	run, err := c.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{ID: id, TaskQueue: "queue"}, shout, "spill")
	if err != nil {
		t.Fatalf("start workflow %s: %v", id, err)
	}
	var got string
	if err := run.Get(t.Context(), &got); err != nil || got != "SPILL" {
		t.Fatalf("result of workflow %s: got %q, error %v; want SPILL", id, got, err)
	}
}

// wantClosed checks that the workflow is known, closed, and kept with its result.
func wantClosed(t *testing.T, address, dir, id string) {
	t.Helper()
	c := dialTemporal(t, address, dir)
	defer c.Close()
	d, err := c.DescribeWorkflowExecution(t.Context(), id, "")
	if err != nil {
		t.Fatalf("describe workflow %s: %v", id, err)
	}
	if got := d.GetWorkflowExecutionInfo().GetStatus(); got != enums.WORKFLOW_EXECUTION_STATUS_COMPLETED {
		t.Errorf("status of workflow %s: got %v, want completed", id, got)
	}
	var got string
	if err := c.GetWorkflow(t.Context(), id, "").Get(t.Context(), &got); err != nil || got != "SPILL" {
		t.Errorf("result of workflow %s: got %q, error %v; want SPILL", id, got, err)
	}
}

func publish(t *testing.T, nc *nats.Conn, id string) {
	t.Helper()
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(patience))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateOrUpdateStream(t.Context(),
		jetstream.StreamConfig{Name: "EVENTS", Subjects: []string{"events.>"}}); err != nil {
		t.Fatalf("make a stream: %v", err)
	}
	if _, err := js.Publish(t.Context(), "events.one", []byte(id), jetstream.WithMsgID(id)); err != nil {
		t.Fatalf("publish: %v", err)
	}
}

// wantMessages checks that the stream holds the messages, in order.
func wantMessages(t *testing.T, s *Server, want ...string) {
	t.Helper()
	nc := connect(t, s)
	defer nc.Close()
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(patience))
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), "EVENTS")
	if err != nil {
		t.Fatalf("find the stream: %v", err)
	}
	if got := stream.CachedInfo().State.Msgs; got != uint64(len(want)) {
		t.Fatalf("messages in the stream: got %d, want %d", got, len(want))
	}
	for i, w := range want {
		m, err := stream.GetMsg(t.Context(), uint64(i+1))
		if err != nil || string(m.Data) != w {
			t.Errorf("message %d: got %v, error %v; want %s", i+1, m, err, w)
		}
	}
}

// connect connects to NATS without a socket.
func connect(t *testing.T, s *Server) *nats.Conn {
	t.Helper()
	nc, err := s.ConnectNATS("test")
	if err != nil {
		t.Fatalf("connect to nats in process: %v", err)
	}
	return nc
}

func TestServersKeepTheirStateWhenStartedAgain(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state #1 50%? yes") // what a URI would need escaped
	s := start(t, Options{Dir: dir, NoUI: true})
	runWorkflow(t, s.TemporalAddress(), dir, "first")
	nc := connect(t, s)
	publish(t, nc, "a")
	nc.Close()
	stop(t, s)
	if wal, err := os.Stat(filepath.Join(dir, "temporal.db-wal")); err == nil && wal.Size() > 0 {
		t.Errorf("write-ahead log after Close: got %d bytes, want none", wal.Size())
	}

	s = start(t, Options{Dir: dir, NoUI: true, SyncAlways: true})
	wantClosed(t, s.TemporalAddress(), dir, "first")
	wantMessages(t, s, "a")
	runWorkflow(t, s.TemporalAddress(), dir, "second")
}

func TestAKilledServerLosesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cmd, out := child(t, dir)
	var address, url string
	if _, err := fmt.Fscan(out, &address, &url); err != nil {
		t.Fatalf("read the child's addresses: %v", err)
	}

	_, err := Start(t.Context(), Options{Dir: dir})
	var refused *DirError
	if !errors.As(err, &refused) || !errors.Is(err, ErrDirInUse) || refused.PID != cmd.Process.Pid {
		t.Errorf("Start in a directory in use: got %v, want a refusal that names process %d", err, cmd.Process.Pid)
	}

	runWorkflow(t, address, dir, "before")
	token, err := access.ReadToken(dir)
	if err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect(url, nats.UserInfo(NATSOwner, token), nats.Timeout(patience))
	if err != nil {
		t.Fatalf("connect to nats at %s: %v", url, err)
	}
	publish(t, nc, "a")
	publish(t, nc, "b")
	nc.Close()
	kill(t, cmd)

	s := start(t, Options{Dir: dir, NoUI: true})
	wantClosed(t, s.TemporalAddress(), dir, "before")
	wantMessages(t, s, "a", "b")
	runWorkflow(t, s.TemporalAddress(), dir, "after")
}

func TestAServerKilledWhileItMakesItsDatabaseCanBeStarted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cmd, _ := child(t, dir)
	for {
		if _, err := os.Stat(filepath.Join(dir, "temporal.db")); err == nil {
			break
		}
		if t.Context().Err() != nil {
			t.Fatal(t.Context().Err())
		}
		time.Sleep(100 * time.Microsecond)
	}
	kill(t, cmd)
	s := start(t, Options{Dir: dir, NoUI: true})
	runWorkflow(t, s.TemporalAddress(), dir, "first")
}

func TestTheUIServesItsPageAndItsAPI(t *testing.T) {
	t.Parallel()
	s := start(t, Options{Dir: t.TempDir()})
	for _, tt := range []struct{ path, want string }{
		{"/", "<html"},
		{"/namespaces/default/workflows", "<html"},
		{"/api/v1/settings", `"DefaultNamespace":"default"`},
		{"/api/v1/namespaces/default", `"2592000s"`},
		{"/api/v1/namespaces/default/workflows", "{}"},
		{"/healthz", "OK"},
	} {
		if got := get(t, s, tt.path); !strings.Contains(got, tt.want) {
			t.Errorf("GET %s: got %.300s, want it to contain %s", tt.path, got, tt.want)
		}
	}
}

// get asks the UI as its owner.
func get(t *testing.T, s *Server, path string) string {
	t.Helper()
	url := s.UIURL() + path
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+s.Keys().Token())
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: got %s, error %v", url, resp.Status, err)
	}
	return string(body)
}

func TestCloseLeavesNoListener(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := start(t, Options{Dir: dir})
	nc := connect(t, s)
	defer nc.Close()
	if got := nc.MaxPayload(); got != MaxPayload {
		t.Errorf("largest message: got %d, want %d", got, MaxPayload)
	}
	c := dialTemporal(t, s.TemporalAddress(), dir)
	defer c.Close()
	ns, err := c.WorkflowService().DescribeNamespace(t.Context(),
		&workflowservice.DescribeNamespaceRequest{Namespace: Namespace})
	if err != nil || ns.GetConfig().GetWorkflowExecutionRetentionTtl().AsDuration() != Retention {
		t.Errorf("retention: got %v, error %v; want %v", ns.GetConfig().GetWorkflowExecutionRetentionTtl(), err, Retention)
	}
	if err := s.Check(t.Context()); err != nil {
		t.Errorf("Check of a running server: %v", err)
	}
	stop(t, s)
	if err := s.Check(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("Check of a closed server: got %v, want %v", err, ErrClosed)
	}
	for _, address := range []string{
		s.TemporalAddress(), strings.TrimPrefix(s.UIURL(), "http://"),
		strings.TrimPrefix(s.NATSURL(), "nats://"),
	} {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
		if err == nil {
			_ = conn.Close()
			t.Errorf("connect to %s after Close: it still listens", address)
		}
	}
}

func TestTakenPortsAreRefusedByName(t *testing.T) {
	t.Parallel()
	l, err := listen(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() }) // after the parallel subtests, unlike a defer
	taken := portOf(l)
	for _, tt := range []struct {
		name string
		o    Options
	}{
		{"temporal-port", Options{TemporalPort: taken}},
		{"ui-port", Options{UIPort: taken}},
		{"nats-port", Options{NATSPort: taken}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.o.Dir, tt.o.Logger = t.TempDir(), testLog(t)
			_, err := Start(t.Context(), tt.o)
			var refused *PortError
			if !errors.As(err, &refused) || refused.Name != tt.name || refused.Port != taken {
				t.Fatalf("Start: got %v, want a PortError of %s", err, tt.name)
			}
			want := fmt.Sprintf("--%s %d is taken; stop the program that listens on it, choose another, or leave the flag out "+
				"for a free one", tt.name, taken)
			if err.Error() != want {
				t.Errorf("message: got %q, want %q", err, want)
			}
			l, err := lockDir(tt.o.Dir, nil)
			if err != nil {
				t.Fatalf("lock the directory after the refusal: %v", err)
			}
			if err := l.unlock(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestOptionsThatCannotWorkAreRefused(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	foreign := t.TempDir()
	if err := os.WriteFile(filepath.Join(foreign, "temporal.db"), bytes.Repeat([]byte("not a database. "), 256),
		0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		o    Options
		want string
	}{
		{"no directory", Options{}, "choose one with --state"},
		{"a port out of range", Options{Dir: foreign, UIPort: 70000}, "ui-port is 70000; a port lies in 1 to 65535"},
		{
			"a directory below a file",
			Options{Dir: filepath.Join(file, "state")},
			"make it writable or choose another with --state",
		},
		{
			"a database of another program",
			Options{Dir: foreign},
			"move it away or choose another state directory with --state",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := Start(t.Context(), tt.o)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Start: got %v, want an error that contains %q", err, tt.want)
			}
		})
	}
}

func TestStartEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	dir := t.TempDir()
	if _, err := Start(ctx, Options{Dir: dir}); !errors.Is(err, context.Canceled) {
		t.Errorf("Start with an ended context: got %v, want %v", err, context.Canceled)
	}
	l, err := lockDir(dir, nil)
	if err != nil {
		t.Fatalf("lock the directory afterwards: %v", err)
	}
	if err := l.unlock(); err != nil {
		t.Error(err)
	}
}

// What a killed server has left is taken away before anybody could take it for a live one's.
func TestWhatIsDoneBeforeTheLockIsDoneBeforeAnybodySeesAServer(t *testing.T) {
	t.Parallel()
	dir, enough := t.TempDir(), errors.New("enough")
	before := func() error {
		if lives, err := access.EngineLives(dir); lives || err != nil {
			t.Errorf("when BeforeLock is called: EngineLives is %t, %v; want false", lives, err)
		}
		if _, err := lockDir(dir, nil); !errors.Is(err, ErrDirInUse) {
			t.Errorf("when BeforeLock is called, another server gets %v; want %v", err, ErrDirInUse)
		}
		return enough
	}
	if _, err := Start(t.Context(), Options{Dir: dir, BeforeLock: before}); !errors.Is(err, enough) {
		t.Fatalf("Start: got %v, want %v", err, enough)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 || entries[0].Name() != "lock" {
		t.Errorf("there are %v, %v; want the lock and nothing else", entries, err)
	}
}
