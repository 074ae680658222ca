package space

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

var errKilled, errNoAnswer = errors.New("killed"), errors.New("no answer")

// worlds is how many worlds are played, and rounds how many rounds of each. A world is the same whenever it is played.
const (
	worlds = 150
	rounds = 12
)

// TestNothingNamedIsMissingWhateverHappens plays stacks with random graphs of references on a real store and real
// streams. Runs begin by events and by name, start children, continue as new, write artifacts and name them in
// heartbeats, in results that Temporal keeps back for a while, in stored results, which others take, and in inputs that
// are artifacts themselves; attempts make checkpoints, some of the same bytes as others, whose older ones are
// superseded; letters die, chains are stored, artifacts are sent, and asked for by who names them later;
// Temporal's list is behind, or has lost a run; the clock goes ahead by years, and back. Collections come at any
// moment: some are killed before one of their effects, some get no answer to a question, and while one goes on, other
// things happen, such as that a run begins which names what is aside.
//
// What is held is always there, and what nobody holds is gone after a collection that nothing has disturbed.
func TestNothingNamedIsMissingWhateverHappens(t *testing.T) {
	t.Parallel()
	js := withStreams(t)
	for number := range uint64(worlds) {
		t.Run(strconv.FormatUint(number, 10), func(t *testing.T) {
			w := newWorld(t, js, number)
			for range rounds {
				w.round()
			}
			w.over()
		})
	}
}

// world is a stack, with what is true of it.
type world struct {
	*stack
	*rand.Rand

	test  *testing.T
	trace []string

	c      *Collector
	events jetstream.Consumer
	clock  *clock // that was never restarted: things age at most by it

	ran, skew time.Duration // how long all of it has gone on, and by how much the clock is ahead
	began     time.Time
	oldest    time.Time     // the latest of the times by which things aged: what was too old then may be gone
	looked    time.Duration // when the collector has collected first; negative where it has not

	mostRuns, mostAttempts int  // that go on at a time
	unsteady               bool // the clock is turned now and then

	written map[string]time.Time // by artifact: when, by the clock
	names   map[string][]string  // by artifact
	order   []string             // the artifacts as they came
	runs    []*modelRun
	stored  []modelResult
	waiting [][]string // what events name that wait, in their order
	asking  []modelClient
	lasting []modelHolder
	odd     bool      // a run was lost, or the clock was wrong
	next    *[]func() // what happens at the next moment of the collection that goes on; nil where none does
}

// modelResult is a result that others may take.
type modelResult struct {
	key     wire.ResultKey
	subject string
	names   []string
}

// modelClient has asked for artifacts, which it is about to name.
type modelClient struct {
	names []string
	ran   time.Duration // when it asked
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
	since    time.Duration // when it began
	names    []string      // all that it has named
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

func newWorld(t *testing.T, js jetstream.JetStream, number uint64) *world {
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
	w := &world{
		stack: newStack(t, js), Rand: rand.New(rand.NewPCG(number, 1)), test: t,
		written: map[string]time.Time{}, names: map[string][]string{}, began: time.Now(),
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(strings.Join(w.trace, "\n"))
		}
	})
	w.since(100 * day)
	w.Policy.KeepBytes = pick(w, []quantity.Bytes{1 << 30, 1 << 30, 1 << 30, 3000, 500})
	w.Policy.KeepLeast = pick(w, []time.Duration{0, day})
	w.mostRuns, w.mostAttempts, w.unsteady = pick(w, []int{1, 2, 4}), pick(w, []int{1, 1, 2, 4}), w.chance(35)
	if w.unsteady && w.chance(60) { // else the oldest of several attempts holds for the others
		w.mostAttempts = 1
	}
	w.Runs = w.ledger
	w.clock = clockOf(w.began, w.wall, func() time.Duration { return w.ran })
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

// chance is true in so many of a hundred cases.
func (w *world) chance(percent int) bool { return w.IntN(100) < percent }

// pick draws one of some.
func pick[T any](w *world, of []T) T { return of[w.IntN(len(of))] }

// draw draws as many as there are at most, with those that come twice.
func draw[T any](w *world, most int, of []T) (drawn []T) {
	if len(of) == 0 {
		return nil
	}
	for range w.IntN(most + 1) {
		drawn = append(drawn, pick(w, of))
	}
	return drawn
}

