package streams

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"
)

// What a stream and a bucket that have no bound of their own get on servers of somebody else, whose disk and memory
// they could fill otherwise. Full, they refuse what comes, and the publisher is told: events that were acknowledged
// never go for others. Servers set the whole bound aside, and have a quarter of the machine's memory for what is in
// memory, of which the engine has leases alone: some kilobytes for each host.
const (
	boundOfStream = 4 << 30
	boundOfBucket = 256 << 20
	boundInMemory = 32 << 20
)

// bounded gives a bucket a bound that has none.
func bounded(config jetstream.KeyValueConfig) jetstream.KeyValueConfig {
	switch {
	case config.MaxBytes > 0:
	case config.Storage == jetstream.MemoryStorage:
		config.MaxBytes = boundInMemory
	default:
		config.MaxBytes = boundOfBucket
	}
	return config
}

// Shared returns js so that streams and buckets are made for servers that somebody else runs: with as many replicas as
// given, at least 1, and each with a bound of bytes. Those that are there are used as they are as far as that works
// (see Settle), and need no right to change them then.
func Shared(js jetstream.JetStream, replicas int) jetstream.JetStream {
	return &shared{js, max(replicas, 1)}
}

type shared struct {
	jetstream.JetStream

	replicas int
}

// CreateStream makes a stream.
func (s *shared) CreateStream(ctx context.Context, config jetstream.StreamConfig) (jetstream.Stream, error) {
	config.Replicas = s.replicas
	if config.MaxBytes <= 0 {
		config.MaxBytes, config.Discard = boundOfStream, jetstream.DiscardNew
	}
	stream, err := s.JetStream.CreateStream(ctx, config)
	return stream, s.explain(config, err)
}

// CreateOrUpdateStream makes a stream, or has the one that is there be as wanted where it must.
func (s *shared) CreateOrUpdateStream(
	ctx context.Context, config jetstream.StreamConfig,
) (jetstream.Stream, error) {
	stream, err := s.JetStream.Stream(ctx, config.Name)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return s.CreateStream(ctx, config)
	case err != nil:
		return nil, err
	}
	settled, changed, err := Settle(config, stream.CachedInfo().Config)
	if err != nil || !changed {
		return stream, err
	}
	stream, err = s.UpdateStream(ctx, settled)
	return stream, s.explain(settled, err)
}

// CreateKeyValue makes a bucket.
func (s *shared) CreateKeyValue(
	ctx context.Context, config jetstream.KeyValueConfig,
) (jetstream.KeyValue, error) {
	config = bounded(config)
	config.Replicas = s.replicas
	bucket, err := s.JetStream.CreateKeyValue(ctx, config)
	return bucket, s.explain(ofBucket(config), err)
}

// CreateOrUpdateKeyValue makes a bucket, or has the one that is there be as wanted where it must.
func (s *shared) CreateOrUpdateKeyValue(
	ctx context.Context, config jetstream.KeyValueConfig,
) (jetstream.KeyValue, error) {
	wanted := ofBucket(config)
	stream, err := s.JetStream.Stream(ctx, wanted.Name)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return s.CreateKeyValue(ctx, config)
	case err != nil:
		return nil, err
	}
	settled, changed, err := Settle(wanted, stream.CachedInfo().Config)
	if err != nil {
		return nil, err
	}
	if changed {
		if _, err := s.UpdateStream(ctx, settled); err != nil {
			return nil, s.explain(settled, err)
		}
	}
	return s.KeyValue(ctx, config.Bucket)
}

// Codes of the server when a stream cannot be made:
// https://github.com/nats-io/nats-server/blob/main/server/errors.json
const (
	codeNoPeers             = 10005
	codeInsufficient        = 10023
	codeStorageExceeded     = 10047
	codeReplicasUnsupported = 10074
)

// explain says what to do where a stream could not be made or changed.
func (s *shared) explain(stream jetstream.StreamConfig, err error) error {
	refused, is := errors.AsType[*jetstream.APIError](err)
	if !is {
		return err
	}
	switch refused.ErrorCode { //nolint:exhaustive // all others say themselves what to do
	case codeReplicasUnsupported:
		return fmt.Errorf("%w: these servers are no cluster: leave --nats-replicas out, or give the URL of a cluster", err)
	case codeNoPeers, codeInsufficient, codeStorageExceeded:
		kind, of := "disk", "max_file_store"
		if stream.Storage == jetstream.MemoryStorage {
			kind, of = "memory", "max_memory_store"
		}
		return fmt.Errorf("%w: stream %s takes at most %d MiB of %s on each of %d servers; give their JetStream more (%s) "+
			"or the account more, ask for fewer --nats-replicas, or make the stream smaller beforehand with "+
			"`nats stream add %s --max-bytes`", err, stream.Name, stream.MaxBytes>>20, kind, s.replicas, of, stream.Name)
	}
	return err
}
