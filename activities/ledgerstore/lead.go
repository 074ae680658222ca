package ledgerstore

import (
	"context"
	"errors"
	"fmt"
)

var (
	// ErrStandby says that this server does not lead, and another writes.
	ErrStandby = errors.New("this server does not lead, and only who does writes the ledger")
	// ErrDeposed says that a server of a later term has written.
	ErrDeposed = errors.New("a server that leads in a later term has written the ledger since")
	// errTurned says that who writes has changed while the stream was followed.
	errTurned = errors.New("who writes the ledger has changed")
)

// isDeposed says whether an error is that another server writes.
func isDeposed(err error) bool { return errors.Is(err, ErrStandby) || errors.Is(err, ErrDeposed) }

// Lead says in which term this server leads from now on, and with 0 that it does not: it then writes nothing more, and
// follows what the one does that leads. It changes nothing for a ledger that is not Options.Led.
//
// The term is the fence: it is in the database, each transaction that writes compares it under the lock that all of
// them take, and none of a lower term writes. So a server that was suspended and believes that it leads still cannot.
func (s *Store) Lead(term uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.term != term {
		s.term = term
		s.turns++
	}
}

// turn returns how often who writes has changed, and whether this server leaves it to another.
func (s *Store) turn() (turns int, standsBy bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.turns, s.standsBy()
}

// standsBy says whether this server leaves writing to another. The caller holds mu.
func (s *Store) standsBy() bool { return s.options.Led && s.term == 0 }

// fence refuses to write where another server does, and notes the term of this one otherwise. Terms of two streams say
// nothing of each other: see shared.
func (s *Store) fence(ctx context.Context, w *writer) error {
	if !s.options.Led {
		return nil
	}
	s.mu.RLock()
	term, stream := s.term, s.stream
	s.mu.RUnlock()
	another := stream != 0 && w.at.stream != 0 && stream != w.at.stream
	switch {
	case term == 0:
		return ErrStandby
	case w.at.term > term && !another:
		if s.options.Deposed != nil {
			s.options.Deposed(w.at.term)
		}
		return fmt.Errorf("%w: %d, and this one leads in %d", ErrDeposed, w.at.term, term)
	case w.at.term == term:
		return nil
	}
	w.at.term = term
	return setMeta(ctx, w.tx, metaTerm, int64(term))
}
