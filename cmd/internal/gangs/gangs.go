// Package gangs decides for the hosts of a stack which of them are a gang: it keeps what package gang decides in a
// document that all servers share, so that each of them can be asked.
package gangs

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"

	"github.com/spillway-ml/spillway/activities/documents"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/gang"
)

// document is the name of the one that has all gangs: one at a time forms, so there is one order of them.
const document = "all"

// Options configures a [Gangs]. All fields are required.
type Options struct {
	// Documents keep the state.
	Documents *documents.Set[gang.State]
	// Hosts returns the hosts that have a lease.
	Hosts func(ctx context.Context) ([]predictor.Host, error)
	// Secret is what the hosts of a gang know each other by, by its ID.
	Secret func(id string) string
	// Prove returns what shows a host's own words of an attempt to be of one that it was given, or as a member runs a part
	// of; given is a [wire.Given]. Others are the other hosts with what each costs per hour.
	Prove func(host string, given []byte, member bool, others []predictor.HostShare) string
	// Now is the clock of this server; those of others may be slow or fast.
	Now func() time.Time
}

// Gangs answers hosts. Its methods may be called concurrently.
type Gangs struct {
	options Options
	clock   clock

	mu    sync.Mutex
	hosts []gang.Host     // of the last look; guarded by mu
	at    time.Time       // guarded by mu
	since time.Time       // from when on it has looked without a long gap; guarded by mu
	seen  map[string]seen // by name, of those of the last looks; guarded by mu
}

// seen is a host as it had a lease last.
type seen struct {
	host gang.Host
	at   time.Time
}

// New returns one that knows the gangs of the documents.
func New(options Options) *Gangs { return &Gangs{options: options} }

// hostsFor is for how long a look at the hosts counts: they say how they stand every second.
const hostsFor = 500 * time.Millisecond

// missedFor is for how long a host without a lease may be there: NATS may have lost all leases at once, and hosts make
// new ones within a second. Meanwhile it is asked to hold nothing more.
const missedFor = 2 * time.Second

// look returns the hosts as they stand. Judges is false where it has not looked for long enough to know that one
// without a lease is missed: nobody has asked this server for a while, and all leases may be lost right now.
func (g *Gangs) look(ctx context.Context) (_ []gang.Host, judges bool, _ error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.options.Now()
	if now.Sub(g.at) >= hostsFor {
		leased, err := g.options.Hosts(ctx)
		if err != nil {
			return nil, false, fmt.Errorf("look which hosts there are: %w", err)
		}
		if now.Sub(g.at) >= missedFor {
			g.since = now
		}
		g.hosts, g.at = make([]gang.Host, 0, len(leased)), now
		last := g.seen
		g.seen = make(map[string]seen, len(leased))
		for _, h := range leased {
			one := gang.Host{
				ID: h.ID, Instance: h.Instance, Free: h.Free, Capacity: h.Capacity,
				Takes: h.TrainingAddress != "" && h.TakesWork() && len(h.Instance) <= gang.MostInstance,
			}
			g.hosts, g.seen[h.ID] = append(g.hosts, one), seen{one, now}
		}
		for name, one := range last {
			if _, there := g.seen[name]; !there && now.Sub(one.at) < missedFor {
				one.host.Takes = false
				g.hosts, g.seen[name] = append(g.hosts, one.host), one
			}
		}
	}
	return g.hosts, now.Sub(g.since) >= missedFor, nil
}

// errUnchanged ends a change that changes nothing.
var errUnchanged = errors.New("nothing changes")

// change applies what a host says, and what follows from it, and returns the state after, with times by the own clock.
func (g *Gangs) change(ctx context.Context, say func(gang.State, time.Time) gang.State) (gang.State, error) {
	hosts, judges, err := g.look(ctx)
	if err != nil {
		return gang.State{}, err
	}
	now := g.options.Now()
	var own gang.State // with times by the own clock
	next := func(state gang.State) gang.State {
		read, seen := g.clock.own(state, now)
		if own = say(read, now); judges {
			own = own.Decide(hosts, now)
		}
		return keptOf(own, seen)
	}
	before, _ := g.options.Documents.Get(document)
	if reflect.DeepEqual(before, next(before)) {
		return own, nil
	}
	err = g.options.Documents.Change(ctx, document, func(stored gang.State, _ bool) (gang.State, error) {
		after := next(stored)
		if reflect.DeepEqual(stored, after) {
			return after, errUnchanged
		}
		return after, nil
	})
	if err != nil && !errors.Is(err, errUnchanged) {
		return gang.State{}, err
	}
	return own, nil
}

// Ask asks for a gang, or how one stands that was asked for.
func (g *Gangs) Ask(ctx context.Context, ask gang.Ask) (gang.Gang, error) {
	if err := ask.Validate(); err != nil {
		return gang.Gang{}, err
	}
	state, err := g.change(ctx, func(s gang.State, now time.Time) gang.State { return s.Hear(ask, now) })
	if err != nil {
		return gang.Gang{}, err
	}
	found, is := state.Find(ask.ID)
	switch {
	case !is && state.Full(ask):
		return gang.Gang{Ask: ask, Waits: fmt.Sprintf("the servers know %d programs that run on several hosts or wait for "+
			"some, and have no room to note another; it has its place when some of them have ended", len(state.Gangs))}, nil
	case !is:
		return gang.Gang{Ask: ask, Waits: "host " + ask.Host + " has no lease"}, nil
	}
	if found.Formed {
		found.Secret = g.options.Secret(ask.ID)
		found.Proof = g.options.Prove(ask.Host, found.Given, false, others(found))
	}
	return found, nil
}

// Over says that a gang is not needed any more.
func (g *Gangs) Over(ctx context.Context, id, host string) error {
	_, err := g.change(ctx, func(s gang.State, _ time.Time) gang.State { return s.Over(id, host) })
	return err
}

// Report takes how a host stands with its gangs, and returns all that it is to hold or run.
func (g *Gangs) Report(ctx context.Context, report gang.Report) ([]gang.Wanted, error) {
	state, err := g.change(ctx, func(s gang.State, _ time.Time) gang.State {
		return s.Take(report.Host, report.Instance, report.Gangs)
	})
	if err != nil {
		return nil, err
	}
	wanted := state.Of(report.Host, report.Instance, g.options.Now())
	for i := range wanted {
		if wanted[i].Start {
			wanted[i].Secret = g.options.Secret(wanted[i].ID)
			wanted[i].Proof = g.options.Prove(report.Host, wanted[i].Given, true, nil)
		}
	}
	return wanted, nil
}

// others are the hosts of a gang but the first, with what it costs that each holds its room for an hour.
func others(of gang.Gang) (all []predictor.HostShare) {
	for i, m := range of.Members {
		if i > 0 {
			all = append(all, predictor.HostShare{Host: m.Host, PerHour: max(0, m.PerHour)})
		}
	}
	return all
}
