package web

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"reflect"
	"slices"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/alerting"
	"github.com/spillway-ml/spillway/predictor/ledger"
)

// Names of the messages of GET /api/v1/stream; the data of each is one JSON value.
const (
	// StreamReset says that the whole state follows: what was told before counts no more. Its data is {}. A stream that
	// goes on where another has ended does not begin with it.
	StreamReset = "reset"
	// StreamRun carries a ledger.RunView: the run as it is now.
	StreamRun = "run"
	// StreamDecision carries a predictor.Decision. After a reset a decision may come again; its ID tells.
	StreamDecision = "decision"
	// StreamPlan carries the predictor.Plan in force, without its decisions.
	StreamPlan = "plan"
	// StreamAlert carries a alerting.Alert. After a reset an alert may come again; its ID tells.
	StreamAlert = "alert"
)

func streamMessages() map[string]reflect.Type {
	return map[string]reflect.Type{
		StreamReset: reflect.TypeFor[nothing](), StreamRun: reflect.TypeFor[ledger.RunView](),
		StreamDecision: reflect.TypeFor[predictor.Decision](),
		StreamPlan:     reflect.TypeFor[predictor.Plan](), StreamAlert: reflect.TypeFor[alerting.Alert](),
	}
}

// The parameters of GET /api/v1/stream.
var (
	followedParameter = words("run", "tells only what concerns this run, which may not have started yet")
	afterParameter    = words("after", "goes on after the message with this id, in a stream with the same run; the "+
		"header Last-Event-ID says the same")
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

// recently is how long after its end a run is still told to a new stream of all runs: a reader that connects again must
// learn of the ends that it has missed meanwhile.
const recently = time.Minute

// mostAlerts is how many alerts about a run a new stream begins with at most.
const mostAlerts = 1000

// stream answers GET /api/v1/stream?run=&after=: the state first, or what has changed since a message, and then every
// change, at most ten times a second. Without run it tells of all runs, beginning with those that go on or ended within
// the last minute. A run that is not known yet is waited for: the event that starts it may be on its way.
func (s *Server) stream(w http.ResponseWriter, r *http.Request) {
	after := r.FormValue("after")
	if _, _, err := parseMark(after); after != "" && err != nil {
		s.refuse(w, r, Invalid("give the id of the last message, or leave it out for the whole state", "after %.80q is %v",
			after, err))
		return
	}
	reader := s.feed.join(r.FormValue("run"))
	defer reader.leave()
	ctx := r.Context()
	t := &teller{server: s, reader: reader, out: newEventWriter(w, s.pace.stall)}
	var err error
	if !reader.resume(cmp.Or(after, r.Header.Get("Last-Event-ID"))) {
		err = t.begin(ctx)
	}
	for err == nil {
		err = t.follow(ctx)
	}
	if !errors.Is(err, errEnded) && ctx.Err() == nil {
		s.logger.DebugContext(ctx, "stream dropped", "run", reader.run, "error", err)
	}
}

// errEnded says that the stream is over because the reader left or the server closes.
var errEnded = errors.New("stream ended")

// teller writes one stream.
type teller struct {
	server *Server
	reader *reader
	out    *eventWriter
	wait   time.Duration // until more of what is known to have changed can be told
	// app and build are those of the followed run, empty before it is known.
	app, build, team string
	began            map[string]struct{} // IDs of the decisions and alerts that the stream began with
	passed           bool                // something was told without its number
}

// begin tells the state. Its messages have no ID: a stream that breaks off among them begins anew.
func (t *teller) begin(ctx context.Context) error {
	t.reader.begin()
	t.began, t.passed = map[string]struct{}{}, true
	if err := t.out.put(StreamReset, nothing{}); err != nil {
		return err
	}
	tell := t.beginRun
	if t.reader.run == "" {
		tell = t.beginRuns
	}
	if err := tell(ctx); err != nil {
		return err
	}
	plan, err := t.server.engine.Plan(ctx)
	if err != nil {
		return err
	}
	if plan.Decisions = nil; cmp.Or(plan.Term, plan.Tick) != 0 { // else nothing was planned yet
		if err := t.out.put(StreamPlan, plan); err != nil {
			return err
		}
	}
	return t.tell(ctx, 0) // what has changed while the state was read
}

// beginRuns tells the runs that go on or ended recently, oldest first.
func (t *teller) beginRuns(ctx context.Context) error {
	newest, err := t.server.engine.Runs(ctx, RunQuery{Limit: usualRuns})
	if err != nil {
		return err
	}
	for _, view := range slices.Backward(t.server.visible(ctx, newest.Runs)) {
		if view.State != predictor.RunRunning && time.Since(view.EndedAt) > recently {
			continue
		}
		if err := t.out.put(StreamRun, view); err != nil {
			return err
		}
	}
	return nil
}

// beginRun tells the decisions and alerts about the followed run, and the run itself, when it is known.
func (t *teller) beginRun(ctx context.Context) error {
	view, err := t.server.engine.Run(ctx, t.reader.run)
	if answer, ok := errors.AsType[*Error](err); ok && answer.Status == http.StatusNotFound {
		return nil
	}
	if err != nil {
		return err
	}
	if !t.server.sees(ctx, view.Team) {
		return nil
	}
	t.app, t.build, t.team = view.App, view.Build, view.Team
	decisions, err := t.server.engine.Decisions(ctx, DecisionQuery{Run: view.Run, Limit: usualDecisions})
	if err != nil {
		return err
	}
	for _, decision := range decisions {
		t.began[decision.ID] = struct{}{}
		if err := t.out.put(StreamDecision, decision); err != nil {
			return err
		}
	}
	alerts, err := t.server.engine.Alerts(ctx, mostAlerts)
	if err != nil {
		return err
	}
	for _, alert := range slices.Backward(alerts) {
		if alert.Run != view.Run {
			continue
		}
		t.began[alert.ID] = struct{}{}
		if err := t.out.put(StreamAlert, alert); err != nil {
			return err
		}
	}
	return t.out.put(StreamRun, view) // last, because it may have ended
}

// follow waits for the next change and tells it.
func (t *teller) follow(ctx context.Context) error {
	var soon <-chan time.Time
	news := t.reader.news
	if t.wait > 0 {
		timer := time.NewTimer(t.wait)
		defer timer.Stop()
		soon, news = timer.C, nil
	}
	heartbeat := time.NewTimer(t.server.pace.heartbeat)
	defer heartbeat.Stop()
	select {
	case <-ctx.Done():
		return errEnded
	case <-t.server.closing: // what has just changed may be the end of a run
		return errors.Join(t.tell(ctx, 0), errEnded)
	case <-heartbeat.C:
		t.out.heartbeat()
		if mark, idle := t.reader.rest(); idle {
			t.out.reach(mark)
		}
		return t.out.flush()
	case <-news:
	case <-soon:
	}
	return t.tell(ctx, t.server.pace.gap)
}

// tell writes what has become visible.
func (t *teller) tell(ctx context.Context, gap time.Duration) error {
	next := t.reader.take(time.Now(), gap)
	t.wait = next.wait
	if next.lost {
		return t.begin(ctx)
	}
	for _, c := range next.changes {
		if err := t.tellChange(ctx, c); err != nil {
			return err
		}
	}
	if t.passed {
		t.passed = false
		t.out.reach(next.mark)
	}
	if t.out.waiting == 0 {
		return nil
	}
	return t.out.flush()
}

func (t *teller) tellChange(ctx context.Context, c *change) error {
	if _, told := t.began[c.id]; told && c.id != "" {
		t.passed = true
		return nil
	}
	if c.decision != nil && !t.server.sees(ctx, c.decision.Stage.Team) {
		t.passed = true
		return nil
	}
	if c.decision != nil && t.reader.run != "" && c.run != t.reader.run {
		if concerns, err := t.shares(ctx, *c.decision); err != nil || !concerns {
			return err
		}
	}
	text, err := c.encode(t.reader.feed.mark(c.number), func(run string) (ledger.RunView, error) {
		view, err := t.server.engine.Run(ctx, run)
		if err == nil && view.State != predictor.RunRunning && t.reader.feed.superseded(c) {
			// The run has ended since this change. What lies between is told before the end, which is what people wait for.
			return view, NotFound("", "the end of run %q is told later", run)
		}
		return view, err
	})
	if err != nil {
		return err
	}
	if c.name == StreamRun && !t.server.sees(ctx, c.team) {
		t.passed = true
		return nil
	}
	if c.name == StreamRun && t.reader.run != "" {
		t.app, t.build, t.team = c.app, c.build, c.team
	}
	if len(text) > 0 {
		t.out.add(text)
	}
	return nil
}

// shares reports whether a decision about a stage concerns the followed run: it is of its build.
func (t *teller) shares(ctx context.Context, decision predictor.Decision) (bool, error) {
	if t.build == "" {
		view, err := t.server.engine.Run(ctx, t.reader.run)
		if answer, ok := errors.AsType[*Error](err); ok && answer.Status == http.StatusNotFound {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		t.app, t.build, t.team = view.App, view.Build, view.Team
	}
	return decision.Stage.App == t.app && decision.Stage.Build == t.build && decision.Stage.Team == t.team, nil
}
