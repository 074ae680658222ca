package web

import (
	"context"
	"errors"
	"math"
	"net/http"
	"reflect"
	"sync"
	"time"

	"github.com/spillway-ml/spillway/activities/logs"
	"github.com/spillway-ml/spillway/predictor"
)

// Names of the messages of GET /api/v1/runs/{run}/logs; the data of each is one JSON value.
const (
	// LogLine carries a logs.Line.
	LogLine = "line"
	// LogEnd says that all lines are told: the data is {}. A stream that ends without it was broken off.
	LogEnd = "end"
	// LogError carries an Error, and ends the stream.
	LogError = "error"
)

func logMessages() map[string]reflect.Type {
	return map[string]reflect.Type{
		LogLine: reflect.TypeFor[logs.Line](), LogEnd: reflect.TypeFor[nothing](),
		LogError: reflect.TypeFor[Error](),
	}
}

const (
	// mostTail bounds the lines that are held for a tail.
	mostTail = 100_000
	// logBurst is how much of a log is written at a time, in bytes.
	logBurst = 32 << 10
)

// logs answers GET /api/v1/runs/{run}/logs?stage=&task=&attempt=&since=&from=&tail=&follow=: what the run's attempts
// have printed and, with follow, what they print until the run has ended.
func (s *Server) logs(w http.ResponseWriter, r *http.Request) {
	reader := s.feed.join(r.PathValue("run")) // before the run is looked at, so that its end is not missed
	defer reader.leave()
	query, follow, err := logQuery(r, time.Now())
	if err != nil {
		s.refuse(w, r, err)
		return
	}
	view, err := s.knownRun(r.Context(), query.Run)
	if err == nil && query.Stage != "" {
		err = s.knownStage(r.Context(), view, query.Stage)
	}
	if err != nil {
		s.refuse(w, r, err)
		return
	}
	t := &logTeller{
		server: s, run: query.Run, out: newEventWriter(w, s.pace.stall), lines: make(chan logs.Line, 256),
		ended: make(chan error, 1),
	}
	if follow && view.State == predictor.RunRunning {
		t.until = make(chan struct{})
		query.Until = t.until
	}
	if err := t.tell(r.Context(), query, reader); err != nil && !errors.Is(err, errEnded) && r.Context().Err() == nil {
		s.logger.DebugContext(r.Context(), "log dropped", "run", query.Run, "error", err)
	}
}

// The parameters of GET /api/v1/runs/{run}/logs.
var (
	taskParameter    = words("task", "keeps only lines of this task")
	attemptParameter = whole("attempt", "keeps only lines of the attempt with this number", 1, 1_000_000, -1)
	tailParameter    = whole("tail", "begins with so many of the latest lines", 1, mostTail, -1)
	fromParameter    = whole("from", "begins at a sequence: the resume of the last line that was told", 0, math.MaxInt64,
		-1)
	printedParameter = moment("since", "keeps only lines that were printed no earlier")
	followParameter  = flag("follow", "goes on until the run has ended")
)

// logQuery reads which lines are asked for.
func logQuery(r *http.Request, now time.Time) (query logs.Query, follow bool, err error) {
	attempt, err := attemptParameter.number(r)
	if err != nil {
		return query, false, err
	}
	tail, err := tailParameter.number(r)
	if err != nil {
		return query, false, err
	}
	from, err := fromParameter.number(r)
	if err != nil {
		return query, false, err
	}
	since, err := printedParameter.moment(r, now)
	if err != nil {
		return query, false, err
	}
	query = logs.Query{
		Run: r.PathValue("run"), Stage: r.FormValue("stage"), Task: r.FormValue("task"), Attempt: int(attempt),
		Tail: int(tail),
		From: uint64(from), Since: since,
	}
	follow, err = followParameter.yes(r)
	return query, follow, err
}

// logTeller writes one stream of lines.
type logTeller struct {
	server *Server
	run    string
	out    *eventWriter
	lines  chan logs.Line
	ended  chan error    // how the engine's Logs has ended, after the last of lines
	until  chan struct{} // closed when the run has ended; nil when that need not be told
}

// tell writes lines until all are written, the reader leaves or the server closes.
func (t *logTeller) tell(ctx context.Context, query logs.Query, reader *reader) error {
	ctx, cancel := context.WithCancel(ctx)
	var reading sync.WaitGroup
	reading.Go(func() {
		t.ended <- t.server.engine.Logs(ctx, query, func(line logs.Line) error {
			select {
			case t.lines <- line:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	})
	defer reading.Wait()
	defer cancel()
	if err := t.out.flush(); err != nil { // the header: the run is known
		return err
	}
	gap, heartbeat := time.NewTicker(max(t.server.pace.gap, time.Millisecond)), time.NewTicker(t.server.pace.heartbeat)
	defer gap.Stop()
	defer heartbeat.Stop()
	for {
		var err error
		select {
		case line := <-t.lines:
			err = t.line(line)
		case err := <-t.ended:
			return t.end(err)
		case <-gap.C:
			err = t.flushLines(1)
		case <-heartbeat.C:
			t.out.heartbeat()
			err = t.out.flush()
			t.look(ctx) // the feed tells of the end, but not whether the engine has started anew before
		case <-reader.news:
			reader.begin()
			t.look(ctx)
		case <-ctx.Done():
			return errEnded
		case <-t.server.closing:
			return errors.Join(t.flushLines(1), errEnded)
		}
		if err != nil {
			return err
		}
	}
}

func (t *logTeller) line(line logs.Line) error {
	if err := t.out.put(LogLine, line); err != nil {
		return err
	}
	return t.flushLines(logBurst)
}

// flushLines writes the lines that wait if they are at least as many bytes.
func (t *logTeller) flushLines(least int) error {
	if t.out.waiting < least {
		return nil
	}
	return t.out.flush()
}

// look lets the lines end when the run has.
func (t *logTeller) look(ctx context.Context) {
	if t.until == nil {
		return
	}
	view, err := t.server.engine.Run(ctx, t.run)
	if err == nil && view.State != predictor.RunRunning {
		close(t.until)
		t.until = nil
	}
}

// end writes the last lines and how they ended.
func (t *logTeller) end(err error) error {
	for len(t.lines) > 0 {
		if err := t.line(<-t.lines); err != nil {
			return err
		}
	}
	if err != nil {
		return errors.Join(t.out.put(LogError, statusOf(err)), t.out.flush(), err)
	}
	return errors.Join(t.out.put(LogEnd, nothing{}), t.out.flush())
}
