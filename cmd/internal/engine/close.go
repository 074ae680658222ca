package engine

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	// closeLimit is how long the parts of an engine may take together to end in good order, whoever closes it.
	closeLimit = time.Minute
	// leaveAfter is how long each part that has not ended is waited for once there is no time left. What is left so ends with the process: the next
	// engine finds its state directory as after a kill, of which it loses nothing.
	leaveAfter = 100 * time.Millisecond
)

// errLeft says that a part of the engine did not end in time.
var errLeft = errors.New("it has not ended in time, and ends with this process")

// closer ends one part of an engine.
type closer struct {
	name string
	end  func(context.Context) error
}

// Close ends everything in the reverse order of its start. Once ctx has ended, or the parts have taken closeLimit together, what has not ended is told
// to end at once and is left behind. It may be called any number of times; each call returns what the first met, and each ctx can hurry it.
func (e *Engine) Close(ctx context.Context) error {
	e.closeOnce.Do(func() { go e.shutDown() })
	defer context.AfterFunc(ctx, e.hurry)()
	<-e.done
	return e.left
}

// shutDown does what Close says.
func (e *Engine) shutDown() {
	ctx, cancel := context.WithTimeout(e.closing, closeLimit)
	defer cancel()
	defer e.hurry()
	defer context.AfterFunc(ctx, e.end)()
	var errs []error
	for last, some := e.lastCloser(); some; last, some = e.lastCloser() {
		errs = append(errs, last.within(ctx))
	}
	e.end()
	errs = append(errs, closer{"the rest", func(context.Context) error { e.working.Wait(); return nil }}.within(ctx))
	e.left = errors.Join(errs...)
	if e.left != nil {
		e.logger.Error("the engine did not end in good order", "error", e.left)
	}
	close(e.done)
}

// within returns what ending the part says, or errLeft when it has not ended leaveAfter after the end of ctx.
func (c closer) within(ctx context.Context) error {
	ended := make(chan error, 1)
	go func() { ended <- c.end(ctx) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-ended:
		return err
	case <-time.After(leaveAfter):
		return fmt.Errorf("end %s: %w", c.name, errLeft)
	}
}

// onClose adds what Close does before all that was added earlier: it ends the part called name.
func (e *Engine) onClose(name string, end func(context.Context) error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closers = append(e.closers, closer{name, end})
}

// lastCloser takes what Close has to do next.
func (e *Engine) lastCloser() (last closer, some bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	rest := len(e.closers) - 1
	if rest < 0 {
		return closer{}, false
	}
	last, e.closers = e.closers[rest], e.closers[:rest]
	return last, true
}

// work runs a part of the engine until Close stops it. When it fails before, the whole engine ends: half a stack helps nobody.
func (e *Engine) work(name string, part func(context.Context) error) {
	ctx, stop := context.WithCancel(e.life)
	ended := make(chan struct{})
	e.working.Go(func() {
		defer close(ended)
		if err := part(ctx); err != nil && ctx.Err() == nil {
			e.fail(fmt.Errorf("%s: %w", name, err))
		}
	})
	e.onClose(name, func(context.Context) error {
		stop()
		<-ended
		return nil
	})
}

// fail ends the engine because of err.
func (e *Engine) fail(err error) {
	e.mu.Lock()
	first := e.err == nil
	if first {
		e.err = err
	}
	e.mu.Unlock()
	if first {
		e.logger.Error("a part of the engine failed", "error", err)
		go func() { _ = e.Close(context.WithoutCancel(e.life)) }()
	}
}
