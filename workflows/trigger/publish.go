package trigger

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/streams"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// Publish publishes an event for a pipeline, or on a subject that a binding reads, and returns the event's ID and the
// run that it starts. An empty id stands for a new one; publishing the same id again with the same input starts nothing
// and returns the same run, and with another is refused. A nil goal leaves the binding's or the pipeline's; options say
// how the run is started besides. What would become a dead letter is refused here, and so is what the binding's filter
// does not want. When several pipelines are bound to a subject, run is that of the first by name of those that take the
// event.
func (t *Trigger) Publish(
	ctx context.Context, target, id string, body []byte, goal *predictor.Goal, options wire.RunOptions,
) (eventID, run string, err error) {
	fresh := id == ""
	if fresh {
		id = strings.ToLower(rand.Text()[:12])
	} else if err := checkID(id); err != nil {
		return "", "", fmt.Errorf("publish event: %w", err)
	}
	e := event{id: id, header: nats.Header{}, body: body}
	e.header.Set(wire.IDHeader, id)
	if goal != nil {
		if err := runs.CheckGoal(*goal); err != nil {
			return "", "", fmt.Errorf("publish event %s: %w", id, err)
		}
		encoded, err := json.Marshal(goal)
		if err != nil {
			return "", "", fmt.Errorf("publish event %s: encode goal: %w", id, err)
		}
		e.header.Set(wire.GoalHeader, string(encoded))
	}
	if !options.IsZero() {
		encoded, err := json.Marshal(options)
		if err != nil {
			return "", "", fmt.Errorf("publish event %s: encode its options: %w", id, err)
		}
		e.header.Set(wire.RunHeader, string(encoded))
	}
	starts, err := t.snapshot().address(target, &e)
	if err != nil {
		return "", "", fmt.Errorf("publish event for %q: %w", target, err)
	}
	for _, start := range starts {
		if err := t.permit(ctx, start.Pipeline); err != nil {
			return "", "", err
		}
	}
	start := starts[0]
	if start.Validates {
		checking, cancel := context.WithTimeout(ctx, doorCheckLimit)
		err := t.check(checking, start)
		cancel()
		if errors.Is(err, ErrRefused) {
			return "", "", fmt.Errorf("publish event for %q: %w", target, err)
		} // where nobody answers now, the event is checked when its run is started
	}
	if !fresh {
		if err := t.conflict(ctx, starts); errors.Is(err, ErrRefused) {
			return "", "", fmt.Errorf("publish event for %q: %w", target, err)
		}
	}
	message := &nats.Msg{Subject: e.subject, Header: e.header, Data: e.body}
	// The subject is part of the message ID, since JetStream drops an ID that it has seen on any subject, and events for
	// two pipelines may share one.
	var stored *jetstream.PubAck
	err = streams.Persistently(ctx, publishLimit, func(ctx context.Context) (err error) {
		stored, err = t.js.PublishMsg(ctx, message, jetstream.WithMsgID(e.subject+" "+id),
			jetstream.WithExpectStream(wire.EventStream))
		return err
	})
	if err != nil {
		return "", "", fmt.Errorf("publish event %s on %s: %w", id, e.subject, err)
	}
	if stored.Duplicate {
		if err := t.conflicts(ctx, start, stored.Sequence); errors.Is(err, ErrRefused) {
			return "", "", fmt.Errorf("publish event for %q: %w", target, err)
		}
	}
	return id, start.Run, nil
}

// conflict refuses an event if one of the runs that it would start is there with another input: it would start some of
// them, and be a dead letter for the others.
func (t *Trigger) conflict(ctx context.Context, starts []Start) error {
	ctx, cancel := context.WithTimeout(ctx, doorCheckLimit)
	defer cancel()
	var errs []error
	for _, start := range starts {
		errs = append(errs, t.starter.Conflict(ctx, start))
	}
	return errors.Join(errs...)
}

// CheckInput refuses an input with which no event starts a run of the pipeline, and starts nothing. It wraps
// ErrRefused. Of a pipeline that is not served, or whose code does not answer now, nothing is known.
func (t *Trigger) CheckInput(ctx context.Context, pipeline string, body []byte) error {
	p, served := t.snapshot().pipelines[pipeline]
	if !served {
		return nil
	}
	input, decoded, err := event{body: body}.input()
	if err != nil {
		return Refuse("%w", err)
	}
	if err := p.check(decoded); err != nil {
		return Refuse("%w", err)
	}
	if !p.Pipeline.Validates {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, doorCheckLimit)
	defer cancel()
	err = t.check(ctx, Start{Pipeline: pipeline, App: p.App, Build: p.Build, Version: p.Version, Input: input})
	if errors.Is(err, ErrRefused) {
		return err
	}
	return nil
}

// publishLimit is for how long Publish waits for servers that elect who leads the stream, and far less than the server
// knows the event's ID again.
const publishLimit = 15 * time.Second

// doorCheckLimit is for how long Publish waits for the pipeline's own check of the input.
const doorCheckLimit = 15 * time.Second

// address sets the subject of an event for target, a pipeline or a subject, and returns the runs that it will start, of
// which the first is what was asked for.
func (t *table) address(target string, e *event) (starts []Start, err error) {
	_, isPipeline := t.pipelines[target]
	readers := t.readers(func(bound Bound) bool {
		return isPipeline && bound.Binding.Pipeline == target || !isPipeline && isCovered(target, bound.Binding.Subject)
	})
	if !isPipeline && isWildcard(target) {
		return nil, errors.New("an event is published on one subject: replace the wildcards")
	}
	if len(readers) == 0 {
		if strings.Contains(target, ".") {
			return nil, errors.New(t.unbound(target))
		}
		return nil, fmt.Errorf("there is no pipeline of this name; %s", suggestion(target, t.pipelineNames()))
	}
	// A binding without wildcards first: it is the pipeline's plain address.
	slices.SortStableFunc(readers, func(a, b Bound) int { return wildcardRank(a) - wildcardRank(b) })
	var refusal string
	for _, bound := range readers {
		try := *e
		try.subject = target
		if isPipeline {
			try.subject = concrete(bound.Binding.Subject)
		}
		decision := t.decide(bound, try)
		if decision.disposition == startRun {
			e.subject = try.subject
			return append([]Start{decision.start}, t.startedBeside(bound, try)...), nil
		}
		if refusal == "" || decision.disposition == deadLetter {
			refusal = decision.reason
		}
	}
	return nil, errors.New(refusal)
}

// readers are the bindings to subjects that match, in the order of their keys.
func (t *table) readers(match func(Bound) bool) []Bound {
	var readers []Bound
	for _, key := range slices.Sorted(maps.Keys(t.bounds)) {
		bound := t.bounds[key]
		if bound.Origin != Removed && bound.Binding.Subject != "" && match(bound) {
			readers = append(readers, bound)
		}
	}
	return readers
}

// startedBeside are the runs that an event starts by other bindings than first.
func (t *table) startedBeside(first Bound, e event) []Start {
	var starts []Start
	for _, bound := range t.readers(func(bound Bound) bool {
		return bound.Key != first.Key && isCovered(e.subject, bound.Binding.Subject)
	}) {
		if decision := t.decide(bound, e); decision.disposition == startRun {
			starts = append(starts, decision.start)
		}
	}
	return starts
}

// wildcardRank orders bindings by how plain their subjects are.
func wildcardRank(bound Bound) int {
	if isWildcard(bound.Binding.Subject) {
		return 1
	}
	return 0
}
