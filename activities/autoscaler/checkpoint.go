package autoscaler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
)

const (
	// compressOver is the size, in bytes, from which a checkpoint is compressed; JSON shrinks to about a tenth.
	compressOver = 256 << 10
	// maxCheckpoint bounds a checkpoint, in bytes, after it was expanded: a damaged one must not take all memory.
	maxCheckpoint = 512 << 20
	// headerRoom is what the headers of a stored value take at most.
	headerRoom = 1 << 10
)

// errCheckpoint says that a checkpoint cannot be used; the stream can.
var errCheckpoint = errors.New("checkpoint cannot be used")

// errTooLarge says that a checkpoint is larger than what the server takes.
var errTooLarge = errors.New("too large")

// checkpoint is a state and how far into the stream it reaches.
type checkpoint struct {
	Version int `json:"v"`
	// Term is the term of the leader that saved it.
	Term uint64 `json:"term"`
	// Sequence is that of the last message folded into State.
	Sequence uint64          `json:"sequence"`
	State    predictor.State `json:"state"`
}

// encodeCheckpoint returns the bytes of c.
func encodeCheckpoint(c checkpoint) ([]byte, error) {
	data, err := json.Marshal(c)
	if err != nil || len(data) <= compressOver {
		return data, err
	}
	return wire.Compress(data)
}

// decodeCheckpoint is the inverse of encodeCheckpoint. Its errors wrap errCheckpoint.
func decodeCheckpoint(data []byte) (checkpoint, error) {
	data, err := wire.Expand(data, maxCheckpoint)
	if err != nil {
		return checkpoint{}, fmt.Errorf("%w: %w", errCheckpoint, err)
	}
	var outer struct {
		Version int `json:"v"`
	}
	if err := json.Unmarshal(data, &outer); err != nil {
		return checkpoint{}, fmt.Errorf("%w: %w", errCheckpoint, err)
	}
	if outer.Version != wire.Version {
		return checkpoint{}, fmt.Errorf("%w: %w: %d, this build reads %d", errCheckpoint, wire.ErrVersion, outer.Version,
			wire.Version)
	}
	var c checkpoint
	if err := json.Unmarshal(data, &c); err != nil {
		return checkpoint{}, fmt.Errorf("%w: %w", errCheckpoint, err)
	}
	if c.Term > wire.MaxTerm {
		return checkpoint{}, fmt.Errorf("%w: there is no term %d", errCheckpoint, c.Term)
	}
	return c, nil
}

// checkpointStore keeps the newest checkpoint.
type checkpointStore struct {
	bucket   jetstream.KeyValue
	revision uint64 // of the checkpoint that this store loaded or saved last; 0 when there is none
	term     uint64 // of the leader that saved it, whatever build it is of; 0 when there is none or it tells none
	limit    int64  // bytes that the server takes
	first    uint64 // sequence of the first message that the stream still has; 0 where that is unknown
}

func openCheckpoints(ctx context.Context, js jetstream.JetStream) (*checkpointStore, error) {
	bucket, err := js.KeyValue(ctx, wire.StateBucket)
	if err != nil {
		return nil, fmt.Errorf("open bucket %s: %w", wire.StateBucket, err)
	}
	return &checkpointStore{bucket: bucket, limit: js.Conn().MaxPayload()}, nil
}

