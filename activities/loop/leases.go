package loop

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/streams"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
)

// Leases is the inventory of hosts: each is in it for as long as it says so at least once per Lease.
// Its methods are safe for concurrent use.
type Leases struct {
	bucket jetstream.KeyValue
	plain  *regexp.Regexp
	logger *slog.Logger

	mu   sync.Mutex
	last []predictor.Host     // of the last answer; guarded by mu
	left map[string]time.Time // of the last answer; guarded by mu
	at   time.Time            // when that came; guarded by mu
}

// leased is a host as the bucket holds it.
type leased struct {
	Version int            `json:"v"`
	Host    predictor.Host `json:"host"`
}

// NewLeases returns the leases of the bucket that EnsureStreams made. A nil logger discards.
func NewLeases(ctx context.Context, js jetstream.JetStream, logger *slog.Logger) (*Leases, error) {
	bucket, err := js.KeyValue(ctx, wire.HostBucket)
	if err != nil {
		return nil, fmt.Errorf("open bucket %s: %w", wire.HostBucket, err)
	}
	return &Leases{
		bucket: bucket, plain: regexp.MustCompile(`^[A-Za-z0-9][-_A-Za-z0-9]*(\.[-_A-Za-z0-9]+)*$`),
		logger: cmp.Or(logger, slog.New(slog.DiscardHandler)),
	}, nil
}

// PutHost says that the host is there, as described, and renews its lease.
func (l *Leases) PutHost(ctx context.Context, host predictor.Host) error {
	if host.ID == "" {
		return errors.New("lease host: it has no ID")
	}
	data, err := json.Marshal(leased{wire.Version, host})
	if err != nil {
		return fmt.Errorf("lease host %s: %w", host.ID, err)
	}
	if _, err := l.bucket.Put(ctx, l.key(host.ID), data); err != nil {
		return fmt.Errorf("lease host %s: %w", host.ID, err)
	}
	return nil
}

// DropHost ends the lease of a host that leaves, so that nothing is placed there from now on. A host without a lease is
// fine.
func (l *Leases) DropHost(ctx context.Context, id string) error {
	if err := l.bucket.Purge(ctx, l.key(id)); err != nil {
		return fmt.Errorf("drop host %s: %w", id, err)
	}
	return nil
}

const (
	// hostsWait bounds one look at the bucket.
	hostsWait = 2 * time.Second
	// hostsKept is for how long the hosts of the last answer count where none comes: a cluster elects within it who leads
	// the bucket, and until it has no host can renew its lease.
	hostsKept = 15 * time.Second
)

// Hosts returns the hosts whose lease is valid now, sorted by ID, each with when NATS took its lease last as At; where
// nobody answers for the bucket, those of the last answer, if that is not older than fifteen seconds. A description
// that cannot be read is left out with a debug log line.
func (l *Leases) Hosts(ctx context.Context) ([]predictor.Host, error) {
	asked := time.Now()
	hosts, left, err := l.look(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err == nil:
		l.last, l.left, l.at = slices.Clone(hosts), left, asked
	case streams.IsAway(err) && ctx.Err() == nil && asked.Sub(l.at) < hostsKept:
		return slices.Clone(l.last), nil
	}
	return hosts, err
}

// Left returns the hosts that have given their lease back of late, as the last answer of Hosts showed, by ID, each with
// when it did: within one Lease of that a look shows it. One whose lease has run out is not among them.
func (l *Leases) Left() map[string]time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.left)
}

// look reads the bucket.
func (l *Leases) look(ctx context.Context) (hosts []predictor.Host, left map[string]time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, hostsWait)
	defer cancel()
	watcher, err := l.bucket.WatchAll(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("list hosts: %w", err)
	}
	defer func() { _ = watcher.Stop() }()
	err = streams.ReadAll(ctx, watcher, func(entry jetstream.KeyValueEntry) {
		if entry.Operation() != jetstream.KeyValuePut {
			if left == nil {
				left = map[string]time.Time{}
			}
			left[l.idOf(entry.Key())] = entry.Created()
			return
		}
		var value leased
		err := json.Unmarshal(entry.Value(), &value)
		if err == nil {
			err = wire.CheckText(value.Host.ID, wire.MaxName)
		}
		if err != nil || value.Version != wire.Version || value.Host.ID == "" {
			l.logger.DebugContext(ctx, "skip host", "key", entry.Key(), "version", value.Version, "error", err)
			return
		}
		value.Host.At = entry.Created()
		hosts = append(hosts, value.Host)
	})
	if err != nil {
		return nil, nil, fmt.Errorf("list hosts: %w", err)
	}
	slices.SortFunc(hosts, func(a, b predictor.Host) int { return cmp.Compare(a.ID, b.ID) })
	return hosts, left, nil
}

// key returns the bucket's key for a host: its ID where that is a key, else an encoding of it that no ID equals.
func (l *Leases) key(id string) string {
	if l.plain.MatchString(id) {
		return id
	}
	return encodedID + base64.RawURLEncoding.EncodeToString([]byte(id))
}

// encodedID begins the keys that are encodings of IDs.
const encodedID = "="

// idOf is the reverse of key; of a key that is none it is the key.
func (*Leases) idOf(key string) string {
	if text, is := strings.CutPrefix(key, encodedID); is {
		if id, err := base64.RawURLEncoding.DecodeString(text); err == nil {
			return string(id)
		}
	}
	return key
}
