package engine

import (
	"context"
	"sync"
)

// leadership is whether this server leads the loop, which one of several does at a time, and in which term. The zero
// value does not lead. Its methods may be called concurrently.
type leadership struct {
	mu      sync.Mutex
	term    uint64        // guarded by mu: 0 while it does not lead
	changed chan struct{} // guarded by mu: closed when term changes; nil until somebody waits for it
}

// set says that this server leads in a term, or with 0 that it does not.
func (l *leadership) set(term uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.term == term {
		return
	}
	l.term = term
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// now returns the term in which this server leads, 0 where it does not, and what is closed when that changes.
func (l *leadership) now() (term uint64, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.changed == nil {
		l.changed = make(chan struct{})
	}
	return l.term, l.changed
}

// leads reports whether this server leads now.
func (l *leadership) leads() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.term > 0
}

// whileLeading does work, of which what says what it is, whenever this server begins to lead, until ctx ends. The
// context of the work ends when the server leads no more, and the next term begins only once the work has returned;
// work that returns earlier is done for its term.
//
// Whatever may be done by one server of several only is done so. A server that was suspended finds out that it leads no
// more some moments after it goes on: work that must not be done twice even then needs a fence of its own, as the plan
// and the ledger have in the term.
func (b *base) whileLeading(ctx context.Context, what string, work func(ctx context.Context)) {
	for ctx.Err() == nil {
		term, changed := b.lead.now()
		if term > 0 {
			b.logger.DebugContext(ctx, "begin what the leading server does", "what", what, "term", term)
			during(ctx, changed, work)
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// during does work with a context that ends when over is closed, and returns once the work has.
func during(ctx context.Context, over <-chan struct{}, work func(ctx context.Context)) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	done := make(chan struct{})
	go func() {
		defer close(done)
		work(ctx)
	}()
	select {
	case <-over:
	case <-ctx.Done():
	case <-done:
	}
	end()
	<-done
}
