package torch

import (
	"bufio"
	"context"
	_ "embed" // holds the runner
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spillway-ml/spillway/workers/spawn"
)

//go:embed runner.py
var source string

// boot runs what comes as the first line on file descriptor 3. It is plain enough for any Python, so that one that is too old can say so.
// The two pipes are for this process alone: one that it starts would keep them open.
const boot = `
import json, os, sys
requests, answers = os.fdopen(3), os.fdopen(4, "w")
def fail(**fields):
    answers.write(json.dumps({"error": fields}) + "\n")
    answers.flush()
    sys.exit(1)
if sys.version_info < (3, 8):
    fail(kind="python", message="%s is Python %s" % (sys.executable, sys.version.split()[0]), hint="name a Python of version 3.8 or later")
os.set_inheritable(3, False)
os.set_inheritable(4, False)
os.register_at_fork(after_in_child=lambda: (requests.close(), answers.close()))
runner = {"__name__": "runner"}
try:
    exec(compile(json.loads(requests.readline()), "runner.py", "exec"), runner)
except Exception as error:
    fail(**getattr(error, "fields", {"kind": "runner", "message": repr(error)}))
runner["serve"](requests, answers)
`

const (
	// mostAnswer bounds one answer of a runner: a model of a hundred thousand operations takes less.
	mostAnswer = 256 << 20
	// exitGrace is how long what the model printed may take to be read after its end.
	exitGrace = time.Second
)

// runner is a Python process that runs commands one after another. One goroutine uses it.
type runner struct {
	python  string
	process *exec.Cmd
	spawner *spawn.Spawner
	in      *os.File // requests
	out     *os.File // answers
	lines   *bufio.Scanner
	printed *tail
	release func() bool // of the context
	ended   bool
}

// start starts a runner that lives until close, the end of ctx or that of this process. The error says what the Python lacks.
func start(ctx context.Context, python string, threads int, logger *slog.Logger) (*runner, error) {
	path, err := exec.LookPath(python)
	if err != nil {
		return nil, fmt.Errorf("find Python: %w; install python3 or name another", err)
	}
	spawner, err := spawn.New(spawn.Options{})
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	r := &runner{python: path, spawner: spawner, printed: &tail{logger: logger}}
	if err := r.launch(ctx, path, threads); err != nil {
		spawner.Close()
		return nil, err
	}
	var ready struct {
		Torch string `json:"torch"`
	}
	if err := r.exchange(ctx, source, &ready); err != nil {
		r.close()
		return nil, err
	}
	logger.DebugContext(ctx, "torch runner is ready", "python", path, "torch", ready.Torch)
	return r, nil
}

func (r *runner) launch(ctx context.Context, path string, threads int) error {
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
	if threads > 0 {
		cmd.Env = append(cmd.Env, "OMP_NUM_THREADS="+strconv.Itoa(threads))
	}
	cmd.ExtraFiles = []*os.File{theirIn, theirOut}
	cmd.Stdout, cmd.Stderr = r.printed, r.printed
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = exitGrace
	err = errors.Join(r.spawner.Start(cmd), theirIn.Close(), theirOut.Close())
	if err != nil {
		return errors.Join(fmt.Errorf("start %s: %w", path, err), in.Close(), out.Close())
	}
	r.process, r.in, r.out = cmd, in, out
	r.lines = bufio.NewScanner(out)
	r.lines.Buffer(nil, mostAnswer)
	// A process that left the group may hold the pipes open; nobody waits for it.
	r.release = context.AfterFunc(ctx, func() {
		past := time.Unix(1, 0)
		_ = errors.Join(in.SetDeadline(past), out.SetDeadline(past)) // they are closed already if this fails
	})
	return nil
}

// call runs a command of runner.py with the fields of request, a struct or map, and reads its result.
func (r *runner) call(ctx context.Context, command string, request map[string]any, result any) error {
	request["command"] = command
	return r.exchange(ctx, request, result)
}

