package autoscaler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/wait"
	"github.com/spillway-ml/spillway/activities/wire"
)

const (
	// leaseTime is how long the others leave a lease alone whose value does not change: the longest that nobody leads
	// after the leader's host was lost. A leader stops after half of it.
	leaseTime = 10 * time.Second
	// renewalsPerLease is how often a lease is renewed, and looked at by others: with ten, four renewals may be lost in a
	// row.
	renewalsPerLease = 10
)

// ErrLeaseLost says that another process has taken the lease.
var ErrLeaseLost = errors.New("another process holds the lease")

// lease is the value under wire.LeaseKey. Each renewal writes it again, and so gives it another revision; there is no
// time in it.
type lease struct {
	Version int `json:"v"`
	// Holder is the random ID of the process that leads; empty once it has given the lease up.
	Holder string `json:"holder"`
	// Server is the name of the server that the process is; empty where it did not say.
	Server string `json:"server,omitempty"`
}

// observation is the lease as one candidate sees it.
type observation struct {
	// revision is 0 when there is no lease.
	revision uint64
	// holder is who has it; empty when it was given up. A value that cannot be read is held by somebody unknown.
	holder string
	// server is the name of its server; empty where it did not say.
	server string
	// unchanged is for how long this revision has been seen, by the candidate's own monotonic clock.
	unchanged time.Duration
}

// unknownHolder stands for whoever wrote a lease that cannot be read.
const unknownHolder = "?"

// free reports whether candidate may take the lease. No two clocks are compared: what counts is that the candidate
// itself has seen nothing of the holder for as long as a lease lasts, while the holder stops after half of that without
// a renewal.
func (s observation) free(candidate string, lasts time.Duration) bool {
	return s.revision == 0 || s.holder == "" || s.holder == candidate || s.unchanged >= lasts
}

// leases is the lease as one process, named by id, deals with it. Its methods are for one goroutine at a time.
type leases struct {
	bucket   jetstream.KeyValue
	id       string
	server   string              // the name of this process's server
	renewed  func(server string) // is told when the lease of another process was seen renewed; nil tells nobody
	revision uint64              // of the lease while this process holds it
}

// openLeases opens the bucket of the lease, or makes it with as many replicas as the plan's. It is in memory: a lease
// of servers that were all started anew is void, since its holder can have renewed it nowhere. So the engine that
// follows a killed one on its state directory, where the directory's lock lets only one run, leads at once.
func openLeases(ctx context.Context, js jetstream.JetStream, id string) (*leases, error) {
	bucket, err := js.KeyValue(ctx, wire.LeaseBucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		bucket, err = makeLeases(ctx, js)
	}
	if err != nil {
		return nil, fmt.Errorf("open bucket %s: %w", wire.LeaseBucket, err)
	}
	return &leases{bucket: bucket, id: id}, nil
}

func makeLeases(ctx context.Context, js jetstream.JetStream) (jetstream.KeyValue, error) {
	replicas := 1
	if plans, err := js.Stream(ctx, "KV_"+wire.PlanBucket); err == nil {
		replicas = plans.CachedInfo().Config.Replicas
	}
	return js.CreateOrUpdateKeyValue(ctx, jetstream.KeyValueConfig{
		Bucket: wire.LeaseBucket, Description: "who leads the loop", History: 1,
		Storage: jetstream.MemoryStorage, Replicas: replicas,
	})
}

// look returns the lease as it is now.
func (l *leases) look(ctx context.Context) (observation, error) {
	entry, err := l.bucket.Get(ctx, wire.LeaseKey)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return observation{}, nil
	}
	if err != nil {
		return observation{}, fmt.Errorf("look at the lease: %w", err)
	}
	var value lease
	if err := json.Unmarshal(entry.Value(), &value); err != nil || value.Version != wire.Version {
		value.Holder = unknownHolder
	}
	return observation{revision: entry.Revision(), holder: value.Holder, server: value.Server}, nil
}

// put writes holder into the lease if it still has the given revision.
func (l *leases) put(ctx context.Context, holder string, revision uint64) error {
	value := lease{Version: wire.Version, Holder: holder}
	if holder != "" {
		value.Server = l.server
	}
	data, err := json.Marshal(value)
	if err != nil {
		return err
	}
	if revision == 0 {
		revision, err = l.bucket.Create(ctx, wire.LeaseKey, data)
	} else {
		revision, err = l.bucket.Update(ctx, wire.LeaseKey, data, revision)
	}
	if err == nil {
		l.revision = revision
	}
	return err
}

// campaign waits until the lease, which lasts as long as given, is this process's.
func (l *leases) campaign(ctx context.Context, lasts time.Duration) error {
	var seen observation
	since := time.Now()
	for {
		now, err := l.look(ctx)
		if err != nil {
			return err
		}
		if now.revision != seen.revision {
			if seen.revision > 0 && now.holder != "" && now.holder != l.id && l.renewed != nil {
				l.renewed(now.server)
			}
			seen, since = now, time.Now()
		}
		seen.unchanged = time.Since(since)
		if seen.free(l.id, lasts) {
			err := l.put(ctx, l.id, seen.revision)
			if err == nil {
				return nil
			}
			if !conflict(err) {
				return fmt.Errorf("take the lease: %w", err)
			}
		}
		if !wait.For(ctx, lasts/renewalsPerLease) {
			return ctx.Err()
		}
	}
}

// renew writes the lease again. It wraps ErrLeaseLost when another process holds it. A lease that was deleted or
// overwritten by something that is no lease, and one whose last renewal was stored without its answer, is still this
// process's.
func (l *leases) renew(ctx context.Context) error {
	err := l.put(ctx, l.id, l.revision)
	for conflict(err) {
		now, lookErr := l.look(ctx)
		switch {
		case lookErr != nil:
			return errors.Join(err, lookErr)
		case now.revision > 0 && now.holder != l.id && now.holder != unknownHolder:
			return fmt.Errorf("renew the lease: %w: %q", ErrLeaseLost, now.holder)
		}
		err = l.put(ctx, l.id, now.revision)
	}
	if err != nil {
		return fmt.Errorf("renew the lease: %w", err)
	}
	return nil
}

// release gives the lease up, so that the next leader need not wait.
func (l *leases) release(ctx context.Context) error {
	if err := l.put(ctx, "", l.revision); err != nil && !conflict(err) {
		return fmt.Errorf("give the lease up: %w", err)
	}
	return nil
}
