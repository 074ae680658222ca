package ledgerstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/activities/wait"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor/ledger/spend"
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
			return fmt.Errorf("keep the ledger %s: %w", s, err)
		}
		if errors.Is(err, errTurned) {
			continue
		}
		if isDeposed(err) {
			s.options.Logger.InfoContext(ctx, "another server writes the ledger", "reason", err)
			wait.For(ctx, retryLeast)
			continue
		}
		s.fail(err)
		s.options.Logger.WarnContext(ctx, "the ledger could not be kept; it is tried again", "path", s.String(),
			"wait", pause, "error", err)
		if pause == retryMost && !told {
			told = true
			failing(err)
		}
		if !wait.For(ctx, pause) {
			return fmt.Errorf("keep the ledger %s: %w", s, ctx.Err())
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
	turn, standsBy := s.turn()
	if err := s.rewind(ctx, js); err != nil {
		return err
	}
	if !standsBy {
		if err := errors.Join(s.lookBack(ctx, js), s.prepare(ctx)); err != nil {
			return err
		}
	}
	var batch []loop.Line
	wanted := &loop.FollowOptions{Kinds: kinds, NoSamples: true, Logger: s.options.Logger}
	return loop.Follow(ctx, js, s.Cursor()+1, wanted, func(line loop.Line) error {
		batch = append(batch, line)
		if line.More && len(batch) < maxBatch {
			return nil
		}
		if now, _ := s.turn(); now != turn {
			return errTurned
		}
		if there, err := s.await(ctx, line.Sequence); err != nil {
			return err
		} else if !there {
			if err := s.Take(ctx, batch); err != nil {
				return err
			}
		}
		batch = batch[:0]
		taken()
		return nil
	})
}

// standbyEvery is how often a server that does not lead looks how far the one that does has kept the ledger.
const standbyEvery = 200 * time.Millisecond

// await waits, where another server is to take the stream in, until it has done so up to a sequence; there is false
// where this one is to do it.
func (s *Store) await(ctx context.Context, sequence uint64) (there bool, err error) {
	db, err := s.readable()
	if err != nil {
		return false, err
	}
	for last := uint64(0); ; {
		if _, standsBy := s.turn(); !standsBy {
			return false, nil
		}
		at, err := readProgress(ctx, db)
		if err != nil {
			return false, fmt.Errorf("look how far another server has kept the ledger: %w", err)
		}
		if at.cursor != last {
			last = at.cursor
			s.follows(at)
		}
		if at.cursor >= sequence {
			return true, nil
		}
		if !wait.For(ctx, standbyEvery) {
			return false, ctx.Err()
		}
	}
}

// follows notes how far another server has kept the ledger: its book is read when somebody asks for a bill.
func (s *Store) follows(at progress) {
	s.minutes.Lock()
	defer s.minutes.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at, s.book = at, nil
	s.wake()
}

// bounded has a change end within mostWriting where the database is on the other side of a network.
func (s *Store) bounded(ctx context.Context, change func(context.Context) error) error {
	if s.server == nil {
		return change(ctx)
	}
	bound, cancel := context.WithTimeout(ctx, mostWriting)
	defer cancel()
	err := change(bound)
	if err != nil && ctx.Err() == nil && bound.Err() != nil {
		return fmt.Errorf("the database has not written within %s: %w", mostWriting, err)
	}
	return explain(err)
}

