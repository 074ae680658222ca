package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.temporal.io/sdk/activity"

	"github.com/spillway-ml/spillway/activities/wait"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/gang"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/slot"
)

const (
	// askEvery is how often a gang is asked for that forms, watchEvery how often one that runs.
	askEvery   = 300 * time.Millisecond
	watchEvery = time.Second
	// verdictWait is how long a program on several hosts that has failed is held to have, until it is known whether a host
	// was lost: as long as a lease and some more.
	verdictWait = 20 * time.Second
	// brokenGrace is how long a program may go on whose gang is over on another host, as that sees it end.
	brokenGrace = 10 * time.Second
)

// joined is the gang of an attempt whose first host this is.
type joined struct {
	of    *gangs
	ask   gang.Ask
	hosts []gang.Member
	told  []byte
	// over has why the gang is over, once it is, and nothing of why where the others have all ended well.
	over chan gang.Gang

	mu     sync.Mutex
	others []share   // the hosts but this one
	since  time.Time // when what they hold changed last
	ended  bool      // the attempt has
}

// gangOf is what a command asks for; most is 1 where it is none.
func gangOf(task wire.Task, input json.RawMessage) (least, most int) {
	var c wire.Command
	if !task.Command || json.Unmarshal(input, &c) != nil {
		return 1, 1
	}
	return c.Gang()
}

// join waits for a gang that holds its room on all hosts, and takes that of this one. It is no gang where the host is
// in none and the command runs on one as well.
func (r *running) join(
	ctx context.Context, task wire.Task, input json.RawMessage, least, most int,
) (*joined, error) {
	a := r.agent
	order, err := json.Marshal(wire.GangOrder{
		Workflow: activity.GetInfo(ctx).WorkflowExecution.ID, Task: task, Attempt: r.try.Number, Command: input,
	})
	if err != nil {
		return nil, fmt.Errorf("encode what the hosts of a gang run: %w", err)
	}
	ask := gang.Ask{
		ID: gang.ID(task.Run, task.ID, r.try.Number), Host: a.id, Instance: a.currentInstance(),
		Given: wire.Given{ // which a server elsewhere replaces by what it knows
			Run: task.Run, Stage: task.Stage, Task: task.ID, Attempt: r.try.Number, PoolOnly: r.try.PoolOnly, At: a.now(),
		}.Encode(),
		Least: least, Most: min(most, gang.MostHosts), Size: r.grant, Order: order,
	}
	if err := ask.Validate(); err != nil {
		return nil, err
	}
	said := ""
	for {
		g, err := a.gangs.ways.Ask(ctx, ask)
		switch {
		case errors.Is(err, ErrRefused):
			return nil, err
		case err != nil && ctx.Err() == nil:
			a.logger.DebugContext(ctx, "a gang was not asked for; it is asked for again", "gang", ask.ID, "error", err)
		case err == nil && g.Waits != said && g.Waits != "":
			said = g.Waits
			a.logger.InfoContext(ctx, "an attempt waits for its gang", "gang", ask.ID, "reason", said)
		}
		if err == nil && g.Formed && g.Broken == "" {
			if room, devices, held := a.gangs.take(ask.ID); held {
				return r.joinedTo(g, ask, room, devices)
			}
		}
		if err == nil && (g.Formed || g.Broken != "") { // before it began, or its room here is given back
			_ = a.gangs.ways.Over(ctx, ask.ID, a.id) // it is asked for anew
		}
		if !wait.For(ctx, askEvery) {
			a.gangs.overSoon(ctx, ask)
			return nil, context.Cause(ctx)
		}
	}
}

