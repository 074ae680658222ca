package torch

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/spillway-ml/spillway/workers/spawn"
)

// usualIdle is how long a fork server stays that nobody forks from, while a context in which it was used goes on: a
// plan starts one process after the other.
const usualIdle = 10 * time.Second

// forks starts runners: each is forked from a Python process that has torch imported already, and does nothing else.
// That process is started when the first runner is, and ends when no runner is left and nobody is about to start one:
// the contexts of all that were started have ended, or it was idle for a while. The zero value is ready; it is safe for
// concurrent use.
type forks struct {
	idle time.Duration // 0 is usualIdle

	mu      sync.Mutex
	servers map[forkKind]*starting
}

// starting is a fork server that is there once done is closed, unless err says why not.
type starting struct {
	done   chan struct{}
	server *forkServer
	err    error
}

// start starts a runner that lives until close, the end of ctx or that of this process. The error says what the Python
// lacks.
func (f *forks) start(ctx context.Context, how launching) (*runner, error) {
	if err := spawn.CheckCPUs(how.cpus); err != nil {
		return nil, fmt.Errorf("start %s: %w", how.python, err)
	}
	s, err := f.server(ctx, how)
	if err != nil {
		return nil, err
	}
	r, err := s.fork(ctx, how)
	if err != nil {
		return nil, err
	}
	if err := r.ready(ctx); err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

// server returns a fork server of a kind, from which one runner may be forked. Who comes while it is started waits.
func (f *forks) server(ctx context.Context, how launching) (*forkServer, error) {
	for {
		s, first := f.entry(how.kind())
		if first {
			if s.server, s.err = startForkServer(ctx, how, cmp.Or(f.idle, usualIdle)); s.err == nil && !s.server.begin(ctx) {
				s.err = fmt.Errorf("fork a process that has torch: %w", s.server.why)
				s.server.stop()
			}
			if s.err != nil {
				s.server = nil
				f.forget(how.kind(), s)
			}
			close(s.done)
			return s.server, s.err
		}
		select {
		case <-s.done:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait until %s has imported torch: %w", how.python, context.Cause(ctx))
		}
		if s.err == nil && s.server.begin(ctx) {
			return s.server, nil
		}
		f.forget(how.kind(), s) // it is over, or was not started, for reasons that may be another's
	}
}

// entry is the server of a kind; first reports that nobody has started it.
func (f *forks) entry(kind forkKind) (s *starting, first bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s = f.servers[kind]; s != nil {
		return s, false
	}
	if f.servers == nil {
		f.servers = map[forkKind]*starting{}
	}
	s = &starting{done: make(chan struct{})}
	f.servers[kind] = s
	return s, true
}

// forget drops a server, unless another has taken its place.
func (f *forks) forget(kind forkKind, s *starting) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.servers[kind] == s {
		delete(f.servers, kind)
	}
}
