package space

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.temporal.io/api/enums/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/activities/retention"
)

// Options are what a Collector works with. All fields but Runs, Age, Chains, Builds and Logger are required.
type Options struct {
	// StateDir is where it notes what was given back.
	StateDir string
	// Policy says what stays.
	Policy retention.Policy
	// Store has the artifacts.
	Store artifact.Store
	// Temporal has the histories of runs, JetStream results, events and bindings.
	Temporal  Histories
	JetStream jetstream.JetStream
	// Runs are the runs that go on, or have ended since a time, as the ledger knows them: Temporal's list may be behind,
	// or have lost some. Nil knows none.
	Runs func(ctx context.Context, since time.Time) ([]KnownRun, error)
	// Age forgets elsewhere what is too old by now, the time by which things age, once an hour. Nil forgets nothing.
	Age func(ctx context.Context, now time.Time) error
	// Chains is the directory of stored chains, whose code is among the artifacts.
	Chains string
	// Builds are the artifacts that the builds consist of which servers share, by the builds' names. Nil is none.
	Builds func() map[string][]string
	// Several says that several servers have the store, of which one at a time collects: what another was about to remove
	// is put back when Run begins, and not by New, beside which that other may go on.
	Several bool
	// Logger is told what was done; nil discards it.
	Logger *slog.Logger
}

// Histories is what is asked of Temporal's client.
type Histories interface {
	ListWorkflow(context.Context, *workflowservice.ListWorkflowExecutionsRequest) (
		*workflowservice.ListWorkflowExecutionsResponse, error)
	DescribeWorkflowExecution(ctx context.Context, id, runID string) (*workflowservice.DescribeWorkflowExecutionResponse,
		error)
	GetWorkflowHistory(ctx context.Context, id, runID string, longPoll bool,
		filter enums.HistoryEventFilterType) client.HistoryEventIterator
}

// Collector gives space back. Its methods may be called concurrently; one collection goes on at a time.
type Collector struct {
	options Options
	logger  *slog.Logger
	ask     chan struct{}
	clock   *clock

	// effect is called before each change of what is stored, which it can prevent: tests kill a collection by it.
	effect func() error

	collecting sync.Mutex
	gatherer   *gatherer // guarded by collecting

	mu         sync.Mutex
	given      *given                         // guarded by mu
	superseded map[retention.Digest]time.Time // guarded by mu: see retention.Stock
}

// New returns a collector. What a killed process was about to remove is put back, unless there are several servers.
func New(ctx context.Context, options Options) (*Collector, error) {
	if err := options.Policy.Validate(); err != nil {
		return nil, fmt.Errorf("retention: %w", err)
	}
	if !options.Several {
		if err := options.Store.RestoreAll(ctx); err != nil {
			return nil, err
		}
	}
	given, err := openGiven(options.StateDir, time.Now())
	if err != nil {
		return nil, err
	}
	logger := options.Logger
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	if options.Runs == nil {
		options.Runs = func(context.Context, time.Time) ([]KnownRun, error) { return nil, nil }
	}
	if options.Age == nil {
		options.Age = func(context.Context, time.Time) error { return nil }
	}
	return &Collector{
		options: options, logger: logger, ask: make(chan struct{}, 1), given: given,
		effect:     func() error { return nil },
		superseded: map[retention.Digest]time.Time{}, gatherer: newGatherer(options, logger),
		clock: newClock(given.kept.Seen),
	}, nil
}

// Given returns why, and when, what only this run reached was removed; false when it was not.
func (c *Collector) Given(run string) (reason string, at time.Time, is bool) {
	if c == nil { // an engine that does not collect has given nothing back
		return "", time.Time{}, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.given.run(run)
}

// Ago returns the time before which things have aged by more than age: by this clock a machine whose own is turned
// ahead forgets nothing at once.
func (c *Collector) Ago(age time.Duration) time.Time {
	now, _ := c.clock.now()
	return now.Add(-age)
}

// Policy is the one in force.
func (c *Collector) Policy() retention.Policy { return c.options.Policy }

// Superseded notes that a checkpoint, and what was stored for it alone, have a newer one in their place, from which
// their task would go on: they may go at once. Until is when they were named first: what was written, or asked for,
// since then is somebody else's as well.
func (c *Collector) Superseded(older []activities.Ref, until time.Time) {
	c.mu.Lock()
	for _, ref := range older {
		if digest, err := retention.ParseDigest(ref.Digest); err == nil {
			c.superseded[digest] = until
		}
	}
	c.mu.Unlock()
	c.Ask()
}

// forgetSuperseded forgets that an artifact was superseded: whoever puts the same bytes from now on wants them.
func (c *Collector) forgetSuperseded(digest retention.Digest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.superseded, digest)
}

