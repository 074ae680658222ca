package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workflows/trigger"
)

const (
	// asBare makes this test binary the one worker of a user without Spillway, of the Temporal at the given address with
	// the given token.
	asBare = "SPILLWAY_TEST_AS_BARE"
	// bareQueue is where that worker polls, and bareRun the type of its one-activity workflow.
	bareQueue, bareRun = "bare", "bare"
)

// serveBare polls until its standard input ends, which it also does when the test is killed.
func serveBare(server string) error {
	address, token, _ := strings.Cut(server, " ")
	temporal, err := dialTemporal(address, token)
	if err != nil {
		return err
	}
	defer temporal.Close()
	bare := worker.New(temporal, bareQueue, worker.Options{DisableEagerActivities: true})
	registerBare(bare)
	if err := bare.Start(); err != nil {
		return err
	}
	defer bare.Stop()
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// registerBare registers a workflow of one activity that returns its input.
func registerBare(registry worker.Registry) {
	echo := func(_ context.Context, in map[string]int) (map[string]int, error) { return in, nil }
	registry.RegisterActivityWithOptions(echo, activity.RegisterOptions{Name: "echo"})
	registry.RegisterWorkflowWithOptions(func(ctx workflow.Context, in map[string]int) (out map[string]int, err error) {
		ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{StartToCloseTimeout: time.Minute})
		return out, workflow.ExecuteActivity(ctx, "echo", in).Get(ctx, &out)
	}, workflow.RegisterOptions{Name: bareRun})
}

// startBare starts that worker in a process of its own, which ends with the test.
func startBare(t *testing.T, address, token string) {
	t.Helper()
	bare := exec.Command(os.Args[0])
	bare.Env = append(os.Environ(), asBare+"="+address+" "+token)
	bare.Stdout, bare.Stderr = os.Stdout, os.Stderr
	stdin, err := bare.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := bare.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(stdin.Close(), bare.Wait()); err != nil {
			t.Errorf("the bare worker: %v", err)
		}
	})
}

// busyLoop burns a core for as long as the process lives that started it.
const busyLoop = `while kill -0 "$PPID"; do i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; done`

// busy keeps this many processes busy until the returned function is called, at the latest when the test ends.
func busy(tb testing.TB, loops int) (stop func()) {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running []*exec.Cmd
	for range loops {
		loop := exec.CommandContext(ctx, "sh", "-c", busyLoop)
		if err := loop.Start(); err != nil {
			tb.Fatal(err)
		}
		running = append(running, loop)
	}
	stop = sync.OnceFunc(func() {
		cancel()
		for _, loop := range running {
			_ = loop.Wait()
		}
	})
	tb.Cleanup(stop)
	return stop
}

// flood is what a burst needs of an engine.
type flood struct {
	*testEngine
	temporal client.Client
	js       jetstream.JetStream
	sent     int // events so far
}

func newFlood(e *testEngine) *flood {
	e.t.Helper()
	f := &flood{testEngine: e, temporal: e.dialTemporal()}
	e.t.Cleanup(f.temporal.Close)
	connection := e.dialNATS()
	e.t.Cleanup(connection.Close)
	var err error
	if f.js, err = jetstream.New(connection); err != nil {
		e.t.Fatal(err)
	}
	return f
}

// through publishes n events at once and returns how long it took until all of their runs had ended.
func (f *flood) through(n int) time.Duration {
	f.t.Helper()
	before, began := f.closed("echo"), time.Now()
	for range n {
		message := nats.NewMsg(wire.EventSubject("echo"))
		message.Header.Set(wire.MessageIDHeader, "e"+strconv.Itoa(f.sent))
		message.Data = fmt.Appendf(nil, `{"index":%d}`, f.sent)
		if _, err := f.js.PublishMsgAsync(message); err != nil {
			f.t.Fatal(err)
		}
		f.sent++
	}
	return f.until("echo", before+n, began)
}

