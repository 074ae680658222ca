// Package hosts keeps which hosts have joined an engine, what each shows since, and which take no new work.
//
// Each is a document that all servers of a stack share, so that a host which joined at one is known at all. A host
// whose document is removed is unknown from then on: its token is made of what that holds.
package hosts

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/activities/documents"
	"github.com/spillway-ml/spillway/cmd/internal/join"
	"github.com/spillway-ml/spillway/cmd/internal/strangers"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// member is a host that has joined, or one that is drained.
type member struct {
	Name string `json:"name"`
	// Membership is what its token is made of; empty for a host that has not joined, such as the engine's own.
	Membership string        `json:"membership,omitempty"`
	Instance   string        `json:"instance,omitempty"`
	Version    string        `json:"version,omitempty"`
	Platform   string        `json:"platform,omitempty"`
	Capacity   quantity.Size `json:"capacity,omitzero"`
	Joined     time.Time     `json:"joined,omitzero"`
	// Seen is when it joined last; Registry.seen knows more.
	Seen    time.Time `json:"seen,omitzero"`
	Drained bool      `json:"drained,omitempty"`
	// Stopped is when it gave its lease back, as an agent that is told to end does; zero where it has not since it joined.
	Stopped time.Time `json:"stopped,omitzero"`
	// Proves says that it shows of each attempt of which it tells that it was given it, as it has said when it joined.
	Proves bool `json:"proves,omitempty"`
}

// Options configures a Registry. All fields are required.
type Options struct {
	// Shared are the documents of the stack.
	Shared *documents.Documents
	Keys   *access.Keys
	Secret *access.JoinSecret
	// Own is the name of the engine's own host, which no other may have.
	Own string
	// Version is that of the engine.
	Version string
	// Living returns the hosts that have a lease now.
	Living func(context.Context) ([]predictor.Host, error)
	// Admit lets a host into NATS until release is called. Proves says that it shows what it was given.
	Admit  func(host string, proves bool) (release func(), err error)
	Now    func() time.Time
	Logger *slog.Logger
}

// Registry is who has joined. Its methods may be called concurrently. Use Open.
type Registry struct {
	options Options
	strange *strangers.Limit
	members *documents.Set[member] // by name

	letting sync.Mutex // held while a host is let into NATS or out

	mu      sync.Mutex
	release map[string]func()        // of those that were let into NATS; guarded by mu
	seen    map[string]sighting      // when each had a lease last; guarded by mu
	room    map[string]quantity.Size // what each had then; guarded by mu
	// swept is when those were forgotten last that have stopped long ago, at first when this began: by the next time it
	// is known which of them have a lease; guarded by mu
	swept time.Time
}

// sighting is when a host was seen to have a lease last, by this server's clock, and when NATS had taken that lease.
type sighting struct{ leased, heard time.Time }

// Open returns who has joined, and lets them in, whichever server they join.
func Open(options Options) *Registry {
	r := &Registry{
		options: options, release: map[string]func(){}, seen: map[string]sighting{}, room: map[string]quantity.Size{},
		swept: options.Now(), strange: NewStrangers(),
	}
	r.members = documents.Of(options.Shared, kind, r.changed)
	return r
}

// kind is that of the documents of hosts.
const kind = "host"

// changed takes in that a host has joined, was drained or removed, at this server or another.
func (r *Registry) changed(name string, before, now *member) {
	if before != nil && before.Membership != "" &&
		(now == nil || now.Membership != before.Membership || now.Proves != before.Proves) {
		r.letOut(name) // who came with the token of before goes, and so do the rights that it had
	}
	if now == nil {
		r.mu.Lock()
		delete(r.seen, name)
		delete(r.room, name)
		r.mu.Unlock()
		return
	}
	if now.Membership == "" || join.CheckName(name) != nil { // nobody has such a name
		return
	}
	if err := r.letIn(name, now.Proves); err != nil {
		r.options.Logger.Error("a host that has joined is not let into NATS here", "host", name, "error", err)
	}
}

// letIn lets a host into NATS, unless it is in.
func (r *Registry) letIn(name string, proves bool) error {
	r.letting.Lock()
	defer r.letting.Unlock()
	r.mu.Lock()
	in := r.release[name] != nil
	r.mu.Unlock()
	if in {
		return nil
	}
	release, err := r.options.Admit(name, proves)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.release[name] = release
	return nil
}

// letOut disconnects a host from NATS.
func (r *Registry) letOut(name string) {
	r.letting.Lock()
	defer r.letting.Unlock()
	r.mu.Lock()
	release := r.release[name]
	delete(r.release, name)
	r.mu.Unlock()
	if release != nil {
		release()
	}
}

// Of says of which host that has joined a token is.
func (r *Registry) Of(token string) (host string, known bool) {
	host = access.HostOf(token)
	m, _ := r.members.Get(host)
	return host, host != "" && r.options.Keys.IsHostToken(host, m.Membership, token)
}

// IsHost says whether a host has joined and this is its token.
func (r *Registry) IsHost(host, token string) bool {
	of, known := r.Of(token)
	return known && of == host
}

