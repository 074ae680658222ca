package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.temporal.io/sdk/temporal"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/enforce/enforcetest"
	"github.com/spillway-ml/spillway/workers/slot/slottest"
)

var stage = predictor.StageID{App: "digits", Build: "b1", Name: "score"}

// host is an agent that runs, and what it told.
type host struct {
	*recorder
	agent    *Agent
	frontend *slottest.Frontend
	plans    slottest.Plans
	stop     func() error
}

// start runs an agent with slots for stage until the test ends, once its driver has been asked.
func start(t *testing.T, slots int, edit func(*Options)) *host {
	t.Helper()
	h := startUnasked(t, slots, edit)
	h.agent.gpus.await(t.Context())
	return h
}

func startUnasked(t *testing.T, slots int, edit func(*Options)) *host {
	t.Helper()
	frontend, c := slottest.Start(t)
	h := &host{recorder: newRecorder(), frontend: frontend, plans: make(slottest.Plans)}
	options := Options{
		Host: "h1", StateDir: t.TempDir(), Client: c, Capacity: of(4, 1024), PricePerHour: quantity.USD,
		ArtifactsURL: "file:///artifacts",
		Builds:       builds{}, Recorder: h.recorder, Plans: h.plans, Inventory: h.inventory,
		SampleEvery: 10 * time.Millisecond,
	}
	if edit != nil {
		edit(&options)
	}
	a, err := New(options)
	if err != nil {
		t.Fatal(err)
	}
	h.agent = a
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	h.stop = sync.OnceValue(func() error { cancel(); return <-ended })
	t.Cleanup(func() {
		if err := h.stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
		for _, pid := range h.pids() {
			if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
				t.Errorf("child %d after Run: got %v, want it gone", pid, err)
			}
		}
	})
	h.plans <- placement(slots, predictor.Sizing{})
	return h
}

func placement(slots int, sizing predictor.Sizing) predictor.Plan {
	plan := predictor.Plan{Placements: []predictor.Placement{{Stage: stage, Host: "h1", Slots: slots}}}
	if sizing.Stage == stage {
		plan.Sizings = []predictor.Sizing{sizing}
	}
	return plan
}

func (h *host) submit(t *testing.T, order order, edit func(*wire.Task)) *slottest.Activity {
	t.Helper()
	task := wire.Task{
		Version: wire.Version, Run: "r", Pipeline: "p", Stage: stage, ID: "score-1", MaxAttempts: 2,
		Declared: of(1, 64),
	}
	if edit != nil {
		edit(&task)
	}
	return h.frontend.Submit(t, stage.Queue(), task, order)
}

// done runs an attempt to its success.
func (h *host) done(t *testing.T, order order) (report, wire.Result) {
	t.Helper()
	return decoded(t, h, h.submit(t, order, nil))
}

func decoded(t *testing.T, h *host, a *slottest.Activity) (report, wire.Result) {
	t.Helper()
	result, err := a.Wait(t)
	if err != nil {
		t.Fatalf("the task failed: %v", err)
	}
	var out report
	if err := json.Unmarshal(result.Output, &out); err != nil {
		t.Fatal(err)
	}
	h.seen(out.PID)
	return out, result
}

