package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/workflows/trigger"
)

// checkLimit is how long a pipeline's Validate may take: it looks at a value, which takes microseconds.
const checkLimit = 10 * time.Second

// inputChecks asks the workflow workers of builds whether the code of their pipelines takes an input. The zero value
// has no worker; callers may be concurrent.
type inputChecks struct {
	mu      sync.Mutex
	workers map[buildID]*checkingWorker // guarded by mu
	changed chan struct{}               // guarded by mu: closed when a worker is added; nil while nobody waits
}

// checkingWorker is a workflow worker that is asked.
type checkingWorker struct {
	gone chan struct{} // closed when it does not answer any more

	mu      sync.Mutex
	asking  io.Writer              // guarded by mu
	next    uint64                 // guarded by mu
	waiting map[uint64]chan string // guarded by mu: refusals, by question
}

// errWorkerGone says that a worker ended before it answered.
var errWorkerGone = errors.New("its workflow worker ended")

// serve takes the answers of a worker until they end. Questions are written to ask.
func (c *inputChecks) serve(id buildID, ask io.Writer, answers io.Reader) {
	worker := &checkingWorker{gone: make(chan struct{}), asking: ask, waiting: map[uint64]chan string{}}
	c.mu.Lock()
	if c.workers == nil {
		c.workers = map[buildID]*checkingWorker{}
	}
	c.workers[id] = worker
	if c.changed != nil {
		close(c.changed)
		c.changed = nil
	}
	c.mu.Unlock()
	defer func() {
		close(worker.gone)
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.workers[id] == worker {
			delete(c.workers, id)
		}
	}()
	decoder := json.NewDecoder(answers)
	for {
		var answer wire.CheckedInput
		if decoder.Decode(&answer) != nil {
			return // it ended, or says what nobody understands: the run itself checks its input again
		}
		worker.mu.Lock()
		refusal := worker.waiting[answer.ID]
		delete(worker.waiting, answer.ID)
		worker.mu.Unlock()
		if refusal != nil {
			refusal <- answer.Refusal
		}
	}
}

// check refuses, with an error that wraps trigger.ErrRefused, an input that the pipeline's own Validate refuses, or
// of which it does not say anything within checkLimit. It waits for the build's worker to be there. Any other error
// tells nothing of the input.
func (c *inputChecks) check(ctx context.Context, start trigger.Start) error {
	worker, err := c.worker(ctx, buildID{start.App, start.Build})
	if err != nil {
		return fmt.Errorf("check the input of pipeline %s: %w", start.Pipeline, err)
	}
	id, refusal, err := worker.ask(start)
	if err != nil {
		return fmt.Errorf("check the input of pipeline %s: %w", start.Pipeline, err)
	}
	defer worker.forget(id)
	limit := time.NewTimer(checkLimit)
	defer limit.Stop()
	select {
	case why := <-refusal:
		if why == "" {
			return nil
		}
		return trigger.Refuse("input of pipeline %s: %s", start.Pipeline, why)
	case <-limit.C:
		return trigger.Refuse("input of pipeline %s: its Validate has not returned within %s", start.Pipeline, checkLimit)
	case <-worker.gone:
		return fmt.Errorf("check the input of pipeline %s: %w", start.Pipeline, errWorkerGone)
	case <-ctx.Done():
		return fmt.Errorf("check the input of pipeline %s: %w", start.Pipeline, ctx.Err())
	}
}

// ask asks one question; the answer comes on refusal.
func (w *checkingWorker) ask(start trigger.Start) (id uint64, refusal <-chan string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.next++
	line, err := json.Marshal(wire.CheckInput{ID: w.next, Pipeline: start.Pipeline, Input: start.Input})
	if err != nil {
		return 0, nil, err
	}
	if pipe, ok := w.asking.(interface{ SetWriteDeadline(at time.Time) error }); ok {
		if err := pipe.SetWriteDeadline(time.Now().Add(checkLimit)); err != nil {
			return 0, nil, err
		}
	}
	if _, err := w.asking.Write(append(line, '\n')); err != nil {
		return 0, nil, err
	}
	answer := make(chan string, 1)
	w.waiting[w.next] = answer
	return w.next, answer, nil
}

func (w *checkingWorker) forget(id uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.waiting, id)
}

// worker returns the worker of a build, once there is one.
func (c *inputChecks) worker(ctx context.Context, id buildID) (*checkingWorker, error) {
	for {
		c.mu.Lock()
		worker := c.workers[id]
		if worker == nil && c.changed == nil {
			c.changed = make(chan struct{})
		}
		changed := c.changed
		c.mu.Unlock()
		if worker != nil {
			return worker, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("its workflow worker is not there yet: %w", ctx.Err())
		}
	}
}

// checkPipes are the pipes of a worker that checks inputs.
type checkPipes struct {
	ask, answers          *os.File // ours
	theirAsk, theirAnswer *os.File
}

func newCheckPipes() (p checkPipes, err error) {
	if p.theirAsk, p.ask, err = os.Pipe(); err != nil {
		return checkPipes{}, err
	}
	if p.answers, p.theirAnswer, err = os.Pipe(); err != nil {
		return checkPipes{}, errors.Join(err, p.theirAsk.Close(), p.ask.Close())
	}
	return p, nil
}

// given closes the worker's ends, which it has of its own now.
func (p checkPipes) given() { _, _ = p.theirAsk.Close(), p.theirAnswer.Close() }

// close closes ours.
func (p checkPipes) close() { _, _ = p.ask.Close(), p.answers.Close() }
