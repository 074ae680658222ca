package autoscaler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
)

const (
	// debounce is how long the leader waits after a message that asks for a decision: a Map schedules its tasks one hint
	// after another.
	debounce = 10 * time.Millisecond
	// leastGap keeps decisions to 20 a second, however many messages ask for one, and mostBusy keeps them to this part of
	// the time: with thousands of stages a tick takes longer than the gap, and what happened is to be folded meanwhile.
	leastGap = 50 * time.Millisecond
	mostBusy = 0.5
	// callWait bounds one call to NATS within a term, so that the leader sees in time that it fell silent.
	callWait = 2 * time.Second
	// checkpointEvery and checkpointAfter say when the state is saved: after this time, or after this many messages.
	checkpointEvery = 15 * time.Second
	checkpointAfter = 5000
)

// term is one leader while it leads. Its state belongs to the goroutine of serve.
type term struct {
	leader  *Leader
	log     *slog.Logger
	plan    *planWriter
	renewal *renewal
	saves   *checkpointStore
	windows *windows
	journal *journal
	stages  *rotation
	parts   hostPlans
	leads   bool // a plan of this term's own decision is in force

	state    predictor.State
	sequence uint64 // of the last message folded
	saved    uint64 // sequence of the last checkpoint
	target   uint64 // end of the stream when the term began; 0 when it was empty
	hosts    []predictor.Host
	quiet    time.Duration // ends the catching up when no message came for so long

	// unsent are decisions of plans that are not in force yet because posting failed; the next plan that is posted holds
	// their rows too.
	unsent []predictor.Decision
}

func newTerm(l *Leader, plan *planWriter, renewal *renewal, outside ports) *term {
	log := l.options.Logger.With("term", plan.term)
	t := &term{
		leader: l, log: log, plan: plan, renewal: renewal, quiet: quiet,
		windows: newWindows(outside.window, log),
		journal: newJournal(l.options.JetStream, log),
		stages:  newRotation(l.options.Stages),
		parts:   hostPlans{store: l.options.HostPlans},
	}
	t.stages.setActive(plan.inForce.Grants, time.Now())
	return t
}

// decide folds and decides until ctx ends or the term does; it returns why.
func (t *term) decide(ctx context.Context, messages <-chan read) error {
	regular := time.NewTicker(t.leader.options.TickEvery)
	defer regular.Stop()
	save := time.NewTicker(checkpointEvery)
	defer save.Stop()
	var soon <-chan time.Time // set while a message waits for its decision
	last, took := time.Now(), time.Duration(0)
	tick := func(regular bool) error {
		soon, last = nil, time.Now()
		err := t.tick(ctx, regular)
		took = time.Since(last)
		return err
	}
	if err := tick(true); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case next := <-messages:
			if t.fold(next) && soon == nil {
				soon = time.After(max(debounce, gap(took)-time.Since(last)))
			}
			if t.sequence >= t.saved+checkpointAfter {
				if err := t.save(ctx); err != nil {
					return err
				}
			}
		case <-soon:
			if err := tick(false); err != nil {
				return err
			}
		case <-regular.C:
			if err := tick(true); err != nil {
				return err
			}
		case <-save.C:
			if err := t.keep(ctx); err != nil {
				return err
			}
		}
	}
}

// gap is how long after the begin of a tick, which took so long, the next may begin that is asked for.
func gap(took time.Duration) time.Duration {
	return max(leastGap, time.Duration(float64(took)/mostBusy))
}

// tick decides once. Only a regular tick asks for the hosts and posts plans in which nothing but predictions changed.
// It returns an error only when the term is over.
func (t *term) tick(ctx context.Context, regular bool) error {
	var took Took
	began := time.Now()
	defer func() {
		took.Whole = time.Since(began)
		t.leader.options.Ticked(took)
	}()
	before := t.hosts
	if regular {
		t.refreshHosts(ctx)
		took.Hosts = time.Since(began)
	}
	if t.renewal.left() <= 0 {
		return ErrLeaseExpired
	}
	if higher := t.leader.higher.Load(); higher > t.plan.term {
		return fmt.Errorf("%w: %d", ErrSuperseded, higher)
	}
	var plan predictor.Plan
	deciding := time.Now()
	plan, t.state = predictor.Decide(t.state, predictor.Snapshot{
		Term: t.plan.term, Now: t.leader.options.Now(), Hosts: t.hosts, Functions: t.leader.options.Functions,
		Policy: t.leader.options.Policy, Teams: t.leader.options.Teams(),
	})
	took.Decide = time.Since(deciding)
	t.unsent = append(t.unsent, plan.Decisions...)
	changed := compare(t.plan.inForce, plan)
	if changed == holdings || changed == sizings && regular {
		posting := time.Now()
		err := t.post(ctx, plan)
		took.Post = time.Since(posting)
		if err != nil {
			return err
		}
	}
	if changed == unchanged {
		t.obey(ctx, plan)
	}
	if regular && (t.parts.behind() || !sameHosts(before, t.hosts)) {
		t.tellHosts(ctx, t.plan.inForce)
	}
	return nil
}