func TestAnIdleChildServesTheNextAttempt(t *testing.T) {
	t.Parallel()
	h := start(t, 1, nil)
	first, result := h.done(t, order{Do: "report"})
	second, _ := h.done(t, order{Do: "report"})
	if first.PID != second.PID {
		t.Errorf("processes: got %d and %d, want one", first.PID, second.PID)
	}
	records := h.records()
	if len(records) != 2 || !records[0].Cold || records[1].Cold {
		t.Fatalf("Records: got %+v, want a cold and a warm one", records)
	}
	got := records[0]
	if got.Start <= 0 || got.Cost <= 0 || got.Cost != result.Cost || got.Usage.PeakMemory <= 0 || got.At.IsZero() ||
		got.ScheduledAt.IsZero() {
		t.Errorf("Record: got %+v, want a start, a cost of %s, a peak and times", got, result.Cost)
	}
	want := predictor.Record{
		Run: "r", Pipeline: "p", Stage: stage, Task: "score-1", Attempt: 1, Venue: predictor.Pool, Host: "h1",
		Outcome: predictor.Succeeded,
		Cold:    true, Grant: of(1, 64), Predicted: predictor.Prediction{Memory: predictor.Interval{High: float64(
			64 * quantity.MiB)}, Source: "declared by the stage"},
		Usage: quantity.Usage{Wall: time.Millisecond, Output: quantity.Bytes(len(result.Output)) + 5},
	}
	got.ScheduledAt, got.At, got.Queue, got.Start, got.Settle, got.Cost, got.Usage.PeakMemory, got.Usage.CPU = time.Time{},
		time.Time{}, 0, 0, 0, 0, 0, 0
	got.Features = nil                                                 // what is made of the order
	got.Usage.Throttled, got.Usage.Active, got.Usage.Stalled = 0, 0, 0 // as the kernel's periods fall
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Record (-want +got):\n%s", diff)
	}
	if started := told[predictor.AttemptStarted](h.recorder); len(started) != 2 || started[0].Grant != of(1, 64) ||
		started[0].Host != "h1" {
		t.Errorf("starts told: got %+v, want two with their grant", started)
	}
}

func TestWhatAnAttemptPrintsIsItsOwn(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	printed := map[string]*printing{}
	h := start(t, 1, func(o *Options) {
		o.Output = func(source wire.LogSource) activities.Output {
			mu.Lock()
			defer mu.Unlock()
			p := &printing{source: source}
			printed[source.Task] = p
			return p
		}
	})
	for _, id := range []string{"score-1", "score-2"} {
		decoded(t, h, h.submit(t, order{Do: "print"}, func(task *wire.Task) { task.ID = id }))
		mu.Lock()
		p := printed[id]
		mu.Unlock()
		if got, want := p.out.String()+p.err.String(), "1 to out\nto err, without an end"; got != want || !p.closed {
			t.Errorf("%s: got %q, closed %v, want %q and closed", id, got, p.closed, want)
		}
		if want := (wire.LogSource{
			Run: "r", Stage: "score", Task: id, Attempt: 1, Venue: predictor.Pool,
			Host: "h1",
		}); p.source != want {
			t.Errorf("source: got %+v, want %+v", p.source, want)
		}
	}
}

// printing keeps what an attempt prints; it is read once the attempt is over.
type printing struct {
	source   wire.LogSource
	out, err printed
	closed   bool
}

// printed is a buffer that is read while it is written to.
type printed struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (p *printed) Write(data []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.Write(data)
}

func (p *printed) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String()
}

func (p *printing) Stdout() io.Writer           { return &p.out }
func (p *printing) Stderr() io.Writer           { return &p.err }
func (p *printing) Close(context.Context) error { p.closed = true; return nil }

func TestAPeakOfMemoryIsThatOfItsAttempt(t *testing.T) {
	t.Parallel()
	h := start(t, 1, nil)
	const large = 200 * quantity.MiB
	decoded(t, h, h.submit(t, order{Do: "use", Bytes: large}, func(task *wire.Task) { task.Declared = of(1, 800) }))
	// a child built with -race takes more than twice as much
	if got := h.records()[0].Usage.PeakMemory; got < large || got > 4*large {
		t.Errorf("peak: got %s, want not far above %s", got, large)
	}
}

