package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

const (
	// closeLimit is how long the parts of an engine may take together to end in good order, whoever closes it.
	closeLimit = time.Minute
	// leaveAfter is how long each part that has not ended is waited for once there is no time left. What is left so ends
	// with the process: the next engine finds its state directory as after a kill, of which it loses nothing.
	leaveAfter = 100 * time.Millisecond
)

// errLeft says that a part of the engine did not end in time.
var errLeft = errors.New("it has not ended in time, and ends with this process")

// closer ends one part of an engine.
type closer struct {
	name string
	end  func(context.Context) error
}

// lifecycle knows what of an engine was started, and ends it in the reverse order. Its methods may be called
// concurrently.
type lifecycle struct {
	logger *slog.Logger
	lead   leadership

	//nolint:containedctx // what the engine starts lives until Close, not as long as the call that starts it
	life    context.Context
	end     context.CancelFunc
	closing context.Context //nolint:containedctx // of Close: as long as parts may take to end in good order
	hurry   context.CancelFunc

	starting chan struct{} // closed once all was started, or will not be
	abandon  context.CancelCauseFunc
	working  sync.WaitGroup
	done     chan struct{}
	once     sync.Once // of shutDown
	left     error     // what Close has met; to be read once done is closed

	mu      sync.Mutex
	closers []closer // guarded by mu: what Close has still to do, in the order in which things were started
	err     error    // guarded by mu: why the engine ended by itself
}

// errClosed is why the start of an engine ends that was closed meanwhile.
var errClosed = errors.New("the engine was closed while it started")

// newLifecycle returns the lifecycle of an engine that outlives ctx.
func newLifecycle(ctx context.Context, logger *slog.Logger) *lifecycle {
	l := &lifecycle{logger: logger, starting: make(chan struct{}), abandon: func(error) {}, done: make(chan struct{})}
	l.life, l.end = context.WithCancel(context.WithoutCancel(ctx))
	l.closing, l.hurry = context.WithCancel(context.WithoutCancel(ctx))
	return l
}

// start starts the parts of an engine. Whoever closes it meanwhile, or a part that fails, ends the context of parts
// and waits for its return, so that nothing is started behind what is ended. When it fails, what was started is ended.
func (l *lifecycle) start(ctx context.Context, parts func(context.Context) error) error {
	starting, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	l.mu.Lock()
	l.abandon = cancel
	l.mu.Unlock()
	err := parts(starting)
	if cause := context.Cause(starting); err != nil && cause != nil && ctx.Err() == nil {
		err = cause // not what the part that was starting says of it
	}
	close(l.starting)
	if err == nil {
		return nil
	}
	return errors.Join(err, l.Close(context.WithoutCancel(ctx)))
}

// Done is closed when the engine has ended.
func (l *lifecycle) Done() <-chan struct{} { return l.done }

// Err is why the engine ended by itself.
func (l *lifecycle) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Close ends everything in the reverse order of its start. Once ctx has ended, or the parts have taken closeLimit
// together, what has not ended is told to end at once and is left behind. It may be called any number of times; each
// call returns what the first met, and each ctx can hurry it.
func (l *lifecycle) Close(ctx context.Context) error {
	l.once.Do(func() { go l.shutDown() })
	defer context.AfterFunc(ctx, l.hurry)()
	<-l.done
	return l.left
}

// shutDown does what Close says.
func (l *lifecycle) shutDown() {
	ctx, cancel := context.WithTimeout(l.closing, closeLimit)
	defer cancel()
	defer l.hurry()
	defer context.AfterFunc(ctx, l.end)()
	l.abandonStart()
	errs := []error{closer{"its start", func(context.Context) error { <-l.starting; return nil }}.within(ctx)}
	for last, some := l.lastCloser(); some; last, some = l.lastCloser() {
		errs = append(errs, last.within(ctx))
	}
	l.end()
	errs = append(errs, closer{"the rest", func(context.Context) error { l.working.Wait(); return nil }}.within(ctx))
	l.left = errors.Join(errs...)
	if l.left != nil {
		l.logger.Error("the engine did not end in good order", "error", l.left)
	}
	close(l.done)
}

// abandonStart ends the start of parts.
func (l *lifecycle) abandonStart() {
	l.mu.Lock()
	abandon, err := l.abandon, l.err
	l.mu.Unlock()
	if err == nil {
		err = errClosed
	}
	abandon(err)
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
func (l *lifecycle) onClose(name string, end func(context.Context) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closers = append(l.closers, closer{name, end})
}

// lastCloser takes what Close has to do next.
func (l *lifecycle) lastCloser() (last closer, some bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	rest := len(l.closers) - 1
	if rest < 0 {
		return closer{}, false
	}
	last, l.closers = l.closers[rest], l.closers[:rest]
	return last, true
}

// work runs a part of the engine until Close stops it. When it fails before, the whole engine ends: half a stack helps
// nobody.
func (l *lifecycle) work(name string, part func(context.Context) error) {
	ctx, stop := context.WithCancel(l.life)
	ended := make(chan struct{})
	l.working.Go(func() {
		defer close(ended)
		if err := part(ctx); err != nil && ctx.Err() == nil {
			l.fail(fmt.Errorf("%s: %w", name, err))
		}
	})
	l.onClose(name, func(context.Context) error {
		stop()
		<-ended
		return nil
	})
}

// fail ends the engine because of err.
func (l *lifecycle) fail(err error) {
	l.mu.Lock()
	first := l.err == nil
	if first {
		l.err = err
	}
	l.mu.Unlock()
	if first {
		l.logger.Error("a part of the engine failed", "error", err)
		go func() { _ = l.Close(context.WithoutCancel(l.life)) }()
	}
}
