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

// ErrRefused is what an Ask wraps whose gang this host may not have: asking again changes nothing.
var ErrRefused = errors.New("the server refuses it")

// reportEvery is how often a host says how it stands with its gangs, busyEvery where it is in one.
const (
	reportEvery = time.Second
	busyEvery   = 300 * time.Millisecond
)

// gangs are those that this host is in.
type gangs struct {
	agent   *Agent
	ways    Gangs
	address string // at which the others reach this host; empty where it is in none

	mu      sync.Mutex
	all     map[string]*membership // by ID
	dropped []string               // the IDs of those that go on without the part that this host held
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
	gone := g.report()
	g.reconcile(ctx, nil)
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastWord)
	defer cancel()
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
	for _, id := range g.dropped {
		all = append(all, gang.Told{ID: id, Phase: gang.Gone, Why: "the host holds its part no more"})
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
	g.dropped = nil
	for _, w := range wanted {
		m := g.all[w.ID]
		if m == nil && w.Start { // it was not wanted for a moment, as where a server answers that is behind
			if w.Number > 0 { // the first one's attempt sees itself
				g.dropped = append(g.dropped, w.ID)
			}
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
	var order wire.GangOrder
	var c wire.Command
	err := json.Unmarshal(w.Order, &order)
	if err == nil {
		err = json.Unmarshal(order.Command, &c)
	}
	if err != nil {
		return gang.Ended, fmt.Sprintf("what is to run does not decode: %v", err)
	}
	if a.declared == nil {
		return gang.Ended, slot.ErrUndeclared.Error()
	}
	err = a.declared(ctx, slot.Order{Workflow: order.Workflow, Task: order.Task, Command: c})
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
	workspace, err := command.Prepare(ctx, commands, c, activities.Ref{})
	if err != nil {
		return a.partFailed(err)
	}
	defer func() {
		if err := workspace.Remove(context.WithoutCancel(ctx)); err != nil {
			a.logger.WarnContext(ctx, "a workspace is left until the agent starts again", "gang", w.ID, "error", err)
		}
	}()
	socket, err := listener.File()
	if err != nil {
		return a.partFailed(err)
	}
	program, err := workspace.Program(command.Launch{
		Run: order.Task.Run, Stage: order.Task.Stage.Name, Task: order.Task.ID, Attempt: order.Attempt, Grant: w.Size,
		Devices: a.gpus.visible(devices), Extra: a.children.extra, Gang: told, Listener: socket,
	})
	if err != nil {
		return a.partFailed(errors.Join(err, socket.Close()))
	}
	return g.execute(ctx, w, order, workspace, program)
}

// partFailed is how the part of a member ends that could not be started. That there was no room on this host's disk is
// not the program's failure.
func (a *Agent) partFailed(err error) (ended gang.Phase, why string) {
	if isDiskFull(err) {
		a.lookAtDisk(true)
		return gang.Gone, err.Error()
	}
	return gang.Ended, err.Error()
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
	ctx context.Context, w gang.Wanted, order wire.GangOrder, workspace *command.Workspace, program *command.Program,
) (ended gang.Phase, why string) {
	a := g.agent
	group, err := a.children.group(ctx, w.Size)
	if err != nil {
		return a.partFailed(errors.Join(err, program.Discard()))
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
			return a.partFailed(errors.Join(err, program.Discard()))
		}
	}
	err = program.Start(func(cmd *exec.Cmd) error { return a.children.start(cmd, group.Start) })
	forwarded.started()
	if err != nil {
		forwarded.close()
		return a.partFailed(err)
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
