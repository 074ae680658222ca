package space

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.temporal.io/api/enums/v1"

	"github.com/spillway-ml/spillway/activities/wire"
)

// acts are what happens, with how often each does.
var acts = []struct {
	often int
	do    func(*world)
}{
	{3, (*world).send},
	{4, (*world).abandon},
	{3, (*world).ask},
	{3, (*world).nameAsked},
	{4, (*world).publish},
	{4, (*world).acknowledge},
	{4, (*world).begin},
	{8, (*world).attempt},
	{10, (*world).write},
	{5, (*world).heartbeat},
	{6, (*world).checkpoint},
	{8, (*world).finish},
	{4, (*world).take},
	{3, (*world).tell},
	{4, (*world).child},
	{3, (*world).continueAsNew},
	{5, func(w *world) { w.endOne() }},
	{2, (*world).list},
	{1, (*world).lose},
	{2, (*world).die},
	{1, (*world).storeChain},
	{3, func(w *world) {
		if w.unsteady {
			w.turnClock()
		}
	}},
}

// act has something happen.
func (w *world) act() {
	all := 0
	for _, one := range acts {
		all += one.often
	}
	at := w.IntN(all)
	for _, one := range acts {
		if at -= one.often; at < 0 {
			one.do(w)
			return
		}
	}
}

func (w *world) send() {
	digest := w.put("sent", w.asked())
	if err := w.Store.Pin(w.tb.Context(), digest); err != nil {
		w.test.Fatal(err)
	}
	pin := filepath.Join(w.StateDir, "artifacts", "pins", digest)
	if err := os.Chtimes(pin, w.wall(), w.wall()); err != nil {
		w.test.Fatal(err)
	}
	until := w.wall().Add(w.Policy.KeepFor)
	w.lasting = append(w.lasting, modelHolder{"what was sent", []string{digest}, until, true})
}

// abandon stores artifacts, each of which names the one before it, that nobody names.
func (w *world) abandon() {
	var names []string
	for range 1 + w.IntN(3) {
		names = []string{w.put("abandoned", names)}
	}
}

// ask asks for artifacts that somebody is about to name.
func (w *world) ask() {
	if names := w.asked(); len(names) > 0 {
		w.asking = append(w.asking, modelClient{names, w.ran})
		w.say("somebody asks for %s", brief(names))
	}
}

// nameAsked begins a run with what somebody has asked for less than the grace ago.
func (w *world) nameAsked() {
	asking := slices.DeleteFunc(w.asking, func(one modelClient) bool { return w.ran-one.ran >= w.Policy.Grace })
	if w.asking = nil; len(asking) > 0 {
		w.start(asking[0].names)
		w.asking = asking[1:]
	}
}

func (w *world) publish() {
	names := w.asked()
	if _, err := w.JetStream.Publish(w.test.Context(), "events.p", []byte(strings.Join(names, " "))); err != nil {
		w.test.Fatal(err)
	}
	w.waiting = append(w.waiting, names)
	w.say("an event names %s", brief(names))
}

// acknowledge begins the run of the first event that waits.
func (w *world) acknowledge() {
	if len(w.waiting) == 0 {
		return
	}
	message, err := w.events.Next()
	if err == nil {
		w.start(w.waiting[0])
		err = message.DoubleAck(w.test.Context())
	}
	if err != nil {
		w.test.Fatal(err)
	}
	w.waiting = w.waiting[1:]
}

func (w *world) begin() {
	if len(w.all(goesOn)) < w.mostRuns {
		w.start(w.asked())
	}
}

