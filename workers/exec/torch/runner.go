package torch

import (
	"bufio"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spillway-ml/spillway/workers/spawn"
)

// boot is what a Python is started with: it imports the package and serves.
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

const (
	// mostAnswer bounds one answer of a runner: a model of a hundred thousand operations takes less.
	mostAnswer = 256 << 20
	// exitGrace is how long what the model printed may take to be read after its end.
	exitGrace = time.Second
	// untilStuck is how long a killed process may take to be gone: a driver takes its time with the memory of a GPU, and
	// one that hangs keeps the process for ever.
	untilStuck = 10 * time.Second
	// readyID is the number of the answer to the package.
	readyID = 0
)

// runner is a Python process that runs commands one after another. Its methods may be called concurrently.
type runner struct {
	python  string
	process *exec.Cmd
	spawner *spawn.Spawner
	in      *os.File // requests
	out     *os.File // answers
	printed *spawn.Tail
	logger  *slog.Logger
	release func() bool   // of the context
	gone    chan struct{} // closed when the process has ended and why is set
	why     error

	mu      sync.Mutex // guards what is below, and writes
	closing bool
	last    uint64                 // the number that was given last
	waiting map[uint64]chan answer // by number
}

type answer struct {
	ID     uint64          `json:"id"`
	Result json.RawMessage `json:"result"`
	Error  *ModelError     `json:"error"`
}

// launching says how a runner is started.
type launching struct {
	python  string
	threads int      // 0 leaves it to PyTorch
	cpus    []int    // nil pins nothing
	shared  *os.File // file descriptor 5 of the process; nil where it has none
	logger  *slog.Logger
}

// start starts a runner that lives until close, the end of ctx or that of this process. The error says what the Python
// lacks.
func start(ctx context.Context, how launching) (*runner, error) {
	path, err := exec.LookPath(how.python)
	if err != nil {
		return nil, fmt.Errorf("find Python: %w; install python3 or name another", err)
	}
	spawner, err := spawn.New(spawn.Options{CPUs: how.cpus})
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	r := &runner{
		python: path, spawner: spawner, printed: spawn.NewTail(how.logger), logger: how.logger,
		gone: make(chan struct{}), waiting: map[uint64]chan answer{readyID: make(chan answer, 1)},
	}
	if err := r.launch(ctx, path, how); err != nil {
		spawner.Close()
		return nil, err
	}
	go r.read(ctx)
	if err := r.boot(ctx); err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

func (r *runner) launch(ctx context.Context, path string, how launching) error {
	theirIn, in, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make a pipe to %s: %w", path, err)
	}
	out, theirOut, err := os.Pipe()
	if err != nil {
		return errors.Join(fmt.Errorf("make a pipe from %s: %w", path, err), theirIn.Close(), in.Close())
	}
	cmd := exec.CommandContext(ctx, path, "-B", "-u", "-c", boot) // -B: nothing is written beside the model
	// Threads of OpenMP that spin while they wait take the cores of the other processes.
	cmd.Env = append(cmd.Environ(), "OMP_WAIT_POLICY=PASSIVE")
	// Each step frees what the next one allocates again. The C library would give it back to the system in between and
	// have it zeroed anew, which takes a tenth of a step.
	for name, bytes := range map[string]int{"MALLOC_TRIM_THRESHOLD_": 1 << 30, "MALLOC_MMAP_THRESHOLD_": 32 << 20} {
		if _, chosen := os.LookupEnv(name); !chosen {
			cmd.Env = append(cmd.Env, name+"="+strconv.Itoa(bytes))
		}
	}
	if how.threads > 0 {
		cmd.Env = append(cmd.Env, "OMP_NUM_THREADS="+strconv.Itoa(how.threads))
	}
	cmd.ExtraFiles = []*os.File{theirIn, theirOut}
	if how.shared != nil {
		cmd.ExtraFiles = append(cmd.ExtraFiles, how.shared)
	}
	cmd.Stdout, cmd.Stderr = r.printed, r.printed
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = exitGrace
	err = errors.Join(r.spawner.Start(cmd), theirIn.Close(), theirOut.Close())
	if err != nil {
		return errors.Join(fmt.Errorf("start %s: %w", path, err), in.Close(), out.Close())
	}
	r.process, r.in, r.out = cmd, in, out
	// A process that left the group may hold the pipes open; nobody waits for it.
	r.release = context.AfterFunc(ctx, func() {
		past := time.Unix(1, 0)
		_ = errors.Join(in.SetDeadline(past), out.SetDeadline(past)) // they are closed already if this fails
	})
	return nil
}

// boot sends the package and waits until it is imported.
func (r *runner) boot(ctx context.Context) error {
	carried, err := texts()
	if err != nil {
		return err
	}
	var ready struct {
		Torch string `json:"torch"`
	}
	r.mu.Lock()
	result := r.waiting[readyID]
	r.mu.Unlock()
	if err := r.write(carried); err != nil {
		return err
	}
	if err := r.await(ctx, readyID, result, &ready); err != nil {
		return err
	}
	r.logger.DebugContext(ctx, "torch runner is ready", "python", r.python, "torch", ready.Torch, "pid",
		r.process.Process.Pid)
	return nil
}