// Ask asks for a collection soon.
func (c *Collector) Ask() {
	select {
	case c.ask <- struct{}{}:
	default: // one is asked for already
	}
}

// Collect decides what goes and, unless dry, removes it. What it returns says what went, or would go.
func (c *Collector) Collect(ctx context.Context, dry bool) (retention.Collection, error) {
	c.collecting.Lock()
	defer c.collecting.Unlock()
	began := time.Now()
	collection, err := c.collect(ctx, dry)
	if err != nil {
		return retention.Collection{}, fmt.Errorf("collect artifacts: %w", err)
	}
	_, ahead := c.clock.now()
	collection.DryRun, collection.At, collection.Took, collection.Ahead = dry, began, time.Since(began), ahead
	if !dry && len(collection.Removed) > 0 {
		c.logger.InfoContext(ctx, "space was given back", "artifacts", collection.Freed.Artifacts,
			"bytes", int64(collection.Freed.Bytes), "runs", len(collection.Runs), "took", collection.Took)
	}
	return collection, nil
}

func (c *Collector) collect(ctx context.Context, dry bool) (retention.Collection, error) {
	stock, err := c.gather(ctx)
	if err != nil {
		return retention.Collection{}, err
	}
	if !dry {
		c.see(ctx, stock.At)
	}
	decision := retention.Decide(c.options.Policy, stock.Stock)
	if dry || len(decision.Remove) == 0 {
		return c.summary(stock, decision, decision.Remove), nil
	}
	if err := c.giveBack(ctx, stock, decision); err != nil {
		if ctx.Err() != nil {
			return retention.Collection{}, err
		}
		// A full disk has no room even to note what is given back: what nobody gives back makes some, for the next
		// collection.
		c.logger.WarnContext(ctx, "only what nothing reaches goes now, since it cannot be noted what runs give back",
			"error", err)
		decision = retention.Decide(c.givingNothing(), stock.Stock)
	}
	removed, err := c.remove(ctx, stock, decision)
	return c.summary(stock, decision, removed), err
}

// givingNothing is the policy by which only what nothing reaches goes: no holder gives back what it has not given back
// before.
func (c *Collector) givingNothing() retention.Policy {
	policy := c.options.Policy
	policy.KeepFor, policy.KeepBytes = 1<<63-1, 1<<63-1
	return policy
}

// see notes until when things have aged, and now: the next engine goes on from there.
func (c *Collector) see(ctx context.Context, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.given.see(c.clock.latest(), now); err != nil { // they are a little younger for the next engine
		c.logger.DebugContext(ctx, "it is not noted until when things have aged", "error", err)
	}
}

// giveBack forgets the results of those who give something back, and notes who they are, where a kill does not lose it.
// The results go first: of whom it is noted, nobody looks again whether there are some.
func (c *Collector) giveBack(ctx context.Context, stock stock, decision retention.Decision) (err error) {
	if len(decision.Give) == 0 {
		return nil
	}
	for _, giving := range decision.Give {
		if who := stock.who[giving.Holder]; who.results != "" {
			if err := c.effect(); err != nil {
				return err
			}
			if err := forget(ctx, c.options.JetStream, who.results); err != nil {
				return err
			}
		}
	}
	if err := c.effect(); err != nil {
		return err
	}
	c.mu.Lock()
	err = c.given.add(stock, decision.Give, time.Now())
	c.mu.Unlock()
	for _, giving := range decision.Give {
		if who := stock.who[giving.Holder]; who.pin != "" && err == nil {
			if err = c.effect(); err == nil {
				err = c.options.Store.Unpin(ctx, who.pin, stock.Holders[giving.Holder].Ended)
			}
		}
	}
	return err
}

