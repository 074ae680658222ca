package engine

import (
	"context"
	"errors"
	"math"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/activities/telemetry"
	loopwire "github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/workflows/trigger"
)

// Publish publishes an event.
func (e *Engine) Publish(ctx context.Context, event web.Event) (web.Published, error) {
	target := event.Pipeline
	if target == "" {
		target = event.Subject
	}
	if _, err := e.apps.want(ctx, target); err != nil {
		return web.Published{}, err
	}
	body := event.Input
	if len(body) == 0 {
		body = []byte("{}")
	}
	id, run, err := e.trigger.Publish(ctx, target, event.ID, body, event.Goal, loopwire.RunOptions{
		Cache: event.Cache, Team: access.TeamOf(ctx),
	})
	if refused, is := errors.AsType[*web.Error](err); is {
		return web.Published{}, refused
	}
	if err != nil {
		return web.Published{}, web.Invalid("", "%s", err)
	}
	return web.Published{Event: id, Run: run}, nil
}

// Bindings returns every binding.
func (e *Engine) Bindings(ctx context.Context) ([]web.Binding, error) {
	stats, err := e.trigger.Stats(ctx)
	if err != nil {
		return nil, err
	}
	bindings := make([]web.Binding, 0, len(stats.Bindings))
	for _, one := range stats.Bindings {
		if one.Bound.Origin == trigger.Removed {
			continue // what it has read already is on its way to the dead letters
		}
		view := bindingView(one.Bound)
		view.Waiting, view.Running = int(min(one.Waiting, math.MaxInt32)), one.Running
		bindings = append(bindings, view)
	}
	return bindings, nil
}

func bindingView(bound trigger.Bound) web.Binding {
	return web.Binding{Binding: bound.Binding, Key: bound.Key, Declared: bound.Origin != trigger.Command}
}

// Bind makes a binding.
func (e *Engine) Bind(ctx context.Context, binding loopwire.Binding) (web.Binding, error) {
	if _, err := e.apps.want(ctx, binding.Pipeline); err != nil {
		return web.Binding{}, err
	}
	bound, err := e.trigger.Bind(ctx, binding)
	if err != nil {
		return web.Binding{}, web.Invalid("", "%s", err)
	}
	return bindingView(bound), nil
}

// Unbind removes a binding.
func (e *Engine) Unbind(ctx context.Context, key string) error {
	err := e.trigger.Unbind(ctx, key)
	switch {
	case errors.Is(err, trigger.ErrNoBinding):
		return web.NotFound("`spillway bindings` lists the keys", "%s", err)
	case errors.Is(err, trigger.ErrDeclared):
		return web.Conflict("change it there", "%s", err)
	default:
		return err
	}
}

// shownBody is how much of the body of a dead letter is shown.
const shownBody = 4 << 10

// Dead returns the dead letters.
func (e *Engine) Dead(ctx context.Context, limit int) ([]web.DeadLetter, error) {
	dead, err := e.trigger.DeadLetters(ctx, limit)
	if err != nil {
		return nil, err
	}
	letters := make([]web.DeadLetter, len(dead))
	for i, d := range dead {
		body := string(d.Body)
		if len(body) > shownBody {
			body = strings.ToValidUTF8(body[:shownBody], "")
		}
		// The newest come first from the trigger; people read them in the order in which they died.
		letters[len(dead)-1-i] = web.DeadLetter{
			Sequence: d.Sequence, Event: d.Event, Pipeline: d.Pipeline, Subject: d.Subject, Reason: d.Reason, Body: body,
			At: d.At,
		}
	}
	return letters, nil
}

// Replay publishes dead letters again.
func (e *Engine) Replay(ctx context.Context, sequence uint64) (web.Replayed, error) {
	if sequence == 0 {
		outcomes, err := e.trigger.ReplayAll(ctx)
		return replayed(outcomes...), err
	}
	outcome, err := e.trigger.Replay(ctx, sequence)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return web.Replayed{}, web.NotFound("`spillway dead list` shows the sequences", "there is no dead letter %d",
			sequence)
	}
	if err != nil {
		return web.Replayed{}, err
	}
	return replayed(outcome), nil
}

func replayed(outcomes ...trigger.Outcome) web.Replayed {
	all := web.Replayed{Replayed: len(outcomes)}
	for _, outcome := range outcomes {
		all.Outcomes = append(all.Outcomes, web.ReplayOutcome(outcome))
	}
	return all
}

// countEvery is how often the trigger's counts are taken over into the metrics.
const countEvery = 2 * time.Second

// countEvents shows what became of events as metrics, until ctx ends.
func (e *Engine) countEvents(ctx context.Context) {
	ticker := time.NewTicker(countEvery)
	defer ticker.Stop()
	counted := map[eventCount]uint64{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		stats, err := e.trigger.Stats(ctx)
		if err != nil {
			if ctx.Err() == nil {
				e.logger.DebugContext(ctx, "count events", "error", err)
			}
			continue
		}
		e.observer.metrics.SetEventsWaiting(eventsWaiting(stats), stats.StartLimit)
		for _, result := range grown(counted, eventTotals(stats)) {
			e.observer.metrics.CountEvent(result)
		}
	}
}

// eventCount names one count of the trigger. What became of the events of a binding is counted for itself: with their
// sum, the events of others would not count after a binding was removed until they were as many as had been its own.
type eventCount struct {
	binding string // its key; empty for events that no binding reads
	result  telemetry.EventResult
}

// grown returns a result for each event by which the totals are above what was counted, and counts it.
func grown(counted, totals map[eventCount]uint64) (results []telemetry.EventResult) {
	for count, total := range totals {
		for ; counted[count] < total; counted[count]++ {
			results = append(results, count.result)
		}
	}
	return results
}

// eventTotals are the trigger's counts.
func eventTotals(stats trigger.Stats) map[eventCount]uint64 {
	totals := map[eventCount]uint64{{result: telemetry.EventDead}: stats.Unbound}
	for _, binding := range stats.Bindings {
		key := binding.Bound.Key
		totals[eventCount{key, telemetry.EventStarted}] = binding.Started
		totals[eventCount{key, telemetry.EventDuplicate}] = binding.Duplicate
		totals[eventCount{key, telemetry.EventDead}] = binding.Dead
	}
	return totals
}

// eventsWaiting is how many events wait for their run, over all bindings.
func eventsWaiting(stats trigger.Stats) (events uint64) {
	for _, binding := range stats.Bindings {
		events += binding.Waiting
	}
	return events
}
