package space

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.temporal.io/api/common/v1"
	"go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/api/serviceerror"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/activities/natstest"
	"github.com/spillway-ml/spillway/activities/retention"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// temporalRun is a workflow as a test has it.
type temporalRun struct {
	id, root  string
	ended     time.Time // zero: it goes on
	input     string
	heartbeat string // of its only attempt; empty for none
}

// histories is a Temporal with these workflows, by their IDs.
type histories struct {
	mu   sync.Mutex
	runs map[string]temporalRun // guarded by mu
	read int                    // guarded by mu: how many histories were read
}

func (h *histories) set(run temporalRun) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.runs[run.id] = run
}

func (h *histories) ListWorkflow(
	context.Context, *workflowservice.ListWorkflowExecutionsRequest,
) (*workflowservice.ListWorkflowExecutionsResponse, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	answer := &workflowservice.ListWorkflowExecutionsResponse{}
	for _, run := range h.runs {
		info := &workflowpb.WorkflowExecutionInfo{
			Execution: &common.WorkflowExecution{WorkflowId: run.id, RunId: run.id + run.ended.String()},
			Status:    enums.WORKFLOW_EXECUTION_STATUS_RUNNING,
		}
		if run.root != "" {
			info.RootExecution = &common.WorkflowExecution{WorkflowId: run.root}
		}
		if !run.ended.IsZero() {
			info.Status, info.CloseTime = enums.WORKFLOW_EXECUTION_STATUS_COMPLETED, timestamppb.New(run.ended)
		}
		answer.Executions = append(answer.Executions, info)
	}
	return answer, nil
}

func (h *histories) DescribeWorkflowExecution(
	_ context.Context, id, _ string,
) (*workflowservice.DescribeWorkflowExecutionResponse, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	run, known := h.runs[id]
	if !known {
		return nil, serviceerror.NewNotFound("gone")
	}
	answer := &workflowservice.DescribeWorkflowExecutionResponse{}
	if run.heartbeat != "" {
		answer.PendingActivities = []*workflowpb.PendingActivityInfo{{
			State: enums.PENDING_ACTIVITY_STATE_STARTED, LastStartedTime: timestamppb.Now(),
			HeartbeatDetails: payloads(run.heartbeat),
		}}
	}
	return answer, nil
}

func payloads(text string) *common.Payloads {
	return &common.Payloads{Payloads: []*common.Payload{{Data: []byte(text)}}}
}

func (h *histories) GetWorkflowHistory(
	_ context.Context, id, _ string, _ bool, _ enums.HistoryEventFilterType,
) client.HistoryEventIterator {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.read++
	run, known := h.runs[id]
	if !known {
		return &events{err: serviceerror.NewNotFound("gone")}
	}
	return &events{all: []*historypb.HistoryEvent{{
		Attributes: &historypb.HistoryEvent_WorkflowExecutionStartedEventAttributes{
			WorkflowExecutionStartedEventAttributes: &historypb.WorkflowExecutionStartedEventAttributes{Input: payloads(
				run.input)},
		},
	}}}
}

// events iterates over a history.
type events struct {
	all []*historypb.HistoryEvent
	err error
}

func (e *events) HasNext() bool { return e.err != nil || len(e.all) > 0 }

func (e *events) Next() (*historypb.HistoryEvent, error) {
	if e.err != nil {
		return nil, e.err
	}
	first := e.all[0]
	e.all = e.all[1:]
	return first, nil
}

// stack is what a collector works with.
type stack struct {
	Options

	tb        testing.TB
	histories *histories
}

// server is one NATS server for all tests of a function, or a stack of its own.
func newStack(tb testing.TB, js jetstream.JetStream) *stack {
	tb.Helper()
	dir := tb.TempDir()
	store, err := artifact.Open(filepath.Join(dir, "artifacts"))
	if err != nil {
		tb.Fatal(err)
	}
	all := &histories{runs: map[string]temporalRun{}}
	policy := retention.Usual(quantity.GiB)
	return &stack{tb: tb, histories: all, Options: Options{
		StateDir: dir, Policy: policy, Store: store, Temporal: all, JetStream: js, Chains: filepath.Join(dir, "chains"),
	}}
}

