package space

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/activities/retention"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// stock is a retention.Stock with who its holders are.
type stock struct {
	retention.Stock

	who    []who     // by holder
	lagged time.Time // when the lag began: what Temporal and the ledger do not say may be so since
}

// who says who a holder is.
type who struct {
	key string // names it among all that ever gave something back
	run string // empty where it is no run
	pin string // the digest that is pinned; empty where it is no pin
	// results is on which subjects its results are kept, for later runs to take; empty where it has none.
	results string
}

func (s *stock) hold(who who, holder retention.Holder) {
	s.Holders = append(s.Holders, holder)
	s.who = append(s.who, who)
}

const (
	// lag is how far Temporal's list of workflows, and the ledger, may be behind: an event that was dealt with since may
	// have started a run that neither has yet.
	lag = time.Hour
	// mostOff is by how much the clock may have been turned back while an attempt went on: what it wrote then seems to be
	// older than itself. It is more than a wrong time zone is off. Who keeps things for less than that gets less.
	mostOff = 24 * time.Hour
)

// gatherer finds out who names what. What cannot change any more is read once. One goroutine at a time uses it.
type gatherer struct {
	options Options
	logger  *slog.Logger

	scanned  *nameIndex
	runs     *runReader
	events   *tail
	dead     *tail
	results  *tail
	bindings *tail
	waited   []waited // in the order of their times
}

// waited is the first event that waited at a time.
type waited struct {
	at    time.Time
	first uint64
}

func newGatherer(options Options, logger *slog.Logger) *gatherer {
	return &gatherer{
		options: options, logger: logger, scanned: newNameIndex(options.StateDir),
		runs:   newRunReader(options.Temporal),
		events: newTail(wire.EventStream), dead: newTail(wire.DeadStream), results: newTail(wire.ResultStream),
		bindings: newTail("KV_" + wire.BindingBucket),
	}
}

// gather returns what there is, as old as it is by a clock, without who gave back what. Where nothing is old enough to
// go, nobody is asked.
func (g *gatherer) gather(
	ctx context.Context, superseded map[retention.Digest]time.Time, policy retention.Policy, clock *clock,
) (stock, error) {
	s := stock{lagged: clock.before(lag), Stock: retention.Stock{
		Settled: clock.before(policy.Grace), Superseded: superseded,
	}}
	s.At, _ = clock.now()
	mayGo := false
	err := g.options.Store.List(ctx, func(info artifact.Info) error {
		digest, err := retention.ParseDigest(info.Digest)
		if err != nil {
			return err
		}
		s.Artifacts = append(s.Artifacts, retention.Artifact{
			Digest: digest, Bytes: quantity.Bytes(info.Bytes), Written: info.Written, Again: info.Again,
		})
		_, old := superseded[digest]
		mayGo = mayGo || old || !info.Written.After(s.Settled)
		return nil
	})
	if err != nil {
		return stock{}, err
	}
	if !mayGo {
		return s, nil
	}
	if err := g.scan(ctx, &s); err != nil {
		return stock{}, err
	}
	// What passes from one holder to another is looked for where it comes from first: events before the runs that they
	// start, results before the runs that take them.
	for _, part := range []func(context.Context, *stock) error{
		g.addPins, g.addChains, g.addBuilds, g.addBindings, g.addEvents, g.addDead,
		func(ctx context.Context, s *stock) error { return g.addRuns(ctx, s, policy) },
	} {
		if err := part(ctx, &s); err != nil {
			return stock{}, err
		}
	}
	return s, nil
}

// scan finds what artifacts name. Bytes with a digest never change, so each is read once, also by later engines. One
// that is damaged names at least what is left of it, until somebody has put it anew.
func (g *gatherer) scan(ctx context.Context, s *stock) error {
	if err := g.scanned.load(); err != nil {
		g.logger.WarnContext(ctx, "all artifacts are read again", "error", err)
	}
	there := s.Artifacts[:0]
	for _, one := range s.Artifacts {
		names, known := g.scanned.of(one.Digest)
		if !known {
			var err error
			names, err = scan(ctx, g.options.Store, one.Digest)
			if errors.Is(err, activities.ErrMissing) {
				continue // somebody has removed it meanwhile
			}
			if err != nil && !errors.Is(err, activities.ErrCorrupt) {
				return err
			}
			if err == nil {
				g.scanned.learn(one.Digest, names)
			}
		}
		one.Names = names
		there = append(there, one)
	}
	s.Artifacts = there
	if err := g.scanned.keep(there); err != nil { // the next engine reads them again
		g.logger.WarnContext(ctx, "it is not noted what artifacts name", "error", err)
	}
	return nil
}