// load returns the newest checkpoint; the zero checkpoint when there is none. It wraps errCheckpoint when there is one
// that cannot be used.
//
// A checkpoint that another build wrote is kept beside the ones that this build writes from then on. An earlier one
// cannot read these: who goes back to it finds what was known when it was left, and not only what the stream still has.
// A later one knew more than an earlier one can: who comes back to it goes on with what it knew itself where the stream
// still has all that came since, with the term of the newest.
func (s *checkpointStore) load(ctx context.Context) (checkpoint, error) {
	entry, err := s.bucket.Get(ctx, wire.StateKey)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		s.revision, s.term = 0, 0
		return checkpoint{}, nil
	}
	if err != nil {
		return checkpoint{}, fmt.Errorf("load checkpoint: %w", err)
	}
	c, err := decodeCheckpoint(entry.Value())
	told := head(entry.Value())
	s.revision, s.term = entry.Revision(), told.Term
	stored, own := told.State.Version, predictor.StateVersion
	switch {
	case err == nil && 0 < stored && stored < own:
		if _, err := s.bucket.Put(ctx, formerKey(stored), entry.Value()); err != nil {
			return checkpoint{}, fmt.Errorf("keep the checkpoint of an earlier build: %w", err)
		}
		former, found := s.former(ctx, own)
		if found && 0 < s.first && s.first <= former.Sequence+1 && former.Sequence <= c.Sequence {
			former.Term = s.term
			return former, nil
		}
	case err != nil && stored > own:
		if _, err := s.bucket.Put(ctx, formerKey(stored), entry.Value()); err != nil {
			return checkpoint{}, fmt.Errorf("keep the checkpoint of a later build: %w", err)
		}
		if former, found := s.former(ctx, own); found {
			former.Term = s.term
			return former, nil
		}
	}
	if err != nil {
		return checkpoint{}, fmt.Errorf("load checkpoint: %w", err)
	}
	return c, nil
}

// former is the checkpoint with a state of this version that was kept when another build took over.
func (s *checkpointStore) former(ctx context.Context, version int) (c checkpoint, found bool) {
	entry, err := s.bucket.Get(ctx, formerKey(version))
	if err != nil {
		return checkpoint{}, false
	}
	c, err = decodeCheckpoint(entry.Value())
	return c, err == nil
}

// formerKey has the last checkpoint whose state was of this version.
func formerKey(version int) string { return fmt.Sprintf("%s-v%d", wire.StateKey, version) }

// checkpointHead is what every build can read of a checkpoint, also of one with a state that only another understands.
type checkpointHead struct {
	Term  uint64 `json:"term"`
	State struct {
		Version int `json:"v"`
	} `json:"state"`
}

// head reads it; it is zero where data is no checkpoint.
func head(data []byte) (h checkpointHead) {
	data, err := wire.Expand(data, maxCheckpoint)
	if err != nil || json.Unmarshal(data, &h) != nil || h.Term > wire.MaxTerm {
		return checkpointHead{}
	}
	return h
}

// save replaces the checkpoint by c. It wraps ErrSuperseded when a leader of a later term has saved one.
func (s *checkpointStore) save(ctx context.Context, c checkpoint) error {
	data, err := encodeCheckpoint(c)
	if err != nil {
		return fmt.Errorf("save checkpoint: %w", err)
	}
	if s.limit > 0 && int64(len(data))+headerRoom > s.limit {
		return fmt.Errorf("save checkpoint: %w: it has %d bytes and the NATS server takes %d; raise max_payload", errTooLarge,
			len(data), s.limit)
	}
	for {
		revision, err := s.put(ctx, data)
		if err == nil {
			s.revision, s.term = revision, c.Term
			return nil
		}
		if !conflict(err) {
			return fmt.Errorf("save checkpoint: %w", err)
		}
		_, err = s.load(ctx)
		if err != nil && !errors.Is(err, errCheckpoint) {
			return fmt.Errorf("save checkpoint: %w", err)
		}
		if s.term > c.Term || errors.Is(err, wire.ErrVersion) {
			return fmt.Errorf("save checkpoint in term %d: %w: term %d", c.Term, ErrSuperseded, s.term)
		}
	}
}

func (s *checkpointStore) put(ctx context.Context, data []byte) (uint64, error) {
	if s.revision == 0 {
		return s.bucket.Create(ctx, wire.StateKey, data)
	}
	return s.bucket.Update(ctx, wire.StateKey, data, s.revision)
}
