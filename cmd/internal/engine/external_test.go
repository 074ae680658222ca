package engine_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/activities/natstest"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/devserver"
	"github.com/spillway-ml/spillway/predictor"
)

// asTemporal makes this test binary a Temporal that keeps its state in a directory.
const asTemporal = "SPILLWAY_TEST_AS_TEMPORAL"

// serveTemporal prints the address of a Temporal and serves it until the end of the test.
func serveTemporal(dir string) int {
	port, _ := strconv.Atoi(os.Getenv(asTemporal + "_PORT"))
	s, err := devserver.Start(context.Background(), devserver.Options{
		Dir: dir, NoUI: true, NoNATS: true, TemporalPort: port,
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(s.TemporalAddress())
	_, _ = io.Copy(io.Discard, os.Stdin)
	runtime.KeepAlive(s) // what is collected gives up its lock of the directory
	return 0
}

// otherTemporal is a Temporal of somebody else: a process of its own.
type otherTemporal struct {
	t       *testing.T
	dir     string
	address string // once it was started
	command *exec.Cmd
}

// startTemporal starts a Temporal with the namespace ml.
func startTemporal(t *testing.T) *otherTemporal {
	t.Helper()
	o := &otherTemporal{t: t, dir: t.TempDir()}
	o.start()
	t.Cleanup(o.kill)
	c := o.dial()
	_, err := c.WorkflowService().RegisterNamespace(t.Context(), &workflowservice.RegisterNamespaceRequest{
		Namespace: "ml", WorkflowExecutionRetentionPeriod: durationpb.New(3 * 24 * time.Hour),
	})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// start starts it, on its port where it has had one.
func (o *otherTemporal) start() {
	o.t.Helper()
	o.command = exec.Command(os.Args[0])
	o.command.Env = append(os.Environ(), asTemporal+"="+o.dir)
	if _, port, found := strings.Cut(o.address, ":"); found {
		o.command.Env = append(o.command.Env, asTemporal+"_PORT="+port)
	}
	o.command.Stderr = os.Stderr
	out, err := o.command.StdoutPipe()
	if err != nil {
		o.t.Fatal(err)
	}
	if _, err := o.command.StdinPipe(); err != nil {
		o.t.Fatal(err)
	}
	if err := o.command.Start(); err != nil {
		o.t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		o.t.Fatalf("the other Temporal did not start: %v", err)
	}
	o.address = strings.TrimSpace(line)
}

func (o *otherTemporal) kill() {
	_ = o.command.Process.Kill()
	_ = o.command.Wait()
}

func (o *otherTemporal) keyFile() string { return filepath.Join(o.dir, access.TokenFile) }

func (o *otherTemporal) dial() client.Client {
	o.t.Helper()
	token, err := access.ReadToken(o.dir)
	if err != nil {
		o.t.Fatal(err)
	}
	c, err := client.Dial(client.Options{
		HostPort: o.address, Namespace: "ml", Credentials: client.NewAPIKeyStaticCredentials(token),
		ConnectionOptions: client.ConnectionOptions{TLSDisabled: true},
	})
	if err != nil {
		o.t.Fatal(err)
	}
	o.t.Cleanup(c.Close)
	return c
}

// others are a Temporal and a NATS of somebody else.
type others struct {
	temporal *otherTemporal
	nats     *natstest.Cluster
	stream   jetstream.JetStream
}

func startOthers(t *testing.T) *others {
	t.Helper()
	cluster := natstest.StartCluster(t, natstest.ClusterOptions{User: "spillway", Password: "hush-hush"})
	return &others{temporal: startTemporal(t), nats: cluster, stream: cluster.Connect()}
}

// flags are those with which an engine runs on them.
func (o *others) flags(t *testing.T) []string {
	t.Helper()
	credentials := filepath.Join(t.TempDir(), "nats")
	if err := os.WriteFile(credentials, []byte("spillway:hush-hush\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	flags := []string{
		"--temporal-address", o.temporal.address, "--temporal-namespace", "ml", "--temporal-api-key-file",
		o.temporal.keyFile(), "--nats-credentials", credentials, "--nats-replicas", "3",
	}
	for _, url := range o.nats.URLs() {
		flags = append(flags, "--nats-url", url)
	}
	for _, url := range o.nats.LeafURLs() {
		flags = append(flags, "--nats-leaf-url", url)
	}
	return flags
}

// TestServersOfSomebodyElseAreKilledInTheMiddleOfRuns kills the server that leads the loop's stream, then Temporal,
// while runs go on, and looks that each event has started its run once and each attempt has its line once.
func TestServersOfSomebodyElseAreKilledInTheMiddleOfRuns(t *testing.T) {
	t.Parallel()
	o, state := startOthers(t), t.TempDir()
	e := startEngine(t, state, buildApp(t, 0), append(o.flags(t), "--no-burst")...)
	for _, absent := range []string{"temporal.db", "nats"} {
		if _, err := os.Stat(filepath.Join(state, absent)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is there: %v; want nothing embedded", absent, err)
		}
	}
	const shards = 40
	var runs []string
	publish := func(n int) {
		t.Helper()
		for range n {
			runs = append(runs, e.publish("fan", "event-"+strconv.Itoa(len(runs)), fanInput{Shards: shards, Milliseconds: 20}))
		}
	}
	publish(3)
	victim := o.nats.Leader(o.stream, wire.LoopStream)
	o.nats.Kill(victim)
	publish(2)
	o.nats.Start(victim)
	o.temporal.kill()
	o.temporal.start()
	publish(1)
	for i, run := range runs {
		succeed[fanResult](e, run, patience).check(t, shards)
		if again := e.publish("fan", "event-"+strconv.Itoa(i), fanInput{Shards: shards, Milliseconds: 20}); again != run {
			t.Errorf("event %d again: run %s, want %s", i, again, run)
		}
	}
	attempts := map[string]int{}
	for _, message := range o.lines(t) {
		if record, is := message.Event.(predictor.Record); is {
			attempts[fmt.Sprintf("%s %s %d", record.Run, record.Task, record.Attempt)]++
		}
	}
	for attempt, lines := range attempts {
		if lines != 1 {
			t.Errorf("attempt %s has %d lines, want 1", attempt, lines)
		}
	}
	for run, count := range completions(t, o.stream) {
		if count != 1 || !slices.Contains(runs, run) {
			t.Errorf("run %s was told to be over %d times; want each of %v once", run, count, runs)
		}
	}
	for name := range o.stream.StreamNames(t.Context()).Name() {
		found, err := o.stream.Stream(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if config := found.CachedInfo().Config; config.Replicas != 3 || config.MaxBytes <= 0 {
			t.Errorf("%s has %d replicas and %d bytes, want 3 and a bound", name, config.Replicas, config.MaxBytes)
		}
	}
	c, query := o.temporal.dial(), "SpillwayPipeline = 'fan' AND SpillwayState = 'succeeded' AND SpillwayCostUSD > 0"
	e.until("runs are found at Temporal by what they are and have cost", func() bool {
		found, err := c.CountWorkflow(t.Context(), &workflowservice.CountWorkflowExecutionsRequest{Query: query})
		return err == nil && int(found.GetCount()) == len(runs)
	})
	e.stop()
	text, err := os.ReadFile(filepath.Join(state, "spillway.log"))
	if err != nil || strings.Contains(string(text), "hush-hush") {
		t.Errorf("the log has the password, or cannot be read: %v", err)
	}
}

// lines are all messages of the loop's stream.
func (o *others) lines(t *testing.T) (all []wire.Message) {
	t.Helper()
	stream, err := o.stream.Stream(t.Context(), wire.LoopStream)
	if err != nil {
		t.Fatal(err)
	}
	last, done := stream.CachedInfo().State.LastSeq, errors.New("all read")
	err = loop.Follow(t.Context(), o.stream, 0, nil, func(line loop.Line) error {
		all = append(all, line.Message)
		if line.Sequence >= last {
			return done
		}
		return nil
	})
	if !errors.Is(err, done) {
		t.Fatal(err)
	}
	return all
}