// start begins a run, whose input may be an artifact.
func (w *world) start(names []string) *modelRun {
	name := fmt.Sprint("run-", len(w.runs))
	run := &modelRun{
		name: name, started: w.wall(), since: w.ran, attempts: map[string]*modelAttempt{}, names: slices.Clone(names),
	}
	if w.chance(50) {
		names = []string{w.put("an input", names)}
		run.names = append(run.names, names...)
	}
	run.now = w.temporal.start(name, "", w.wall(), strings.Join(names, " "))
	run.now.unlisted = w.chance(50)
	run.known = !run.now.unlisted || w.chance(50) // else the ledger hears of it later
	w.runs = append(w.runs, run)
	w.say("%s begins, and names %s; listed %v, known %v", name, brief(run.names), !run.now.unlisted, run.known)
	return run
}

// all are the runs and children that fit.
func (w *world) all(fits func(*modelRun) bool) (all []*modelRun) {
	for _, run := range w.runs {
		for _, one := range append([]*modelRun{run}, run.children...) {
			if fits(one) {
				all = append(all, one)
			}
		}
	}
	return all
}

// pickRun draws one of the runs and children that fit; nil where there is none.
func (w *world) pickRun(fits func(*modelRun) bool) *modelRun {
	all := w.all(fits)
	if len(all) == 0 {
		return nil
	}
	return pick(w, all)
}

func goesOn(run *modelRun) bool {
	return run.ended.IsZero() && !run.lost && (run.root == nil || !run.root.lost)
}

func isBusy(run *modelRun) bool { return goesOn(run) && len(run.attempts) > 0 }

// top is the run of which this is.
func (r *modelRun) top() *modelRun {
	if r.root != nil {
		return r.root
	}
	return r
}

// attempt begins an attempt; where the clock is unsteady, it may be turned right before and after.
func (w *world) attempt() {
	going := 0
	for _, run := range w.all(isBusy) {
		going += len(run.attempts)
	}
	run := w.pickRun(goesOn)
	if run == nil || going >= w.mostAttempts {
		return
	}
	if w.unsteady && w.chance(50) {
		w.turnClock()
	}
	activity := run.now.schedule(w.wall())
	run.attempts[activity] = &modelAttempt{}
	w.say("%s begins attempt %s", run.name, activity)
	if w.unsteady && w.chance(60) {
		w.turnClock()
	}
	if w.unsteady || w.chance(70) {
		w.write()
	}
}

// some draws a few of what an attempt may name.
func (w *world) some(run *modelRun, attempt *modelAttempt) (names []string) {
	all := slices.Concat(attempt.written, attempt.written, w.reach(run.names))
	return draw(w, 2, all)
}

// busy draws an attempt that goes on.
func (w *world) busy() (*modelRun, string) {
	run := w.pickRun(isBusy)
	if run == nil {
		return nil, ""
	}
	return run, pick(w, slices.Sorted(maps.Keys(run.attempts)))
}

func (w *world) write() {
	if run, activity := w.busy(); run != nil {
		attempt := run.attempts[activity]
		attempt.written = append(attempt.written, w.put("written by "+run.name, w.some(run, attempt)))
	}
}

func (w *world) heartbeat() {
	if run, activity := w.busy(); run != nil {
		attempt := run.attempts[activity]
		attempt.heartbeat = w.some(run, attempt)
		run.now.pending[activity].HeartbeatDetails = payloads(attempt.details())
		w.say("%s tells in a heartbeat of %s: %s", run.name, activity, brief(attempt.heartbeat))
	}
}

// checkpoint stores a checkpoint with its parts, of which there are few, so that others have stored the same. Where a
// heartbeat with it is acknowledged, those before the one that was acknowledged last are superseded.
func (w *world) checkpoint() {
	run, activity := w.busy()
	if run == nil {
		return
	}
	attempt := run.attempts[activity]
	var parts []string
	for _, part := range w.Perm(4)[:w.IntN(3)] {
		parts = append(parts, w.putText("part "+strconv.Itoa(part), nil))
	}
	state := w.putText("state "+strconv.Itoa(w.IntN(4)), parts)
	attempt.made++
	attempt.checkpoints = append(attempt.checkpoints,
		modelCheckpoint{attempt.made, append([]string{state}, parts...), w.wall()})
	if w.chance(50) {
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
			w.say("%s: %s are superseded", run.name, brief(alone))
		}
		return one.number < before
	})
}

