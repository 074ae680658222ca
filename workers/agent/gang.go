package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os/exec"
	"slices"
	"sync"
	"time"

	"go.temporal.io/sdk/activity"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wait"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/gang"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/command"
	member "github.com/spillway-ml/spillway/workers/gang"
	"github.com/spillway-ml/spillway/workers/slot"
	"github.com/spillway-ml/spillway/workers/spawn"
)

// Gangs is who decides which hosts are a gang: see package predictor/gang. It is asked again and again, and each answer
// is all that holds.
type Gangs interface {
	// Ask asks for a gang, or how one stands that was asked for.
	Ask(ctx context.Context, ask gang.Ask) (gang.Gang, error)
	// Over says that a gang is not needed any more.
	Over(ctx context.Context, id, host string) error
	// Report says how a host stands with its gangs, and returns all that it is to hold or run.
	Report(ctx context.Context, report gang.Report) ([]gang.Wanted, error)
}

const (
	// askEvery is how often a gang is asked for that forms, watchEvery how often one that runs, and reportEvery how often
	// a host says how it stands with its gangs, busyEvery where it is in one.
	askEvery    = 300 * time.Millisecond
	watchEvery  = time.Second
	reportEvery = time.Second
	busyEvery   = 300 * time.Millisecond
	// verdictWait is how long a program on several hosts that has failed is held to have, until it is known whether a host
	// was lost: as long as a lease and some more.
	verdictWait = 20 * time.Second
	// brokenGrace is how long a program may go on whose gang is over on another host, as that sees it end.
	brokenGrace = 10 * time.Second
)

// gangOrder is what the other hosts of a gang run.
type gangOrder struct {
	Workflow string       `json:"workflow"`
	Task     wire.Task    `json:"task"`
	Attempt  int          `json:"attempt"`
	Command  wire.Command `json:"command"`
}

// gangs are those that this host is in.
type gangs struct {
	agent   *Agent
	ways    Gangs
	address string // at which the others reach this host; empty where it is in none

	mu      sync.Mutex
	all     map[string]*membership // by ID
	running sync.WaitGroup
}

// membership is what this host holds or runs for a gang.
type membership struct {
	id     string
	number int
	cancel context.CancelCauseFunc
	start  chan gang.Wanted // has what is to run, once

	mu      sync.Mutex
	told    gang.Told
	room    *reservation // of the first host, until its attempt has taken it
	gpus    *gpuHold
	started bool
	over    bool // nothing is held any more
}

// errReleased says that a gang is no more.
var errReleased = errors.New("the gang is over")

// run reports how this host stands, and does what is wanted of it, until ctx ends. All that is held is given back then.
func (g *gangs) run(ctx context.Context) {
	if g.ways == nil || g.address == "" {
		return
	}
	defer g.running.Wait()
	for ctx.Err() == nil {
		wanted, err := g.ways.Report(ctx, gang.Report{
			Host: g.agent.id, Instance: g.agent.currentInstance(), Gangs: g.report(),
		})
		if err == nil {
			g.reconcile(ctx, wanted)
		} else if ctx.Err() == nil {
			g.agent.logger.DebugContext(ctx, "how this host stands with its gangs was not taken", "error", err)
		}
		pause := reportEvery
		if g.count() > 0 {
			pause = busyEvery
		}
		wait.For(ctx, pause)
	}
	g.reconcile(ctx, nil)
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastWord)
	defer cancel()
	gone := g.report()
	for i := range gone {
		gone[i].Phase, gone[i].Why = gang.Gone, "the host takes no more tasks"
	}
	if len(gone) > 0 { // if it is not taken, its lease tells
		_, _ = g.ways.Report(last, gang.Report{Host: g.agent.id, Instance: g.agent.currentInstance(), Gangs: gone})
	}
}

// offered is the address of this host where it takes part in gangs.
func (g *gangs) offered() string {
	if g.ways == nil {
		return ""
	}
	return g.address
}

func (g *gangs) count() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.all)
}

// report is how this host stands with its gangs.
func (g *gangs) report() (all []gang.Told) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(g.all)) {
		m := g.all[id]
		m.mu.Lock()
		all = append(all, m.told)
		m.mu.Unlock()
	}
	return all
}