// say notes what happens, for who looks for the cause of a failure.
func (w *world) say(format string, values ...any) {
	w.trace = append(w.trace, fmt.Sprintf("%9s %+8s  ", w.ran.Round(time.Minute), w.skew.Round(time.Minute))+
		fmt.Sprintf(format, values...))
}

// round is one of those of which a world consists.
func (w *world) round() {
	for range 1 + w.IntN(6) {
		w.act()
		w.check()
	}
	if w.chance(65) {
		w.wait()
		w.check()
	}
	if w.chance(80) {
		w.collect()
		w.check()
	}
}

// over ends all that goes on, and collects what is left.
func (w *world) over() {
	for w.endOne() {
	}
	w.list()
	for range 2 {
		w.pass(3 * time.Hour)
		w.collect()
		w.check()
	}
}

// restart is the next engine.
func (w *world) restart() {
	w.c, w.looked = w.collector(), -1
	w.c.clock = clockOf(w.c.clock.seen, w.wall, func() time.Duration { return w.ran })
}

// wall is the time by the machine's clock.
func (w *world) wall() time.Time { return w.began.Add(w.ran + w.skew) }

// age is at least the time by which things age. The collector looks at its clock as well.
func (w *world) age() time.Time {
	w.c.clock.now()
	now, _ := w.clock.now()
	if now.After(w.oldest) {
		w.oldest = now
	}
	return now
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
	w.touch(digest)
	w.say("put %.6s, %s, which names %s", digest, text, brief(names))
	return digest
}

// brief writes digests for people.
func brief(digests []string) string {
	short := make([]string, len(digests))
	for i, digest := range digests {
		short[i] = digest[:6]
	}
	return "[" + strings.Join(short, " ") + "]"
}

// asked draws a few of the artifacts that are there, more often of those that are aside now, and asks for them, as the
// API does before somebody names what nothing may hold.
func (w *world) asked() (names []string) {
	from := w.order
	if aside := w.aside(); len(aside) > 0 && w.chance(85) {
		from = aside
	}
	for _, digest := range draw(w, 2, from) {
		if err := w.Store.Touch(w.tb.Context(), digest); err != nil {
			w.test.Fatal(err)
		}
		if w.whole(digest) {
			names = append(names, digest)
			w.touch(digest)
		}
	}
	return names
}