// remove takes aside what was decided about, decides again, and deletes what goes by both decisions. By the second one
// nobody gives anything back: of that it would not be noted that it did.
func (c *Collector) remove(
	ctx context.Context, before stock, decision retention.Decision,
) (removed []retention.Removal, err error) {
	var taken []retention.Removal
	restore := func(digest string) error { // also when what asked for the collection has ended
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), restorePatience)
		defer cancel()
		return c.options.Store.Restore(ctx, digest)
	}
	defer func() {
		for _, one := range taken { // what is left when this ends early
			err = errors.Join(err, c.change(one, restore))
			c.forgetSuperseded(one.Digest)
		}
	}()
	for _, one := range decision.Remove {
		aside := false
		err := c.change(one, func(digest string) (err error) {
			aside, err = c.options.Store.Discard(ctx, digest, one.Written)
			return err
		})
		if err != nil {
			return nil, err
		}
		if aside {
			taken = append(taken, one)
		}
	}
	again, err := c.gather(ctx)
	if err != nil {
		return nil, err
	}
	goes := map[retention.Digest]bool{}
	for _, one := range retention.Decide(c.givingNothing(), again.Stock).Remove {
		goes[one.Digest] = true
	}
	names := map[retention.Digest][]retention.Digest{}
	for _, one := range before.Artifacts {
		names[one.Digest] = one.Names
	}
	for len(taken) > 0 {
		one, gone := taken[0], false
		if goes[one.Digest] {
			err = c.change(one, func(digest string) (err error) {
				gone, err = c.options.Store.Delete(ctx, digest)
				return err
			})
		} else {
			err = c.change(one, restore)
		}
		switch {
		case err != nil:
			return removed, err
		case gone:
			removed = append(removed, one)
		default: // what it names comes after it, and stays as well
			spare(one.Digest, names, goes)
		}
		c.forgetSuperseded(one.Digest)
		taken = taken[1:]
	}
	return removed, nil
}

// restorePatience bounds how long it takes to put one artifact back. What is not put back then is at the next start.
const restorePatience = 30 * time.Second

// spare takes all that an artifact reaches out of what goes.
func spare(digest retention.Digest, names map[retention.Digest][]retention.Digest, goes map[retention.Digest]bool) {
	seen := map[retention.Digest]bool{}
	for next := []retention.Digest{digest}; len(next) > 0; next = next[1:] {
		if seen[next[0]] {
			continue
		}
		seen[next[0]] = true
		delete(goes, next[0])
		next = append(next, names[next[0]]...)
	}
}

// change changes how one artifact is stored.
func (c *Collector) change(one retention.Removal, how func(digest string) error) error {
	if err := c.effect(); err != nil {
		return err
	}
	return how(one.Digest.String())
}

// gather returns all that there is now.
func (c *Collector) gather(ctx context.Context) (stock, error) {
	c.mu.Lock()
	superseded := maps.Clone(c.superseded)
	c.mu.Unlock()
	gathered, err := c.gatherer.gather(ctx, superseded, c.options.Policy, c.clock)
	if err != nil {
		return stock{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.given.mark(&gathered, c.options.Policy)
	there := make(map[retention.Digest]bool, len(gathered.Artifacts))
	for _, one := range gathered.Artifacts {
		there[one.Digest] = true
	}
	for digest := range superseded {
		if !there[digest] {
			delete(c.superseded, digest)
		}
	}
	return gathered, nil
}

// summary tells of a collection.
func (c *Collector) summary(
	stock stock, decision retention.Decision, removed []retention.Removal,
) retention.Collection {
	collection := retention.Summarize(removed)
	collection.Policy, collection.Kept, collection.Over = c.options.Policy, decision.Kept, decision.Over
	for _, giving := range decision.Give {
		if run := stock.who[giving.Holder].run; run != "" {
			collection.Runs = append(collection.Runs, retention.RunGiven{Run: run, Reason: giving.Reason})
		}
	}
	return collection
}
