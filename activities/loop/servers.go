package loop

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/streams"
	"github.com/spillway-ml/spillway/activities/wire"
)

// ServerLease is how long a server counts as there after it last said so; it does so several times in that time.
const ServerLease = 10 * time.Second

// Server is a server of the stack, as it tells the others. Of several, one leads the loop; each answers for the API and
// lets hosts in.
type Server struct {
	// ID names the process, as no other.
	ID string `json:"id"`
	// Name is that of its machine.
	Name string `json:"name"`
	// Address is the host and port by which other machines reach it over TLS: its API, NATS and Temporal. Empty where it
	// has no such port.
	Address string `json:"address,omitempty"`
	// Origin tells its state directory from others, and is the same at each start there.
	Origin string `json:"origin,omitempty"`
	// Alone says why it can be no server beside others; empty where it can.
	Alone string `json:"alone,omitempty"`
	// Version is that of its program.
	Version string `json:"version"`
	// StartedAt is when it began to serve.
	StartedAt time.Time `json:"started_at"`
	// Term is that in which it leads, and LeadsSince when that began; zero while it does not.
	Term       uint64    `json:"term,omitempty"`
	LeadsSince time.Time `json:"leads_since,omitzero"`
	// Seen is when it said so last, by NATS's clock; List sets it.
	Seen time.Time `json:"-"`
}

// Servers is the list of the servers of the stack: each is in it for as long as it says so at least once per
// ServerLease. Its methods are safe for concurrent use.
type Servers struct{ bucket jetstream.KeyValue }

// listed is a server as the bucket holds it.
type listed struct {
	Version int    `json:"v"`
	Server  Server `json:"server"`
}

// NewServers returns the list in the bucket that EnsureStreams made.
func NewServers(ctx context.Context, js jetstream.JetStream) (*Servers, error) {
	bucket, err := js.KeyValue(ctx, wire.ServerBucket)
	if err != nil {
		return nil, fmt.Errorf("open bucket %s: %w", wire.ServerBucket, err)
	}
	return &Servers{bucket}, nil
}

// Put says that the server is there. Its ID has letters, digits and dashes only.
func (s *Servers) Put(ctx context.Context, server Server) error {
	data, err := json.Marshal(listed{wire.Version, server})
	if err == nil {
		_, err = s.bucket.Put(ctx, server.ID, data)
	}
	if err != nil {
		return fmt.Errorf("tell that server %s is there: %w", server.ID, err)
	}
	return nil
}

// Drop says that the server is no longer there; one that was not is fine.
func (s *Servers) Drop(ctx context.Context, id string) error {
	if err := s.bucket.Purge(ctx, id); err != nil {
		return fmt.Errorf("tell that server %s is no longer there: %w", id, err)
	}
	return nil
}

// List returns the servers that are there now, those that started first first. One of another version of the message is
// left out.
func (s *Servers) List(ctx context.Context) (servers []Server, err error) {
	ctx, cancel := context.WithTimeout(ctx, hostsWait)
	defer cancel()
	watcher, err := s.bucket.WatchAll(ctx, jetstream.IgnoreDeletes())
	if err != nil {
		return nil, fmt.Errorf("list servers: %w", err)
	}
	defer func() { _ = watcher.Stop() }()
	err = streams.ReadAll(ctx, watcher, func(entry jetstream.KeyValueEntry) {
		var value listed
		if json.Unmarshal(entry.Value(), &value) == nil && value.Version == wire.Version && value.Server.ID != "" {
			value.Server.Seen = entry.Created()
			servers = append(servers, value.Server)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("list servers: %w", err)
	}
	slices.SortFunc(servers, func(a, b Server) int {
		return cmp.Or(a.StartedAt.Compare(b.StartedAt), cmp.Compare(a.ID, b.ID))
	})
	return servers, nil
}
