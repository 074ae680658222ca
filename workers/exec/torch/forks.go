package torch

import (
	"bytes"
	"cmp"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/spillway-ml/spillway/workers/spawn"
)

// boot is what a Python is started with: it imports the package and forks processes that serve.
//
//go:embed boot.py
var boot string

//go:embed spillway_runner/*.py
var files embed.FS

// texts are the files of the package by path.
var texts = sync.OnceValues(func() (map[string]string, error) {
	paths, err := fs.Glob(files, "spillway_runner/*.py")
	if err != nil {
		return nil, fmt.Errorf("find the files of the runner: %w", err)
	}
	found := make(map[string]string, len(paths))
	for _, path := range paths {
		text, err := files.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("read the runner: %w", err)
		}
		found[path] = string(text)
	}
	return found, nil
})

// usualIdle is how long a fork server stays that nobody forks from, while a context in which it was used goes on: a
// plan starts one process after the other.
const usualIdle = 10 * time.Second

// launching says how a runner is started.
type launching struct {
	python  string
	threads int      // 0 leaves it to PyTorch
	cpus    []int    // nil pins nothing
	shared  *os.File // file descriptor 5 of the process; nil where it has none
	logger  *slog.Logger
}

// kind is what fork servers differ in: libraries count their threads as they are loaded.
func (l launching) kind() forkKind {
	if l.threads == 0 {
		l.threads = len(l.cpus)
	}
	return forkKind{l.python, l.threads}
}

type forkKind struct {
	python  string
	threads int
}

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
	sockets, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
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

// launch starts a Python whose file descriptor 5 is passing.
func launch(ctx context.Context, path string, how launching, passing *os.File) (*runner, error) {
	spawner, err := spawn.New(spawn.Options{})
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	theirIn, in, err := os.Pipe()
	if err != nil {
		spawner.Close()
		return nil, fmt.Errorf("make a pipe to %s: %w", path, err)
	}
	out, theirOut, err := os.Pipe()
	if err != nil {
		spawner.Close()
		return nil, errors.Join(fmt.Errorf("make a pipe from %s: %w", path, err), theirIn.Close(), in.Close())
	}
	printed := spawn.NewTail(how.logger)
	// -B: nothing is written beside the model.
	cmd := exec.Command(path, "-B", "-u", "-c", boot) //nolint:noctx // its runner ends it
	cmd.Env, cmd.Stdout, cmd.Stderr = environment(cmd.Environ(), how.kind().threads), printed, printed
	cmd.ExtraFiles, cmd.WaitDelay = []*os.File{theirIn, theirOut, passing}, exitGrace
	if err = errors.Join(spawner.Start(cmd), theirIn.Close(), theirOut.Close()); err != nil {
		spawner.Close()
		return nil, errors.Join(fmt.Errorf("start %s: %w", path, err), in.Close(), out.Close())
	}
	return newRunner(ctx, how.python, &spawned{cmd, spawner}, in, out, printed, how.logger), nil
}

// environment is that of a Python whose libraries are to have so many threads; 0 leaves it to them.
func environment(variables []string, threads int) []string {
	// Threads of OpenMP that spin while they wait take the cores of the other processes.
	variables = append(variables, "OMP_WAIT_POLICY=PASSIVE")
	// Each step frees what the next one allocates again. The C library would give it back to the system in between and
	// have it zeroed anew, which takes a tenth of a step.
	for name, size := range map[string]int{"MALLOC_TRIM_THRESHOLD_": 1 << 30, "MALLOC_MMAP_THRESHOLD_": 32 << 20} {
		if _, chosen := os.LookupEnv(name); !chosen {
			variables = append(variables, name+"="+strconv.Itoa(size))
		}
	}
	if threads > 0 {
		variables = append(variables, "OMP_NUM_THREADS="+strconv.Itoa(threads))
	}
	return variables
}

// spawned is a process that this one has started.
type spawned struct {
	cmd     *exec.Cmd
	spawner *spawn.Spawner
}

func (p *spawned) number() int { return p.cmd.Process.Pid }
func (p *spawned) awaitExit()  { awaitExit(p.cmd.Process.Pid) }
func (p *spawned) release()    { p.spawner.Close() }

func (p *spawned) collect() string {
	_ = p.cmd.Wait() // how it ended is in ProcessState
	return p.cmd.ProcessState.String()
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

// forked is a process that a fork server has forked.
type forked struct {
	server   *forkServer
	pid      int
	ended    chan answer
	printed  *os.File
	printing chan struct{} // closed when what it prints is read

	end struct {
		Code   *int            `json:"code"`
		Signal *syscall.Signal `json:"signal"`
	}
}

func (p *forked) number() int { return p.pid }

// awaitExit returns also when the server has ended: the system kills its children then.
func (p *forked) awaitExit() {
	select {
	case told := <-p.ended:
		_ = json.Unmarshal(told.Result, &p.end) // what it cannot be told is told as unknown
	case <-p.server.gone:
		for runs(p.pid) { // it was killed with the server, and hangs
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// runs reports whether a process is there and has not ended: one that has may wait for an init that collects nobody.
// Where the system does not tell, none runs.
func runs(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	after := stat[bytes.LastIndex(stat, []byte(") "))+1:] // its name may have that, too
	return len(after) > 1 && after[1] != 'Z' && after[1] != 'X'
}

func (p *forked) collect() string {
	_ = p.server.call(context.Background(), "collect", map[string]any{"process": p.pid}, nil) // else the server is gone
	_, _ = before(p.printing, exitGrace)
	switch {
	case p.end.Code != nil:
		return fmt.Sprintf("exit status %d", *p.end.Code)
	case p.end.Signal != nil:
		return "signal: " + p.end.Signal.String()
	default:
		return "killed with the process that it was forked from, which ended: " + p.server.why.Error()
	}
}

func (p *forked) release() {
	_ = p.printed.SetDeadline(time.Unix(1, 0)) // what has left the group may hold it open
	<-p.printing
	_ = p.printed.Close()
	p.server.less(func() { p.server.children-- })
}
