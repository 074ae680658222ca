package torch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/spillway-ml/spillway/workers/spawn"
)

// forkServer is a Python process from which runners are forked.
type forkServer struct {
	*runner
	passing int           // the socket through which descriptors are passed
	idleFor time.Duration // for how long it stays that nobody forks from

	asking sync.Mutex // guards the order of what is passed and what is asked

	state    sync.Mutex // guards what is below
	over     bool
	children int // those that are not collected
	contexts int // those that have not ended
	idle     *time.Timer
}

// startForkServer starts a Python and waits until it has imported what runners need.
func startForkServer(ctx context.Context, how launching, idle time.Duration) (_ *forkServer, err error) {
	path, err := exec.LookPath(how.python)
	if err != nil {
		return nil, fmt.Errorf("find Python: %w; install python3 or name another", err)
	}
	carried, err := texts()
	if err != nil {
		return nil, err
	}
	sockets, err := passingSockets()
	if err != nil {
		return nil, fmt.Errorf("make a socket to %s: %w", path, err)
	}
	theirs := os.NewFile(uintptr(sockets[1]), "passing")
	// It outlives the context of its first runner.
	r, err := launch(context.WithoutCancel(ctx), path, how, theirs)
	if err = errors.Join(err, theirs.Close()); err != nil {
		return nil, errors.Join(err, unix.Close(sockets[0]))
	}
	s := &forkServer{runner: r, passing: sockets[0], idleFor: idle}
	if err = r.write(carried); err == nil {
		err = r.ready(ctx)
	}
	if err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

// begin counts a runner that is about to be forked in a context; not where the server is over.
func (s *forkServer) begin(ctx context.Context) bool {
	s.state.Lock()
	defer s.state.Unlock()
	select {
	case <-s.gone: // somebody has killed it
		return false
	default:
	}
	if s.over {
		return false
	}
	s.children++
	s.contexts++
	context.AfterFunc(ctx, func() { s.less(func() { s.contexts-- }) })
	if s.idle != nil {
		s.idle.Stop()
	}
	return true
}

// less counts what is no more, and ends a server that nobody needs.
func (s *forkServer) less(count func()) {
	s.state.Lock()
	defer s.state.Unlock()
	count()
	switch {
	case s.over || s.children > 0:
	case s.contexts == 0:
		s.over = true
		go s.stop()
	case s.idle == nil:
		s.idle = time.AfterFunc(s.idleFor, func() {
			s.less(func() {
				if s.children == 0 {
					s.contexts = 0
				}
			})
		})
	default:
		s.idle.Reset(s.idleFor)
	}
}

// stop ends the server, and waits for its end.
func (s *forkServer) stop() {
	s.state.Lock()
	s.over = true
	if s.idle != nil {
		s.idle.Stop()
	}
	s.state.Unlock()
	s.close()
	s.asking.Lock()
	defer s.asking.Unlock()
	_ = unix.Close(s.passing)
	s.passing = -1
}

// fork forks a runner.
func (s *forkServer) fork(ctx context.Context, how launching) (*runner, error) {
	r, err := s.tryFork(ctx, how)
	if err != nil {
		s.less(func() { s.children-- })
		return nil, fmt.Errorf("fork a process that has torch: %w", err)
	}
	return r, nil
}

func (s *forkServer) tryFork(ctx context.Context, how launching) (_ *runner, err error) {
	var theirs, ours []*os.File
	defer func() {
		for _, file := range theirs {
			err = errors.Join(err, file.Close())
		}
		if err != nil {
			for _, file := range ours {
				_ = file.Close()
			}
		}
	}()
	for _, toThem := range []bool{true, false, false} { // requests, answers, what it prints
		read, write, err := os.Pipe()
		if err != nil {
			return nil, fmt.Errorf("make a pipe: %w", err)
		}
		if toThem {
			theirs, ours = append(theirs, read), append(ours, write)
		} else {
			theirs, ours = append(theirs, write), append(ours, read)
		}
	}
	passed := theirs
	if how.shared != nil {
		passed = append(slices.Clip(passed), how.shared)
	}
	p := &forked{server: s, printed: ours[2], printing: make(chan struct{})}
	if p.pid, p.ended, err = s.ask(ctx, passed, how.cpus); err != nil {
		return nil, err
	}
	printed := spawn.NewTail(how.logger)
	go func() {
		defer close(p.printing)
		_, _ = p.printed.WriteTo(printed) // until the process and all that it started have ended, or release
	}()
	return newRunner(ctx, how.python, p, ours[0], ours[1], printed, how.logger), nil
}

// ask has a process forked that has the files, and returns its number and where its end will be told.
func (s *forkServer) ask(ctx context.Context, files []*os.File, cpus []int) (pid int, ended chan answer, err error) {
	numbers := make([]int, len(files))
	for i, file := range files {
		numbers[i] = int(file.Fd())
	}
	id, answers := s.number()
	end, ended := s.number()
	err = func() error {
		s.asking.Lock()
		defer s.asking.Unlock()
		if err := unix.Sendmsg(s.passing, []byte{0}, unix.UnixRights(numbers...), nil, unix.MSG_NOSIGNAL); err != nil {
			return fmt.Errorf("pass it its files: %w", err)
		}
		return s.write(map[string]any{"id": id, "command": "fork", "end": end, "cpus": cpus})
	}()
	if err == nil { // whatever becomes of ctx, it is forked in milliseconds, and must be known to be collected
		err = s.await(context.WithoutCancel(ctx), id, answers, &pid)
	}
	if err != nil {
		s.forget(id)
		s.forget(end)
		return 0, nil, err
	}
	return pid, ended, nil
}
