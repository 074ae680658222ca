package engine

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"go.temporal.io/sdk/converter"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/activities/wait"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/host"
	"github.com/spillway-ml/spillway/cmd/internal/temporalproxy"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workers/slot"
)

const (
	// hostLook is how often it is looked which hosts have a lease.
	hostLook = time.Second
	// hostMisses is in how many looks in a row a host must have no lease before it counts as lost: NATS may have lost them
	// all, and hosts make new ones within a second.
	hostMisses = 2
	// tellsElsewhere is three times what passes between two words of a host that has nothing new to tell.
	tellsElsewhere = 30 * time.Second
	// giveBackFor bounds how long it is tried to give back what a lost host had in hand; Temporal misses the heartbeats by
	// then.
	giveBackFor = time.Minute
)

// inHand is what the hosts elsewhere have in hand, by their own word, so that it can be given back when one is lost.
// Nobody else remembers it: after a start of the engine it is Temporal that misses the heartbeats of hosts that were
// lost meanwhile. The zero value is empty; its methods may be called concurrently.
type inHand struct {
	mu    sync.Mutex
	hosts map[string]*handful // guarded by mu
}

// handful is what one host has in hand.
type handful struct {
	instance string
	sequence int // of its last word
	taken    []slot.Taken
	former   []string // instances before, the oldest first: what they say comes late
	told     time.Time
	misses   int // looks in a row in which it had no lease
}

// mostFormer is how many instances of a host are remembered whose word would come late.
const mostFormer = 16

// tell notes what a host has in hand by the word of this sequence of an instance, and returns what its former self had,
// which is lost. A word that comes behind a later one, or behind the next instance's, says nothing.
func (h *inHand) tell(
	name, instance string, sequence int, taken []slot.Taken, now time.Time,
) (lost []slot.Taken) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var former []string
	if before := h.hosts[name]; before != nil {
		former = before.former
		switch {
		case slices.Contains(former, instance), before.instance == instance && sequence < before.sequence:
			return nil
		case before.instance != instance:
			lost = before.taken
			former = append(former, before.instance)
			former = slices.Clone(former[max(0, len(former)-mostFormer):])
		}
	}
	if h.hosts == nil {
		h.hosts = map[string]*handful{}
	}
	h.hosts[name] = &handful{
		instance: instance, sequence: sequence, taken: taken, former: former, told: now,
	}
	return lost
}

