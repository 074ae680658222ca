package loop

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/streams"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
)

// kvOperation is the header that marks a deleted or purged key.
const kvOperation = "KV-Operation"

// ErrReplaced says that the plan in force is no longer the one that was to be replaced.
var ErrReplaced = errors.New("plan was replaced by another")

// Plans is the place of the plan in force: one value, replaced only by whoever knows which one it replaces.
// Its methods are safe for concurrent use.
type Plans struct {
	js     jetstream.JetStream
	bucket jetstream.KeyValue
	key    string // of what Watch hands out
	logger *slog.Logger
}

var _ activities.Plans = (*Plans)(nil)

// posted is a plan as the bucket holds it.
type posted struct {
	Version int            `json:"v"`
	Plan    predictor.Plan `json:"plan"`
}

// NewPlans returns the plans of the bucket that EnsureStreams made. A nil logger discards.
func NewPlans(ctx context.Context, js jetstream.JetStream, logger *slog.Logger) (*Plans, error) {
	bucket, err := js.KeyValue(ctx, wire.PlanBucket)
	if err != nil {
		return nil, fmt.Errorf("open bucket %s: %w", wire.PlanBucket, err)
	}
	return &Plans{js: js, bucket: bucket, key: wire.PlanKey, logger: cmp.Or(logger, slog.New(slog.DiscardHandler))}, nil
}

// Watch calls obey with the plan in force and then with every newer one, one at a time, until ctx ends; it then returns
// the context's error. A plan of a lower term is not handed on, nor one of the same term that is not a later tick: it
// comes from a leader that was deposed, or is one that obey knows already. Watch goes on after a lost connection or a
// restarted server.
func (p *Plans) Watch(ctx context.Context, obey func(predictor.Plan)) error {
	var last predictor.Plan
	seen := false
	newest := func() jetstream.OrderedConsumerConfig {
		return jetstream.OrderedConsumerConfig{
			DeliverPolicy:  jetstream.DeliverLastPerSubjectPolicy,
			FilterSubjects: []string{bucketSubject(wire.PlanBucket, p.key)},
		}
	}
	err := tail(ctx, p.js, streams.BucketStream(wire.PlanBucket), newest, func(raw jetstream.Msg) error {
		if raw.Headers().Get(kvOperation) != "" {
			return nil
		}
		plan, err := decodePlan(raw.Data())
		if err != nil {
			p.logger.WarnContext(ctx, "ignore plan", "error", err)
			return nil
		}
		if seen && !plan.Supersedes(last) {
			p.logger.DebugContext(ctx, "ignore plan", "term", plan.Term, "tick", plan.Tick, "known_term", last.Term,
				"known_tick", last.Tick)
			return nil
		}
		last, seen = plan, true
		obey(plan)
		return nil
	}, p.logger)
	return fmt.Errorf("watch plans: %w", err)
}

// Current returns the plan in force and its revision; the zero Plan and revision 0 before the first.
func (p *Plans) Current(ctx context.Context) (predictor.Plan, uint64, error) {
	entry, err := p.bucket.Get(ctx, wire.PlanKey)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return predictor.Plan{}, 0, nil
	}
	if err != nil {
		return predictor.Plan{}, 0, fmt.Errorf("read plan: %w", err)
	}
	plan, err := decodePlan(entry.Value())
	if err != nil {
		return predictor.Plan{}, entry.Revision(), fmt.Errorf("read plan: %w", err)
	}
	return plan, entry.Revision(), nil
}

// Replace puts plan in force instead of the one with the given revision (0: there is none yet) and returns the new
// revision. It wraps ErrReplaced when another plan is in force by now. After any other error it is unknown whether plan
// is in force: Current tells. Decisions are left out when the value would be larger than the server takes; the loop's
// stream has them.
func (p *Plans) Replace(ctx context.Context, plan predictor.Plan, revision uint64) (uint64, error) {
	data, err := json.Marshal(posted{wire.Version, plan})
	if limit := p.js.Conn().MaxPayload(); err == nil && limit > 0 && int64(len(data))+headerRoom > limit {
		plan.Decisions = nil
		data, err = json.Marshal(posted{wire.Version, plan})
	}
	if err != nil {
		return 0, fmt.Errorf("post plan %d of term %d: %w", plan.Tick, plan.Term, err)
	}
	if revision == 0 { // also when a person deleted the plan
		revision, err = p.bucket.Create(ctx, wire.PlanKey, data)
	} else {
		revision, err = p.bucket.Update(ctx, wire.PlanKey, data, revision)
	}
	if errors.Is(err, jetstream.ErrKeyRevisionMismatch) || errors.Is(err, jetstream.ErrKeyExists) {
		return 0, fmt.Errorf("post plan %d of term %d: %w", plan.Tick, plan.Term, ErrReplaced)
	}
	if err != nil {
		return 0, fmt.Errorf("post plan %d of term %d: %w", plan.Tick, plan.Term, err)
	}
	return revision, nil
}

// headerRoom is what the headers of a value take at most.
const headerRoom = 1 << 10

func decodePlan(data []byte) (predictor.Plan, error) {
	var value posted
	if err := json.Unmarshal(data, &value); err != nil {
		return predictor.Plan{}, fmt.Errorf("decode plan: %w", err)
	}
	if value.Version != wire.Version {
		return predictor.Plan{}, fmt.Errorf("decode plan: %w: %d, this build reads %d", wire.ErrVersion, value.Version,
			wire.Version)
	}
	if value.Plan.Term > wire.MaxTerm {
		return predictor.Plan{}, fmt.Errorf("decode plan: there is no term %d", value.Plan.Term)
	}
	return value.Plan, nil
}