// tellHosts writes what each host obeys of the plan in force. What cannot be written is with the next regular tick.
func (t *term) tellHosts(ctx context.Context, plan predictor.Plan) {
	ctx, cancel := context.WithTimeout(ctx, callWait)
	defer cancel()
	if err := t.parts.write(ctx, plan, t.hosts); err != nil {
		t.log.WarnContext(ctx, "hosts do not all have the plan yet", "tick", plan.Tick, "error", err)
	}
}

// sameHosts reports whether these are the same hosts, however they stand.
func sameHosts(a, b []predictor.Host) bool {
	return slices.EqualFunc(a, b, func(x, y predictor.Host) bool { return x.ID == y.ID })
}

// post puts plan in force. When that fails for now, the next tick compares with what is in force and posts again.
func (t *term) post(ctx context.Context, plan predictor.Plan) error {
	plan.Decisions = t.unsent
	limited, cancel := context.WithTimeout(ctx, callWait)
	defer cancel()
	err := t.plan.post(limited, plan)
	if errors.Is(err, ErrSuperseded) {
		return err
	}
	if err != nil {
		t.leader.health.failed(err)
		t.log.WarnContext(ctx, "plan is not in force yet", "tick", plan.Tick, "error", err)
		return nil
	}
	t.tellHosts(ctx, plan)
	t.obey(ctx, plan)
	t.stages.setActive(plan.Grants, time.Now())
	return nil
}

// obey follows up a plan that is in force, also one that was before: rows of it may not have reached their runs.
func (t *term) obey(ctx context.Context, plan predictor.Plan) {
	t.leader.health.decided()
	t.publish(ctx)
	t.windows.obey(plan.Windows)
	t.lead(true)
}

// lead tells when this process begins and ends to lead: from when it first decided what is in force. The plan that a
// new term claims is the last leader's, and stays so while what happened meanwhile is taken in.
func (t *term) lead(leads bool) {
	if leads == t.leads {
		return
	}
	t.leads = leads
	term := t.plan.term
	if !leads {
		term = 0
	}
	t.leader.options.Leading(term)
}

// publish hands the decisions to the journal: what they say is in force.
func (t *term) publish(ctx context.Context) {
	for _, decision := range t.unsent {
		t.log.InfoContext(ctx, "decide", "id", decision.ID, "stage", decision.Stage, "venue", decision.Venue, "run",
			decision.Run,
			"what", decision.What, "from", decision.From, "to", decision.To, "reason", decision.Reason)
	}
	t.journal.add(t.unsent)
	t.unsent = nil
}

// refreshHosts asks for the hosts; when nobody answers, those of the last answer are still the best guess.
func (t *term) refreshHosts(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, callWait)
	defer cancel()
	hosts, err := t.leader.options.Hosts(ctx)
	if err != nil {
		t.log.DebugContext(ctx, "hosts are unknown", "error", err)
		return
	}
	t.hosts = hosts
}

// keep saves the state and looks whether somebody did something to the plan. It returns an error only when the term is
// over.
func (t *term) keep(ctx context.Context) error {
	if err := t.save(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callWait)
	defer cancel()
	err := t.plan.look(ctx)
	if errors.Is(err, ErrSuperseded) {
		return err
	}
	if err != nil {
		t.log.DebugContext(ctx, "the plan in force is unknown", "error", err)
	}
	return nil
}

// save writes a checkpoint when anything was folded since the last one. It returns an error only when the term is over;
// a checkpoint that cannot be written costs a longer tail at the next recovery, no more.
func (t *term) save(ctx context.Context) error {
	if t.sequence == t.saved {
		return nil
	}
	t.saved = t.sequence // also when it fails: the next try is due after another interval
	save := func() error {
		ctx, cancel := context.WithTimeout(ctx, callWait)
		defer cancel()
		return t.saves.save(ctx, checkpoint{Version: wire.Version, Term: t.plan.term, Sequence: t.sequence, State: t.state})
	}
	err := save()
	for forgotten := 1; errors.Is(err, errTooLarge) && forgotten > 0; err = save() {
		// A checkpoint that cannot be written any more loses all that the stream has no more.
		if t.state, forgotten = predictor.Lighten(t.state); forgotten > 0 {
			t.log.WarnContext(ctx, "what is known of the stages that ran longest ago is forgotten", "stages", forgotten,
				"because", err)
		}
	}
	if errors.Is(err, ErrSuperseded) {
		return err
	}
	if err != nil {
		t.log.WarnContext(ctx, "checkpoint is not saved", "sequence", t.sequence, "error", err)
	}
	return nil
}

// leave saves what the next leader needs, after ctx has ended in good order.
func (t *term) leave(ctx context.Context) {
	if err := t.save(context.WithoutCancel(ctx)); err != nil {
		t.log.DebugContext(ctx, "checkpoint is not saved", "error", err)
	}
}
