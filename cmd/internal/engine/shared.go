package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/activities/documents"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/hosts"
	"github.com/spillway-ml/spillway/cmd/internal/payloads"
)

// openShared opens what the servers of a stack share, and takes in what an engine of before kept in files.
func (s *stores) openShared(ctx context.Context) (err error) {
	keys := s.servers.own.Keys()
	s.shared, err = documents.Open(ctx, s.stream, keys, s.logger)
	if errors.Is(err, documents.ErrOthers) {
		if len(s.config.NATS.URLs) > 0 {
			return errOtherKeys(err)
		}
		// The secret of the state directory was made anew, and nobody else has this NATS.
		s.logger.WarnContext(ctx, "the secret of the state directory is another one than before: hosts join anew, and "+
			"tokens that were made for others count no more")
		if err = s.stream.DeleteKeyValue(ctx, wire.SharedBucket); err == nil {
			s.shared, err = documents.Open(ctx, s.stream, keys, s.logger)
		}
	}
	if err != nil {
		return err
	}
	s.work("know what servers share", s.shared.Run)
	if err := errors.Join(access.TakeIn(ctx, s.config.StateDir, s.shared),
		hosts.TakeIn(ctx, s.config.StateDir, s.shared)); err != nil {
		return err
	}
	return s.useKeys(ctx)
}

// useKeys notes for all servers with which payload keys this one encrypts, before it does, and refuses to where one is
// missing.
func (s *stores) useKeys(ctx context.Context) error {
	server := payloads.Server{Dir: s.config.StateDir, ID: s.self.Origin, Name: s.self.Name}
	reopen := func(ctx context.Context) (*documents.Documents, error) {
		return documents.Open(ctx, s.stream, s.servers.own.Keys(), s.logger)
	}
	journal, err := payloads.OpenJournal(ctx, s.shared, reopen, server, s.servers.keys, s.servers.Retention(),
		s.config.Clock())
	if err != nil {
		return err
	}
	s.work("note which payload keys are used", func(ctx context.Context) error { return journal.Run(ctx, s.config.Clock) })
	return nil
}

// errOtherKeys says that another stack has this NATS.
func errOtherKeys(err error) error {
	return fmt.Errorf("%w: to be one more server of that stack, start on an empty state directory with --join URL "+
		"--token-file FILE, for which `spillway hosts token --server` there prints the token; else give this one another "+
		"NATS or an account of its own there; where the keys of that stack are lost, `nats kv rm %s` has hosts join anew "+
		"and tokens be made anew", err, wire.SharedBucket)
}