// exchange sends one message and reads the answer to it. An error of the model is a *ModelError.
func (r *runner) exchange(ctx context.Context, message, result any) error {
	line, err := json.Marshal(message)
	if err != nil {
		return fmt.Errorf("encode a request to %s: %w", r.python, err)
	}
	// A runner that cannot be written to has ended; what it said before tells more than the failed write.
	_, _ = r.in.Write(append(line, '\n'))
	if !r.lines.Scan() {
		return r.lost(ctx)
	}
	var answer struct {
		Result json.RawMessage `json:"result"`
		Error  *ModelError     `json:"error"`
	}
	if err := json.Unmarshal(r.lines.Bytes(), &answer); err != nil {
		return fmt.Errorf("%s wrote something on file descriptor 4 that is no answer; leave that descriptor alone: %w", r.python, err)
	}
	if answer.Error != nil {
		return answer.Error
	}
	if err := json.Unmarshal(answer.Result, result); err != nil {
		return fmt.Errorf("read the answer of %s: %w", r.python, err)
	}
	return nil
}

// lost tells why no answer came.
func (r *runner) lost(ctx context.Context) error {
	reading := r.lines.Err()
	killed := reading != nil && ctx.Err() == nil // it would wait for ever
	r.end(killed)
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%s was ended: %w", r.python, context.Cause(ctx))
	case killed:
		return fmt.Errorf("read the answer of %s: %w", r.python, reading)
	}
	words := r.printed.text()
	if words == "" {
		words = "it printed nothing"
	}
	return fmt.Errorf("%s ended without an answer (%s); the last that it printed:\n%s", r.python, r.process.ProcessState, words)
}

// close ends the process with all that it started in its group, and waits until they are gone.
func (r *runner) close() { r.end(true) }

// end waits for the process. The group is killed before the process is collected, while its number cannot belong to another.
func (r *runner) end(kill bool) {
	if r.ended {
		return
	}
	r.ended = true
	// It fails for what has gone already.
	end := func() { _ = syscall.Kill(-r.process.Process.Pid, syscall.SIGKILL) }
	if !kill { // its pipe is closed, so it is about to exit; how it does is worth knowing
		late := time.AfterFunc(exitGrace, end)
		awaitExit(r.process.Process.Pid)
		late.Stop()
	}
	end()
	_ = r.process.Wait() // how it ended is in ProcessState
	r.release()
	_ = errors.Join(r.in.Close(), r.out.Close())
	r.spawner.Close()
}

// ModelError is something that the author of a model, or who installed Python, can change.
type ModelError struct {
	// Kind is what it is about, in one word of runner.py.
	Kind string `json:"kind"`
	// Message is what is wrong.
	Message string `json:"message"`
	// Place is a file, or file:line, of the user's; empty where there is none.
	Place string `json:"at"`
	// Hint is what to do; it may be empty.
	Hint string `json:"hint"`
	// Traceback is the end of Python's, where it helps.
	Traceback string `json:"trace"`
}

var (
	// ErrNoTorch is matched by the error about a Python that has no PyTorch.
	ErrNoTorch = errors.New("no PyTorch")
	// ErrUntraceable is matched by the error about a model whose operations depend on the values of tensors.
	ErrUntraceable = errors.New("the model cannot be traced")
)

// Error returns the message, the place and the hint on one line, and the traceback below.
func (e *ModelError) Error() string {
	var text strings.Builder
	if e.Place != "" {
		text.WriteString(e.Place + ": ")
	}
	text.WriteString(e.Message)
	if e.Hint != "" {
		text.WriteString("; " + e.Hint)
	}
	if e.Traceback != "" {
		text.WriteString("\n" + e.Traceback)
	}
	return text.String()
}

// Is reports whether the error is one of this package's sentinels.
func (e *ModelError) Is(target error) bool {
	switch target {
	case ErrNoTorch:
		return e.Kind == "no_torch"
	case ErrUntraceable:
		return e.Kind == "untraceable"
	}
	return false
}
