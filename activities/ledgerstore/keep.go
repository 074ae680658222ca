package ledgerstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/activities/wait"
	"github.com/spillway-ml/spillway/activities/wire"
)

const (
	// maxBatch is how many messages are written in one transaction.
	maxBatch = 1000
	// retryLeast and retryMost bound the wait before the ledger is opened, read or written again; it doubles. Each try
	// reads all minutes that are not closed, so that a disk that stays full must not be tried every second.
	retryLeast = time.Second
	retryMost  = 30 * time.Second
)

// kinds are the messages that say what was spent, and by whom.
var kinds = []wire.Kind{
	wire.KindRunStarted, wire.KindGoalChanged, wire.KindRunEnded, wire.KindReused, wire.KindHostHeld, wire.KindRecord,
}

// Keep takes in the loop's stream, from where the ledger is, until ctx ends or the connection was closed for good. What
// cannot be opened, read or written now, as on a full disk, is tried again: the stream keeps it meanwhile. A file that
// turns out to be damaged is put aside, and a new one takes in what the stream still has. Failing, where it is not nil,
// is called when a file was put aside, and once when the ledger could not be kept for about a minute.
func (s *Store) Keep(ctx context.Context, js jetstream.JetStream, failing func(error)) error {
	if failing == nil {
		failing = func(error) {}
	}
	pause, told := retryLeast, false
	for {
		err := s.follow(ctx, js, failing, func() { pause, told = retryLeast, false })
		if ctx.Err() != nil || errors.Is(err, nats.ErrConnectionClosed) {
			return fmt.Errorf("keep the ledger %s: %w", s.path, err)
		}
		s.fail(err)
		s.options.Logger.WarnContext(ctx, "the ledger could not be kept; it is tried again", "path", s.path, "wait", pause,
			"error", err)
		if pause == retryMost && !told {
			told = true
			failing(err)
		}
		if !wait.For(ctx, pause) {
			return fmt.Errorf("keep the ledger %s: %w", s.path, ctx.Err())
		}
		pause = min(2*pause, retryMost)
	}
}

// follow takes in the stream from where the ledger is, until something fails; taken is called whenever some was.
func (s *Store) follow(ctx context.Context, js jetstream.JetStream, failing func(error), taken func()) error {
	if err := s.restore(ctx); err != nil {
		return err
	}
	if lost := s.takeReplaced(); lost != nil {
		failing(lost)
	}
	if err := errors.Join(s.rewind(ctx, js), s.lookBack(ctx, js), s.prepare(ctx)); err != nil {
		return err
	}
	var batch []loop.Line
	wanted := &loop.FollowOptions{Kinds: kinds, NoSamples: true, Logger: s.options.Logger}
	return loop.Follow(ctx, js, s.Cursor()+1, wanted, func(line loop.Line) error {
		batch = append(batch, line)
		if line.More && len(batch) < maxBatch {
			return nil
		}
		if err := s.Take(ctx, batch); err != nil {
			return err
		}
		batch = batch[:0]
		taken()
		return nil
	})
}

// fail says why the ledger is not kept now, until messages are taken in again.
func (s *Store) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failure = err
	s.wake()
}

// takeReplaced returns once that a damaged file was put aside.
func (s *Store) takeReplaced() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	lost := s.replaced
	s.replaced = nil
	return lost
}

// rewind takes in the whole stream again where the ledger has followed another one: this one ends before the cursor, or
// has another message there. So it does after a power cut of which the file has more than the stream: NATS gives the
// sequences of the messages that it lost to new ones.
func (s *Store) rewind(ctx context.Context, js jetstream.JetStream) error {
	stream, err := js.Stream(ctx, wire.LoopStream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil // it is made anew behind the cursor
	}
	if err != nil {
		return fmt.Errorf("look up stream %s: %w", wire.LoopStream, err)
	}
	s.mu.RLock()
	cursor, stored := s.cursor, s.stored
	s.mu.RUnlock()
	if cursor == 0 {
		return nil
	}
	if last := stream.CachedInfo().State.LastSeq; last >= cursor {
		there, err := stream.GetMsg(ctx, cursor)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return nil // discarded since
		}
		if err != nil {
			return fmt.Errorf("look up message %d of stream %s: %w", cursor, wire.LoopStream, err)
		}
		if there.Time.Equal(stored) {
			return nil
		}
	}
	s.options.Logger.WarnContext(ctx, "the ledger is of another stream: all of this one is taken in", "sequence", cursor,
		"last", stream.CachedInfo().State.LastSeq)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cursor = 0
	return nil
}

// Take takes in messages of the loop's stream, in their order, and how far they reach: all of it or, with an error,
// nothing. What was taken in before changes nothing. Messages between the last that was taken in and the first of these
// are gone.
func (s *Store) Take(ctx context.Context, lines []loop.Line) (err error) {
	if len(lines) == 0 {
		return nil
	}
	s.writing.Lock()
	defer s.writing.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.usable || damaged(s.failure) { // a bill may have met the damage
		return s.failure
	}
	defer func() {
		if err != nil {
			s.failure = err
		}
	}()
	if s.book == nil {
		if s.book, err = readBook(ctx, s.db); err != nil {
			return err
		}
	}
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	w := &writer{tx: tx, book: s.book, hoursFrom: s.hoursFrom, statements: map[string]*sql.Stmt{}}
	if err = w.all(ctx, s.cursor, s.stored, lines); err == nil {
		err = s.settle(ctx, w, s.attempts+w.attempts)
	}
	if err == nil {
		err = w.sumAll(ctx)
	}
	if err == nil {
		err = setMeta(ctx, tx, metaAttempts, int64(s.attempts+w.attempts))
	}
	if err == nil {
		err = tx.Commit()
	} else {
		err = errors.Join(err, tx.Rollback())
	}
	if err != nil {
		s.book = nil // it knows what was not written
		return err
	}
	last := lines[len(lines)-1]
	s.attempts += w.attempts
	s.cursor, s.stored, s.failure = last.Sequence, last.Stored, nil
	s.wake()
	return nil
}