// Proves says whether a host shows of each attempt of which it tells that it was given it: one of a version before does
// not.
func (r *Registry) Proves(host string) bool {
	m, known := r.members.Get(host)
	return known && m.Proves
}

// Unproven says whether a host has joined that does not show of each attempt of which it tells that it was given it:
// its agent is of a version before.
func (r *Registry) Unproven(host string) bool {
	m, known := r.members.Get(host)
	return known && m.Membership != "" && !m.Proves
}

// Mark says of each of the hosts that have a lease now whether it is drained, and remembers that it was seen, and with
// what: an agent that was not told how much memory to give measures that after it has joined.
func (r *Registry) Mark(living []predictor.Host) []predictor.Host {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.options.Now()
	for i, host := range living {
		m, _ := r.members.Get(host.ID)
		living[i].Drained = host.Drained || m.Drained // by its own word, or ours
		r.seen[host.ID] = sighting{leased: now, heard: host.At}
		if host.Capacity != (quantity.Size{}) {
			r.room[host.ID] = host.Capacity
		}
	}
	return living
}

const (
	// stoppedFor is for how long a host that has stopped is known: then it has to join again with a token.
	stoppedFor = 30 * 24 * time.Hour
	sweepEvery = time.Hour
)

// Left takes in which hosts have given their leases back, and when: they have stopped, and are not lost. One that does
// not come back for thirty days is forgotten, unless it is drained, which somebody has said. One that had a lease after
// that has not stopped.
func (r *Registry) Left(ctx context.Context, left map[string]time.Time) {
	for name, m := range r.members.All() {
		goesOn := func(m member) bool { return !m.Stopped.IsZero() && r.sighted(name).heard.After(m.Stopped) }
		if !goesOn(m) {
			continue
		}
		r.change(ctx, name, func(m member, known bool) (member, error) {
			if !known || !goesOn(m) {
				return m, errUnchanged
			}
			m.Stopped = time.Time{}
			return m, nil
		})
	}
	for name, at := range left {
		stops := func(m member, known bool) bool {
			since := m.Seen
			if last := r.sighted(name); last.leased.After(m.Seen) { // NATS told both, by one clock
				since = last.heard
			}
			return known && m.Membership != "" && at.After(since) && at.After(m.Stopped)
		}
		if m, known := r.members.Get(name); !stops(m, known) {
			continue
		}
		r.change(ctx, name, func(m member, known bool) (member, error) {
			if !stops(m, known) {
				return m, errUnchanged
			}
			m.Stopped = at
			return m, nil
		})
	}
	r.sweep(ctx)
}

// sweep forgets the hosts that stopped too long ago, now and then.
func (r *Registry) sweep(ctx context.Context) {
	now := r.options.Now()
	r.mu.Lock()
	due := now.Sub(r.swept) >= sweepEvery
	if due {
		r.swept = now
	}
	r.mu.Unlock()
	if !due {
		return
	}
	gone := func(m member) bool {
		return !m.Stopped.IsZero() && !m.Drained && now.Sub(m.Stopped) > stoppedFor &&
			m.Stopped.After(r.sighted(m.Name).heard)
	}
	for name, m := range r.members.All() {
		if gone(m) {
			r.change(ctx, name, func(m member, known bool) (member, error) {
				if !known || !gone(m) {
					return m, errUnchanged
				}
				return m, documents.Remove
			})
		}
	}
}

// sighted is when a host was seen to have a lease last; zero where it was not.
func (r *Registry) sighted(name string) sighting {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seen[name]
}

// errUnchanged ends a change that changes nothing.
var errUnchanged = errors.New("nothing changes")

// change changes what is known of a host; what fails is done again by the next look.
func (r *Registry) change(ctx context.Context, name string, next func(member, bool) (member, error)) {
	if err := r.members.Change(ctx, name, next); err != nil && !errors.Is(err, errUnchanged) && ctx.Err() == nil {
		r.options.Logger.DebugContext(ctx, "that a host has stopped is not noted", "host", name, "error", err)
	}
}

// asSeen is an entry with what was seen of its host since. The caller holds mu.
func (r *Registry) asSeen(m member) member {
	if heard := r.seen[m.Name].heard; heard.After(m.Seen) {
		m.Seen = heard
	}
	if room, known := r.room[m.Name]; known {
		m.Capacity = room
	}
	return m
}