func TestAnAttemptFailsWithItsCause(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		do, kind string
		outcome  predictor.Outcome
		message  string
		reused   bool
	}{
		{"fail", wire.StageError, predictor.Failed, "boom", true},
		{"panic", wire.StageError, predictor.Failed, "boom", false},
		{"exit", wire.StageError, predictor.Failed, "exit status 3: last words", false},
		{"crash", wire.StageError, predictor.Failed, "panic: in a goroutine of its own", false},
		{"garble", wire.StageError, predictor.Failed, "no message", false},
		{"hang", wire.TimeoutError, predictor.TimedOut, "timeout of 200ms", false},
	} {
		t.Run(tt.do, func(t *testing.T) {
			t.Parallel()
			h := start(t, 1, nil)
			before, _ := h.done(t, order{Do: "report"})
			_, err := h.submit(t, order{Do: tt.do}, func(task *wire.Task) {
				task.MaxAttempts = 1
				task.Timeout = 200 * time.Millisecond
				if tt.do != "hang" {
					task.Timeout = time.Minute
				}
			}).Wait(t)
			var failed *temporal.ApplicationError
			if !errors.As(err, &failed) || failed.Type() != tt.kind || !failed.NonRetryable() ||
				!strings.Contains(failed.Message(), tt.message) {
				t.Errorf("error: got %v, want a final %s that says %q", err, tt.kind, tt.message)
			}
			record := h.records()[1]
			if record.Outcome != tt.outcome || !strings.Contains(record.Error, tt.message) {
				t.Errorf("Record: got %s %q, want %s %q", record.Outcome, record.Error, tt.outcome, tt.message)
			}
			if after, _ := h.done(t, order{Do: "report"}); (after.PID == before.PID) != tt.reused {
				t.Errorf("child used again: got %v, want %v", after.PID == before.PID, tt.reused)
			}
		})
	}
}

func TestTheLastWordOfAnAttemptIsInItsRecordAndInNoOther(t *testing.T) {
	t.Parallel()
	h := start(t, 1, func(o *Options) { o.SampleEvery = time.Hour })
	decoded(t, h, h.submit(t, order{Do: "learn"}, nil))
	records := h.records()
	if len(records) != 2 || records[0].Outcome != predictor.Failed || records[0].Step != 9 ||
		records[0].Metrics["loss"] != 1.0/9 {
		t.Fatalf("Records: got %+v, want a failure at step 9 with its loss, and a success", records)
	}
	if records[1].Step != 0 || records[1].Metrics != nil {
		t.Errorf("the second Record: got step %d and %v, want none: that attempt reported nothing", records[1].Step,
			records[1].Metrics)
	}
	if samples := told[predictor.Sampled](h.recorder); len(samples) > 0 {
		t.Errorf("got %d samples, want none: nothing but the Record can have told", len(samples))
	}
}

func TestMemoryGrowsUntilTheAttemptSucceeds(t *testing.T) {
	t.Parallel()
	h := start(t, 1, nil)
	out, result := decoded(t, h, h.submit(t, order{Do: "need", Bytes: 200 * quantity.MiB}, func(task *wire.Task) {
		task.MaxAttempts = 5
	}))
	if out.Grant.Memory != 256*quantity.MiB {
		t.Errorf("last grant: got %s, want 256 MiB", out.Grant.Memory)
	}
	var total quantity.Money
	for _, record := range h.records() {
		total += record.Cost
	}
	if len(h.records()) != 3 || result.Cost != total {
		t.Errorf("got %d Records and a cost of %s, want 3 and %s", len(h.records()), result.Cost, total)
	}
}

func TestMoreMemoryThanTheHostHasIsAFinalError(t *testing.T) {
	t.Parallel()
	h := start(t, 1, nil)
	_, err := h.submit(t, order{Do: "need", Bytes: quantity.TiB}, func(task *wire.Task) { task.MaxAttempts = 50 }).Wait(t)
	var failed *temporal.ApplicationError
	if !errors.As(err, &failed) || failed.Type() != wire.MemoryError ||
		!strings.Contains(failed.Message(), "needs 2 GiB or more") {
		t.Errorf("got %v, want a %s that names the size", err, wire.MemoryError)
	}
	if last := fmt.Sprintf("attempt %d: ", len(h.records())); failed != nil && !strings.Contains(failed.Message(), last) {
		t.Errorf("got %v, want it of %s, the one that had all of the host: none was begun after it", err, last)
	}
}