// reconcile begins to hold what is wanted and was not, starts what is to run, and gives back what is wanted no more.
func (g *gangs) reconcile(ctx context.Context, wanted []gang.Wanted) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for id, m := range g.all {
		if !slices.ContainsFunc(wanted, func(w gang.Wanted) bool { return w.ID == id }) {
			m.cancel(errReleased)
			delete(g.all, id)
		}
	}
	for _, w := range wanted {
		m := g.all[w.ID]
		if m == nil && w.Start { // of before this start of the agent: its room is gone
			continue
		}
		if m == nil {
			own, cancel := context.WithCancelCause(ctx)
			m = &membership{
				id: w.ID, number: w.Number, cancel: cancel, start: make(chan gang.Wanted, 1),
				told: gang.Told{ID: w.ID, Phase: gang.Asked},
			}
			if g.all == nil {
				g.all = map[string]*membership{}
			}
			g.all[w.ID] = m
			g.running.Go(func() { g.hold(own, m, w) })
		}
		if w.Start && m.number > 0 && !m.started {
			m.started = true
			m.start <- w
		}
	}
}

// say notes what is told next.
func (m *membership) say(phase gang.Phase, why string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.told.Phase, m.told.Why = phase, why
}

// hold waits for room, holds it, and runs what is wanted where this is not the first host.
func (g *gangs) hold(ctx context.Context, m *membership, w gang.Wanted) {
	a := g.agent
	waiting, cancel := context.WithTimeout(ctx, w.For)
	defer cancel()
	room, err := a.admission.reserve(waiting, w.Size)
	if err != nil {
		m.say(gang.Refused, "it has no room: "+err.Error())
		return
	}
	devices, err := a.gpus.take(waiting, needOf(w.Size, false), predictor.GPUHolder{Run: w.ID})
	if err != nil {
		room.release()
		m.say(gang.Refused, "it has no GPU: "+err.Error())
		return
	}
	if m.number == 0 {
		g.holdFirst(ctx, m, room, devices)
		return
	}
	defer room.release()
	defer a.gpus.give(devices)
	listener, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.ParseIP(g.address)})
	if err != nil {
		m.say(gang.Refused, fmt.Sprintf("it cannot listen at its address: %v", err))
		return
	}
	defer listener.Close() //nolint:errcheck // the program has a copy
	m.mu.Lock()
	m.told.Phase, m.told.Address = gang.Held, listener.Addr().String()
	m.told.PerHour = a.hourly(w.Size)
	m.mu.Unlock()
	select {
	case <-ctx.Done():
		return
	case w = <-m.start:
	}
	m.say(g.runMember(ctx, w, listener, devices))
}

// holdFirst holds the room of the first host until its attempt takes it.
func (g *gangs) holdFirst(ctx context.Context, m *membership, room *reservation, devices *gpuHold) {
	m.mu.Lock()
	m.room, m.gpus = room, devices
	m.told.Phase, m.told.Address = gang.Held, g.address
	m.mu.Unlock()
	<-ctx.Done()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.over = true; m.room != nil {
		m.room.release()
		g.agent.gpus.give(m.gpus)
	}
}