// aside is what a collection has taken aside.
func (w *world) aside() (digests []string) {
	entries, err := os.ReadDir(filepath.Join(w.StateDir, "artifacts", "aside"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		w.test.Fatal(err)
	}
	for _, entry := range entries {
		digests = append(digests, entry.Name())
	}
	return digests
}

// touch brings a file that the store has touched to the time of the world.
func (w *world) touch(digest string) {
	name := filepath.Join(w.StateDir, "artifacts", digest[:2], digest[2:])
	if err := os.Chtimes(name, w.wall(), w.wall()); err != nil {
		w.test.Fatal(err)
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

// ledger is what the ledger knows of the runs.
func (w *world) ledger(_ context.Context, since time.Time) (known []KnownRun, err error) {
	for _, run := range w.runs {
		if run.known && (run.ended.IsZero() || run.ended.After(since)) {
			known = append(known, KnownRun{Run: run.name, Started: run.started, Ended: run.ended, Told: run.started})
		}
	}
	return known, nil
}

// meanwhile is what may happen while a collection goes on.
var meanwhile = []func(*world){
	(*world).begin, (*world).begin, (*world).begin, (*world).take, (*world).take, (*world).nameAsked,
	(*world).acknowledge, (*world).finish, (*world).heartbeat, (*world).write, (*world).checkpoint, (*world).child,
	(*world).continueAsNew,
	func(w *world) { w.finishRun(w.start(w.asked())) },
	func(w *world) { w.endOne() },
}

// later does something now or, within a collection, at its next moment.
func (w *world) later(do func()) {
	if w.next != nil && w.chance(80) {
		*w.next = append(*w.next, do)
		return
	}
	do()
}

// collect collects, and then a second time where nothing has ended the first one. Things happen meanwhile, at the
// moments when an effect comes, Temporal's list is read or the ledger is asked.
func (w *world) collect() {
	killAt, failOf, failID, quiet := 0, "", "", w.chance(30)
	switch kind := w.IntN(10); {
	case kind < 3:
		killAt = 1 + w.IntN(25)
	case kind < 5:
		failOf = pick(w, []string{"list", "describe", "history", "history"})
		if all := w.temporal.executions; len(all) > 0 && failOf != "list" {
			failID = pick(w, all).id
		}
	}
	effects, disturbed := 0, false
	var next []func()
	w.next = &next
	moment := func() {
		for _, do := range next {
			do()
		}
		next = next[:0]
		if !quiet && w.chance(25) {
			disturbed = true
			pick(w, meanwhile)(w)
		}
	}
	w.c.effect = func() error {
		effects++
		moment()
		if killAt > 0 && effects >= killAt {
			return errKilled
		}
		return nil
	}
	w.temporal.fail = func(call, id string) error {
		if call == "list" {
			moment()
		}
		if call == failOf && (failID == "" || id == failID) {
			return errNoAnswer
		}
		return nil
	}
	w.say("collect, killed before effect %d, no answer to %s %s", killAt, failOf, failID)
	_, err := w.c.Collect(w.test.Context(), false)
	w.c.effect, w.temporal.fail, w.next = func() error { return nil }, nil, nil
	for _, do := range next {
		do()
	}
	switch {
	case errors.Is(err, errKilled):
		w.restart()
		return
	case errors.Is(err, errNoAnswer):
		w.nothingAside()
		return
	case err != nil:
		w.test.Fatal(err)
	}
	w.nothingAside()
	w.check()
	// What a run holds that began meanwhile may be too much together with the rest.
	again, err := w.c.Collect(w.test.Context(), false)
	if err != nil || len(again.Runs) > 0 && !disturbed {
		w.test.Fatalf("after a whole collection %+v give back, %v", again.Runs, err)
	}
	if w.looked < 0 {
		w.looked = w.ran
	}
	w.nothingIdle()
}

// nothingAside wants that a collection has left nothing aside.
func (w *world) nothingAside() {
	if aside := w.aside(); len(aside) > 0 {
		w.test.Fatalf("after a collection, %s is aside", brief(aside))
	}
}

// holders are all that hold something, as far as is true. Those that give back where there is no room are among them
// only where there is.
func (w *world) holders() (all []modelHolder) {
	now, room := w.age(), w.Policy.KeepBytes > 1<<20
	for _, run := range w.runs {
		_, _, gave := w.c.Given(run.name)
		if gave && goesOn(run) {
			w.test.Fatalf("%s goes on and is said to have given back", run.name)
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
	for _, one := range w.asking {
		if w.ran-one.ran < w.Policy.Grace {
			all = append(all, modelHolder{what: "who has asked for it", names: one.names})
		}
	}
	for _, one := range w.lasting {
		if (one.until.IsZero() || w.oldest.Before(one.until)) && (room || !one.room) {
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
func (w *world) check() {
	w.test.Helper()
	for _, holder := range w.holders() {
		for _, digest := range w.reach(holder.names) {
			if !w.has(digest) {
				w.test.Fatalf("%s reaches %.6s, which is gone", holder.what, digest)
			}
		}
	}
}

// nothingIdle wants that nothing is there that nobody holds, where that can be said: nothing goes on that may name
// something yet, all was listed, and the clock was always right.
func (w *world) nothingIdle() {
	w.test.Helper()
	goesOn := slices.ContainsFunc(w.temporal.executions, func(e *fakeExecution) bool { return e.isOpen() })
	if w.odd || goesOn || w.ran-w.looked < 2*time.Hour {
		return
	}
	now, held := w.wall(), map[string]bool{}
	holders := w.holders()
	for digest, written := range w.written { // what was just written holds what it names
		if now.Sub(written) <= w.Policy.Grace {
			holders = append(holders, modelHolder{names: []string{digest}})
		}
	}
	for _, holder := range holders {
		for _, digest := range w.reach(holder.names) {
			held[digest] = true
		}
	}
	for _, digest := range w.order {
		old := now.Sub(w.written[digest]) > w.Policy.Grace && w.Policy.KeepBytes > 1<<20
		if old && !held[digest] && w.has(digest) {
			w.test.Fatalf("%.6s is still there: nobody holds it", digest)
		}
	}
}
