package devserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/nats-io/nats.go/jetstream"
)

// ErrNotOpen says that a stream is on the disk, but NATS has not opened it: it may be about to, or the disk is full.
var ErrNotOpen = errors.New("the stream is stored and not open yet: it is tried again")

// Streams returns js so that no stream is made in the place of one that is on the disk. While NATS opens its store anew it says of streams that
// it has not read yet that there are none; whoever makes one then has NATS delete what is stored.
func (s *Server) Streams(js jetstream.JetStream) jetstream.JetStream {
	return &streams{js, filepath.Join(s.nats.store.StoreDir, "jetstream", "$G", "streams")}
}

type streams struct {
	jetstream.JetStream

	dir string // in which each stream that is stored has a directory
}

// check returns ErrNotOpen for a stream that is stored and that NATS does not know.
func (s *streams) check(ctx context.Context, name string) error {
	if _, err := os.Lstat(filepath.Join(s.dir, name, "meta.inf")); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if _, err := s.JetStream.Stream(ctx, name); errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("make stream %s: %w", name, ErrNotOpen)
	}
	return nil
}

// CreateStream is that of JetStream, of a stream that is not stored.
func (s *streams) CreateStream(ctx context.Context, config jetstream.StreamConfig) (jetstream.Stream, error) {
	if err := s.check(ctx, config.Name); err != nil {
		return nil, err
	}
	return s.JetStream.CreateStream(ctx, config)
}

// CreateOrUpdateStream is that of JetStream, of a stream that is open or not stored.
func (s *streams) CreateOrUpdateStream(ctx context.Context, config jetstream.StreamConfig) (jetstream.Stream, error) {
	if err := s.check(ctx, config.Name); err != nil {
		return nil, err
	}
	return s.JetStream.CreateOrUpdateStream(ctx, config)
}

// CreateKeyValue is that of JetStream, of a bucket that is not stored.
func (s *streams) CreateKeyValue(ctx context.Context, config jetstream.KeyValueConfig) (jetstream.KeyValue, error) {
	if err := s.check(ctx, "KV_"+config.Bucket); err != nil {
		return nil, err
	}
	return s.JetStream.CreateKeyValue(ctx, config)
}

// CreateOrUpdateKeyValue is that of JetStream, of a bucket that is open or not stored.
func (s *streams) CreateOrUpdateKeyValue(ctx context.Context, config jetstream.KeyValueConfig) (jetstream.KeyValue, error) {
	if err := s.check(ctx, "KV_"+config.Bucket); err != nil {
		return nil, err
	}
	return s.JetStream.CreateOrUpdateKeyValue(ctx, config)
}