// take hands the room of a gang that is formed to the attempt on its first host; false where it is held no more.
func (g *gangs) take(id string) (room *reservation, devices *gpuHold, held bool) {
	g.mu.Lock()
	m := g.all[id]
	g.mu.Unlock()
	if m == nil {
		return nil, nil, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.over || m.room == nil {
		return nil, nil, false
	}
	room, devices, m.room, m.gpus = m.room, m.gpus, nil, nil
	return room, devices, true
}

// hourly is what it costs to hold a size here for an hour.
func (a *Agent) hourly(size quantity.Size) quantity.Money {
	return ledger.PoolCost(predictor.Host{PricePerHour: a.perHour(), Capacity: a.capacity()}, size, time.Hour)
}

// runMember runs the program of a gang on a host that is not its first, and says how it ended.
func (g *gangs) runMember(
	ctx context.Context, w gang.Wanted, listener *net.TCPListener, devices *gpuHold,
) (ended gang.Phase, why string) {
	a := g.agent
	var order gangOrder
	if err := json.Unmarshal(w.Order, &order); err != nil {
		return gang.Ended, fmt.Sprintf("what is to run does not decode: %v", err)
	}
	if a.declared == nil {
		return gang.Ended, slot.ErrUndeclared.Error()
	}
	err := a.declared(ctx, slot.Order{Workflow: order.Workflow, Task: order.Task, Command: order.Command})
	if err != nil {
		return gang.Ended, err.Error()
	}
	a.journal.Proofs.Put(order.Task.Run, order.Task.ID, order.Attempt, w.Proof)
	defer a.journal.Proofs.Drop(order.Task.Run, order.Task.ID, order.Attempt)
	told, err := toldOf(w)
	if err != nil {
		return gang.Ended, err.Error()
	}
	commands := a.commands
	commands.Assist = a.assist(ctx, w.Size)
	workspace, err := command.Prepare(ctx, commands, order.Command, activities.Ref{})
	if err != nil {
		return gang.Ended, err.Error()
	}
	defer func() {
		if err := workspace.Remove(context.WithoutCancel(ctx)); err != nil {
			a.logger.WarnContext(ctx, "a workspace is left until the agent starts again", "gang", w.ID, "error", err)
		}
	}()
	socket, err := listener.File()
	if err != nil {
		return gang.Ended, err.Error()
	}
	program, err := workspace.Program(command.Launch{
		Run: order.Task.Run, Stage: order.Task.Stage.Name, Task: order.Task.ID, Attempt: order.Attempt, Grant: w.Size,
		Devices: a.gpus.visible(devices), Extra: a.children.extra, Gang: told, Listener: socket,
	})
	if err != nil {
		return gang.Ended, errors.Join(err, socket.Close()).Error()
	}
	return g.execute(ctx, w, order, workspace, program)
}

// toldOf is what a program is told of its gang.
func toldOf(w gang.Wanted) ([]byte, error) {
	told := member.Told{Number: w.Number, Secret: w.Secret}
	for _, m := range w.Hosts {
		host := member.Host{Name: m.Host, Address: m.Address}
		if at, err := net.ResolveTCPAddr("tcp", m.Address); err == nil && at.Port > 0 {
			host.Address, host.Port = at.IP.String(), at.Port
		}
		told.Hosts = append(told.Hosts, host)
	}
	return json.Marshal(told)
}

// execute runs the program of a member to its end, or that of ctx.
func (g *gangs) execute(
	ctx context.Context, w gang.Wanted, order gangOrder, workspace *command.Workspace, program *command.Program,
) (ended gang.Phase, why string) {
	a := g.agent
	group, err := a.children.group(ctx, w.Size)
	if err != nil {
		return gang.Ended, errors.Join(err, program.Discard()).Error()
	}
	defer removeGroup(ctx, group)
	lines := a.output(wire.LogSource{
		Run: order.Task.Run, Stage: order.Task.Stage.Name, Task: order.Task.ID, Attempt: order.Attempt,
		Venue: predictor.Pool, Host: a.id,
	})
	printed := newOutput(a.logger.With("task", order.Task.ID))
	printed.attach(lines, nil) //nolint:contextcheck // Outputs do not wait
	program.Command.Stdout, program.Command.Stderr = &printed.out, &printed.err
	program.Command.WaitDelay = exitGrace
	var forwarded *pipes
	if a.children.user != nil {
		if forwarded, err = newPipes(program.Command, a.children.user); err != nil {
			return gang.Ended, errors.Join(err, program.Discard()).Error()
		}
	}
	err = program.Start(func(cmd *exec.Cmd) error { return a.children.start(cmd, group.Start) })
	forwarded.started()
	if err != nil {
		forwarded.close()
		return gang.Ended, err.Error()
	}
	a.logger.InfoContext(ctx, "this host is in a gang", "gang", w.ID, "number", w.Number, "size", w.Size.String())
	stop := context.AfterFunc(ctx, func() { endAll(ctx, group) })
	var following sync.WaitGroup
	following.Go(func() {
		workspace.Follow(context.WithoutCancel(ctx), program.Reports, command.Listener{ // what counts the first reports
			Progress: func(int, int, map[string]float64) {}, Checkpoint: func(activities.Ref) {},
			Training: func(predictor.Training) {}, Warn: func(string) {},
		})
		_ = program.Reports.Close() // it was only read
	})
	spawn.AwaitExit(program.Command.Process.Pid)
	stop()
	usage, look := group.Usage()
	endAll(ctx, group) // what it left running holds the pipes that Wait reads to their ends
	_ = program.Command.Wait()
	endAll(ctx, group)
	forwarded.close()
	_ = program.Ended()
	following.Wait()
	if err := closeOutput(ctx, lines); err != nil {
		a.logger.WarnContext(ctx, "the end of an attempt's output is lost", "gang", w.ID, "error", err)
	}
	switch status := statusOf(program.Command.ProcessState); {
	case status.code == 0 && status.signal == 0:
		return gang.Left, status.words
	case look == nil && usage.OutOfMemory > 0:
		return gang.Killed, fmt.Sprintf("it took more than its %s of memory and was killed", w.Size.Memory)
	default:
		return gang.Ended, status.words
	}
}

// joined is the gang of an attempt whose first host this is.
type joined struct {
	of    *gangs
	ask   gang.Ask
	hosts []gang.Member
	told  []byte

	mu     sync.Mutex
	others []share   // the hosts but this one
	since  time.Time // when what they hold changed last
	over   bool      // the attempt is
}

// gangOf is what a command asks for; most is 1 where it is none.
func gangOf(task wire.Task, input json.RawMessage) (c wire.Command, least, most int) {
	if !task.Command || json.Unmarshal(input, &c) != nil {
		return c, 1, 1
	}
	least, most = c.Gang()
	return c, least, most
}

// join waits for a gang that holds its room on all hosts, and takes that of this one. It is no gang where the host is
// in none and the command runs on one as well.
func (r *running) join(ctx context.Context, task wire.Task, c wire.Command, least, most int) (*joined, error) {
	a := r.agent
	order, err := json.Marshal(gangOrder{
		Workflow: activity.GetInfo(ctx).WorkflowExecution.ID, Task: task, Attempt: r.try.Number, Command: c,
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
		if err == nil && g.Broken != "" { // before it began
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
	j := &joined{of: &r.agent.gangs, ask: ask, hosts: g.Members, since: r.agent.now()}
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
	j.over = true
	j.mu.Unlock()
	j.of.overSoon(ctx, j.ask)
}

// share is what another host of a gang costs.
type share struct {
	host    string
	perHour quantity.Money // while it holds its room; else 0
	spent   quantity.Money // until the gang's since
}

// until is what it has cost until now, where it has held as much since then.
func (s share) until(now, since time.Time) quantity.Money {
	return s.spent.Plus(s.perHour.Prorated(quantity.Fraction{
		Of: int64(max(now.Sub(since), 0)), In: int64(time.Hour),
	}))
}

// hold notes which members hold their room from now on, the first included, and reports whether some other does. Once
// the attempt is over nobody does.
func (j *joined) hold(members []gang.Member, now time.Time) (others bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.over {
		return false
	}
	for i := range j.others {
		one := &j.others[i]
		one.spent, one.perHour = one.until(now, j.since), 0
		at := slices.IndexFunc(members, func(m gang.Member) bool { return m.Host == one.host })
		if at > 0 && members[at].Phase == gang.Held {
			one.perHour = members[at].PerHour
			others = true
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
		all = append(all, predictor.HostShare{Host: one.host, Cost: one.until(now, j.since)})
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

// watch tells why the gang is over, once it is, and nothing of why where the others have all ended well; it ends with
// ctx.
func (j *joined) watch(ctx context.Context) <-chan gang.Gang {
	broken := make(chan gang.Gang, 1)
	if j == nil || len(j.hosts) < 2 {
		return broken
	}
	go func() {
		for wait.For(ctx, watchEvery) {
			g, err := j.of.ways.Ask(ctx, j.ask)
			switch {
			case err != nil: // what is not known for too long the fence ends
			case g.Broken != "":
				broken <- g
				return
			case !g.Formed: // whoever decides has forgotten it
				broken <- gang.Gang{Broken: "the gang was given up, as this host was not heard of for too long", Lost: true}
				return
			case !j.hold(g.Members, j.of.agent.now()):
				broken <- gang.Gang{}
				return
			}
		}
	}()
	return broken
}

// watched is how the gang of a program is watched that runs.
type watched struct {
	of     *joined
	broken <-chan gang.Gang
	gone   gang.Gang        // once it is over by what ran on another host
	over   <-chan time.Time // when the program has had its time since
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