// mostWriting is how long writing a batch of messages may take: a thousand take seconds where each question waits for a
// network of milliseconds.
const mostWriting = time.Minute

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
	s.mu.Lock()
	s.stream = spend.Nanoseconds(stream.CachedInfo().Created)
	at, err, standsBy := s.at, s.shared(s.at, false), s.standsBy()
	s.mu.Unlock()
	if err != nil || at.cursor == 0 || standsBy {
		return err
	}
	if last := stream.CachedInfo().State.LastSeq; last >= at.cursor {
		there, err := stream.GetMsg(ctx, at.cursor)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return nil // discarded since
		}
		if err != nil {
			return fmt.Errorf("look up message %d of stream %s: %w", at.cursor, wire.LoopStream, err)
		}
		if there.Time.Equal(at.stored) {
			return nil
		}
	}
	s.options.Logger.WarnContext(ctx, "the ledger is of another stream: all of this one is taken in",
		"sequence", at.cursor, "last", stream.CachedInfo().State.LastSeq)
	changed := false
	err = s.write(ctx, func(w *writer) error {
		if changed = w.at.cursor == at.cursor; !changed { // another server has found it out as well
			return nil
		}
		return errors.Join(setMeta(ctx, w.tx, metaCursor, 0),
			setMeta(ctx, w.tx, metaStream, spend.Nanoseconds(stream.CachedInfo().Created)))
	})
	if err != nil || !changed {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at.cursor, s.at.stream, s.claimed = 0, s.stream, s.stream
	return nil
}

// shared refuses a ledger that another stack keeps from a stream of its own: sequences of one are no sequences of the
// other. Who comes may take over what an engine before it has left, whose stream is gone, unless somebody is seen to
// write there. The caller holds mu.
func (s *Store) shared(at progress, moved bool) error {
	if at.stream == 0 || s.stream == 0 || at.stream == s.stream || at.stream == s.claimed {
		return nil
	}
	if s.claimed == 0 && !moved {
		return nil
	}
	return ErrShared
}

// Take takes in messages of the loop's stream, in their order, and how far they reach: all of it or, with an error,
// nothing. What was taken in before changes nothing. Messages between the last that was taken in and the first of these
// are gone.
func (s *Store) Take(ctx context.Context, lines []loop.Line) error {
	if len(lines) == 0 {
		return nil
	}
	s.writing.Lock()
	defer s.writing.Unlock()
	db, err := s.writable()
	if err != nil {
		return err
	}
	s.minutes.Lock()
	defer s.minutes.Unlock()
	var at progress
	var ahead bool
	err = s.bounded(ctx, func(ctx context.Context) (err error) {
		at, ahead, err = s.takeIn(ctx, db, lines)
		return err
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.book = nil // it knows what was not written
		if !isDeposed(err) {
			s.failure = err
		}
		return err
	}
	s.at, s.failure = at, nil
	if !ahead {
		s.claimed = at.stream
	}
	s.wake()
	return nil
}

// takeIn writes messages in one transaction, and returns how far the ledger is then. What another server has taken in
// since is left out; ahead says that it was all of it. The caller holds writing and minutes.
func (s *Store) takeIn(ctx context.Context, db *sql.DB, lines []loop.Line) (at progress, ahead bool, err error) {
	w, err := s.beginWriting(ctx, db)
	if err != nil {
		return at, false, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.tx.Rollback())
		}
	}()
	s.mu.RLock()
	known, stream := s.at.cursor, s.stream
	err = s.shared(w.at, w.at.cursor != known)
	s.mu.RUnlock()
	if err != nil {
		return at, false, err
	}
	if w.at.cursor != known {
		s.book = nil
		first := slices.IndexFunc(lines, func(line loop.Line) bool { return line.Sequence > w.at.cursor })
		if first < 0 {
			return w.at, true, w.tx.Commit()
		}
		lines = lines[first:]
	}
	if s.book == nil {
		if s.book, err = readBook(ctx, w.tx); err != nil {
			return at, false, err
		}
	}
	w.book = s.book
	if err = w.all(ctx, lines); err == nil {
		err = s.settle(ctx, w, w.at.attempts+w.attempts)
	}
	if err == nil {
		err = w.sumAll(ctx)
	}
	at = w.at
	at.attempts += w.attempts
	if err == nil {
		err = setMeta(ctx, w.tx, metaAttempts, int64(at.attempts))
	}
	if err == nil && stream != 0 && stream != at.stream {
		at.stream = stream
		err = setMeta(ctx, w.tx, metaStream, stream)
	}
	if err == nil {
		err = w.tx.Commit()
	}
	last := lines[len(lines)-1]
	at.cursor, at.stored = last.Sequence, last.Stored
	return at, false, err
}
