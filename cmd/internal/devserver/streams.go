package devserver

import (
	"context"
	"errors"
	"os"

	"github.com/nats-io/nats.go/jetstream"
)

// Streams returns js so that no stream is made while NATS opens its store anew, and none that is on the disk is made
// with a first sequence. NATS says of streams that it has not read yet that there are none. Whoever makes such a one
// gets what is stored, unless a first sequence is asked for: then NATS deletes what comes before it. So such a one goes
// on with the sequence that it has.
func (s *Server) Streams(js jetstream.JetStream) jetstream.JetStream {
	return &streams{js, s.nats}
}

type streams struct {
	jetstream.JetStream

	nats *natsServer
}

// hold keeps the store open until release is called, and has what is left of a damaged stream be part of the one that
// is made.
func (s *streams) hold(stream string) (release func(), err error) {
	s.nats.opening.RLock()
	if err := s.nats.setAside(stream); err != nil {
		s.nats.opening.RUnlock()
		return nil, err
	}
	return s.nats.opening.RUnlock, nil
}

// CreateStream is that of JetStream; the first sequence counts only for a stream that is not stored.
func (s *streams) CreateStream(ctx context.Context, config jetstream.StreamConfig) (jetstream.Stream, error) {
	release, err := s.hold(config.Name)
	if err != nil {
		return nil, err
	}
	defer release()
	if config.FirstSeq > 0 {
		if _, err := os.Lstat(s.nats.streamDir(config.Name)); !errors.Is(err, os.ErrNotExist) {
			config.FirstSeq = 0
		}
	}
	return s.JetStream.CreateStream(ctx, config)
}

// CreateOrUpdateStream is that of JetStream.
func (s *streams) CreateOrUpdateStream(ctx context.Context, config jetstream.StreamConfig) (jetstream.Stream, error) {
	release, err := s.hold(config.Name)
	if err != nil {
		return nil, err
	}
	defer release()
	return s.JetStream.CreateOrUpdateStream(ctx, config)
}

// CreateKeyValue is that of JetStream.
func (s *streams) CreateKeyValue(ctx context.Context, config jetstream.KeyValueConfig) (jetstream.KeyValue, error) {
	release, err := s.hold("KV_" + config.Bucket)
	if err != nil {
		return nil, err
	}
	defer release()
	return s.JetStream.CreateKeyValue(ctx, config)
}

// CreateOrUpdateKeyValue is that of JetStream.
func (s *streams) CreateOrUpdateKeyValue(
	ctx context.Context, config jetstream.KeyValueConfig,
) (jetstream.KeyValue, error) {
	release, err := s.hold("KV_" + config.Bucket)
	if err != nil {
		return nil, err
	}
	defer release()
	return s.JetStream.CreateOrUpdateKeyValue(ctx, config)
}
