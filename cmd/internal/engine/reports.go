package engine

import (
	"context"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/spillway-ml/spillway/activities/alerts"
	"github.com/spillway-ml/spillway/activities/autoscaler"
	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/activities/telemetry"
	"github.com/spillway-ml/spillway/activities/traces"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/alerting"
)

// reports is what becomes known of runs, and who is told: what is folded, counted, traced and alerted.
type reports struct {
	*stores

	recorder *loop.Recorder
	observer *observer
	alerts   *alerts.Sender
	led      atomic.Pointer[autoscaler.Leader] // who leads, once this server takes part in it
	others   atomic.Pointer[[]loop.Server]     // the other servers; nil where none is known
	gone     atomic.Pointer[[]loop.Server]     // those that are there no more; nil where none is known
}

// openReports begins to follow the loop.
func openReports(ctx context.Context, s *stores) (*reports, error) {
	metrics := telemetry.NewMetrics()
	recorder := loop.NewRecorder(s.stream, &loop.RecorderOptions{Logger: s.logger, Dropped: metrics.CountDropped})
	s.onClose("the recorder", recorder.Close)
	first, last, err := loop.Extent(ctx, s.stream)
	if err != nil {
		return nil, err
	}
	watching := newObserver(metrics, !s.config.NoMetrics, extent{first, last}, s.logger)
	from, err := s.resume(ctx, watching)
	if err != nil {
		return nil, err
	}
	s.work("follow the loop", func(ctx context.Context) error {
		options := &loop.FollowOptions{Samples: from.Sample, Logger: s.logger}
		return loop.Follow(ctx, s.stream, from.Sequence, options, watching.apply)
	})
	if err := s.trace(ctx); err != nil {
		return nil, err
	}
	s.work("watch the plan", func(ctx context.Context) error {
		return s.plans.Watch(ctx, func(plan predictor.Plan) { watching.obey(ctx, plan) })
	})
	earlier, err := alerts.Stored(ctx, s.stream, alertsKept)
	if err != nil {
		return nil, err
	}
	sender, err := alerts.New(alerts.Options{
		JetStream: s.stream, Webhooks: s.config.AlertWebhooks, Earlier: earlier, Logger: s.logger,
	})
	if err != nil {
		return nil, err
	}
	s.onClose("alerts", sender.Close)
	r := &reports{stores: s, recorder: recorder, observer: watching, alerts: sender}
	s.work("keep the ledger", func(ctx context.Context) error {
		return s.ledger.Keep(ctx, s.stream, func(err error) { r.alert(alerting.LedgerFailing(err, s.config.Clock())) })
	})
	s.work("look after the streams", func(ctx context.Context) error {
		s.whileLeading(ctx, "look after the streams", func(ctx context.Context) { r.tellLosses(ctx, s.losses) })
		return nil
	})
	s.work("alerts of the leading server", r.hearAlerts)
	s.work("keep what runs did", func(ctx context.Context) error {
		return watching.keepRuns(ctx, s.ledger, s.writesLedger)
	})
	s.work("keep the streams", func(ctx context.Context) error {
		return keepStreams(ctx, s.stream, watching.reached, func(missing []string) {
			s.logger.ErrorContext(ctx, "streams were gone, with all that was in them; they were made anew",
				"streams", missing)
			if kept := slices.DeleteFunc(missing, toldAgain); len(kept) > 0 {
				r.alert(alerting.StreamsLost(kept, s.config.Clock()))
			}
		})
	})
	return r, nil
}

// alert tells everybody who wants to know, unless another server leads, which finds out by itself.
func (r *reports) alert(alert alerting.Alert) {
	if r.another() {
		return
	}
	if !r.alerts.Send(alert) { // it was told before
		return
	}
	r.observer.metrics.CountAlert(alert)
	r.observer.feed.Alerted(alert)
}

// resume has the observer go on from its checkpoint, where there is one, and keep others until all has ended that is
// started later. It returns the first message and the first sample that the observer is to take in.
func (s *stores) resume(ctx context.Context, watching *observer) (from position, err error) {
	path := filepath.Join(s.config.StateDir, checkpointFile)
	before, reason, err := openCheckpoint(ctx, s.stream, path)
	if err != nil {
		return position{}, err
	}
	var last position
	switch {
	case reason != nil:
		s.logger.WarnContext(ctx, "what was known before is taken in again from the stream, as far as it goes back: this "+
			"start takes longer", "reason", reason)
	case before != nil:
		last = before.at
		watching.resume(before)
		from = position{Sequence: last.Sequence + 1, Sample: last.Sample + 1}
	}
	s.work("keep what was taken in", func(ctx context.Context) error {
		watching.keepCheckpoints(ctx, path, last)
		return nil
	})
	return from, nil
}

// trace makes traces of what passes through the loop, where somebody wants them. It reads the stream by itself, from
// the first word about a run that goes on, so that nobody waits for it.
func (s *stores) trace(ctx context.Context) error {
	tracer, err := openTraces(ctx, s.lifecycle, s.config.Traces)
	if err != nil || tracer == nil {
		return err
	}
	follow := func(ctx context.Context) error {
		from, err := s.ledger.Oldest(ctx)
		if err != nil {
			s.logger.WarnContext(ctx, "the ledger does not say since when runs go on: all that the stream has is read for "+
				"traces", "error", err)
		}
		options := &loop.FollowOptions{NoSamples: true, Kinds: traces.Kinds(), Logger: s.logger}
		return loop.Follow(ctx, s.stream, from, options, func(line loop.Line) error {
			tracer.Apply(line.Sequence, line.Message)
			return nil
		})
	}
	s.work("trace", func(ctx context.Context) error {
		s.whileLeading(ctx, "trace", func(ctx context.Context) {
			if err := follow(ctx); err != nil && ctx.Err() == nil {
				s.logger.ErrorContext(ctx, "runs are traced no more", "error", err)
			}
		})
		return nil
	})
	return nil
}

// openTraces sends what passes through the loop as traces, where somebody wants them; nil where nobody does.
func openTraces(ctx context.Context, life *lifecycle, options traces.Options) (*traces.Tracer, error) {
	if options.Endpoint == "" {
		return nil, nil //nolint:nilnil // a nil Tracer takes everything and sends nothing
	}
	options.Since, options.Logger = time.Now(), life.logger
	tracer, err := traces.New(ctx, options)
	if err != nil {
		return nil, err
	}
	life.onClose("traces", func(ctx context.Context) error {
		if err := tracer.Close(ctx); err != nil { // a collector that is away is no failure of the engine
			life.logger.WarnContext(ctx, "the last spans are lost", "error", err)
		}
		return nil
	})
	return tracer, nil
}