// joinedTo takes what a formed gang holds here.
func (r *running) joinedTo(g gang.Gang, ask gang.Ask, room *reservation, devices *gpuHold) (*joined, error) {
	j := &joined{
		of: &r.agent.gangs, ask: ask, hosts: g.Members, since: r.agent.now(), over: make(chan gang.Gang, 1),
	}
	r.room, r.gpus = room, devices
	if len(g.Members) > 1 {
		r.agent.journal.Proofs.Put(r.try.Task.Run, r.try.Task.ID, r.try.Number, g.Proof)
	}
	for _, m := range g.Members[1:] {
		j.others = append(j.others, share{host: m.Host})
	}
	j.hold(g.Members, j.since)
	var err error
	if len(g.Members) > 1 {
		j.told, err = toldOf(gang.Wanted{Hosts: g.Members, Secret: g.Secret})
	}
	return j, err
}

// overSoon says that a gang is not needed any more, without waiting for long.
func (g *gangs) overSoon(ctx context.Context, ask gang.Ask) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastWord)
	defer cancel()
	if err := g.ways.Over(ctx, ask.ID, ask.Host); err != nil {
		g.agent.logger.DebugContext(ctx, "that a gang is over was not taken; it is over when nobody asks for it", "gang",
			ask.ID, "error", err)
	}
}

// end gives the other hosts back.
func (j *joined) end(ctx context.Context, now time.Time) {
	if j == nil {
		return
	}
	j.hold(nil, now)
	j.mu.Lock()
	j.ended = true
	j.mu.Unlock()
	j.of.overSoon(ctx, j.ask)
}

// share is what another host of a gang costs.
type share struct {
	host    string
	holds   bool           // its room, now
	perHour quantity.Money // while it holds it; else 0
	spent   quantity.Money // until the gang's since
	held    time.Duration  // until then, too
}

// until is what it has cost until now, and for how long it has held its room, where it has held as much since then.
func (s share) until(now, since time.Time) (cost quantity.Money, held time.Duration) {
	if !s.holds {
		return s.spent, s.held
	}
	more := max(now.Sub(since), 0)
	return s.spent.Plus(s.perHour.Prorated(quantity.Fraction{Of: int64(more), In: int64(time.Hour)})), s.held + more
}

// hold notes which members hold their room from now on, the first included, and reports whether some other does. Once
// the attempt is over nobody does.
func (j *joined) hold(members []gang.Member, now time.Time) (others bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.ended {
		return false
	}
	for i := range j.others {
		one := &j.others[i]
		one.spent, one.held = one.until(now, j.since)
		one.perHour, one.holds = 0, false
		at := slices.IndexFunc(members, func(m gang.Member) bool { return m.Host == one.host })
		if at > 0 && members[at].Phase == gang.Held {
			one.perHour, one.holds, others = members[at].PerHour, true, true
		}
	}
	j.since = now
	return others
}

