package space

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.temporal.io/api/enums/v1"
	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

var errKilled, errNoAnswer = errors.New("killed"), errors.New("no answer")

// TestNothingNamedIsMissingWhateverHappens plays a stack with random graphs of references on a real store and real
// streams. Runs begin by events and by name, start children, continue as new, write artifacts and name them in
// heartbeats, in results that Temporal keeps back for a while, in stored results, and in inputs that are artifacts
// themselves; attempts make checkpoints, some of the same bytes as others, whose older ones are superseded; letters
// die, chains are stored, artifacts are sent; Temporal's list is behind, or has lost a run; the clock goes ahead by
// years, and back. Collections come at any moment: some are killed before one of their effects, some get no answer to
// one of their questions, and while one goes on, runs begin that name what is aside.
//
// What is held is always there, and what nobody holds is gone after a collection that nothing has disturbed.
func TestNothingNamedIsMissingWhateverHappens(t *testing.T) {
	t.Parallel()
	js := streams(t)
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(t, rt, js)
		rt.Repeat(map[string]func(*rapid.T){
			"send": w.send, "publish": w.publish, "acknowledge": w.acknowledge, "begin": w.begin, "attempt": w.attempt,
			"write": w.write, "write more": w.write, "heartbeat": w.heartbeat,
			"checkpoint": w.checkpoint, "checkpoint more": w.checkpoint, "finish": w.finish, "tell": w.tell,
			"child": w.child, "continue": w.continueAsNew, "end": w.end, "list": w.list, "lose": w.lose, "die": w.die,
			"store": w.storeChain, "wait": w.wait, "clock": w.turnClock, "collect": w.collect, "collect again": w.collect,
			"": w.check,
		})
	})
}

// world is a stack, with what is true of it.
type world struct {
	*stack

	c      *Collector
	events jetstream.Consumer

	ran, skew time.Duration // how long all of it has gone on, and by how much the clock is ahead
	began     time.Time
	latest    time.Time // an upper bound of the time by which things age
	latestAt  time.Duration

	written map[string]time.Time // by artifact: when, by the clock
	names   map[string][]string  // by artifact
	order   []string             // the artifacts as they came
	runs    []*modelRun
	waiting [][]string // what events name that wait, in their order
	lasting []modelHolder
	odd     bool // a run was lost, or the clock was wrong
}

// modelRun is a run, or a child of one.
type modelRun struct {
	name     string
	now      *fakeExecution // that goes on, or the last one
	root     *modelRun      // nil for a run
	children []*modelRun
	known    bool // to the ledger
	lost     bool // Temporal does not know it any more
	started  time.Time
	ended    time.Time
	names    []string // all that it has named
	attempts map[string]*modelAttempt
}

// modelAttempt is an attempt that goes on.
type modelAttempt struct {
	written   []string
	heartbeat []string
	// checkpoints are those that are not superseded, the oldest first; named is which of all of them the last heartbeat
	// has named, and made how many there were.
	checkpoints []modelCheckpoint
	named, made int
}

// modelCheckpoint is a checkpoint and its parts.
type modelCheckpoint struct {
	number int
	refs   []string
	at     time.Time
}

// details are what its heartbeat names.
func (a *modelAttempt) details() string {
	names := slices.Clone(a.heartbeat)
	for _, one := range a.checkpoints {
		if one.number == a.named {
			names = append(names, one.refs[0])
		}
	}
	return strings.Join(names, " ")
}

// modelHolder holds for a while, or as long as the world is there.
type modelHolder struct {
	what  string
	names []string
	until time.Time // zero is for ever
	room  bool      // it gives back where there is no room
}

