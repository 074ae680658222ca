package wire

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/spillway-ml/spillway/activities/telemetry"
	"github.com/spillway-ml/spillway/activities/traces"
	loopwire "github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
)

// observer follows the loop's stream and keeps what people ask for: the ledger, the metrics and the feed of the page.
type observer struct {
	metrics *telemetry.Metrics
	counts  bool           // metrics are wanted
	tracer  *traces.Tracer // nil where nobody wants traces
	feed    web.Feed
	logger  *slog.Logger

	mu     sync.Mutex
	ledger *ledger.Ledger  // guarded by mu
	state  predictor.State // guarded by mu: forecasts come from the same fold that decides
	plan   predictor.Plan  // guarded by mu
	seen   uint64          // guarded by mu: the last sequence that was applied
}

func newObserver(metrics *telemetry.Metrics, counts bool, logger *slog.Logger) *observer {
	return &observer{metrics: metrics, counts: counts, logger: logger, ledger: ledger.New()}
}

// apply takes one message of the stream.
func (o *observer) apply(sequence uint64, message loopwire.Message) error {
	if o.counts {
		o.metrics.Apply(message)
	}
	o.tracer.Apply(sequence, message)
	run := runOf(message.Event)
	o.mu.Lock()
	defer o.mu.Unlock()
	if message.Event != nil {
		o.ledger.Apply(message.Event)
		o.state = predictor.Fold(o.state, message.Event)
		o.forecast(message.Event)
	}
	if message.Decision != nil {
		o.ledger.Decided(*message.Decision)
	}
	o.seen = sequence
	// The feed is told while nobody can look: what a stream that opens now is shown, it is not told again.
	if run != "" {
		o.feed.RunChanged(run)
	}
	if message.Decision != nil {
		o.feed.Decided(*message.Decision)
	}
	return nil
}

// forecast asks what is expected of a run, whenever it has taken a step that tells more. The caller holds mu.
func (o *observer) forecast(event predictor.Event) {
	switch event.(type) {
	case predictor.RunStarted, predictor.Scheduled:
	default:
		return
	}
	run := runOf(event)
	if finish, cost, known := o.state.Forecast(run, event.When()); known {
		o.ledger.Forecast(run, event.When(), finish, cost)
	}
}

// silent lists the runs that seem to go on and of which nothing was heard since.
func (o *observer) silent(since time.Time) []ledger.RunView {
	o.mu.Lock()
	defer o.mu.Unlock()
	var silent []ledger.RunView
	for _, run := range o.ledger.Runs(ledger.Query{State: predictor.RunRunning}) {
		heard := run.StartedAt.Add(time.Duration(run.Actual.Seconds * float64(time.Second)))
		if heard.Before(since) {
			silent = append(silent, run)
		}
	}
	return silent
}

// obey takes a new plan.
func (o *observer) obey(_ context.Context, plan predictor.Plan) {
	if o.counts {
		o.metrics.ApplyPlan(plan)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.plan = plan
	o.state = predictor.Obey(o.state, plan)
	o.ledger.SetPlan(plan)
	o.feed.Planned(plan)
}

// runOf is the run that an event is about; empty when it is about none.
func runOf(event predictor.Event) string {
	switch e := event.(type) {
	case predictor.RunStarted:
		return e.Run
	case predictor.RunEnded:
		return e.Run
	case predictor.GoalChanged:
		return e.Run
	case predictor.Scheduled:
		return e.Run
	case predictor.AttemptStarted:
		return e.Run
	case predictor.Sampled:
		return e.Run
	case predictor.Record:
		return e.Run
	case predictor.Reused:
		return e.Run
	default:
		return ""
	}
}