// shares are the other hosts with what each has cost until now; nil where there are none.
func (j *joined) shares(now time.Time) (all []predictor.HostShare) {
	if j == nil {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, one := range j.others {
		cost, held := one.until(now, j.since)
		// One that left at once has held its part for a moment: 0 would be to the end.
		all = append(all, predictor.HostShare{Host: one.host, Cost: cost, Held: max(held, 1)})
	}
	return all
}

// perHour are the other hosts with what each costs per hour now; nil where there are none.
func (j *joined) perHour() (all []predictor.HostShare) {
	if j == nil {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, one := range j.others {
		all = append(all, predictor.HostShare{Host: one.host, PerHour: one.perHour})
	}
	return all
}

// cost is what the other hosts cost until now.
func (j *joined) cost(now time.Time) (all quantity.Money) {
	for _, one := range j.shares(now) {
		all = all.Plus(one.Cost)
	}
	return all
}

// perLook is what the other hosts cost in so long.
func (j *joined) perLook(every time.Duration) (all quantity.Money) {
	for _, one := range j.perHour() {
		all = all.Plus(one.PerHour.Prorated(quantity.Fraction{Of: int64(every), In: int64(time.Hour)}))
	}
	return all
}

// brokenError is why an attempt is not prepared to its end.
type brokenError struct{ gang gang.Gang }

func (e *brokenError) Error() string { return "the gang is over: " + e.gang.Broken }

// watch asks for the gang from when it has formed until stop is called, as one that nobody asks for is forgotten: also
// while the attempt is prepared, and while it ends after ctx has. Whole is ctx, and ends as well when the gang is over.
func (j *joined) watch(ctx context.Context) (whole context.Context, stop func()) {
	if j == nil || len(j.hosts) < 2 {
		return ctx, func() {}
	}
	whole, end := context.WithCancelCause(ctx)
	asking, enough := context.WithCancel(context.WithoutCancel(ctx))
	var watching sync.WaitGroup
	watching.Go(func() {
		if g, over := j.awaitEnd(asking); over {
			j.over <- g
			if g.Broken != "" {
				end(&brokenError{g})
			}
		}
	})
	return whole, func() { enough(); watching.Wait(); end(nil) }
}

// awaitEnd asks for the gang until it is over, and returns how it is; over is false where ctx ends first.
func (j *joined) awaitEnd(ctx context.Context) (_ gang.Gang, over bool) {
	for wait.For(ctx, watchEvery) {
		g, err := j.of.ways.Ask(ctx, j.ask)
		switch {
		case err != nil: // what is not known for too long the fence ends
		case g.Broken != "":
			return g, true
		case !g.Formed: // whoever decides has forgotten it
			return gang.Gang{Broken: "the gang was given up, as this host was not heard of for too long", Lost: true}, true
		case !j.hold(g.Members, j.of.agent.now()):
			return gang.Gang{}, true
		}
	}
	return gang.Gang{}, false
}

// watched is how the gang of a program is watched that runs.
type watched struct {
	of     *joined
	broken <-chan gang.Gang // nil where it has no gang
	gone   gang.Gang        // once it is over by what ran on another host
	over   <-chan time.Time // when the program has had its time since
}

// watched watches the gang while the program of the attempt runs.
func (j *joined) watched() watched {
	if j == nil {
		return watched{}
	}
	return watched{of: j, broken: j.over}
}

// breaks takes in that the gang is over, and reports whether the program is to be ended for it.
func (w *watched) breaks(f *finish, g gang.Gang) bool {
	switch {
	case g.Broken == "": // what happens from now on is this host's
		w.of = nil
		return false
	case f.stopped != "":
		return false
	case !g.Lost && w.over == nil: // it knows more of why, and may have ended well
		w.gone, w.over = g, time.After(brokenGrace)
		return false
	}
	f.broke(g)
	return true
}

// ended finds out whether a program that has failed did for what was on another host.
func (w *watched) ended(f *finish) {
	switch {
	case f.stopped != "" || !w.of.failed(f.exit):
	case w.over == nil:
		f.verdict(w.broken)
	case w.gone.Killed && f.kills == 0:
		f.broke(w.gone)
	}
}

// failed reports whether a program on several hosts has failed.
func (j *joined) failed(exit *status) bool {
	return j != nil && len(j.hosts) > 1 && (exit.code != 0 || exit.signal != 0)
}

// interrupt is how an attempt ends that was not prepared before its context ended.
func (r *running) interrupt(ctx context.Context, f *finish) {
	if broken, is := errors.AsType[*brokenError](context.Cause(ctx)); is {
		f.grant = r.held()
		f.broke(broken.gang)
		return
	}
	f.stopped, f.reason = slot.Stopped(ctx)
}

// broke is how an attempt ends whose gang is over.
func (f *finish) broke(g gang.Gang) {
	if g.Lost {
		f.stopped, f.cause, f.reason = predictor.Lost, predictor.CauseVenue, "the gang is over: "+g.Broken
		return
	}
	if g.Killed {
		f.kills++ // as if it had been here: each host holds as much
		return
	}
	f.stopped, f.reason = predictor.Failed, "the gang is over: "+g.Broken
}

// verdict waits until it is known whether a program that has failed did because a host was lost.
func (f *finish) verdict(broken <-chan gang.Gang) {
	timer := time.NewTimer(verdictWait)
	defer timer.Stop()
	select {
	case g := <-broken:
		if g.Lost || g.Killed {
			f.broke(g)
		}
	case <-timer.C:
	}
}