// scan returns the digests in the text of an artifact; with an error, those that were found before.
func scan(ctx context.Context, store activities.Store, digest retention.Digest) ([]retention.Digest, error) {
	content, err := store.Open(ctx, digest.String())
	if err != nil {
		return nil, fmt.Errorf("look what an artifact names: %w", err)
	}
	var scanner retention.Scanner
	_, err = io.CopyBuffer(&scanner, contextReader{ctx, content}, make([]byte, 1<<20))
	if err := errors.Join(err, content.Close()); err != nil {
		return scanner.Names(), fmt.Errorf("look what artifact %s names: %w", digest, err)
	}
	return scanner.Names(), nil
}

// contextReader stops reading when its context has ended.
type contextReader struct {
	ctx context.Context //nolint:containedctx // it lives as long as one call of scan
	io.Reader
}

// Read implements io.Reader.
func (r contextReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(p)
}

// addPins adds what somebody from outside has put.
func (g *gatherer) addPins(ctx context.Context, s *stock) error {
	return g.options.Store.Pins(ctx, func(pin artifact.Info) error {
		digest, err := retention.ParseDigest(pin.Digest)
		if err != nil {
			return err
		}
		key := "pin/" + pin.Digest + "/" + strconv.FormatInt(pin.Written.UnixNano(), 10) // put again, it is another
		s.hold(who{key: key, pin: pin.Digest}, retention.Holder{
			Name: "an artifact that was sent", Ended: pin.Written, Names: []retention.Digest{digest},
		})
		return nil
	})
}

// addBuilds adds the builds that servers share.
func (g *gatherer) addBuilds(_ context.Context, s *stock) error {
	if g.options.Builds == nil {
		return nil
	}
	for name, digests := range g.options.Builds() {
		holder := retention.Holder{Name: "build " + name}
		for _, text := range digests {
			digest, err := retention.ParseDigest(text)
			if err != nil {
				return fmt.Errorf("what build %s consists of: %w", name, err)
			}
			holder.Names = append(holder.Names, digest)
		}
		s.hold(who{key: "build/" + name}, holder)
	}
	return nil
}

// addChains adds the chains that are stored: their files go when nobody has used them for long (see build.Chains).
func (g *gatherer) addChains(_ context.Context, s *stock) error {
	entries, err := os.ReadDir(g.options.Chains)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("list the stored chains: %w", err)
	}
	for _, entry := range entries {
		text, err := os.ReadFile(filepath.Join(g.options.Chains, entry.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read a stored chain: %w", err)
		}
		s.hold(who{key: "chain/" + entry.Name()}, retention.Holder{
			Name:  "chain " + entry.Name(),
			Names: retention.Names(text),
		})
	}
	return nil
}

// addBindings adds the inputs of bindings that were made by command.
func (g *gatherer) addBindings(ctx context.Context, s *stock) error {
	if err := g.bindings.read(ctx, g.options.JetStream); err != nil {
		return err
	}
	for sequence, one := range g.bindings.kept {
		s.hold(who{key: "binding/" + strconv.FormatUint(sequence, 10)},
			retention.Holder{Name: "a binding", Names: one.names})
	}
	return nil
}

// addEvents adds the events that wait for a run, or have waited within the lag: the run of one that was dealt with
// since may not be listed yet. The others hold nothing, since the history of their run does. What reads events keeps
// its binding, of an app or of a command.
func (g *gatherer) addEvents(ctx context.Context, s *stock) error {
	first, bindings, err := readers(ctx, g.options.JetStream, wire.EventStream)
	if err != nil {
		return err
	}
	s.hold(who{key: "bindings"}, retention.Holder{Name: "a binding", Names: bindings})
	if err := g.events.read(ctx, g.options.JetStream); err != nil {
		return err
	}
	first = g.firstWithinLag(waited{s.At, first}, s.lagged)
	for sequence, one := range g.events.kept {
		if sequence >= first {
			s.hold(who{key: "event/" + strconv.FormatUint(sequence, 10)},
				retention.Holder{Name: "an event", Names: one.names})
		}
	}
	return nil
}

// firstWithinLag notes which event waits first, and returns the first that waited when the lag began; 0 where nobody
// has looked yet by then.
func (g *gatherer) firstWithinLag(now waited, begin time.Time) (first uint64) {
	g.waited = slices.DeleteFunc(g.waited, func(one waited) bool { return one.at.After(now.at) }) // of a clock turned back
	g.waited = append(g.waited, now)
	for len(g.waited) > 1 && !g.waited[1].at.After(begin) {
		g.waited = g.waited[1:]
	}
	if g.waited[0].at.After(begin) {
		return 0
	}
	return g.waited[0].first
}