// finish ends an attempt, whose result names something, also as a result that others may take.
func (w *world) finish() {
	run, activity := w.busy()
	if run == nil {
		return
	}
	attempt := run.attempts[activity]
	result, keptBack := w.some(run, attempt), w.chance(50)
	if stored := w.some(run, attempt); len(stored) > 0 {
		w.keep(run.top(), wire.ResultKey{Content: strconv.Itoa(len(w.order)), Code: "c" + activity}, stored)
	}
	run.now.complete(activity, strings.Join(result, " "), keptBack)
	run.names = append(run.names, result...)
	delete(run.attempts, activity)
	w.say("%s ends attempt %s with %s, kept back %v", run.name, activity, brief(result), keptBack)
}

// keep stores a result of a run.
func (w *world) keep(run *modelRun, key wire.ResultKey, names []string) {
	subject := wire.ResultSubject(key, run.name)
	if _, err := w.JetStream.Publish(w.test.Context(), subject, []byte(strings.Join(names, " "))); err != nil {
		w.test.Fatal(err)
	}
	w.kept(run, modelResult{key, subject, names})
}

// kept notes that a result is stored as one of a run, which the ledger has heard of by then.
func (w *world) kept(run *modelRun, result modelResult) {
	w.stored = append(w.stored, result)
	run.names, run.known = append(run.names, result.names...), true
	w.say("%s has a result that names %s", run.name, brief(result.names))
}

// take has a run take a result of another, as results.Find does: it looks for one, and takes it where it is still
// there by then, which may be a while later.
func (w *world) take() {
	run := w.pickRun(func(run *modelRun) bool { return goesOn(run) && run.root == nil })
	if run == nil || len(w.stored) == 0 {
		return
	}
	found := pick(w, w.stored)
	stream, err := w.JetStream.Stream(w.test.Context(), wire.ResultStream)
	if err != nil {
		w.test.Fatal(err)
	}
	message, err := stream.GetLastMsgForSubject(w.test.Context(), found.subject)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return
	}
	if err != nil {
		w.test.Fatal(err)
	}
	w.say("%s finds a result that names %s", run.name, brief(found.names))
	w.later(func() {
		if !goesOn(run) {
			return
		}
		subject := wire.TakenSubject(found.key, run.name)
		_, err := w.JetStream.Publish(w.test.Context(), subject, message.Data,
			jetstream.WithExpectLastSequenceForSubject(message.Sequence, message.Subject))
		if refused, is := errors.AsType[*jetstream.APIError](err); is &&
			refused.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence {
			return
		}
		if err != nil {
			w.test.Fatal(err)
		}
		w.kept(run, modelResult{found.key, subject, found.names})
	})
}

// tell ends the workflow task that is on its way.
func (w *world) tell() {
	if run := w.pickRun(goesOn); run != nil {
		run.now.tell()
	}
}

func (w *world) child() {
	root := w.pickRun(func(run *modelRun) bool { return goesOn(run) && run.root == nil && len(run.children) < 3 })
	if root == nil {
		return
	}
	names := w.some(root, &modelAttempt{})
	name := fmt.Sprint(root.name, "/", len(root.children))
	child := &modelRun{name: name, root: root, attempts: map[string]*modelAttempt{}, names: names, started: w.wall()}
	child.now = w.temporal.start(name, root.name, w.wall(), strings.Join(names, " "))
	child.now.unlisted = w.chance(70)
	root.now.hasBegun(child.now, w.chance(50))
	root.children = append(root.children, child)
	w.say("%s begins, listed %v", name, !child.now.unlisted)
	if w.chance(50) {
		child.attempts[child.now.schedule(w.wall())] = &modelAttempt{}
	}
}