// streams makes the streams that are read.
func streams(tb testing.TB) jetstream.JetStream {
	tb.Helper()
	js := natstest.Start(tb).Connect()
	for _, config := range []jetstream.StreamConfig{
		{Name: wire.EventStream, Subjects: []string{wire.EventSubjects}},
		{Name: wire.DeadStream, Subjects: []string{wire.DeadSubjects}},
		{Name: wire.ResultStream, Subjects: []string{wire.ResultSubjects}, MaxMsgsPerSubject: 1},
	} {
		config.Storage = jetstream.MemoryStorage
		if _, err := js.CreateStream(tb.Context(), config); err != nil {
			tb.Fatal(err)
		}
	}
	return js
}

func (s *stack) collector() *Collector {
	s.tb.Helper()
	c, err := New(s.tb.Context(), s.Options)
	if err != nil {
		s.tb.Fatal(err)
	}
	return c
}

// put stores an artifact that was written so long ago.
func (s *stack) put(text string, age time.Duration) (digest string) {
	s.tb.Helper()
	sum := sha256.Sum256([]byte(text))
	digest = hex.EncodeToString(sum[:])
	name, then := filepath.Join(s.Store.Dir(), digest[:2], digest[2:]), time.Now().Add(-age)
	err := os.MkdirAll(filepath.Dir(name), 0o700)
	if err == nil {
		err = os.WriteFile(name, []byte(text), 0o600) // as Put does, but for waiting for the disk
	}
	if err := errors.Join(err, os.Chtimes(name, then, then)); err != nil {
		s.tb.Fatal(err)
	}
	return digest
}

// has says whether an artifact is there, and readable.
func (s *stack) has(digest string) bool {
	s.tb.Helper()
	_, err := activities.ReadAll(s.tb.Context(), s.Store, digest)
	if err != nil && !errors.Is(err, activities.ErrMissing) {
		s.tb.Fatal(err)
	}
	return err == nil
}

// want wants that of these artifacts, by name, those are there.
func (s *stack) want(all map[string]string, names ...string) {
	s.tb.Helper()
	for name, digest := range all {
		if got := s.has(digest); got != slices.Contains(names, name) {
			s.tb.Errorf("%s is there: %v", name, got)
		}
	}
}

// since has a collector begin before all that the test stores: an engine of this version was there already.
func (s *stack) since(age time.Duration) {
	s.tb.Helper()
	text, err := json.Marshal(givenKept{Since: time.Now().Add(-age)})
	if err == nil {
		err = os.WriteFile(filepath.Join(s.StateDir, givenFile), text, 0o600)
	}
	if err != nil {
		s.tb.Fatal(err)
	}
}

const day = 24 * time.Hour

