package web

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
)

// Names of the messages of GET /api/v1/stream; the data of each is one JSON value.
const (
	// StreamRun carries a ledger.RunView: the run as it is now.
	StreamRun = "run"
	// StreamDecision carries a predictor.Decision. After a reconnect a decision may come again; its ID tells.
	StreamDecision = "decision"
	// StreamPlan carries the predictor.Plan in force, without its decisions.
	StreamPlan = "plan"
)

// pace is how fast a stream goes.
type pace struct {
	// gap is the least time between two bursts of messages: what changes meanwhile is told once.
	gap time.Duration
	// heartbeat is how long a stream is silent at most; proxies and clients take longer silence for a dead connection.
	heartbeat time.Duration
	// stall is how long a write may take before the reader is dropped.
	stall time.Duration
}

func usualPace() pace {
	return pace{gap: 100 * time.Millisecond, heartbeat: 15 * time.Second, stall: 10 * time.Second}
}

// recently is how long after its end a run is still told to a new stream of all runs: a reader that connects again must learn of the
// ends that it has missed meanwhile.
const recently = time.Minute

// stream answers GET /api/v1/stream?run=: the state first, then every change, at most ten times a second. Without run it tells of all
// runs, beginning with those that go on or ended within the last minute. A run that is not known yet is waited for: the event that starts it may be on its way.
func (s *Server) stream(w http.ResponseWriter, r *http.Request) {
	reader := s.feed.join(r.FormValue("run"))
	defer reader.leave()
	t := &teller{server: s, pace: s.pace, w: w, control: http.NewResponseController(w), run: reader.run, sent: map[string]struct{}{}}
	header := w.Header()
	header.Set("Content-Type", "text/event-stream")
	header.Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
	ctx := r.Context()
	err := t.begin(ctx)
	for err == nil {
		err = t.follow(ctx, reader)
	}
	if !errors.Is(err, errEnded) && ctx.Err() == nil {
		s.logger.DebugContext(ctx, "stream dropped", "run", reader.run, "error", err)
	}
}

// errEnded says that the stream is over because the reader left or the server closes.
var errEnded = errors.New("stream ended")

// teller writes one stream.
type teller struct {
	server  *Server
	pace    pace
	w       http.ResponseWriter
	control *http.ResponseController
	run     string
	view    ledger.RunView      // the followed run as last told
	sent    map[string]struct{} // IDs of decisions of the followed run that were told
	buffer  bytes.Buffer
}

// begin tells what is there now.
func (t *teller) begin(ctx context.Context) error {
	if t.run == "" {
		newest, err := t.server.engine.Runs(ctx, RunQuery{Limit: usualRuns})
		if err != nil {
			return err
		}
		for _, view := range slices.Backward(newest) {
			if view.State != predictor.RunRunning && time.Since(view.EndedAt) > recently {
				continue
			}
			if err := t.put(StreamRun, view); err != nil {
				return err
			}
		}
	} else if err := t.tellRun(ctx, t.run); err != nil {
		return err
	}
	plan, err := t.server.engine.Plan(ctx)
	if err != nil {
		return err
	}
	if err := t.tellPlan(plan); err != nil {
		return err
	}
	return t.flush()
}

// follow waits for the next change and tells it.
func (t *teller) follow(ctx context.Context, reader *reader) error {
	heartbeat := time.NewTimer(t.pace.heartbeat)
	defer heartbeat.Stop()
	select {
	case <-ctx.Done():
		return errEnded
	case <-t.server.closing:
		return errEnded
	case <-heartbeat.C:
		t.buffer.WriteString(": heartbeat\n\n")
		return t.flush()
	case <-reader.news:
	}
	runs, decisions, plan := reader.take()
	for _, decision := range decisions { // before the runs: what is told last of a run is its end
		if err := t.tellDecision(decision); err != nil {
			return err
		}
	}
	slices.Sort(runs)
	for _, run := range runs {
		if err := t.tellRun(ctx, run); err != nil {
			return err
		}
	}
	if plan != nil {
		if err := t.tellPlan(*plan); err != nil {
			return err
		}
	}
	if err := t.flush(); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
	case <-t.server.closing: // what has just changed may be the end of a run: it has been told
	case <-time.After(t.pace.gap):
	}
	return nil
}

// tellRun puts the view of run; the first time that the followed run is known also the decisions about it so far.
func (t *teller) tellRun(ctx context.Context, run string) error {
	view, err := t.server.engine.Run(ctx, run)
	if answer, ok := errors.AsType[*Error](err); ok && answer.Status == http.StatusNotFound {
		return nil
	}
	if err != nil {
		return err
	}
	first := t.run != "" && t.view.Run == ""
	if t.run != "" {
		t.view = view
	}
	if err := t.put(StreamRun, view); err != nil || !first {
		return err
	}
	earlier, err := t.server.engine.Decisions(ctx, DecisionQuery{Run: run, Limit: usualDecisions})
	if err != nil {
		return err
	}
	for _, decision := range earlier {
		if err := t.tellDecision(decision); err != nil {
			return err
		}
	}
	return nil
}

// tellDecision puts a decision that concerns the followed run: about its own windows, or about stages of its build.
func (t *teller) tellDecision(decision predictor.Decision) error {
	if t.run != "" {
		own := decision.Run == t.run
		shared := decision.Run == "" && decision.Stage.App == t.view.App && decision.Stage.Build == t.view.Build
		if _, told := t.sent[decision.ID]; told || (!own && !shared) {
			return nil
		}
		t.sent[decision.ID] = struct{}{}
	}
	return t.put(StreamDecision, decision)
}

func (t *teller) tellPlan(plan predictor.Plan) error {
	if cmp.Or(plan.Term, plan.Tick) == 0 {
		return nil // nothing was planned yet
	}
	plan.Decisions = nil
	return t.put(StreamPlan, plan)
}

func (t *teller) put(name string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode %s: %w", name, err)
	}
	fmt.Fprintf(&t.buffer, "event: %s\ndata: %s\n\n", name, text)
	return nil
}

// flush writes what was put. A reader that does not take it in time is dropped: its connection breaks.
func (t *teller) flush() error {
	deadline := time.Now().Add(t.pace.stall)
	if err := t.control.SetWriteDeadline(deadline); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return fmt.Errorf("bound the write: %w", err)
	}
	_, err := t.w.Write(t.buffer.Bytes())
	t.buffer.Reset()
	if err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return t.control.Flush()
}