// addDead adds the dead letters, which may be published again.
func (g *gatherer) addDead(ctx context.Context, s *stock) error {
	if err := g.dead.read(ctx, g.options.JetStream); err != nil {
		return err
	}
	for sequence, one := range g.dead.kept {
		number := strconv.FormatUint(sequence, 10)
		s.hold(who{key: "dead/" + number}, retention.Holder{Name: "dead letter " + number, Ended: one.at, Names: one.names})
	}
	return nil
}

// addRuns adds the runs that Temporal knows, with their results, and the results of those that it does not know.
func (g *gatherer) addRuns(ctx context.Context, s *stock, policy retention.Policy) error {
	if err := g.results.read(ctx, g.options.JetStream); err != nil {
		return err
	}
	known, err := g.options.Runs(ctx, s.At.Add(-policy.KeepFor))
	if err != nil {
		return fmt.Errorf("look up which runs there are: %w", err)
	}
	told, err := g.runs.read(ctx, known, s.At)
	if err != nil {
		return err
	}
	if s.Busy = told.busy; !s.Busy.IsZero() {
		s.Busy = s.Busy.Add(-min(mostOff, policy.KeepFor))
	}
	results := g.resultsByRun()
	for name, run := range told.runs {
		token := ofRun(wire.ResultSubject(wire.ResultKey{}, name))
		names := run.names
		if of := results[token]; of != nil {
			names = append(names, of.names...)
			delete(results, token)
		}
		ended := run.ended
		if run.open {
			ended = time.Time{}
		}
		// A run that is started once more under its name is another.
		key := "run/" + name + "/" + strconv.FormatInt(ended.UnixNano(), 10)
		s.hold(who{key: key, run: name, results: resultsOf(token)},
			retention.Holder{Name: "run " + name, Ended: ended, Names: names})
	}
	for token, of := range results {
		if of.at.After(s.lagged) { // the run that has taken them may have begun just now
			of.at = time.Time{}
		}
		key := "results/" + token + "/" + strconv.FormatInt(of.at.UnixNano(), 10)
		s.hold(who{key: key, results: resultsOf(token)},
			retention.Holder{Name: "a run that Temporal knows no more", Ended: of.at, Names: of.names})
	}
	s.addLost(told.lost)
	return nil
}

// resultsByRun returns what the stored results of each run name, by the run's part of their subjects.
func (g *gatherer) resultsByRun() map[string]*kept {
	results := map[string]*kept{}
	for _, one := range g.results.kept {
		token := ofRun(one.subject)
		of := results[token]
		if of == nil {
			of = &kept{}
			results[token] = of
		}
		of.names = append(of.names, one.names...)
		if one.at.After(of.at) {
			of.at = one.at
		}
	}
	return results
}

// addLost adds the runs of which the ledger knows and Temporal does not, as where its database was lost or moved away,
// or somebody has deleted a workflow. What they name nobody can say; what was written while they went on stays as long
// as it would have. Those that ended on one day hold it together: there may be thousands.
func (s *stock) addLost(lost []KnownRun) {
	byDay := map[int64][]KnownRun{}
	for _, run := range lost {
		day := run.last().Unix() / int64(24*time.Hour/time.Second)
		byDay[day] = append(byDay[day], run)
	}
	for day, runs := range byDay {
		holder := retention.Holder{Name: "a run that Temporal has lost", Guessed: true}
		began, over := runs[0].Started, runs[0].Ended
		for _, run := range runs {
			if run.Started.Before(began) {
				began = run.Started
			}
			if run.Ended.IsZero() || !over.IsZero() && run.Ended.After(over) {
				over = run.Ended
			}
			if run.last().After(holder.Ended) {
				holder.Ended = run.last()
			}
		}
		for _, one := range s.Artifacts {
			if !one.Written.Before(began) && (over.IsZero() || !one.Written.After(over.Add(lag))) {
				holder.Names = append(holder.Names, one.Digest)
			}
		}
		key := "lost/" + strconv.FormatInt(day, 10) + "/" + strconv.FormatInt(holder.Ended.UnixNano(), 10)
		s.hold(who{key: key}, holder)
	}
}

// ofRun is the part of a result's subject that says of which run it is, and resultsOf where all of that run are.
func ofRun(subject string) string { return subject[strings.LastIndexByte(subject, '.')+1:] }

func resultsOf(token string) string {
	ofAll, _ := strings.CutSuffix(wire.ResultSubject(wire.ResultKey{}, ""), "*")
	return ofAll + token
}
