package torch

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/spillway-ml/spillway/workers/spawn"
)

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

// process is the process of a runner. It leads a group.
type process interface {
	// number is that of the process and of its group; 0 of one on another host.
	number() int
	// kill ends it and its group; it fails for what has gone already.
	kill()
	// awaitExit returns once it has ended. Until it is collected, its number is no other's.
	awaitExit()
	// collect takes it away after its end, and returns how it ended.
	collect() string
	// release lets go of what started it, when nobody waits for it any more.
	release()
}

// reading and writing are the ends of what connects a runner with this process: pipes, or a connection.
type (
	reading interface {
		io.ReadCloser
		SetDeadline(at time.Time) error
	}
	writing interface {
		io.WriteCloser
		SetDeadline(at time.Time) error
	}
)

// runner is a Python process that runs commands one after another. Its methods may be called concurrently.
type runner struct {
	python  string
	process process
	in      writing // requests
	out     reading // answers
	printed *spawn.Tail
	logger  *slog.Logger
	away    *away         // where it runs; nil for this host
	release func() bool   // of the context
	booted  chan answer   // says that it is ready
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
	// Ended is how the process of another host has ended: the last that comes from there.
	Ended string `json:"ended"`
}

// ready waits until a process says that it is ready for requests.
func (r *runner) ready(ctx context.Context) error {
	var ready struct {
		Torch string `json:"torch"`
	}
	if err := r.await(ctx, readyID, r.booted, &ready); err != nil {
		return err
	}
	r.logger.DebugContext(ctx, "torch runner is ready", "python", r.python, "torch", ready.Torch, "pid",
		r.process.number())
	return nil
}

// newRunner follows a process that reads requests from in and writes answers to out, until close, the end of ctx or its
// own.
func newRunner(
	ctx context.Context, python string, p process, in writing, out reading, printed *spawn.Tail, logger *slog.Logger,
) *runner {
	r := &runner{
		python: python, process: p, in: in, out: out, printed: printed, logger: logger, gone: make(chan struct{}),
		booted: make(chan answer, 1),
	}
	r.waiting = map[uint64]chan answer{readyID: r.booted}
	// A process that left the group may hold the pipes open; nobody waits for it.
	r.release = context.AfterFunc(ctx, func() {
		past := time.Unix(1, 0)
		_ = errors.Join(in.SetDeadline(past), out.SetDeadline(past)) // they are closed already if this fails
	})
	go r.read(ctx)
	return r
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
		if got.Ended != "" {
			if away, is := r.process.(*awayProcess); is {
				away.ended = got.Ended
			}
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
		r.process.awaitExit()
	}()
	// its pipe is closed, so it is about to exit; how it does is worth knowing
	if !closing && wrong == nil && ctx.Err() == nil {
		_, _ = before(exited, exitGrace)
	}
	r.process.kill()
	collected := make(chan string, 1)
	go func() {
		<-exited
		collected <- r.process.collect()
	}()
	how, ended := before(collected, untilStuck+exitGrace)
	if !ended {
		r.logger.WarnContext(ctx, "a process was killed and does not end; what it holds of a device is not free", "python",
			r.python, "pid", r.process.number())
	}
	r.release()
	_ = errors.Join(r.in.Close(), r.out.Close())
	r.process.release()
	r.why = r.reason(ctx, closing, how, wrong)
	close(r.gone)
}

// before returns what comes within some time, and whether anything did.
func before[T any](coming <-chan T, patience time.Duration) (come T, in bool) {
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case come = <-coming:
		return come, true
	case <-late.C:
		return come, false
	}
}

// reason is why the process ended, which is how, or nobody waits for its end any longer, where that is empty.
func (r *runner) reason(ctx context.Context, closing bool, how string, wrong error) error {
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
	case how == "":
		return fmt.Errorf("%s gave no answer: %w (process %d); the last that it printed:\n%s", r.python, spawn.ErrStuck,
			r.process.number(), words)
	default:
		return fmt.Errorf("%s ended without an answer (%s); the last that it printed:\n%s", r.python, how, words)
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
		r.process.kill()                       // nobody has collected it, as closing was not set
		_ = r.out.SetDeadline(time.Unix(1, 0)) // a process that left the group may hold the pipe open
	}
	<-r.gone
}