func newWorld(t *testing.T, rt *rapid.T, js jetstream.JetStream) *world {
	t.Helper()
	for _, name := range []string{wire.EventStream, wire.DeadStream, wire.ResultStream} {
		stream, err := js.Stream(t.Context(), name)
		if err == nil {
			err = js.DeleteStream(t.Context(), name)
		}
		if err == nil {
			_, err = js.CreateStream(t.Context(), stream.CachedInfo().Config)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	w := &world{stack: newStack(t, js), written: map[string]time.Time{}, names: map[string][]string{}, began: time.Now()}
	w.since(100 * day)
	w.Policy.KeepBytes = quantity.Bytes(rapid.SampledFrom([]int{500, 3000, 1 << 30}).Draw(rt, "keep bytes"))
	w.Policy.KeepLeast = rapid.SampledFrom([]time.Duration{0, day}).Draw(rt, "keep least")
	w.Runs = w.ledger
	w.latest = w.wall()
	var err error
	w.events, err = js.CreateConsumer(t.Context(), wire.EventStream, jetstream.ConsumerConfig{
		Durable: "run-p", AckPolicy: jetstream.AckExplicitPolicy,
	})
	if err != nil {
		t.Fatal(err)
	}
	w.restart()
	return w
}

// restart is the next engine.
func (w *world) restart() {
	w.c = w.collector()
	w.c.clock.wall, w.c.clock.ran = w.wall, func() time.Duration { return w.ran }
	w.c.clock.at = w.ran
}

// wall is the time by the machine's clock.
func (w *world) wall() time.Time { return w.began.Add(w.ran + w.skew) }

// age is at least the time by which things age. The collector looks at its clock as well, as it does once an hour.
func (w *world) age() time.Time {
	w.c.clock.now()
	w.latest = steady(w.latest, w.wall(), w.ran-w.latestAt)
	w.latestAt = w.ran
	return w.latest
}

// put stores an artifact now.
func (w *world) put(text string, names []string) (digest string) {
	return w.putText(fmt.Sprintf("%d %s", len(w.order), text), names)
}

// putText stores the same artifact for the same text and names.
func (w *world) putText(text string, names []string) (digest string) {
	digest = w.stack.put(text+" "+strings.Join(names, " "), time.Since(w.wall()))
	w.written[digest], w.names[digest] = w.wall(), names
	w.order = append(w.order, digest)
	return digest
}

// asked draws a few of the artifacts that are there and asks for them, as the API does before somebody names what
// nothing may hold.
func (w *world) asked(t *rapid.T) (names []string) {
	if len(w.order) == 0 {
		return nil
	}
	for _, i := range rapid.SliceOfN(rapid.IntRange(0, len(w.order)-1), 0, 2).Draw(t, "asked for") {
		digest := w.order[i]
		if err := w.Store.Touch(digest); err != nil {
			t.Fatal(err)
		}
		if w.whole(digest) {
			names = append(names, digest)
			w.touch(digest)
		}
	}
	return names
}

// touch brings a file that the store has touched to the time of the world.
func (w *world) touch(digest string) {
	name := filepath.Join(w.Store.Dir(), digest[:2], digest[2:])
	if err := os.Chtimes(name, w.wall(), w.wall()); err != nil {
		w.tb.Fatal(err)
	}
	w.written[digest] = w.wall()
}

// whole reports whether an artifact is there with all that it reaches.
func (w *world) whole(digest string) bool {
	return !slices.ContainsFunc(w.reach([]string{digest}), func(one string) bool { return !w.has(one) })
}

// reach is all that names reach.
func (w *world) reach(names []string) (all []string) {
	seen := map[string]bool{}
	for next := slices.Clone(names); len(next) > 0; next = next[1:] {
		if seen[next[0]] {
			continue
		}
		seen[next[0]] = true
		all = append(all, next[0])
		next = append(next, w.names[next[0]]...)
	}
	return all
}

func (w *world) send(t *rapid.T) {
	digest := w.put("sent", w.asked(t))
	if err := w.Store.Pin(digest); err != nil {
		t.Fatal(err)
	}
	pin := filepath.Join(w.Store.Dir(), "pins", digest)
	if err := os.Chtimes(pin, w.wall(), w.wall()); err != nil {
		t.Fatal(err)
	}
	until := w.wall().Add(w.Policy.KeepFor)
	w.lasting = append(w.lasting, modelHolder{"what was sent", []string{digest}, until, true})
}

func (w *world) publish(t *rapid.T) {
	names := w.asked(t)
	if _, err := w.JetStream.Publish(w.tb.Context(), "events.p", []byte(strings.Join(names, " "))); err != nil {
		t.Fatal(err)
	}
	w.waiting = append(w.waiting, names)
}

// acknowledge begins the run of the first event that waits.
func (w *world) acknowledge(t *rapid.T) {
	if len(w.waiting) == 0 {
		return
	}
	message, err := w.events.Next()
	if err == nil {
		w.start(t, w.waiting[0])
		err = message.DoubleAck(w.tb.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	w.waiting = w.waiting[1:]
}

func (w *world) begin(t *rapid.T) { w.start(t, w.asked(t)) }

// start begins a run, whose input may be an artifact.
func (w *world) start(t *rapid.T, names []string) {
	name := fmt.Sprint("run-", len(w.runs))
	run := &modelRun{name: name, started: w.wall(), attempts: map[string]*modelAttempt{}, names: slices.Clone(names)}
	if rapid.Bool().Draw(t, "its input is an artifact") {
		names = []string{w.put("an input", names)}
		run.names = append(run.names, names...)
	}
	run.now = w.temporal.start(name, "", w.wall(), strings.Join(names, " "))
	run.now.unlisted = rapid.Bool().Draw(t, "the list is behind")
	// The ledger hears of a run within seconds, and until then its event holds for an hour; that is young by the clock of
	// the machine, not of the world.
	young := w.ran < time.Hour/2 && w.skew == 0
	run.known = !young || !run.now.unlisted || rapid.Bool().Draw(t, "the ledger knows it")
	w.runs = append(w.runs, run)
}

// pick draws one of the runs and children that fit; nil where there is none.
func (w *world) pick(t *rapid.T, fits func(*modelRun) bool) *modelRun {
	var all []*modelRun
	for _, run := range w.runs {
		for _, one := range append([]*modelRun{run}, run.children...) {
			if fits(one) {
				all = append(all, one)
			}
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all[rapid.IntRange(0, len(all)-1).Draw(t, "run")]
}

func goesOn(run *modelRun) bool {
	return run.ended.IsZero() && !run.lost && (run.root == nil || !run.root.lost)
}

func isBusy(run *modelRun) bool { return goesOn(run) && len(run.attempts) > 0 }

func (w *world) attempt(t *rapid.T) {
	if run := w.pick(t, goesOn); run != nil {
		run.attempts[run.now.schedule(w.wall())] = &modelAttempt{}
	}
}

// some draws a few of what an attempt may name.
func (w *world) some(t *rapid.T, run *modelRun, attempt *modelAttempt) (names []string) {
	all := slices.Concat(attempt.written, w.reach(run.names))
	if len(all) == 0 {
		return nil
	}
	for _, i := range rapid.SliceOfN(rapid.IntRange(0, len(all)-1), 0, 3).Draw(t, "names") {
		names = append(names, all[i])
	}
	return names
}

// busy draws an attempt that goes on.
func (w *world) busy(t *rapid.T) (*modelRun, string) {
	run := w.pick(t, isBusy)
	if run == nil {
		return nil, ""
	}
	return run, rapid.SampledFrom(slices.Sorted(maps.Keys(run.attempts))).Draw(t, "attempt")
}

func (w *world) write(t *rapid.T) {
	if run, activity := w.busy(t); run != nil {
		attempt := run.attempts[activity]
		attempt.written = append(attempt.written, w.put("written", w.some(t, run, attempt)))
	}
}

func (w *world) heartbeat(t *rapid.T) {
	if run, activity := w.busy(t); run != nil {
		attempt := run.attempts[activity]
		attempt.heartbeat = w.some(t, run, attempt)
		run.now.pending[activity].HeartbeatDetails = payloads(attempt.details())
	}
}

// checkpoint stores a checkpoint with its parts, of which there are few, so that others have stored the same. Where a
// heartbeat with it is acknowledged, those before the one that was acknowledged last are superseded.
func (w *world) checkpoint(t *rapid.T) {
	run, activity := w.busy(t)
	if run == nil {
		return
	}
	attempt := run.attempts[activity]
	var parts []string
	for _, part := range rapid.SliceOfNDistinct(rapid.IntRange(0, 3), 0, 2, rapid.ID).Draw(t, "parts") {
		parts = append(parts, w.putText("part "+strconv.Itoa(part), nil))
	}
	state := w.putText("state "+strconv.Itoa(rapid.IntRange(0, 3).Draw(t, "state")), parts)
	attempt.made++
	attempt.checkpoints = append(attempt.checkpoints,
		modelCheckpoint{attempt.made, append([]string{state}, parts...), w.wall()})
	if !rapid.Bool().Draw(t, "acknowledged") {
		return
	}
	before := attempt.named
	attempt.named = attempt.made
	run.now.pending[activity].HeartbeatDetails = payloads(attempt.details())
	held := map[string]bool{}
	for _, one := range attempt.checkpoints {
		for _, ref := range one.refs {
			held[ref] = held[ref] || one.number >= before
		}
	}
	attempt.checkpoints = slices.DeleteFunc(attempt.checkpoints, func(one modelCheckpoint) bool {
		if one.number < before {
			alone := slices.DeleteFunc(slices.Clone(one.refs), func(ref string) bool { return held[ref] })
			w.c.Superseded(refs(alone...), one.at)
		}
		return one.number < before
	})
}

// finish ends an attempt, whose result names something, also as a result that others may take.
func (w *world) finish(t *rapid.T) {
	run, activity := w.busy(t)
	if run == nil {
		return
	}
	attempt := run.attempts[activity]
	result, stored := w.some(t, run, attempt), w.some(t, run, attempt)
	root := run
	if run.root != nil {
		root = run.root
	}
	if len(stored) > 0 {
		subject := wire.ResultSubject(wire.ResultKey{Content: strconv.Itoa(len(w.order)), Code: activity}, root.name)
		if _, err := w.JetStream.Publish(w.tb.Context(), subject, []byte(strings.Join(stored, " "))); err != nil {
			t.Fatal(err)
		}
		root.names = append(root.names, stored...)
	}
	run.now.complete(activity, strings.Join(result, " "), rapid.Bool().Draw(t, "kept back"))
	run.names = append(run.names, result...)
	delete(run.attempts, activity)
}

// tell ends the workflow task that is on its way.
func (w *world) tell(t *rapid.T) {
	if run := w.pick(t, goesOn); run != nil {
		run.now.tell()
	}
}

func (w *world) child(t *rapid.T) {
	root := w.pick(t, func(run *modelRun) bool { return goesOn(run) && run.root == nil && len(run.children) < 3 })
	if root == nil {
		return
	}
	names := w.some(t, root, &modelAttempt{})
	name := fmt.Sprint(root.name, "/", len(root.children))
	child := &modelRun{name: name, root: root, attempts: map[string]*modelAttempt{}, names: names, started: w.wall()}
	child.now = w.temporal.start(name, root.name, w.wall(), strings.Join(names, " "))
	child.now.unlisted = rapid.Bool().Draw(t, "the list is behind")
	root.now.children = append(root.now.children, child.now)
	root.children = append(root.children, child)
}

// continueAsNew has a run, or a child, whose attempts have ended go on as another workflow with some of what it
// reaches.
func (w *world) continueAsNew(t *rapid.T) {
	run := w.pick(t, func(run *modelRun) bool {
		return goesOn(run) && len(run.attempts) == 0 && !slices.ContainsFunc(run.children, goesOn)
	})
	if run == nil {
		return
	}
	names, before := w.some(t, run, &modelAttempt{}), run.now
	before.end(w.wall(), enums.WORKFLOW_EXECUTION_STATUS_CONTINUED_AS_NEW)
	run.now = w.temporal.start(run.name, before.root, w.wall(), strings.Join(names, " "))
	run.now.unlisted = rapid.Bool().Draw(t, "the list is behind")
}

// end ends a run, with its children, or a child.
func (w *world) end(t *rapid.T) {
	run := w.pick(t, goesOn)
	if run == nil {
		return
	}
	for _, one := range append([]*modelRun{run}, run.children...) {
		if goesOn(one) {
			one.now.end(w.wall(), enums.WORKFLOW_EXECUTION_STATUS_COMPLETED)
			one.ended = w.wall()
			clear(one.attempts)
		}
	}
}

// list brings Temporal's list to what there is.
func (w *world) list(*rapid.T) {
	for _, one := range w.temporal.executions {
		one.unlisted = false
	}
}

// lose has Temporal lose all workflows of a run that is known.
func (w *world) lose(t *rapid.T) {
	run := w.pick(t, func(run *modelRun) bool { return run.root == nil && run.known && !run.lost })
	if run == nil {
		return
	}
	w.odd, run.lost = true, true
	w.temporal.executions = slices.DeleteFunc(w.temporal.executions, func(e *fakeExecution) bool {
		return e.root == run.name
	})
}

func (w *world) die(t *rapid.T) {
	names := w.asked(t)
	if _, err := w.JetStream.Publish(w.tb.Context(), "spillway.dead.p", []byte(strings.Join(names, " "))); err != nil {
		t.Fatal(err)
	}
	w.lasting = append(w.lasting, modelHolder{"a dead letter", names, time.Now().Add(w.Policy.KeepFor), true})
}

func (w *world) storeChain(t *rapid.T) {
	names := w.asked(t)
	err := os.MkdirAll(w.Chains, 0o700)
	if err == nil {
		name := filepath.Join(w.Chains, fmt.Sprintf("c@%d.json", len(w.lasting)))
		err = os.WriteFile(name, []byte(strings.Join(names, " ")), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	w.lasting = append(w.lasting, modelHolder{what: "a chain", names: names})
}

func (w *world) wait(t *rapid.T) {
	w.age()
	w.ran += rapid.SampledFrom([]time.Duration{10 * time.Minute, 2 * time.Hour, 3 * day, 20 * day}).Draw(t, "wait")
	for _, run := range w.runs {
		run.known = true
	}
	w.age()
}

// turnClock turns the clock ahead by years, back by hours, or as it should be.
func (w *world) turnClock(t *rapid.T) {
	w.age()
	w.skew = rapid.SampledFrom([]time.Duration{0, -5 * time.Hour, 40 * day, 4000 * day}).Draw(t, "the clock is ahead by")
	w.odd = w.odd || w.skew != 0
	w.age()
}

// ledger is what the ledger knows of the runs.
func (w *world) ledger(_ context.Context, since time.Time) (known []KnownRun, err error) {
	for _, run := range w.runs {
		if run.known && (run.ended.IsZero() || run.ended.After(since)) {
			known = append(known, KnownRun{Run: run.name, Started: run.started, Ended: run.ended, Told: run.started})
		}
	}
	return known, nil
}

func (w *world) collect(t *rapid.T) {
	effects, questions := 0, 0
	killAt, failAt := rapid.IntRange(0, 30).Draw(t, "killed before effect"), rapid.IntRange(0, 30).Draw(t, "fails")
	beginAt, checkpoint := rapid.IntRange(0, 10).Draw(t, "something comes before effect"), rapid.Bool().Draw(t,
		"it is a checkpoint and no run")
	began := false
	w.c.effect = func() error {
		effects++
		switch {
		case effects == beginAt && checkpoint:
			w.checkpoint(t)
		case effects == beginAt:
			began = true
			w.begin(t)
		}
		if killAt > 0 && effects >= killAt {
			return errKilled
		}
		return nil
	}
	w.temporal.fail = func(string) error {
		questions++
		if failAt > 0 && questions == failAt {
			return errNoAnswer
		}
		return nil
	}
	_, err := w.c.Collect(w.tb.Context(), false)
	w.c.effect, w.temporal.fail = func() error { return nil }, nil
	switch {
	case errors.Is(err, errKilled):
		w.restart()
		return
	case errors.Is(err, errNoAnswer):
		w.nothingAside(t)
		return
	case err != nil:
		t.Fatal(err)
	}
	w.nothingAside(t)
	// What a run holds that began meanwhile may be too much together with the rest.
	again, err := w.c.Collect(w.tb.Context(), false)
	if err != nil || len(again.Runs) > 0 && !began {
		t.Fatalf("after a whole collection %+v give back, %v", again.Runs, err)
	}
	w.nothingIdle(t)
}

// nothingAside wants that a collection has left nothing aside.
func (w *world) nothingAside(t *rapid.T) {
	entries, err := os.ReadDir(filepath.Join(w.Store.Dir(), "aside"))
	if err != nil && !errors.Is(err, os.ErrNotExist) || len(entries) > 0 {
		t.Fatalf("after a collection, %v is aside, %v", entries, err)
	}
}

// holders are all that hold something, as far as is true. Those that give back where there is no room are among them
// only where there is.
func (w *world) holders(t *rapid.T) (all []modelHolder) {
	now, room := w.age(), w.Policy.KeepBytes > 1<<20
	for _, run := range w.runs {
		_, _, gave := w.c.Given(run.name)
		if gave && goesOn(run) {
			t.Fatalf("%s goes on and is said to have given back", run.name)
		}
		if gave || !run.ended.IsZero() && now.Sub(run.ended) > w.Policy.KeepFor {
			continue
		}
		for _, one := range append([]*modelRun{run}, run.children...) {
			if run.lost {
				if room {
					all = append(all, w.ofLost(one, now))
				}
				continue
			}
			names := slices.Clone(one.names)
			for _, attempt := range one.attempts {
				names = slices.Concat(names, attempt.written, attempt.heartbeat)
				for _, one := range attempt.checkpoints {
					names = append(names, one.refs...)
				}
			}
			all = append(all, modelHolder{what: fmt.Sprintf("%s (ended %v)", one.name, one.ended), names: names})
		}
	}
	for _, names := range w.waiting {
		all = append(all, modelHolder{what: "an event that waits", names: names})
	}
	for _, one := range w.lasting {
		if (one.until.IsZero() || now.Before(one.until)) && (room || !one.room) {
			all = append(all, one)
		}
	}
	return all
}

// ofLost is what a run holds that Temporal knows no more: what it names of what was written since it began.
func (w *world) ofLost(run *modelRun, now time.Time) modelHolder {
	holder := modelHolder{what: run.name + ", which Temporal has lost"}
	told := run.started
	if run.root != nil {
		told = run.root.started
	}
	if run.ended.IsZero() && now.Sub(told) > w.Policy.KeepFor {
		return holder
	}
	for _, name := range run.names {
		if !w.written[name].Before(told) && (run.ended.IsZero() || !w.written[name].After(run.ended)) {
			holder.names = append(holder.names, name)
		}
	}
	return holder
}

// check wants that all that is held is there.
func (w *world) check(t *rapid.T) {
	for _, holder := range w.holders(t) {
		for _, digest := range w.reach(holder.names) {
			if !w.has(digest) {
				t.Fatalf("%s reaches %s, which is gone", holder.what, digest)
			}
		}
	}
}

// nothingIdle wants that nothing is there that nobody holds, where that can be said: nothing goes on that may name
// something yet, all was listed, and the clock was always right.
func (w *world) nothingIdle(t *rapid.T) {
	if w.odd || slices.ContainsFunc(w.temporal.executions, func(e *fakeExecution) bool { return e.isOpen() }) {
		return
	}
	now, held := w.wall(), map[string]bool{}
	for _, holder := range w.holders(t) {
		for _, digest := range w.reach(holder.names) {
			held[digest] = true
		}
	}
	for _, digest := range w.order {
		old := now.Sub(w.written[digest]) > w.Policy.Grace && w.ran > 2*time.Hour && w.Policy.KeepBytes > 1<<20
		if old && !held[digest] && w.has(digest) {
			t.Fatalf("%s is still there: nobody holds it", digest)
		}
	}
}
