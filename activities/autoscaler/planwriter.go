package autoscaler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strconv"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
)

// planWriter may replace the plan in force. It belongs to one term, and can write no more once a later one has begun.
//
// Why one compare-and-set on the plan is enough: whoever takes a term first claims the plan, that is, posts the plan in
// force again under the new term. From then on the revision that every earlier leader knows is wrong, so none of them
// can post any more, and the term key need not be read again. A leader that claims too late finds a plan of a later
// term and is superseded before it ever posted.
type planWriter struct {
	plans    PlanStore
	logger   *slog.Logger
	term     uint64
	revision uint64         // of the plan in force
	inForce  predictor.Plan // what this writer last put in force
}

// claimPlan takes the next term, later than least, and claims the plan in force. It wraps ErrSuperseded when another
// leader was faster with a later term.
func claimPlan(
	ctx context.Context, js jetstream.JetStream, plans PlanStore, least uint64, logger *slog.Logger,
) (*planWriter, error) {
	bucket, err := js.KeyValue(ctx, wire.PlanBucket)
	if err != nil {
		return nil, fmt.Errorf("open bucket %s: %w", wire.PlanBucket, err)
	}
	plan, revision, err := readable(ctx, plans, logger)
	if err != nil {
		return nil, fmt.Errorf("claim the plan: %w", err)
	}
	term, err := takeTerm(ctx, bucket, max(least, plan.Term), logger)
	if err != nil {
		return nil, fmt.Errorf("claim the plan: %w", err)
	}
	w := &planWriter{plans: plans, logger: logger, term: term}
	for {
		if plan.Term > term {
			return nil, fmt.Errorf("claim the plan for term %d: %w: term %d", term, ErrSuperseded, plan.Term)
		}
		plan.Term, plan.Tick, plan.Decisions = term, 0, nil
		w.revision, err = plans.Replace(ctx, plan, revision)
		if err == nil {
			w.inForce = plan
			return w, nil
		}
		// Another leader posted since, or it is not known whether this one did: both show in what is in force now.
		seen, cause := revision, err
		plan, revision, err = readable(ctx, plans, logger)
		if err != nil {
			return nil, fmt.Errorf("claim the plan for term %d: %w", term, errors.Join(cause, err))
		}
		if revision == seen {
			return nil, fmt.Errorf("claim the plan for term %d: %w", term, cause)
		}
	}
}

// readable returns the plan in force. One that nobody can read counts as none; one of a newer build is an error, and
// stays.
func readable(ctx context.Context, plans PlanStore, logger *slog.Logger) (predictor.Plan, uint64, error) {
	plan, revision, err := plans.Current(ctx)
	if err != nil && revision > 0 && !errors.Is(err, wire.ErrVersion) {
		logger.ErrorContext(ctx, "replace a plan that cannot be read", "revision", revision, "error", err)
		return predictor.Plan{}, revision, nil
	}
	return plan, revision, err
}

// takeTerm raises the term by one with compare-and-set, above least, and returns it. No two callers get the same one. A
// term that cannot be was written by no leader: it is replaced by the one after least, which is larger than all that
// count, because the plan in force is of the last.
func takeTerm(ctx context.Context, bucket jetstream.KeyValue, least uint64, logger *slog.Logger) (uint64, error) {
	for {
		term, revision := least, uint64(0)
		entry, err := bucket.Get(ctx, wire.TermKey)
		switch {
		case err == nil:
			revision = entry.Revision()
			stored, err := strconv.ParseUint(string(entry.Value()), 10, 64)
			if err != nil || stored >= wire.MaxTerm {
				logger.ErrorContext(ctx, "replace a term that cannot be", "term", fmt.Sprintf("%.40q", entry.Value()), "last",
					least)
				stored = 0
			}
			term = max(term, stored)
		case !errors.Is(err, jetstream.ErrKeyNotFound):
			return 0, fmt.Errorf("read the term: %w", err)
		}
		term++
		value := []byte(strconv.FormatUint(term, 10))
		if revision == 0 {
			_, err = bucket.Create(ctx, wire.TermKey, value)
		} else {
			_, err = bucket.Update(ctx, wire.TermKey, value, revision)
		}
		if err == nil {
			return term, nil
		}
		if !conflict(err) {
			return 0, fmt.Errorf("take term %d: %w", term, err)
		}
	}
}

// conflict reports whether a compare-and-set lost against another.
func conflict(err error) bool {
	return errors.Is(err, jetstream.ErrKeyRevisionMismatch) || errors.Is(err, jetstream.ErrKeyExists)
}

// post puts plan in force. It wraps ErrSuperseded when a later term has begun; after any other error the writer knows
// again what is in force, or is as before, and the next plan can be posted.
func (w *planWriter) post(ctx context.Context, plan predictor.Plan) error {
	if plan.Term != w.term {
		return fmt.Errorf("post a plan of term %d in term %d", plan.Term, w.term) // a bug of ours
	}
	revision, err := w.plans.Replace(ctx, plan, w.revision)
	if err == nil {
		w.revision, w.inForce = revision, plan
		return nil
	}
	before := w.revision
	if lookErr := w.look(ctx); lookErr != nil {
		return errors.Join(err, lookErr)
	}
	if w.revision != before && w.inForce.Term == w.term && w.inForce.Tick == plan.Tick {
		w.inForce = plan // it did arrive, only its answer did not
		return nil
	}
	return err
}

// look learns what is in force now. It wraps ErrSuperseded when a later term has begun, or a newer build leads. A plan
// that nobody can read, or that was deleted, counts as an empty one: the next tick finds that what it decides differs,
// and posts.
func (w *planWriter) look(ctx context.Context) error {
	current, revision, err := readable(ctx, w.plans, w.logger)
	if errors.Is(err, wire.ErrVersion) {
		return fmt.Errorf("write plans of term %d: %w: %w", w.term, ErrSuperseded, err)
	}
	if err != nil {
		return err
	}
	if current.Term > w.term {
		return fmt.Errorf("write plans of term %d: %w: term %d", w.term, ErrSuperseded, current.Term)
	}
	if revision != w.revision {
		w.revision, w.inForce = revision, current
	}
	return nil
}

// change is how a plan differs from another.
type change int

// The changes: nothing; how attempts are sized or predicted, which may wait for the next regular tick; who holds what.
const (
	unchanged change = iota
	sizings
	holdings
)

// compare tells how next differs from last in what actuators obey.
func compare(last, next predictor.Plan) change {
	switch {
	case !slices.Equal(last.Grants, next.Grants), !slices.Equal(last.Placements, next.Placements),
		!slices.Equal(last.Windows, next.Windows):
		return holdings
	case !slices.Equal(last.Sizings, next.Sizings), !slices.EqualFunc(last.Trainings, next.Trainings, samePast),
		!slices.Equal(last.TimesToLoss, next.TimesToLoss), !slices.Equal(last.Teams, next.Teams):
		return sizings
	default:
		return unchanged
	}
}

// samePast reports whether two rows tell attempts the same of earlier trainings: the newest come first, and none of
// them changes.
func samePast(a, b predictor.PastTraining) bool {
	if a.Stage != b.Stage || len(a.Newest) != len(b.Newest) || len(a.Newest) == 0 {
		return a.Stage == b.Stage && len(a.Newest) == len(b.Newest)
	}
	return reflect.DeepEqual(a.Newest[0], b.Newest[0])
}
