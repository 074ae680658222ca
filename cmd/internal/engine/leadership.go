package engine

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/predictor"
)

// leadership is whether this server leads the loop, which one of several does at a time, and in which term. The zero
// value does not lead. Its methods may be called concurrently.
type leadership struct {
	mu      sync.Mutex
	term    uint64        // guarded by mu: 0 while it does not lead
	latest  uint64        // guarded by mu: the last term in which it has led; 0 before the first
	begun   time.Time     // guarded by mu: when term changed last
	changed chan struct{} // guarded by mu: closed when term changes; nil until somebody waits for it
	higher  func(uint64)  // guarded by mu: is told of terms of others; nil tells nobody
}

// set says that this server leads in a term, or with 0 that it does not.
func (l *leadership) set(term uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.term == term {
		return
	}
	l.term, l.latest, l.begun = term, max(l.latest, term), time.Now()
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

// since returns the term in which this server leads and when that began; zero where it does not lead.
func (l *leadership) since() (term uint64, begun time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.term == 0 {
		return 0, time.Time{}
	}
	return l.term, l.begun.UTC()
}

// own reports whether a plan of a term is this server's own, also while it leads no more.
func (l *leadership) own(term uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return term > 0 && term == l.latest
}

// hearOf has somebody told of terms that others were found to have led in.
func (l *leadership) hearOf(higher func(term uint64)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.higher = higher
}

// deposed says that another server was found to have led in a term.
func (l *leadership) deposed(term uint64) {
	l.mu.Lock()
	higher := l.higher
	l.mu.Unlock()
	if higher != nil {
		higher(term)
	}
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

// ownPlans hands out the plans in force with what they grant to functions only where this server has decided it: of
// several servers each could invoke functions, and one does. What was begun under a plan of its own goes on when
// another leads; and while nobody does, its last plan stays in force.
type ownPlans struct {
	activities.Plans

	lead *leadership
}

// Watch implements activities.Plans.
func (p ownPlans) Watch(ctx context.Context, obey func(predictor.Plan)) error {
	ctx, end := context.WithCancel(ctx)
	var mu sync.Mutex
	var last *predictor.Plan // guarded by mu
	tell := func() {         // the caller holds mu
		if last == nil {
			return
		}
		plan := *last
		if !p.lead.own(plan.Term) {
			plan.Grants = slices.DeleteFunc(slices.Clone(plan.Grants), func(g predictor.Grant) bool {
				return g.Venue == predictor.Function
			})
		}
		obey(plan)
	}
	_, changed := p.lead.now()
	var turning sync.WaitGroup
	turning.Go(func() { // its first plan may be seen before it is told that it leads
		for {
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
			_, changed = p.lead.now()
			mu.Lock()
			tell()
			mu.Unlock()
		}
	})
	defer turning.Wait()
	defer end()
	return p.Plans.Watch(ctx, func(plan predictor.Plan) {
		mu.Lock()
		defer mu.Unlock()
		last = &plan
		tell()
	})
}