func TestWhatAHolderNamesStaysAndAllElseGoes(t *testing.T) {
	t.Parallel()
	js := streams(t)
	s := newStack(t, js)
	s.since(100 * day)
	all := map[string]string{}
	for _, name := range []string{
		"nothing", "run", "list", "old run", "heartbeat", "child", "event", "taken event", "dead", "result", "chain", "pin",
		"old pin", "file",
	} {
		text := "the bytes of " + name
		if name == "list" {
			text = `{"files":[{"digest":"` + all["run"] + `"}]}`
		}
		all[name] = s.put(text, 40*day)
	}
	all["new"] = s.put("written a minute ago", time.Minute)
	s.histories.set(temporalRun{id: "going", input: `{"data":"` + all["list"] + `"}`, heartbeat: all["heartbeat"]})
	s.histories.set(temporalRun{id: "going/map-1", root: "going", ended: time.Now().Add(-50 * day), input: all["child"]})
	s.histories.set(temporalRun{id: "old", ended: time.Now().Add(-31 * day), input: all["old run"]})
	s.histories.set(temporalRun{id: "recent", ended: time.Now().Add(-29 * day), input: all["file"]})
	result := wire.ResultSubject(wire.ResultKey{Content: "c", Code: "d"}, "recent")
	for subject, text := range map[string]string{
		"events.p": all["event"], "spillway.dead.p": all["dead"], result: all["result"],
	} {
		if _, err := js.Publish(t.Context(), subject, []byte(`{"digest":"`+text+`"}`)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(s.Chains, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s.Chains, "c@0.json"), []byte(`{"code":"`+all["chain"]+`"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, age := range map[string]time.Duration{"pin": time.Hour, "old pin": 31 * day} {
		if err := s.Store.Pin(all[name]); err != nil {
			t.Fatal(err)
		}
		then := time.Now().Add(-age)
		if err := os.Chtimes(filepath.Join(s.Store.Dir(), "pins", all[name]), then, then); err != nil {
			t.Fatal(err)
		}
	}
	c := s.collector()
	dry, err := c.Collect(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	s.want(all, slices.Collect(maps.Keys(all))...)
	wet, err := c.Collect(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	s.want(all, "run", "list", "heartbeat", "child", "event", "dead", "result", "chain", "pin", "file", "new")
	if dry.Freed != wet.Freed || wet.Freed.Artifacts != 4 || !dry.DryRun || wet.DryRun {
		t.Errorf("a dry run says %+v, the collection %+v, want 4 artifacts in both", dry, wet)
	}
	if reason, _, is := c.Given("old"); !is || reason != "run old ended 31 days ago" {
		t.Errorf("of the old run it is said: %q, %v", reason, is)
	}
	if _, _, is := c.Given("recent"); is {
		t.Error("the recent run is said to have given something back")
	}
	again := s.collector()
	if _, _, is := again.Given("old"); !is {
		t.Error("after a restart it is not known that the old run gave something back")
	}
	if second, err := again.Collect(t.Context(), false); err != nil || second.Freed.Artifacts != 0 {
		t.Errorf("a second collection frees %+v, %v", second.Freed, err)
	}
}

func TestHistoriesThatCannotChangeAreReadOnce(t *testing.T) {
	t.Parallel()
	s := newStack(t, streams(t))
	s.since(day)
	c := s.collector()
	collect := func() int {
		t.Helper()
		if _, err := c.Collect(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		s.histories.mu.Lock()
		defer s.histories.mu.Unlock()
		return s.histories.read
	}
	s.histories.set(temporalRun{id: "ended", ended: time.Now()})
	if read := collect(); read != 0 {
		t.Errorf("%d histories were read though there is no artifact that may go", read)
	}
	s.put("x", 2*time.Hour)
	s.histories.set(temporalRun{id: "going"})
	if first, second := collect(), collect(); first != 2 || second != 3 {
		t.Errorf("histories read: %d after one collection, %d after two, want 2 and 3", first, second)
	}
}

func TestWhatAnEarlierVersionStoredStaysForAWhile(t *testing.T) {
	t.Parallel()
	s := newStack(t, streams(t))
	old := s.put("by an earlier version", 90*day)
	c := s.collector()
	if _, err := c.Collect(t.Context(), false); err != nil || !s.has(old) {
		t.Fatalf("what an earlier version stored is there: %v, %v", s.has(old), err)
	}
	c.options.Policy.KeepBytes = 1 // it goes where there is no room
	if _, err := c.Collect(t.Context(), false); err != nil || s.has(old) {
		t.Errorf("with no room for it, what an earlier version stored is there: %v, %v", s.has(old), err)
	}
}

func TestASupersededCheckpointGoesAtOnce(t *testing.T) {
	t.Parallel()
	s := newStack(t, streams(t))
	s.since(day)
	c := s.collector()
	all := map[string]string{
		"shared": s.put("unchanged", 3*time.Minute), "part 1": s.put("one", 3*time.Minute),
		"part 2": s.put("two", time.Minute),
	}
	all["1"] = s.put(all["shared"]+" "+all["part 1"], 3*time.Minute)
	all["2"] = s.put(all["shared"]+" "+all["part 2"], time.Minute)
	s.histories.set(temporalRun{id: "going", heartbeat: all["2"]})
	c.Superseded(t.Context(), activities.Ref{Digest: all["1"]}, time.Now().Add(-2*time.Minute))
	collection, err := c.Collect(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	s.want(all, "2", "shared", "part 2")
	if len(collection.Reasons) != 1 || collection.Reasons[0].Reason != retention.Superseded {
		t.Errorf("the reasons are %+v", collection.Reasons)
	}
	if _, err := c.Collect(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if len(c.superseded) != 1 { // the shared one
		t.Errorf("%d artifacts are still remembered as superseded, want 1", len(c.superseded))
	}
}

func TestAFullDiskLosesNothing(t *testing.T) {
	t.Parallel()
	s := newStack(t, streams(t))
	s.since(100 * day)
	nobody, old := s.put("nobody's", 40*day), s.put("old", 40*day)
	s.histories.set(temporalRun{id: "old", ended: time.Now().Add(-31 * day), input: old})
	c := s.collector()
	first := true
	c.effect = func() error {
		if first { // the note of what is given back finds no room
			first = false
			return fmt.Errorf("write: %w", syscall.ENOSPC)
		}
		return nil
	}
	if _, err := c.Collect(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if s.has(nobody) || !s.has(old) {
		t.Errorf("on a full disk nobody's artifact is there: %v, and the old run's: %v; want only the latter", s.has(nobody),
			s.has(old))
	}
	if _, err := c.Collect(t.Context(), false); err != nil || s.has(old) {
		t.Errorf("once there is room, the old run's artifact is there: %v, %v", s.has(old), err)
	}
}

func TestADamagedNoteIsRefusedWithWhatToDo(t *testing.T) {
	t.Parallel()
	s := newStack(t, nil)
	if err := os.WriteFile(filepath.Join(s.StateDir, givenFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(t.Context(), s.Options); err == nil || !strings.Contains(err.Error(), "remove it") {
		t.Errorf("got %v, want an error that says what to do", err)
	}
	s.Policy.KeepFor = 0
	if _, err := New(t.Context(), s.Options); err == nil || !strings.Contains(err.Error(), "give more than 0") {
		t.Errorf("got %v, want an error about the policy", err)
	}
}

var errKilled = errors.New("killed")

// TestNothingNamedIsMissingWheneverCollectionsAreKilled plays with random graphs of references on a real store:
// collections come at random moments, some are killed before a random one of their effects, and while artifacts are
// aside, runs begin that name them.
func TestNothingNamedIsMissingWheneverCollectionsAreKilled(t *testing.T) {
	t.Parallel()
	js := streams(t)
	rapid.Check(t, func(rt *rapid.T) {
		s := newStack(t, js)
		s.since(100 * day)
		s.Policy.KeepBytes = quantity.Bytes(rapid.IntRange(1, 3000).Draw(rt, "keep bytes"))
		w := &killable{stack: s, c: s.collector(), names: map[string][]string{}, number: map[string]int{}}
		rt.Repeat(map[string]func(*rapid.T){
			"write": w.write, "begin": w.begin, "end": w.end, "collect": w.collect,
			"": w.check,
		})
	})
}

// killable is a stack whose collections are killed.
type killable struct {
	*stack

	c       *Collector
	digests []string
	names   map[string][]string // by digest: what it names
	number  map[string]int
	runs    []temporalRun
}

func (w *killable) some(t *rapid.T) (digests []string) {
	if len(w.digests) == 0 {
		return nil
	}
	for _, i := range rapid.SliceOfN(rapid.IntRange(0, len(w.digests)-1), 0, 3).Draw(t, "names") {
		if w.has(w.digests[i]) {
			digests = append(digests, w.digests[i])
		}
	}
	return digests
}

func (w *killable) write(t *rapid.T) {
	names := w.some(t)
	text := fmt.Sprintf("%d %s", len(w.digests), strings.Join(names, " "))
	digest := w.put(text, time.Duration(rapid.IntRange(0, 48).Draw(t, "hours"))*time.Hour)
	w.digests, w.names[digest] = append(w.digests, digest), names
}

func (w *killable) begin(t *rapid.T) { w.start(w.some(t)) }

func (w *killable) start(names []string) {
	run := temporalRun{id: fmt.Sprint("run-", len(w.runs)), input: strings.Join(names, " ")}
	w.runs = append(w.runs, run)
	w.histories.set(run)
}

func (w *killable) end(t *rapid.T) {
	if len(w.runs) == 0 {
		return
	}
	run := &w.runs[rapid.IntRange(0, len(w.runs)-1).Draw(t, "run")]
	if run.ended.IsZero() {
		run.ended = time.Now().Add(-time.Duration(rapid.IntRange(1, 40*24).Draw(t, "hours")) * time.Hour)
		w.histories.set(*run)
	}
}

func (w *killable) collect(t *rapid.T) {
	effects, killAt := 0, rapid.IntRange(0, 40).Draw(t, "killed before effect")
	named := w.some(t) // by a run that begins meanwhile
	beginAt := rapid.IntRange(0, 10).Draw(t, "a run begins before effect")
	began := false
	w.c.effect = func() error {
		effects++
		if effects == beginAt && w.haveAll(named) {
			began = true
			w.start(named)
		}
		if killAt > 0 && effects >= killAt {
			return errKilled
		}
		return nil
	}
	_, err := w.c.Collect(w.tb.Context(), false)
	if errors.Is(err, errKilled) {
		w.c = w.collector() // the next engine
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	w.c.effect = func() error { return nil }
	// What a run holds that began meanwhile may be too much together with the rest.
	if again, err := w.c.Collect(w.tb.Context(), false); err != nil || len(again.Runs) > 0 && !began {
		t.Fatalf("after a whole collection %+v give back, %v", again.Runs, err)
	}
}

// haveAll asks for artifacts as the API does before somebody names what nothing may hold.
func (w *killable) haveAll(digests []string) bool {
	return !slices.ContainsFunc(digests, func(digest string) bool {
		return w.Store.Touch(digest) != nil || !w.has(digest)
	})
}

// check wants that all that a run reaches is there, as long as it is not said that the run gave it back.
func (w *killable) check(t *rapid.T) {
	for _, run := range w.runs {
		_, _, gave := w.c.Given(run.id)
		if gave && run.ended.IsZero() {
			t.Fatalf("%s goes on and is said to have given back", run.id)
		}
		if gave {
			continue
		}
		for next := strings.Fields(run.input); len(next) > 0; next = next[1:] {
			if !w.has(next[0]) {
				t.Fatalf("%s (ended %v) reaches %s, which is gone", run.id, run.ended, next[0])
			}
			next = append(next, w.names[next[0]]...)
		}
	}
}

func TestScarce(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		size, free quantity.Bytes
		was, want  bool
	}{
		{10 * quantity.GiB, 513 * quantity.MiB, false, false},
		{10 * quantity.GiB, 511 * quantity.MiB, false, true},
		{10 * quantity.GiB, 520 * quantity.MiB, true, true},
		{10 * quantity.GiB, 570 * quantity.MiB, true, false},
		{1000 * quantity.GiB, 1025 * quantity.MiB, false, false},
		{1000 * quantity.GiB, 1023 * quantity.MiB, false, true},
	} {
		if got := (Disk{Size: test.size, Free: test.free}).Scarce(test.was); got != test.want {
			t.Errorf("%s of %s free, scarce before %v: scarce now %v, want %v", test.free, test.size, test.was, got, test.want)
		}
	}
}
