// Package hosts keeps which hosts have joined an engine, what each shows since, and which take no new work.
//
// It is one file of the state directory, hosts.json, which no other process writes. A host whose entry is removed is
// unknown from then on: its token is made of what the entry holds.
package hosts

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/activities/access/safefile"
	"github.com/spillway-ml/spillway/cmd/internal/join"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// fileName is the file below the state directory.
const fileName = "hosts.json"

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
	// Seen is when it was seen last, as far as that was worth a write; Registry.seen knows more.
	Seen    time.Time `json:"seen,omitzero"`
	Drained bool      `json:"drained,omitempty"`
	// Proves says that it shows of each attempt of which it tells that it was given it, as it has said when it joined.
	Proves bool `json:"proves,omitempty"`
}

// Options configures a Registry. All fields are required.
type Options struct {
	Dir    string
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
	strange strangers

	changing sync.Mutex // held while an entry is changed, which asks NATS and writes the file

	mu      sync.Mutex
	members map[string]member    // by name; guarded by mu
	release map[string]func()    // of those that were let into NATS; guarded by mu
	seen    map[string]time.Time // when each had a lease last; guarded by mu
}

// Open reads who has joined, and lets them in.
func Open(options Options) (*Registry, error) {
	r := &Registry{
		options: options, members: map[string]member{}, release: map[string]func(){}, seen: map[string]time.Time{},
	}
	path := filepath.Join(options.Dir, fileName)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	var kept struct {
		Hosts []member `json:"hosts"`
	}
	if err == nil {
		err = json.Unmarshal(text, &kept)
	}
	if err != nil {
		return nil, fmt.Errorf("read which hosts have joined: %s: %w; put it back from a copy, or remove it: every host has "+
			"to join again then", path, err)
	}
	for _, m := range kept.Hosts {
		if join.CheckName(m.Name) != nil {
			continue // nobody has such a name
		}
		r.members[m.Name] = m
		if err := r.letIn(m); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// letIn lets a member into NATS, unless it is in.
func (r *Registry) letIn(m member) error {
	if m.Membership == "" || r.release[m.Name] != nil {
		return nil
	}
	release, err := r.options.Admit(m.Name, m.Proves)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.release[m.Name] = release
	return nil
}

// write keeps what is known. The caller holds changing.
func (r *Registry) write() error {
	r.mu.Lock()
	kept := struct {
		Hosts []member `json:"hosts"`
	}{}
	for name, m := range r.members {
		if seen := r.seen[name]; seen.After(m.Seen) {
			m.Seen = seen
		}
		kept.Hosts = append(kept.Hosts, m)
	}
	r.mu.Unlock()
	slices.SortFunc(kept.Hosts, func(a, b member) int { return strings.Compare(a.Name, b.Name) })
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetIndent("", "  ")
	err := encoder.Encode(kept)
	if err == nil {
		err = safefile.WriteFile(filepath.Join(r.options.Dir, fileName), text.Bytes(), 0o600, false)
	}
	if err != nil {
		return fmt.Errorf("note which hosts have joined: %w", err)
	}
	return nil
}

// set changes an entry and keeps it; nil removes it. What cannot be kept is not changed.
func (r *Registry) set(name string, to *member) error {
	r.mu.Lock()
	before, known := r.members[name]
	if to == nil {
		delete(r.members, name)
	} else {
		r.members[name] = *to
	}
	r.mu.Unlock()
	err := r.write()
	if err == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.members, name)
	if known {
		r.members[name] = before
	}
	return err
}

func (r *Registry) get(name string) (m member, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m, known = r.members[name]
	return m, known
}

// Of says of which host that has joined a token is.
func (r *Registry) Of(token string) (host string, known bool) {
	host = access.HostOf(token)
	m, _ := r.get(host)
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
	m, known := r.get(host)
	return known && m.Proves
}

// Mark says of each of the hosts that have a lease now whether it is drained, and remembers that it was seen, and with
// what: an agent that was not told how much memory to give measures that after it has joined.
func (r *Registry) Mark(living []predictor.Host) []predictor.Host {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.options.Now()
	for i, host := range living {
		living[i].Drained = host.Drained || r.members[host.ID].Drained // by its own word, or ours
		r.seen[host.ID] = now
		if m, known := r.members[host.ID]; known && host.Capacity != (quantity.Size{}) {
			m.Capacity = host.Capacity
			r.members[host.ID] = m
		}
	}
	return living
}

// Join lets a host in, or in again, which shows the join secret or its own token and comes from an address. The error
// is a *web.Error for who asks.
func (r *Registry) Join(ctx context.Context, bearer, from string, request join.Request) (token string, err error) {
	shown := credential{secret: r.options.Secret.Is(bearer)}
	if !r.strange.may(from, r.options.Now()) {
		return "", tooMany()
	}
	if !shown.secret {
		host, known := r.Of(bearer)
		if shown.token = known && host == request.Host; !shown.token {
			r.strange.failed(from, r.options.Now())
			r.options.Logger.WarnContext(ctx, "somebody who showed no token to join with wanted to", "from", from)
			return "", stranger()
		}
	}
	living, err := r.options.Living(ctx)
	if err != nil {
		return "", err
	}
	r.changing.Lock()
	defer r.changing.Unlock()
	before, known := r.get(request.Host)
	if shown.token && !r.IsHost(request.Host, bearer) { // it was removed meanwhile
		return "", stranger()
	}
	alive := slices.ContainsFunc(living, func(h predictor.Host) bool { return h.ID == request.Host })
	now := r.options.Now()
	itself := known && before.Instance == request.Instance
	// Only its own token vouches for what it says of its former self.
	follows := known && shown.token && request.Former != "" && request.Former == before.Instance
	if before.Proves && !request.Proves && shown.token {
		return "", older(request)
	}
	if err := admit(request, r.options, alive && !itself && !follows, now); err != nil {
		r.options.Logger.WarnContext(ctx, "a host may not join", "host", request.Host, "from", from, "error", err)
		return "", err
	}
	next := before
	next.Name, next.Instance, next.Version, next.Platform = request.Host, request.Instance, request.Version,
		request.Platform
	next.Capacity, next.Seen, next.Proves = request.Capacity, now, request.Proves
	if !shown.token {
		next.Joined = now
	}
	// One that cannot tell that the instance before it has ended may be on a copy of that one's directory: it has the
	// token alone from now on, and the other, if it lives, is cut off.
	if !shown.token || !itself && !follows {
		next.Membership = rand.Text()
	}
	if err := r.letIn(next); err != nil {
		return "", err
	}
	if err := r.set(request.Host, &next); err != nil {
		return "", err
	}
	// Who came with the token of before goes, and so do the rights that it had.
	if before.Membership != "" && (next.Membership != before.Membership || next.Proves != before.Proves) {
		r.letOut(request.Host)
		if err := r.letIn(next); err != nil {
			return "", err
		}
	}
	r.options.Logger.InfoContext(ctx, "a host has joined", "host", request.Host, "from", from, "version", request.Version,
		"platform", request.Platform, "anew", !shown.token)
	r.warnOfUnproven(ctx, request)
	return r.options.Keys.HostToken(request.Host, next.Membership), nil
}

// warnOfUnproven tells of a host whose agent is of a version before proofs.
func (r *Registry) warnOfUnproven(ctx context.Context, request join.Request) {
	if !request.Proves {
		r.options.Logger.WarnContext(ctx, "the host's agent is of a version that does not show which attempts it was given: "+
			"what it tells of others is believed; bring it to this version", "host", request.Host, "version", request.Version)
	}
}

// Drain has a host take no new work, or take some again.
func (r *Registry) Drain(ctx context.Context, name string, drained bool) error {
	living, err := r.options.Living(ctx)
	if err != nil {
		return err
	}
	r.changing.Lock()
	defer r.changing.Unlock()
	m, known := r.get(name)
	if !known && !slices.ContainsFunc(living, func(h predictor.Host) bool { return h.ID == name }) {
		return unknown(name)
	}
	m.Name, m.Drained = name, drained
	if m.Membership == "" && !drained { // of a host that has not joined that was all
		return r.set(name, nil)
	}
	return r.set(name, &m)
}

// Remove forgets a host: its token does not count any more, and it is disconnected from NATS.
func (r *Registry) Remove(name string) error {
	r.changing.Lock()
	defer r.changing.Unlock()
	m, known := r.get(name)
	switch {
	case name == r.options.Own:
		return web.Conflict("`spillway hosts drain` has it take no new work", "host %s is the engine's own", name)
	case !known || m.Membership == "":
		return unknown(name)
	}
	if err := r.set(name, nil); err != nil {
		return err
	}
	r.mu.Lock()
	delete(r.seen, name)
	r.mu.Unlock()
	r.letOut(name)
	return nil
}

// letOut disconnects a host from NATS.
func (r *Registry) letOut(name string) {
	r.mu.Lock()
	release := r.release[name]
	delete(r.release, name)
	r.mu.Unlock()
	if release != nil {
		release()
	}
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
	for name, m := range r.members {
		seen, state := m.Seen, web.HostJoined
		if r.seen[name].After(seen) {
			seen, state = r.seen[name], web.HostLost
		}
		found[name] = web.Host{
			Name: name, State: state, Version: m.Version, Platform: m.Platform, Capacity: m.Capacity, Joined: m.Joined,
			Seen: seen, Drained: m.Drained,
		}
	}
	for _, host := range living {
		h := found[host.ID]
		h.Name, h.State, h.Own, h.Drained = host.ID, web.HostUp, host.ID == r.options.Own, host.Drained
		h.Capacity, h.Used, h.Seen = host.Capacity, host.Capacity.Minus(host.Free), r.seen[host.ID]
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