// Join lets a host in, or in again, which shows the join secret or its own token and comes from an address. The error
// is a *web.Error for who asks.
func (r *Registry) Join(ctx context.Context, bearer, from string, request join.Request) (token string, err error) {
	shown := credential{secret: r.options.Secret != nil && r.options.Secret.Is(bearer)}
	if !r.strange.May(from, r.options.Now()) {
		return "", TooMany("spillway hosts token")
	}
	if !shown.secret {
		host, known := r.Of(bearer)
		if shown.token = known && host == request.Host; !shown.token {
			r.strange.Count(from, r.options.Now())
			r.options.Logger.WarnContext(ctx, "somebody who showed no token to join with wanted to", "from", from)
			return "", stranger()
		}
	}
	if err := join.CheckName(request.Host); err != nil { // it names the document
		return "", web.Invalid("choose another with --name", "%v", err)
	}
	living, err := r.options.Living(ctx)
	if err != nil {
		return "", err
	}
	alive := slices.ContainsFunc(living, func(h predictor.Host) bool { return h.ID == request.Host })
	now, fresh, membership := r.options.Now(), rand.Text(), ""
	err = r.members.Change(ctx, request.Host, func(before member, known bool) (member, error) {
		if shown.token && !r.options.Keys.IsHostToken(request.Host, before.Membership, bearer) { // it was removed meanwhile
			return before, stranger()
		}
		next, err := entered(before, known, shown, request, r.options, alive, now)
		if err == nil && next.Membership == "" {
			next.Membership = fresh
		}
		membership = next.Membership
		return next, err
	})
	if err == nil {
		err = r.letIn(request.Host, request.Proves)
	}
	if err != nil {
		r.options.Logger.WarnContext(ctx, "a host may not join", "host", request.Host, "from", from, "error", err)
		return "", err
	}
	r.mu.Lock()
	delete(r.room, request.Host) // it tells anew what it has
	r.mu.Unlock()
	r.options.Logger.InfoContext(ctx, "a host has joined", "host", request.Host, "from", from, "version", request.Version,
		"platform", request.Platform, "anew", !shown.token)
	r.warnOfUnproven(ctx, request)
	return r.options.Keys.HostToken(request.Host, membership), nil
}

// warnOfUnproven tells of a host whose agent is of a version before proofs.
func (r *Registry) warnOfUnproven(ctx context.Context, request join.Request) {
	if !request.Proves {
		r.options.Logger.WarnContext(ctx, "the host's agent is of a version that does not show which attempts it was given: "+
			"what it tells of others is believed, and it is given no task of a stage with secrets; "+
			"bring it to this version", "host", request.Host, "version", request.Version)
	}
}

// Drain has a host take no new work, or take some again.
func (r *Registry) Drain(ctx context.Context, name string, drained bool) error {
	living, err := r.options.Living(ctx)
	if err != nil {
		return err
	}
	lives := slices.ContainsFunc(living, func(h predictor.Host) bool { return h.ID == name })
	return r.members.Change(ctx, name, func(m member, known bool) (member, error) {
		if !known && !lives {
			return m, unknown(name)
		}
		m.Name, m.Drained = name, drained
		if m.Membership == "" && !drained { // of a host that has not joined that was all
			return m, documents.Remove
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if room, known := r.room[name]; known {
			m.Capacity = room
		}
		return m, nil
	})
}

// Remove forgets a host: its token does not count any more, and it is disconnected from NATS.
func (r *Registry) Remove(ctx context.Context, name string) error {
	if name == r.options.Own {
		return web.Conflict("`spillway hosts drain` has it take no new work", "host %s is the engine's own", name)
	}
	return r.members.Change(ctx, name, func(m member, known bool) (member, error) {
		if !known || m.Membership == "" {
			return m, unknown(name)
		}
		return m, documents.Remove
	})
}

// List returns all hosts: those that have joined and those that have a lease now.
func (r *Registry) List(ctx context.Context, plan predictor.Plan) ([]web.Host, error) {
	living, err := r.options.Living(ctx)
	if err != nil {
		return nil, err
	}
	living = r.Mark(living)
	r.mu.Lock()
	defer r.mu.Unlock()
	found := map[string]web.Host{}
	for name, m := range r.members.All() {
		state := web.HostJoined
		switch seen := r.seen[name]; {
		case m.Stopped.After(seen.heard):
			state = web.HostStopped
		case seen.leased.After(m.Seen):
			state = web.HostLost
		}
		m = r.asSeen(m)
		found[name] = web.Host{
			Name: name, State: state, Version: m.Version, Platform: m.Platform, Capacity: m.Capacity, Joined: m.Joined,
			Seen: m.Seen, Drained: m.Drained,
		}
	}
	for _, host := range living {
		h := found[host.ID]
		h.Name, h.State, h.Own, h.Drained = host.ID, web.HostUp, host.ID == r.options.Own, host.Drained
		h.DiskFull = host.DiskFull
		h.Capacity, h.Used, h.Seen = host.Capacity, host.Capacity.Minus(host.Free), r.seen[host.ID].heard
		if h.Own {
			h.Version = r.options.Version
		}
		found[host.ID] = h
	}
	for _, placed := range plan.Placements {
		if h, known := found[placed.Host]; known && placed.Slots > 0 {
			h.Stages = append(h.Stages, placed.Stage.App+"/"+placed.Stage.Name)
			found[placed.Host] = h
		}
	}
	all := make([]web.Host, 0, len(found))
	for _, h := range found {
		slices.Sort(h.Stages)
		h.Stages = slices.Compact(h.Stages)
		all = append(all, h)
	}
	slices.SortFunc(all, func(a, b web.Host) int { return cmp.Compare(a.Name, b.Name) })
	return all, nil
}
