package loop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/streams"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
)

// HostPlan is what one host obeys of the plan in force, beside which it lies under a key of its own.
type HostPlan struct {
	// Host is a name of which wire.HasHostPlan says that it has one.
	Host string
	Plan predictor.Plan
	// Revision is that of the one that this one replaces, so that a leader that was deposed replaces nothing that another
	// has written since; 0 where there is none. ReplaceHostPlans sets it to its own.
	Revision uint64
	// Gone has what there is removed; Plan does not count.
	Gone bool
}

// HostPlans returns the revisions of what hosts obey, by host.
func (p *Plans) HostPlans(ctx context.Context) (map[string]uint64, error) {
	const all = wire.HostPlanPrefix + ">"
	watcher, err := p.bucket.Watch(ctx, all, jetstream.IgnoreDeletes(), jetstream.MetaOnly())
	if err != nil {
		return nil, fmt.Errorf("list the plans of hosts: %w", err)
	}
	defer func() { _ = watcher.Stop() }()
	found := map[string]uint64{}
	err = streams.ReadAll(ctx, watcher, func(entry jetstream.KeyValueEntry) {
		found[strings.TrimPrefix(entry.Key(), wire.HostPlanPrefix)] = entry.Revision()
	})
	if err != nil {
		return nil, fmt.Errorf("list the plans of hosts: %w", err)
	}
	return found, nil
}

// ReplaceHostPlans replaces what these hosts obey, all at once, and waits until each is acknowledged. Those that
// another has replaced since are left as they are, and the error wraps ErrReplaced; after any error HostPlans tells
// what there is. Where what a host obeyed was removed, NATS keeps a mark of that, which is replaced as nothing is.
func (p *Plans) ReplaceHostPlans(ctx context.Context, plans []HostPlan) error {
	sent := make([]jetstream.PubAckFuture, len(plans))
	for i, one := range plans {
		message := nats.NewMsg(bucketSubject(wire.PlanBucket, wire.HostPlanPrefix+one.Host))
		if one.Gone {
			message.Header.Set(kvOperation, "PURGE")
			message.Header.Set(nats.MsgRollup, nats.MsgRollupSubject)
		} else {
			data, err := json.Marshal(posted{wire.Version, one.Plan})
			if err != nil {
				return fmt.Errorf("post the plan of host %s: %w", one.Host, err)
			}
			message.Data = data
		}
		var err error
		sent[i], err = p.js.PublishMsgAsync(message, jetstream.WithExpectLastSequencePerSubject(one.Revision))
		if err != nil {
			return fmt.Errorf("post the plan of host %s: %w", one.Host, err)
		}
	}
	var failed error
	for i, future := range sent {
		select {
		case ack := <-future.Ok():
			plans[i].Revision = ack.Sequence
		case err := <-future.Err():
			if refused, is := errors.AsType[*jetstream.APIError](err); is &&
				refused.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence {
				plans[i].Revision, err = p.overMark(ctx, plans[i])
			}
			if err != nil {
				failed = fmt.Errorf("post the plan of host %s: %w", plans[i].Host, err)
			}
		case <-ctx.Done():
			return fmt.Errorf("post the plan of host %s: %w", plans[i].Host, ctx.Err())
		}
	}
	return failed
}

// overMark puts the plan of a host, which has come back, in the place of the mark that one before it was removed; the
// error is ErrReplaced where there is none.
func (p *Plans) overMark(ctx context.Context, one HostPlan) (revision uint64, err error) {
	if one.Revision != 0 || one.Gone {
		return one.Revision, ErrReplaced
	}
	data, err := json.Marshal(posted{wire.Version, one.Plan})
	if err != nil {
		return 0, err
	}
	revision, err = p.bucket.Create(ctx, wire.HostPlanPrefix+one.Host, data)
	if errors.Is(err, jetstream.ErrKeyExists) || errors.Is(err, jetstream.ErrKeyRevisionMismatch) {
		return 0, ErrReplaced
	}
	return revision, err
}

// Of returns the plans as one host obeys them: what of them is its own.
func (p *Plans) Of(host string) activities.Plans {
	own := *p
	own.key = wire.HostPlanPrefix + host
	return &own
}