// call runs a command with the fields of request and reads its result, which may be nil. An error of the model is a
// [*ModelError]. When ctx ends first, the command goes on and its answer is dropped.
func (r *runner) call(ctx context.Context, command string, request map[string]any, result any) error {
	if ctx.Err() != nil {
		return fmt.Errorf("ask %s: %w", r.python, context.Cause(ctx))
	}
	id, answers := r.number()
	request["id"], request["command"] = id, command
	if err := r.write(request); err != nil {
		r.forget(id)
		return err
	}
	return r.await(ctx, id, answers, result)
}

// number returns a number for a request and where its answer will come.
func (r *runner) number() (uint64, chan answer) {
	answers := make(chan answer, 1)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last++
	r.waiting[r.last] = answers
	return r.last, answers
}

func (r *runner) forget(id uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.waiting, id)
}

// write sends a line.
func (r *runner) write(message any) error {
	line, err := json.Marshal(message)
	if err != nil {
		return fmt.Errorf("encode a request to %s: %w", r.python, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	// A runner that cannot be written to has ended; why it did tells more than the failed write.
	_, _ = r.in.Write(append(line, '\n'))
	return nil
}

func (r *runner) await(ctx context.Context, id uint64, answers chan answer, result any) error {
	var got answer
	select {
	case got = <-answers:
	case <-r.gone:
		select {
		case got = <-answers: // it came just before the end
		default:
			return r.why
		}
	case <-ctx.Done():
		r.forget(id)
		select {
		case <-r.gone:
			return r.why
		default:
			return fmt.Errorf("wait for %s: %w", r.python, context.Cause(ctx))
		}
	}
	if got.Error != nil {
		return got.Error
	}
	if result == nil {
		return nil
	}
	if err := json.Unmarshal(got.Result, result); err != nil {
		return fmt.Errorf("read the answer of %s: %w", r.python, err)
	}
	return nil
}

// read hands answers to those who wait for them until there are no more, and then tells all why.
func (r *runner) read(ctx context.Context) {
	lines := bufio.NewScanner(r.out)
	lines.Buffer(nil, mostAnswer)
	var wrong error
	for lines.Scan() {
		var got answer
		if wrong = json.Unmarshal(lines.Bytes(), &got); wrong != nil {
			wrong = fmt.Errorf("%s wrote something on file descriptor 4 that is no answer; leave that descriptor alone: %w",
				r.python, wrong)
			break
		}
		r.mu.Lock()
		if answers, waits := r.waiting[got.ID]; waits {
			answers <- got
			delete(r.waiting, got.ID)
		}
		r.mu.Unlock()
	}
	if err := lines.Err(); err != nil && wrong == nil {
		wrong = fmt.Errorf("read the answers of %s: %w", r.python, err)
	}
	r.end(ctx, wrong)
}

// end waits for the process and tells all why it ended. The group is killed before the process is collected, while its
// number cannot belong to another. A process that does not end though it was killed is left behind.
func (r *runner) end(ctx context.Context, wrong error) {
	r.mu.Lock()
	closing := r.closing
	r.closing = true
	r.mu.Unlock()
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		awaitExit(r.process.Process.Pid)
	}()
	// its pipe is closed, so it is about to exit; how it does is worth knowing
	if !closing && wrong == nil && ctx.Err() == nil {
		before(exited, exitGrace)
	}
	_ = syscall.Kill(-r.process.Process.Pid, syscall.SIGKILL) // it fails for what has gone already
	collected := make(chan struct{})
	go func() {
		defer close(collected)
		<-exited
		_ = r.process.Wait() // how it ended is in ProcessState
	}()
	ended := before(collected, untilStuck+exitGrace)
	if !ended {
		r.logger.WarnContext(ctx, "a process was killed and does not end; what it holds of a device is not free", "python",
			r.python, "pid", r.process.Process.Pid)
	}
	r.release()
	_ = errors.Join(r.in.Close(), r.out.Close())
	r.spawner.Close()
	r.why = r.reason(ctx, closing, ended, wrong)
	close(r.gone)
}

// before reports whether something is done within some time.
func before(done <-chan struct{}, patience time.Duration) bool {
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case <-done:
		return true
	case <-late.C:
		return false
	}
}

// reason is why the process ended, or nobody waits for its end any longer.
func (r *runner) reason(ctx context.Context, closing, ended bool, wrong error) error {
	words := strings.TrimSpace(r.printed.Text())
	if words == "" {
		words = "it printed nothing"
	}
	switch {
	case closing:
		return fmt.Errorf("%s: %w", r.python, errClosed)
	case ctx.Err() != nil:
		return fmt.Errorf("%s was ended: %w", r.python, context.Cause(ctx))
	case wrong != nil:
		return wrong
	case !ended:
		return fmt.Errorf("%s gave no answer: %w (process %d); the last that it printed:\n%s", r.python, spawn.ErrStuck,
			r.process.Process.Pid, words)
	default:
		return fmt.Errorf("%s ended without an answer (%s); the last that it printed:\n%s", r.python,
			r.process.ProcessState, words)
	}
}

// errClosed is what calls of a closed runner return.
var errClosed = errors.New("it was closed")

// close ends the process with all that it started in its group, and waits until they are gone, but not for one that
// hangs in the kernel. It may be called several times.
func (r *runner) close() {
	r.mu.Lock()
	first := !r.closing
	r.closing = true
	r.mu.Unlock()
	if first {
		_ = syscall.Kill(-r.process.Process.Pid, syscall.SIGKILL) // nobody has collected it, as closing was not set
		_ = r.out.SetDeadline(time.Unix(1, 0))                    // a process that left the group may hold the pipe open
	}
	<-r.gone
}
