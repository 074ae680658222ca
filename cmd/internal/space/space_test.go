package space

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.temporal.io/api/enums/v1"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/activities/natstest"
	"github.com/spillway-ml/spillway/activities/retention"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// stack is what a collector works with.
type stack struct {
	Options

	tb       testing.TB
	temporal *fakeTemporal
}

// server is one NATS server for all tests of a function, or a stack of its own.
func newStack(tb testing.TB, js jetstream.JetStream) *stack {
	tb.Helper()
	dir := tb.TempDir()
	store, err := artifact.Open(filepath.Join(dir, "artifacts"))
	if err != nil {
		tb.Fatal(err)
	}
	all := &fakeTemporal{}
	policy := retention.Usual(quantity.GiB)
	return &stack{tb: tb, temporal: all, Options: Options{
		StateDir: dir, Policy: policy, Store: store, Temporal: all, JetStream: js, Chains: filepath.Join(dir, "chains"),
	}}
}

// withStreams returns a server with the streams that are read.
func withStreams(tb testing.TB) jetstream.JetStream {
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
	name, then := filepath.Join(s.StateDir, "artifacts", digest[:2], digest[2:]), time.Now().Add(-age)
	mode := fs.FileMode(0o700)
	if _, err := os.Lstat(name); err == nil {
		mode = 0o600 // it is there already
	}
	err := os.MkdirAll(filepath.Dir(name), 0o700)
	if err == nil {
		err = os.WriteFile(name, []byte(text), 0o600) // as Put does, but for waiting for the disk
	}
	if err == nil {
		err = os.Chmod(name, mode)
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

// going starts a run that goes on.
func (s *stack) going(name, input string) *fakeExecution {
	return s.temporal.start(name, "", time.Now(), input)
}

// ended starts a run, or a child of root, that ended so long ago.
func (s *stack) ended(name, root string, ago time.Duration, input string) *fakeExecution {
	then := time.Now().Add(-ago)
	run := s.temporal.start(name, root, then, input)
	run.end(then, enums.WORKFLOW_EXECUTION_STATUS_COMPLETED)
	return run
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
	js := withStreams(t)
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
	going := s.going("going", `{"data":"`+all["list"]+`"}`)
	going.beat(all["heartbeat"])
	s.ended("going/map-1", "going", 50*day, all["child"])
	s.ended("old", "", 31*day, all["old run"])
	s.ended("recent", "", 29*day, all["file"])
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
		if err := s.Store.Pin(t.Context(), all[name]); err != nil {
			t.Fatal(err)
		}
		then := time.Now().Add(-age)
		if err := os.Chtimes(filepath.Join(s.StateDir, "artifacts", "pins", all[name]), then, then); err != nil {
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
	s := newStack(t, withStreams(t))
	s.since(day)
	c := s.collector()
	collect := func() int {
		t.Helper()
		if _, err := c.Collect(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		return s.temporal.histories()
	}
	s.ended("ended", "", 0, "")
	if read := collect(); read != 0 {
		t.Errorf("%d histories were read though there is no artifact that may go", read)
	}
	s.put("x", 2*time.Hour)
	s.going("going", "")
	if first, second := collect(), collect(); first != 2 || second != 3 {
		t.Errorf("histories read: %d after one collection, %d after two, want 2 and 3", first, second)
	}
}

func TestWhatAnEarlierVersionStoredStaysForAWhile(t *testing.T) {
	t.Parallel()
	s := newStack(t, withStreams(t))
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
	s := newStack(t, withStreams(t))
	s.since(day)
	c := s.collector()
	all := map[string]string{
		"shared": s.put("unchanged", 3*time.Minute), "part 1": s.put("one", 3*time.Minute),
		"part 2": s.put("two", time.Minute),
	}
	all["1"] = s.put(all["shared"]+" "+all["part 1"], 3*time.Minute)
	all["2"] = s.put(all["shared"]+" "+all["part 2"], time.Minute)
	s.going("going", "").beat(all["2"])
	c.Superseded(refs(all["1"], all["part 1"], all["shared"]), time.Now().Add(-2*time.Minute))
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

// TestWhatAnotherHasStoredAsWellIsNotSuperseded has two attempts make the same checkpoint, as trainings with one seed
// do. The one has newer ones, the other has not told of it yet.
func TestWhatAnotherHasStoredAsWellIsNotSuperseded(t *testing.T) {
	t.Parallel()
	js := withStreams(t)
	for name, wanted := range map[string]func(*stack) error{
		"by nobody else":               func(*stack) error { return nil },
		"by another who has stored it": func(s *stack) error { return s.store("checkpoint") },
		"by somebody who has asked for": func(s *stack) error {
			return s.Store.Touch(s.tb.Context(), digestOf("checkpoint"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStack(t, js)
			s.since(day)
			c := s.collector()
			run := s.going("one", "")
			s.going("other", "").beat("nothing yet")
			err := s.store("checkpoint")
			if err == nil {
				err = wanted(s)
			}
			if err == nil {
				err = s.store("newer")
			}
			if err != nil {
				t.Fatal(err)
			}
			run.beat(digestOf("newer"))
			c.Superseded(refs(digestOf("checkpoint")), time.Now())
			if _, err := c.Collect(t.Context(), false); err != nil {
				t.Fatal(err)
			}
			if got, want := s.has(digestOf("checkpoint")), name != "by nobody else"; got != want {
				t.Errorf("the checkpoint is there: %v, want %v", got, want)
			}
			// Who stores what was removed wants it.
			if err := s.store("checkpoint"); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Collect(t.Context(), false); err != nil || !s.has(digestOf("checkpoint")) {
				t.Errorf("stored anew, it is there: %v, %v", s.has(digestOf("checkpoint")), err)
			}
		})
	}
}

func digestOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// store stores a text as an attempt does.
func (s *stack) store(text string) error {
	_, err := s.Store.Put(s.tb.Context(), strings.NewReader(text))
	return err
}

func TestAFullDiskLosesNothing(t *testing.T) {
	t.Parallel()
	s := newStack(t, withStreams(t))
	s.since(100 * day)
	nobody, old := s.put("nobody's", 40*day), s.put("old", 40*day)
	s.ended("old", "", 31*day, old)
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

// TestADamagedArtifactHoldsWhatIsLeftOfItsText damages a list that a run names, and puts it anew.
func TestADamagedArtifactHoldsWhatIsLeftOfItsText(t *testing.T) {
	t.Parallel()
	s := newStack(t, withStreams(t))
	s.since(100 * day)
	all := map[string]string{"file": s.put("file", 2*day)}
	all["list"] = s.put(all["file"], 2*day)
	s.going("going", all["list"])
	path := filepath.Join(s.StateDir, "artifacts", all["list"][:2], all["list"][2:])
	c := s.collector()
	for _, text := range []string{all["file"] + "\x00damaged", all["file"]} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		then := time.Now().Add(-2 * day)
		if err := os.Chtimes(path, then, then); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Collect(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		if _, err := activities.ReadAll(t.Context(), s.Store, all["file"]); err != nil {
			t.Fatalf("what %q names: %v", text, err)
		}
	}
}

// TestAnEventThatHasWaitedForLongHoldsUntilItsRunIsSureToBeListed starts the run of an event that has waited for two
// hours, of which neither Temporal's list nor the ledger has heard yet.
func TestAnEventThatHasWaitedForLongHoldsUntilItsRunIsSureToBeListed(t *testing.T) {
	t.Parallel()
	s := newStack(t, withStreams(t))
	s.since(100 * day)
	input := s.put("input", 2*day)
	consumer, err := s.JetStream.CreateConsumer(t.Context(), wire.EventStream, jetstream.ConsumerConfig{
		Durable: "run-p", AckPolicy: jetstream.AckExplicitPolicy,
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.JetStream.Publish(t.Context(), "events.p", []byte(input)); err != nil {
		t.Fatal(err)
	}
	c := s.collector()
	ran := time.Duration(0)
	c.clock.wall, c.clock.ran = func() time.Time { return time.Now().Add(ran) }, func() time.Duration { return ran }
	collect := func(when string, want bool) {
		t.Helper()
		if _, err := c.Collect(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		if got := s.has(input); got != want {
			t.Fatalf("%s, its input is there: %v", when, got)
		}
	}
	collect("at first", true)
	ran += 2 * time.Hour
	collect("while it waits", true)
	message, err := consumer.Next()
	if err == nil {
		err = message.DoubleAck(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	run := s.going("going", input)
	run.unlisted = true
	collect("right after the start of its run", true)
	run.unlisted = false
	ran += 2 * time.Hour
	collect("while its run goes on", true)
	run.end(time.Now().Add(-40*day), enums.WORKFLOW_EXECUTION_STATUS_COMPLETED)
	collect("long after the end of its run", false)
}

// TestAClockThatIsYearsAheadTakesNothingThatIsKept has the clock of the machine be wrong for an hour.
func TestAClockThatIsYearsAheadTakesNothingThatIsKept(t *testing.T) {
	t.Parallel()
	s := newStack(t, withStreams(t))
	s.since(100 * day)
	all := map[string]string{"input": s.put("input", 2*day), "sent": s.put("sent", 2*day)}
	if err := s.Store.Pin(t.Context(), all["sent"]); err != nil {
		t.Fatal(err)
	}
	s.ended("ended", "", day, all["input"])
	c := s.collector()
	ran := time.Duration(0)
	c.clock.ran = func() time.Duration { return ran }
	c.clock.wall = func() time.Time { return time.Now().Add(4000 * day) }
	for range 6 {
		collection, err := c.Collect(t.Context(), false)
		if err != nil || collection.Ahead < 3990*day {
			t.Fatalf("the clock is ahead by %s, %v", collection.Ahead, err)
		}
		ran += 10 * time.Minute
	}
	s.want(all, "input", "sent")
	c = s.collector() // it goes on from there
	c.clock.wall = func() time.Time { return time.Now().Add(4000 * day) }
	if _, err := c.Collect(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	s.want(all, "input", "sent")
}

// killAfter has a collector be killed before one of its effects.
func (c *Collector) killAfter(effects int) {
	c.effect = func() error {
		if effects--; effects < 0 {
			return errKilled
		}
		return nil
	}
}

// TestAKilledCollectionLeavesNoResultThatNamesWhatIsGone kills a collection before each of its effects, and goes on
// with another one.
func TestAKilledCollectionLeavesNoResultThatNamesWhatIsGone(t *testing.T) {
	t.Parallel()
	js := withStreams(t)
	for effects := range 8 {
		s := newStack(t, js)
		s.since(100 * day)
		name := fmt.Sprint("old-", effects)
		model := s.put("model "+name, 40*day)
		s.ended(name, "", 31*day, "")
		subject := wire.ResultSubject(wire.ResultKey{Content: "c", Code: "d"}, name)
		if _, err := js.Publish(t.Context(), subject, []byte(model)); err != nil {
			t.Fatal(err)
		}
		c := s.collector()
		c.killAfter(effects)
		if _, err := c.Collect(t.Context(), false); err != nil && !errors.Is(err, errKilled) {
			t.Fatal(err)
		}
		if _, err := s.collector().Collect(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		stream, err := js.Stream(t.Context(), wire.ResultStream)
		if err != nil {
			t.Fatal(err)
		}
		_, err = stream.GetLastMsgForSubject(t.Context(), subject)
		if there := err == nil; there || s.has(model) {
			t.Errorf("killed before effect %d: the result is there: %v, and the model that it names: %v, %v; want neither",
				effects, there, s.has(model), err)
		}
	}
}

// TestARunThatBeginsAndEndsMeanwhileGivesNothingBackUnseen has a run name what is aside, and end, where there is no
// room at all.
func TestARunThatBeginsAndEndsMeanwhileGivesNothingBackUnseen(t *testing.T) {
	t.Parallel()
	s := newStack(t, withStreams(t))
	s.since(100 * day)
	s.Policy.KeepBytes, s.Policy.KeepLeast = 1, 0
	idle := s.put("nobody's", 2*day)
	c := s.collector()
	meanwhile := func() { s.ended("new", "", 0, idle) }
	c.effect = func() error {
		meanwhile()
		meanwhile = func() {}
		return nil
	}
	if _, err := c.Collect(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if _, _, gave := c.Given("new"); gave || !s.has(idle) {
		t.Errorf("what the run names is there: %v; it gave back: %v", s.has(idle), gave)
	}
	if _, err := c.Collect(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if _, _, gave := c.Given("new"); !gave || s.has(idle) {
		t.Errorf("after the next collection, what the run names is there: %v; it gave back: %v", s.has(idle), gave)
	}
}

// TestAChildThatHasEndedAndIsNotListedHolds ends a child of which Temporal's list has not heard.
func TestAChildThatHasEndedAndIsNotListedHolds(t *testing.T) {
	t.Parallel()
	s := newStack(t, withStreams(t))
	s.since(100 * day)
	output := s.put("output", 2*day)
	root := s.going("going", "")
	child := s.ended("going/map-1", "going", time.Hour, output)
	child.unlisted = true
	root.hasBegun(child, false)
	c := s.collector()
	for range 2 {
		if _, err := c.Collect(t.Context(), false); err != nil || !s.has(output) {
			t.Fatalf("what the child names is there: %v, %v", s.has(output), err)
		}
	}
	root.end(time.Now(), enums.WORKFLOW_EXECUTION_STATUS_COMPLETED)
	for range 2 { // what has ended is read once
		if _, err := c.Collect(t.Context(), false); err != nil || !s.has(output) {
			t.Fatalf("after the end of its parent, what the child names is there: %v, %v", s.has(output), err)
		}
	}
}

// TestTheGracePassesInTheTimeThatAnEngineRuns has somebody ask for an artifact right before the clock is turned ahead:
// while that catches up, things age by a day an hour, but who asked has the hour all the same.
func TestTheGracePassesInTheTimeThatAnEngineRuns(t *testing.T) {
	t.Parallel()
	s := newStack(t, withStreams(t))
	s.since(100 * day)
	asked := s.put("asked for", time.Minute)
	c := s.collector()
	ran, ahead := time.Duration(0), time.Duration(0)
	c.clock = clockOf(time.Now(), func() time.Time { return time.Now().Add(ran + ahead) },
		func() time.Duration { return ran })
	ahead = 4000 * day
	for ran < 2*time.Hour {
		if _, err := c.Collect(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		if there := s.has(asked); there != (ran < time.Hour) {
			t.Fatalf("after %s it is there: %v", ran, there)
		}
		ran += 10 * time.Minute
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

func refs(digests ...string) (refs []activities.Ref) {
	for _, digest := range digests {
		refs = append(refs, activities.Ref{Digest: digest})
	}
	return refs
}
