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

	who []who // by holder
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

// lag is how far Temporal's list of workflows may be behind: an event that is younger may have started a run that the
// list does not have yet.
const lag = time.Hour

// gatherer finds out who names what. What cannot change any more is read once. One goroutine at a time uses it.
type gatherer struct {
	options Options
	logger  *slog.Logger

	scanned  map[retention.Digest][]retention.Digest // by artifact: the digests in its text
	runs     *runReader
	events   *tail
	dead     *tail
	results  *tail
	bindings *tail
}

func newGatherer(options Options, logger *slog.Logger) *gatherer {
	return &gatherer{
		options: options, logger: logger, scanned: map[retention.Digest][]retention.Digest{},
		runs:   newRunReader(options.Temporal),
		events: newTail(wire.EventStream), dead: newTail(wire.DeadStream), results: newTail(wire.ResultStream),
		bindings: newTail("KV_" + wire.BindingBucket),
	}
}

// gather returns what there is, without who gave back what. Where nothing is old enough to go, nobody is asked.
func (g *gatherer) gather(
	ctx context.Context, superseded map[retention.Digest]time.Time, policy retention.Policy,
) (stock, error) {
	now := time.Now()
	s := stock{Stock: retention.Stock{At: now, Superseded: superseded}}
	mayGo := false
	err := g.options.Store.List(ctx, func(info artifact.Info) error {
		digest, err := retention.ParseDigest(info.Digest)
		if err != nil {
			return err
		}
		s.Artifacts = append(s.Artifacts, retention.Artifact{
			Digest: digest, Bytes: quantity.Bytes(info.Bytes), Written: info.Written,
		})
		_, old := superseded[digest]
		mayGo = mayGo || old || !info.Written.After(now.Add(-policy.Grace))
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
		g.addPins, g.addChains, g.addBindings, g.addEvents, g.addDead, g.addRuns,
	} {
		if err := part(ctx, &s); err != nil {
			return stock{}, err
		}
	}
	return s, nil
}

// scan finds what artifacts name. Bytes with a digest never change, so each is read once.
func (g *gatherer) scan(ctx context.Context, s *stock) error {
	scanned := make(map[retention.Digest][]retention.Digest, len(s.Artifacts))
	there := s.Artifacts[:0]
	for _, one := range s.Artifacts {
		names, known := g.scanned[one.Digest]
		if !known {
			var err error
			names, err = scan(ctx, g.options.Store, one.Digest)
			if errors.Is(err, activities.ErrMissing) {
				continue // somebody has removed it meanwhile
			}
			if err != nil && !errors.Is(err, activities.ErrCorrupt) {
				return err
			}
		}
		scanned[one.Digest], one.Names = names, names
		there = append(there, one)
	}
	s.Artifacts, g.scanned = there, scanned
	return nil
}

// scan returns the digests in the text of an artifact.
func scan(ctx context.Context, store activities.Store, digest retention.Digest) ([]retention.Digest, error) {
	content, err := store.Open(ctx, digest.String())
	if err != nil {
		return nil, fmt.Errorf("look what an artifact names: %w", err)
	}
	var scanner retention.Scanner
	_, err = io.CopyBuffer(&scanner, contextReader{ctx, content}, make([]byte, 1<<20))
	if err := errors.Join(err, content.Close()); err != nil {
		return nil, fmt.Errorf("look what artifact %s names: %w", digest, err)
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

// addBindings adds the inputs of bindings.
func (g *gatherer) addBindings(ctx context.Context, s *stock) error {
	if err := g.bindings.read(ctx, g.options.JetStream); err != nil {
		return err
	}
	for sequence, one := range g.bindings.kept {
		s.hold(who{key: "binding/" + strconv.FormatUint(sequence, 10)}, retention.Holder{Name: "a binding", Names: one.names})
	}
	return nil
}

// addEvents adds the events that wait for a run, and the young ones: that of a run may not be listed yet. The others
// hold nothing, since the history of their run does.
func (g *gatherer) addEvents(ctx context.Context, s *stock) error {
	waiting, err := firstWaiting(ctx, g.options.JetStream, wire.EventStream)
	if err != nil {
		return err
	}
	if err := g.events.read(ctx, g.options.JetStream); err != nil {
		return err
	}
	for sequence, one := range g.events.kept {
		if sequence >= waiting || one.at.After(s.At.Add(-lag)) {
			s.hold(who{key: "event/" + strconv.FormatUint(sequence, 10)}, retention.Holder{Name: "an event", Names: one.names})
		}
	}
	return nil
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
func (g *gatherer) addRuns(ctx context.Context, s *stock) error {
	if err := g.results.read(ctx, g.options.JetStream); err != nil {
		return err
	}
	results := map[string]*kept{} // by the run's part of their subjects
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
	runs, busy, err := g.runs.read(ctx)
	if err != nil {
		return err
	}
	s.Busy = busy
	for name, run := range runs {
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
		key := "results/" + token + "/" + strconv.FormatInt(of.at.UnixNano(), 10)
		s.hold(who{key: key, results: resultsOf(token)},
			retention.Holder{Name: "a run that Temporal knows no more", Ended: of.at, Names: of.names})
	}
	return nil
}

// ofRun is the part of a result's subject that says of which run it is, and resultsOf where all of that run are.
func ofRun(subject string) string { return subject[strings.LastIndexByte(subject, '.')+1:] }

func resultsOf(token string) string {
	ofAll, _ := strings.CutSuffix(wire.ResultSubject(wire.ResultKey{}, ""), "*")
	return ofAll + token
}
