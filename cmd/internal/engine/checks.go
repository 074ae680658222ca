package engine

import (
	"bufio"
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

// answerLimit is how long an answer is waited for. A worker says itself of a Validate that it does not return in time;
// one that says nothing has no time to run, and is asked again.
const answerLimit = 20 * time.Second

// inputChecks asks the workflow workers of builds whether the code of their pipelines takes an input. The zero value
// has no worker; callers may be concurrent.
type inputChecks struct {
	mu      sync.Mutex
	workers map[buildID]*checkingWorker // guarded by mu
	changed chan struct{}               // guarded by mu: closed when a worker is added; nil while nobody waits
}

// checkingWorker is a workflow worker that is asked.
type checkingWorker struct {
	questions chan []byte   // lines on their way to it
	gone      chan struct{} // closed when it does not answer any more

	mu      sync.Mutex
	next    uint64                 // guarded by mu
	waiting map[uint64]chan string // guarded by mu: refusals, by question
}

// errWorkerGone says that a worker ended before it answered, errNoAnswer that it has not.
var (
	errWorkerGone = errors.New("its workflow worker ended")
	errNoAnswer   = fmt.Errorf("its workflow worker has said nothing for %s", answerLimit)
)

// serve asks a worker on ask and takes its answers until they end, from when it says that it reads questions. An error
// says that it cannot be asked any more though it goes on: it is of no use then.
func (c *inputChecks) serve(id buildID, ask io.Writer, answers io.Reader) error {
	worker := &checkingWorker{
		questions: make(chan []byte), gone: make(chan struct{}), waiting: map[uint64]chan string{},
	}
	defer close(worker.gone)
	came, over := make(chan wire.InputAnswer), make(chan error, 2)
	go func() { over <- worker.read(answers, came) }()
	select {
	case <-came:
	case err := <-over:
		return err
	}
	go func() { over <- worker.write(ask) }()
	c.add(id, worker)
	defer c.remove(id, worker)
	for {
		select {
		case answer := <-came:
			worker.answered(answer)
		case err := <-over:
			return err
		}
	}
}

// add makes a worker the one that is asked of its build.
func (c *inputChecks) add(id buildID, worker *checkingWorker) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.workers == nil {
		c.workers = map[buildID]*checkingWorker{}
	}
	c.workers[id] = worker
	if c.changed != nil {
		close(c.changed)
		c.changed = nil
	}
}

// remove takes a worker back, unless another has taken its place.
func (c *inputChecks) remove(id buildID, worker *checkingWorker) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.workers[id] == worker {
		delete(c.workers, id)
	}
}

// read hands on what the worker says, until it says no more.
func (w *checkingWorker) read(answers io.Reader, came chan<- wire.InputAnswer) error {
	lines := bufio.NewScanner(answers)
	lines.Buffer(nil, wire.InputAnswerMax)
	for lines.Scan() {
		var answer wire.InputAnswer
		if err := json.Unmarshal(lines.Bytes(), &answer); err != nil {
			return fmt.Errorf("read what the worker says of inputs: %w", err)
		}
		select {
		case came <- answer:
		case <-w.gone:
			return nil
		}
	}
	if err := lines.Err(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("read what the worker says of inputs: %w", err)
	}
	return nil
}

// write sends the worker questions as it takes them, each whole.
func (w *checkingWorker) write(ask io.Writer) error {
	for {
		select {
		case line := <-w.questions:
			if _, err := ask.Write(line); err != nil {
				return fmt.Errorf("ask the worker about an input: %w", err)
			}
		case <-w.gone:
			return nil
		}
	}
}

// answered hands an answer to whoever waits for it still.
func (w *checkingWorker) answered(answer wire.InputAnswer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if refusal := w.waiting[answer.ID]; refusal != nil {
		delete(w.waiting, answer.ID)
		refusal <- answer.Refusal
	}
}

// check refuses, with an error that wraps trigger.ErrRefused, an input that the pipeline's own Validate refuses. It
// waits for the build's worker to be there. Any other error tells nothing of the input.
func (c *inputChecks) check(ctx context.Context, start trigger.Start) error {
	why, err := c.ask(ctx, start)
	switch {
	case err != nil:
		return fmt.Errorf("check the input of pipeline %s: %w", start.Pipeline, err)
	case why != "":
		return trigger.Refuse("input of pipeline %s: %s", start.Pipeline, why)
	default:
		return nil
	}
}

// ask returns why the pipeline does not take the input; empty when it does.
func (c *inputChecks) ask(ctx context.Context, start trigger.Start) (refusal string, err error) {
	worker, err := c.worker(ctx, buildID{start.App, start.Build})
	if err != nil {
		return "", err
	}
	id, answer := worker.expect()
	defer worker.forget(id)
	line, err := json.Marshal(wire.InputQuestion{ID: id, Pipeline: start.Pipeline, Input: start.Input})
	if err != nil {
		return "", err
	}
	limit := time.NewTimer(answerLimit)
	defer limit.Stop()
	for questions := worker.questions; ; {
		select {
		case questions <- append(line, '\n'):
			questions = nil // it is asked
		case why := <-answer:
			return why, nil
		case <-limit.C:
			return "", errNoAnswer
		case <-worker.gone:
			return "", errWorkerGone
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}

// expect returns the ID of a question and where its answer comes.
func (w *checkingWorker) expect() (id uint64, answer <-chan string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.next++
	refusal := make(chan string, 1)
	w.waiting[w.next] = refusal
	return w.next, refusal
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