// continueAsNew has a run, or a child, whose attempts have ended go on as another workflow with some of what it
// reaches.
func (w *world) continueAsNew() {
	run := w.pickRun(func(run *modelRun) bool {
		return goesOn(run) && len(run.attempts) == 0 && !slices.ContainsFunc(run.children, goesOn)
	})
	if run == nil {
		return
	}
	names, before := w.some(run, &modelAttempt{}), run.now
	before.end(w.wall(), enums.WORKFLOW_EXECUTION_STATUS_CONTINUED_AS_NEW)
	run.now = w.temporal.start(run.name, before.root, w.wall(), strings.Join(names, " "))
	run.now.unlisted = w.chance(50)
	run.now.follows(before)
	w.say("%s continues as new with %s", run.name, brief(names))
}

// endOne ends a run, with its children, or a child; false where there is none.
func (w *world) endOne() bool {
	run := w.pickRun(goesOn)
	if run == nil {
		return false
	}
	w.finishRun(run)
	return true
}

func (w *world) finishRun(run *modelRun) {
	w.say("%s ends", run.name)
	for _, one := range append([]*modelRun{run}, run.children...) {
		if goesOn(one) {
			one.now.end(w.wall(), enums.WORKFLOW_EXECUTION_STATUS_COMPLETED)
			one.ended = w.wall()
			clear(one.attempts)
		}
	}
}

// list brings Temporal's list to what there is.
func (w *world) list() {
	for _, one := range w.temporal.executions {
		one.unlisted = false
	}
}

// lose has Temporal lose all workflows of a run that is known.
func (w *world) lose() {
	run := w.pickRun(func(run *modelRun) bool { return run.root == nil && run.known && !run.lost })
	if run == nil || w.chance(50) {
		return
	}
	w.odd, run.lost = true, true
	w.temporal.executions = slices.DeleteFunc(w.temporal.executions, func(e *fakeExecution) bool {
		return e.root == run.name
	})
	w.say("Temporal loses %s", run.name)
}

func (w *world) die() {
	names := w.asked()
	if _, err := w.JetStream.Publish(w.test.Context(), "spillway.dead.p", []byte(strings.Join(names, " "))); err != nil {
		w.test.Fatal(err)
	}
	w.lasting = append(w.lasting, modelHolder{"a dead letter", names, time.Now().Add(w.Policy.KeepFor), true})
}

func (w *world) storeChain() {
	names := w.asked()
	err := os.MkdirAll(w.Chains, 0o700)
	if err == nil {
		name := filepath.Join(w.Chains, fmt.Sprintf("c@%d.json", len(w.lasting)))
		err = os.WriteFile(name, []byte(strings.Join(names, " ")), 0o600)
	}
	if err != nil {
		w.test.Fatal(err)
	}
	w.lasting = append(w.lasting, modelHolder{what: "a chain", names: names})
	w.say("a chain names %s", brief(names))
}

func (w *world) wait() {
	w.pass(pick(w, []time.Duration{
		10 * time.Minute, 10 * time.Minute, 2 * time.Hour, 2 * time.Hour, 3 * day, 3 * day, 20 * day,
	}))
}

// pass has some time pass.
func (w *world) pass(span time.Duration) {
	w.age()
	w.ran += span
	for _, one := range w.temporal.executions { // workflow tasks end within minutes
		one.tell()
	}
	for _, run := range w.runs {
		run.known = run.known || w.ran-run.since > lag/2 // the ledger hears of it within seconds
	}
	w.age()
}

// turnClock turns the clock ahead by years, back by hours, or as it should be.
func (w *world) turnClock() {
	w.age()
	w.skew = pick(w, []time.Duration{0, 0, -5 * time.Hour, -5 * time.Hour, 40 * day, 4000 * day})
	w.odd = w.odd || w.skew != 0
	w.say("the clock is turned")
	w.age()
}