// An attempt that ends its task before it begins is known by a Record, as every other: without one nobody could see why
// its run failed. It held nothing, so it teaches no size.
func TestAnAttemptThatIsRefusedForGoodLeavesARecord(t *testing.T) {
	t.Parallel()
	h := start(t, 1, nil)
	_, err := h.submit(t, order{Do: "need", Bytes: quantity.TiB}, func(task *wire.Task) {
		task.Recommends, task.MaxAttempts = true, 50 // who decides its sizes is told only by the next attempt
	}).Wait(t)
	var failed *temporal.ApplicationError
	if !errors.As(err, &failed) || !failed.NonRetryable() {
		t.Fatalf("got %v, want a final failure", err)
	}
	records := h.records()
	last := records[len(records)-1]
	want := predictor.Record{
		Run: "r", Pipeline: "p", Stage: stage, Task: "score-1", Attempt: len(records), Venue: predictor.Pool, Host: "h1",
		Outcome: predictor.OutOfMemory, Cause: predictor.CauseImpossible, Next: predictor.NextNothing,
		Features: last.Features, ScheduledAt: last.ScheduledAt, Queue: last.Queue, At: last.At,
		Error: last.Error, Predicted: last.Predicted,
	}
	if diff := cmp.Diff(want, last); diff != "" || last.At.IsZero() || last.Queue < 0 {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if !strings.Contains(failed.Message(), fmt.Sprintf("attempt %d: %s", len(records), last.Error)) {
		t.Errorf("the task failed with %q, its last Record says %q", failed.Message(), last.Error)
	}
}

func TestAStageMayDecideItsOwnSizes(t *testing.T) {
	t.Parallel()
	h := start(t, 1, nil)
	recommends := func(task *wire.Task) { task.Recommends, task.Declared = true, of(2, 64) }
	for _, c := range []struct {
		order  order
		memory quantity.Bytes
		source string
	}{
		{order{Do: "report", Bytes: 100 * quantity.MiB}, 100 * quantity.MiB, "the stage's recommender; proposed: "},
		{order{Do: "report", Bytes: quantity.TiB}, 1024 * quantity.MiB, "the stage's recommender; proposed: "},
		{order{Do: "refuse"}, 64 * quantity.MiB, "was not followed: no opinion"},
		{order{Do: "report", Bytes: -1}, 64 * quantity.MiB, "was not followed: it wants "},
		{order{Do: "silent"}, 64 * quantity.MiB, "was not followed: it did not answer in time"},
	} {
		out, _ := decoded(t, h, h.submit(t, c.order, recommends))
		records := h.records()
		record := records[len(records)-1]
		if out.Grant.Memory != c.memory || out.Grant.CPU != 2*quantity.Core ||
			!strings.Contains(record.Predicted.Source, c.source) {
			t.Errorf("%+v: got %s because of %q, want 2 cores, %s because of %q", c.order, out.Grant, record.Predicted.Source,
				c.memory, c.source)
		}
	}
}

// The process that is asked for a size is in the books: on a full host it waits.
func TestAStageIsAskedForItsSizesOnceThereIsRoom(t *testing.T) {
	t.Parallel()
	h := start(t, 1, nil)
	room, err := h.agent.admission.reserve(t.Context(), h.agent.base)
	if err != nil {
		t.Fatal(err)
	}
	attempt := h.submit(t, order{Do: "report", Bytes: 100 * quantity.MiB}, func(task *wire.Task) {
		task.Recommends = true
	})
	awaitTrue(t, func() bool {
		h.agent.admission.mu.Lock()
		defer h.agent.admission.mu.Unlock()
		return len(h.agent.admission.waiting) > 0
	})
	if started := h.agent.children.made.Load(); started > 0 {
		t.Errorf("%d processes were started on a full host", started)
	}
	room.release()
	out, _ := decoded(t, h, attempt)
	if want := 100 * quantity.MiB; out.Grant.Memory != want {
		t.Errorf("it was given %s, want the %s that it asked for", out.Grant.Memory, want)
	}
	await[predictor.Host](t, h.recorder, "an inventory with all room free", func(host predictor.Host) bool {
		return host.Free == host.Capacity
	})
}

func TestACheckpointIsWhereTheNextAttemptStarts(t *testing.T) {
	t.Parallel()
	h := start(t, 1, nil)
	if out, _ := h.done(t, order{Do: "resume"}); out.Resume.Digest != "first" {
		t.Errorf("resumed from %q, want the first attempt's checkpoint", out.Resume.Digest)
	}
}

func TestACancelledAttemptIsToldAndEnds(t *testing.T) {
	t.Parallel()
	h := start(t, 1, nil)
	a := h.submit(t, order{Do: "wait"}, nil)
	await[predictor.Sampled](t, h.recorder, "a sample after the first step", func(s predictor.Sampled) bool {
		return s.Step == 1
	})
	a.Cancel()
	_, err := a.Wait(t)
	var cancelled *temporal.CanceledError
	if !errors.As(err, &cancelled) || h.records()[0].Outcome != predictor.Cancelled {
		t.Errorf("got %v and %s, want a cancellation", err, h.records()[0].Outcome)
	}
}

func TestARunningAttemptIsResizedByANewerPlan(t *testing.T) {
	t.Parallel()
	h := start(t, 1, nil)
	a := h.submit(t, order{Do: "wait"}, nil)
	await[predictor.Sampled](t, h.recorder, "a sample after the first step", func(s predictor.Sampled) bool {
		return s.Step == 1
	})
	h.plans <- placement(1, predictor.Sizing{Stage: stage, Base: of(2, 300)})
	if out, _ := decoded(t, h, a); out.Grant != of(2, 300) {
		t.Errorf("grant that the child was told: got %s, want %s", out.Grant, of(2, 300))
	}
	if got := h.records()[0].Grant; got != of(2, 300) {
		t.Errorf("grant of the Record: got %s, want %s", got, of(2, 300))
	}
	await[predictor.Host](t, h.recorder, "an inventory with all room free", func(host predictor.Host) bool {
		return host.Free == host.Capacity
	})
}

func TestAnAttemptIsLostWhenTheHostEnds(t *testing.T) {
	t.Parallel()
	h := start(t, 1, func(o *Options) { o.Drain = time.Millisecond })
	a := h.submit(t, order{Do: "hang"}, func(task *wire.Task) { task.MaxAttempts = 1 })
	await[predictor.Sampled](t, h.recorder, "a sample after the first step", func(s predictor.Sampled) bool {
		return s.Step == 1
	})
	if err := h.stop(); err != nil {
		t.Errorf("Run: %v", err)
	}
	if got := h.records()[0].Outcome; got != predictor.Lost {
		t.Errorf("outcome: got %s, want lost", got)
	}
	if got := a.Failures(); len(got) != 1 {
		t.Errorf("retryable errors: got %v, want one", got)
	}
}

func TestABuildThatIsNotReadyOrNotHereSaysSo(t *testing.T) {
	t.Parallel()
	h := start(t, 1, func(o *Options) { o.Environment = map[string]string{"TEST_NEVER_READY": "1"} })
	_, err := h.submit(t, order{Do: "report"}, nil).Wait(t)
	if err == nil || !strings.Contains(err.Error(), "the model file is missing") {
		t.Errorf("got %v, want an error that quotes the child's output", err)
	}
}

func TestAChildThatNeverSaysThatItIsReadyFailsItsAttempts(t *testing.T) {
	t.Parallel()
	h := start(t, 1, func(o *Options) {
		o.Environment = map[string]string{"TEST_STUCK": "1"}
		o.ReadyTimeout = 5 * time.Second // as long as a busy machine may take until the child prints
	})
	a := h.submit(t, order{Do: "report"}, nil)
	_, err := a.Wait(t)
	var failed *temporal.ApplicationError
	if !errors.As(err, &failed) || !failed.NonRetryable() {
		t.Fatalf("got %v, want a failure that is not tried again", err)
	}
	records := h.records()
	if len(records) != 2 || len(a.Failures()) != 1 {
		t.Fatalf("got %d Records and %d failures to be tried again, want one for each of the two attempts, and one",
			len(records), len(a.Failures()))
	}
	for _, record := range records {
		if record.Outcome != predictor.Failed || record.Cause != predictor.CauseStart {
			t.Errorf("outcome: got %s for %s, want failed for %s", record.Outcome, record.Cause, predictor.CauseStart)
		}
		for _, said := range []string{
			"waited 5s", "that it is ready", "do less before app.Main",
			"printed last: looking for the model",
		} {
			if !strings.Contains(record.Error, said) || !strings.Contains(err.Error(), said) {
				t.Errorf("Record %q, error %q: want %q in both", record.Error, err, said)
			}
		}
	}
}

func TestAnAttemptWhoseChildIsNotReadyCanBeCancelled(t *testing.T) {
	t.Parallel()
	h := start(t, 1, func(o *Options) {
		o.Environment = map[string]string{"TEST_STUCK": "1"}
		o.ReadyTimeout = time.Hour
	})
	a := h.submit(t, order{Do: "report"}, nil)
	for h.agent.Running() < 1 {
		runtime.Gosched()
	}
	a.Cancel()
	if _, err := a.Wait(t); err == nil {
		t.Error("got no error, want the cancellation")
	}
	if got := h.records()[0].Outcome; got != predictor.Cancelled {
		t.Errorf("outcome: got %s, want cancelled", got)
	}
}

func TestAttemptsThatDoNotFitWaitForTheirTurn(t *testing.T) {
	t.Parallel()
	h := start(t, 4, nil)
	first := h.submit(t, order{Do: "wait"}, func(task *wire.Task) { task.Declared = of(1, 1024) })
	await[predictor.Sampled](t, h.recorder, "a sample of the first", func(s predictor.Sampled) bool { return s.Step == 1 })
	second := h.submit(t, order{Do: "report"}, func(task *wire.Task) { task.ID = "score-2" })
	for h.agent.Running() < 2 {
		runtime.Gosched()
	}
	if got := len(told[predictor.AttemptStarted](h.recorder)); got != 1 {
		t.Errorf("attempts started in a full host: got %d, want 1", got)
	}
	first.Cancel()
	if _, err := first.Wait(t); err == nil {
		t.Error("the first attempt: got no error, want its cancellation")
	}
	decoded(t, h, second)
}

func TestNoVariableOfTheHostReachesAChild(t *testing.T) {
	t.Setenv("SPILLWAY_TEST_SECRET", "secret")
	const server = "http://artifacts:token@127.0.0.1:9000"
	h := start(t, 1, func(o *Options) { o.ServerURL = server })
	out, _ := h.done(t, order{Do: "environment"})
	if out.Server != server {
		t.Errorf("the child is told of the server %q, want %q", out.Server, server)
	}
	for _, pair := range out.Env {
		name, _, _ := strings.Cut(pair, "=")
		switch name {
		case "PATH", "HOME", "TMPDIR", "LANG", "TZ", "GOMAXPROCS", "GOMEMLIMIT", wire.RoleEnvironment,
			wire.ArtifactsEnvironment, wire.BuildEnvironment,
			wire.EnforcedEnvironment:
		default:
			t.Errorf("the child sees %s", pair)
		}
	}
}

func TestOptionsThatCannotWorkAreRefused(t *testing.T) {
	t.Parallel()
	_, c := slottest.Start(t)
	r := newRecorder()
	good := Options{
		Host: "h", StateDir: t.TempDir(), Client: c, Builds: builds{}, Recorder: r, Plans: slottest.Plans(nil),
		Inventory: r.inventory,
	}
	for name, edit := range map[string]func(*Options){
		"no host":            func(o *Options) { o.Host = "" },
		"no state directory": func(o *Options) { o.StateDir = "" },
		"no client":          func(o *Options) { o.Client = nil },
		"a negative price":   func(o *Options) { o.PricePerHour = -1 },
		"a cpu far too high": func(o *Options) { o.CPUs = []int{1 << 20} },
	} {
		options := good
		edit(&options)
		if _, err := New(options); err == nil {
			t.Errorf("%s: got no error, want one", name)
		}
	}
	a, err := New(good)
	if err != nil {
		t.Fatal(err)
	}
	if host := a.Host(); host.Capacity.Memory <= 0 || host.Capacity.CPU <= 0 || host.Free != host.Capacity {
		t.Errorf("defaults: got %+v, want the host's own capacity, all free", host)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := a.Run(ctx); err != nil {
		t.Errorf("Run that is told to end: %v", err)
	}
}

// recorder keeps what it is told.
type recorder struct {
	mu      sync.Mutex
	changed chan struct{}
	kept    []any
	alive   []int
}

func newRecorder() *recorder { return &recorder{changed: make(chan struct{})} }

func (r *recorder) keep(what any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kept = append(r.kept, what)
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *recorder) Record(_ context.Context, record predictor.Record) error {
	r.keep(record)
	return nil
}

func (r *recorder) Tell(event predictor.Event) { r.keep(event) }

func (r *recorder) inventory(_ context.Context, host predictor.Host) error {
	r.keep(host)
	return nil
}

func (r *recorder) seen(pid int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.alive = append(r.alive, pid)
}

func (r *recorder) pids() []int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.alive
}

func (r *recorder) records() []predictor.Record { return told[predictor.Record](r) }

// told returns what of one kind was told so far.
func told[E any](r *recorder) []E {
	r.mu.Lock()
	defer r.mu.Unlock()
	var found []E
	for _, what := range r.kept {
		if event, ok := what.(E); ok {
			found = append(found, event)
		}
	}
	return found
}

// await waits until something of one kind was told that satisfies want.
func await[E any](t *testing.T, r *recorder, what string, want func(E) bool) {
	t.Helper()
	for checked := 0; ; {
		r.mu.Lock()
		changed := r.changed
		r.mu.Unlock()
		found := told[E](r)
		if slices.ContainsFunc(found[checked:], want) {
			return
		}
		checked = len(found)
		select {
		case <-changed:
		case <-t.Context().Done():
			t.Fatalf("the test ended before %s", what)
		}
	}
}

var _ activities.Recorder = (*recorder)(nil)

// An attempt waits for its process, and what it was lent is called in meanwhile.
func TestWhatIsLentToAnAttemptThatStartsKeepsNobodyWaiting(t *testing.T) {
	t.Parallel()
	enforcetest.Need(t)
	h := start(t, 1, func(o *Options) {
		o.Environment = map[string]string{"TEST_STUCK": "1"}
		o.ReadyTimeout, o.SampleEvery = time.Hour, time.Hour
	})
	h.obeyed(placement(1, guess(64*quantity.MiB)))
	attempt := h.submit(t, order{Do: "report"}, func(task *wire.Task) { task.Declared = quantity.Size{} })
	awaitTrue(t, func() bool {
		h.agent.admission.mu.Lock()
		defer h.agent.admission.mu.Unlock()
		return h.agent.admission.lent > 0
	})
	room, err := h.agent.admission.reserve(t.Context(), of(1, 900))
	if err != nil {
		t.Fatal(err)
	}
	room.release()
	attempt.Cancel()
	if _, err := attempt.Wait(t); err == nil {
		t.Error("got no error, want its cancellation")
	}
}

// A child that has kept more of its last attempt than the next may hold is not used again.
func TestAChildThatKeepsTooMuchIsNotUsedAgain(t *testing.T) {
	t.Parallel()
	enforcetest.Need(t)
	h := start(t, 1, nil)
	whole := func(task *wire.Task) { task.Declared = of(1, 1000) }
	first, _ := decoded(t, h, h.submit(t, order{Do: "keep", Bytes: 300 * quantity.MiB}, whole))
	h.obeyed(placement(1, predictor.Sizing{Stage: stage, Base: of(1, 100)}))
	second, _ := h.done(t, order{Do: "report"})
	records := h.records()
	if first.PID == second.PID || !records[1].Cold {
		t.Errorf("a child of 300 MiB served an attempt that may hold 100 MiB: %+v", records[1])
	}
}

// awaitTrue waits until is does.
func awaitTrue(t *testing.T, is func() bool) {
	t.Helper()
	for !is() {
		select {
		case <-t.Context().Done():
			t.Fatal(context.Cause(t.Context()))
		case <-time.After(5 * time.Millisecond):
		}
	}
}
