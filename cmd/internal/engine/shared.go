package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/activities/documents"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/hosts"
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
	return errors.Join(access.TakeIn(ctx, s.config.StateDir, s.shared), hosts.TakeIn(ctx, s.config.StateDir, s.shared))
}

// errOtherKeys says that another stack has this NATS.
func errOtherKeys(err error) error {
	return fmt.Errorf("%w: to be one more server of that stack, start on an empty state directory with --join URL "+
		"--token-file FILE, for which `spillway hosts token --server` there prints the token; else give this one another "+
		"NATS or an account of its own there; where the keys of that stack are lost, `nats kv rm %s` has hosts join anew "+
		"and tokens be made anew", err, wire.SharedBucket)
}