// bare starts n workflows of one activity, as many at a time as a program of a user might, and returns how long it took
// until all had ended.
func (f *flood) bare(n int) time.Duration {
	f.t.Helper()
	const starters = 64
	before, began := f.closed(bareRun), time.Now()
	next := make(chan int)
	var all sync.WaitGroup
	for range starters {
		all.Go(func() {
			for i := range next {
				options := client.StartWorkflowOptions{ID: fmt.Sprintf("bare-%d-%d", before, i), TaskQueue: bareQueue}
				for f.t.Context().Err() == nil { // the same ID, so that a start whose answer was lost counts once
					_, err := f.temporal.ExecuteWorkflow(f.t.Context(), options, bareRun, map[string]int{"index": i})
					if err == nil {
						break
					}
				}
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	all.Wait()
	return f.until(bareRun, before+n, began)
}

// closed is how many workflows of a type have ended.
func (f *flood) closed(kind string) int {
	f.t.Helper()
	answer, err := f.temporal.CountWorkflow(f.t.Context(), &workflowservice.CountWorkflowExecutionsRequest{
		Query: fmt.Sprintf("WorkflowType = '%s' AND ExecutionStatus != 'Running'", kind),
	})
	if err != nil {
		return 0 // Temporal is busy
	}
	return int(answer.GetCount())
}

func (f *flood) until(kind string, total int, began time.Time) time.Duration {
	f.t.Helper()
	for deadline := time.Now().Add(30 * time.Minute); f.closed(kind) < total; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			f.kill()
			f.t.Fatalf("%d of %d runs of %s have ended after half an hour", f.closed(kind), total, kind)
		}
	}
	return time.Since(began)
}

// onceEach fails the test unless every event so far has had one run, which succeeded and was told once, and nobody but
// this engine ever led.
func (f *flood) onceEach() {
	f.t.Helper()
	told := map[string]int{}
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		stream, err := f.js.Stream(f.t.Context(), wire.DoneStream)
		if err != nil {
			f.t.Fatal(err)
		}
		if stream.CachedInfo().State.Msgs >= uint64(f.sent) {
			break
		}
		if time.Now().After(deadline) {
			f.t.Fatalf("%d of %d runs were told within two minutes after the last ended", stream.CachedInfo().State.Msgs, f.sent)
		}
	}
	consumer, err := f.js.OrderedConsumer(f.t.Context(), wire.DoneStream, jetstream.OrderedConsumerConfig{})
	if err != nil {
		f.t.Fatal(err)
	}
	for pending := uint64(1); pending > 0; {
		message, err := consumer.Next(jetstream.FetchMaxWait(time.Minute))
		if err != nil {
			f.t.Fatal(err)
		}
		metadata, err := message.Metadata()
		if err != nil {
			f.t.Fatal(err)
		}
		pending = metadata.NumPending
		var done wire.Done
		if err := json.Unmarshal(message.Data(), &done); err != nil || done.State != predictor.RunSucceeded {
			f.t.Errorf("run %s %s: %s, %v", done.Run, done.State, done.Error, err)
		}
		told[done.Run]++
	}
	for i := range f.sent {
		if run := trigger.RunID("echo", "e"+strconv.Itoa(i)); told[run] != 1 {
			f.t.Errorf("run %s was told %d times", run, told[run])
		}
	}
	failed, term := f.metric("spillway_leader_failures_total"), f.metric("spillway_plan_term")
	if failed != 0 || term != 1 {
		f.t.Errorf("the lead was lost %v times, and the term is %v", failed, term)
	}
}

// slotChanges is how many times so far the slots of the stage echo were changed.
func (f *flood) slotChanges() float64 {
	f.t.Helper()
	return f.metric("spillway_decisions_total", `stage="echo"`, `what="slots"`)
}

func TestABurstBesideBusyCoresCostsNeitherTheLeadNorARun(t *testing.T) {
	t.Parallel()
	e := startEngine(t, t.TempDir(), buildApp(t, 0))
	e.leads()
	f := newFlood(e)
	stop := busy(t, runtime.NumCPU())
	f.through(200)
	stop()
	f.onceEach()
}

// TestOverload runs bursts through Spillway and through bare Temporal, in turn and on the same servers: at rest, and
// beside a busy loop for each core.
func TestOverload(t *testing.T) {
	needMeasure(t)
	const (
		bar   = 0.6 // of the runs a second of bare Temporal
		noise = 0.1
	)
	for _, load := range []struct {
		name  string
		loops int
	}{{"at rest", 0}, {"beside a busy loop for each core", runtime.NumCPU()}} {
		t.Run(load.name, func(t *testing.T) {
			e := startEngine(t, t.TempDir(), buildApp(t, 0))
			e.leads()
			f := newFlood(e)
			startBare(t, f.address(), f.token)
			f.through(20)
			f.bare(20)
			stop := busy(t, load.loops)
			defer stop()
			for _, n := range bursts(t) {
				before := f.slotChanges()
				ours := float64(n) / f.through(n).Seconds()
				changes := f.slotChanges() - before
				theirs := float64(n) / f.bare(n).Seconds()
				t.Logf("%s, a burst of %d runs: %.1f runs/s through Spillway, %.1f bare, ratio %.2f; slots changed %.0f times",
					load.name, n, ours, theirs, ours/theirs, changes)
				if ours/theirs < bar*(1-noise) {
					t.Errorf("%s, %d runs: the ratio %.2f is below %.2f", load.name, n, ours/theirs, bar)
				}
			}
			stop()
			f.onceEach()
		})
	}
}

// address is where the engine's Temporal listens.
func (f *flood) address() string {
	f.t.Helper()
	stack, err := f.client.Stack(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	return stack.Addresses.Temporal
}

// bursts are how many runs are started at once; SPILLWAY_BURST replaces them by one number.
func bursts(t *testing.T) []int {
	t.Helper()
	text := os.Getenv("SPILLWAY_BURST")
	if text == "" {
		return []int{500, 5000}
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("SPILLWAY_BURST: %v", err)
	}
	return []int{n}
}