// look takes in which hosts have a lease now, and which have given theirs back of late, and returns what those had in
// hand that are lost since. One that has given its lease back and had nothing in hand has stopped, and is not lost.
// Where there are several servers, a host that lives and has said nothing for tellsElsewhere tells another.
func (h *inHand) look(
	leased []predictor.Host, left map[string]time.Time, several bool, now time.Time,
) (lost map[string][]slot.Taken) {
	lives := make(map[string]bool, len(leased))
	for _, one := range leased {
		lives[one.ID] = true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	lost = map[string][]slot.Taken{}
	for name, has := range h.hosts {
		if _, stopped := left[name]; stopped && !lives[name] && len(has.taken) == 0 {
			delete(h.hosts, name)
			continue
		}
		if lives[name] || now.Sub(has.told) < loop.Lease { // its word is as good as a lease
			has.misses = 0
			if several && now.Sub(has.told) > tellsElsewhere {
				delete(h.hosts, name)
			}
			continue
		}
		if has.misses++; has.misses >= hostMisses {
			lost[name] = has.taken
			delete(h.hosts, name)
		}
	}
	return lost
}

// watchHosts gives back what hosts had in hand whose lease ended, until ctx ends.
func (e *Engine) watchHosts(ctx context.Context) {
	for wait.For(ctx, hostLook) {
		leased, err := e.leases.Hosts(ctx)
		if err != nil {
			continue // without NATS nobody knows
		}
		for name, taken := range e.inHand.look(leased, e.leases.Left(), len(e.serversThere()) > 1, time.Now()) {
			e.giveBack(name, taken, "its lease has ended")
		}
	}
}

// noteStopped notes which hosts have given their leases back, as the latest look at leases has found, until ctx ends.
// It is a loop of its own, since it may wait long for NATS, or for others that change the same documents.
func (e *Engine) noteStopped(ctx context.Context) {
	for wait.For(ctx, hostLook) {
		e.hosts.Left(ctx, e.leases.Left())
	}
}

// giveBack has the attempts of a host taken again that is lost. It does not wait for it.
func (f *front) giveBack(name string, taken []slot.Taken, reason string) {
	f.logger.Warn("a host is lost", "host", name, "reason", reason, "attempts", len(taken))
	f.working.Go(func() {
		ctx, cancel := context.WithTimeout(f.life, giveBackFor)
		defer cancel()
		slot.GiveBack(ctx, f.temporal, f.recorder, predictor.Pool, name, taken, f.logger)
	})
}

// answersHosts is what hosts elsewhere are answered with.
func (f *front) answersHosts() host.Serving {
	keys := f.servers.own.Keys()
	return host.Serving{
		Declared: f.declared, Secrets: f.secretsOf, Results: f.results, Superseded: f.superseded, Builds: f.builds,
		Given: func(name, proof string) (*wire.Given, error) { return shown(keys, f.hosts.Proves(name), name, proof) },
		Payload: func(ctx context.Context, digest string) (input json.RawMessage, err error) {
			payload, err := artifact.Payload(ctx, f.store, digest)
			if err == nil {
				err = converter.GetDefaultDataConverter().FromPayload(payload, &input)
			}
			return input, err
		},
		InHand: func(name, instance string, sequence int, taken []slot.Taken) {
			own := ownTasks(keys, f.hosts.Proves(name), name, taken, time.Now())
			if others := len(taken) - len(own); others > 0 {
				f.logger.Warn("a host tells of tasks that it was not given", "host", name, "tasks", others)
			}
			if lost := f.inHand.tell(name, instance, sequence, own, time.Now()); len(lost) > 0 {
				f.giveBack(name, lost, "it has started anew")
			}
		},
		Servers:   f.serverAddresses,
		Artifacts: f.store.relayed, Logger: f.logger,
	}
}

// supersededHere is told of checkpoints by the engine's own host, which shows no proof.
func (v *venues) supersededHere(_ string, older []activities.Ref, made time.Time) {
	v.superseded(older, made)
}

// shown is the attempt that a host shows that it was given; nil for a host of a version before proofs.
func shown(keys *access.Keys, proves bool, name, proof string) (*wire.Given, error) {
	if !proves {
		return nil, nil //nolint:nilnil // there is nothing to check
	}
	if proof == "" {
		return nil, errors.New("it does not show that the host was given the attempt")
	}
	given, genuine := wire.Opener(keys.OpenGiven)(name, proof)
	if !genuine {
		return nil, errors.New("what it shows is no proof that it was given the attempt")
	}
	return &given, nil
}

// ownTasks are those of taken that the host was given, each with the token that Temporal knows it by. The engine, which
// may end every task and tells what it cost, believes in no other: a host could make up those of others.
func ownTasks(keys *access.Keys, proves bool, name string, taken []slot.Taken, now time.Time) []slot.Taken {
	own := make([]slot.Taken, 0, len(taken))
	for _, one := range taken {
		task, genuine := temporalproxy.TaskToken(keys.OpenTask, name, one.Token)
		if !genuine {
			continue
		}
		proof, _ := wire.SplitProof(one.Token)
		given, err := shown(keys, proves, name, proof)
		if err == nil && given != nil {
			err = given.CheckRecord(one.Lost(predictor.Pool, name, now), 0, now)
		}
		if err != nil {
			continue
		}
		one.Token = task
		own = append(own, one)
	}
	return own
}
