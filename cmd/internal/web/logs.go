package web

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spillway-ml/spillway/activities/logs"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/workflows/trigger/nearest"
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

const (
	// mostTail bounds the lines that are held for a tail.
	mostTail = 100_000
	// logBurst is how much of a log is written at a time, in bytes.
	logBurst = 32 << 10
)

// logs answers GET /api/v1/runs/{run}/logs?stage=&task=&attempt=&since=&from=&tail=&follow=: what the run's attempts have printed and,
// with follow, what they print until the run has ended.
func (s *Server) logs(w http.ResponseWriter, r *http.Request) {
	reader := s.feed.join(r.PathValue("run")) // before the run is looked at, so that its end is not missed
	defer reader.leave()
	query, follow, err := logQuery(r)
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
		teller: teller{server: s, pace: s.pace, w: w, control: http.NewResponseController(w), run: query.Run},
		lines:  make(chan logs.Line, 256), ended: make(chan error, 1),
	}
	if follow && view.State == predictor.RunRunning {
		t.until = make(chan struct{})
		query.Until = t.until
	}
	header := w.Header()
	header.Set("Content-Type", "text/event-stream")
	header.Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
	if err := t.tell(r.Context(), query, reader); err != nil && !errors.Is(err, errEnded) && r.Context().Err() == nil {
		s.logger.DebugContext(r.Context(), "log dropped", "run", query.Run, "error", err)
	}
}

// logQuery reads which lines are asked for.
func logQuery(r *http.Request) (query logs.Query, follow bool, err error) {
	query = logs.Query{Run: r.PathValue("run"), Stage: r.FormValue("stage"), Task: r.FormValue("task")}
	for _, number := range []struct {
		name  string
		value *int
		most  int
	}{{"attempt", &query.Attempt, 1_000_000}, {"tail", &query.Tail, mostTail}} {
		text := r.FormValue(number.name)
		if text == "" {
			continue
		}
		if *number.value, err = strconv.Atoi(text); err != nil || *number.value < 1 || *number.value > number.most {
			return query, false, Invalid("leave it out for all", "%s %q is not a number from 1 to %d", number.name, text, number.most)
		}
	}
	if text := r.FormValue("from"); text != "" {
		if query.From, err = strconv.ParseUint(text, 10, 64); err != nil {
			return query, false, Invalid("give the resume of a line", "from %q is not a sequence", text)
		}
	}
	if text := r.FormValue("since"); text != "" {
		if query.Since, err = time.Parse(time.RFC3339Nano, text); err != nil {
			return query, false, Invalid("write it as 2026-03-04T05:06:07Z", "since %q is not a time", text)
		}
	}
	if text := r.FormValue("follow"); text != "" {
		if follow, err = strconv.ParseBool(text); err != nil {
			return query, false, Invalid("", "follow %q is neither true nor false", text)
		}
	}
	return query, follow, nil
}

// knownRun returns a run; when there is none the error names those that are near.
func (s *Server) knownRun(ctx context.Context, run string) (ledger.RunView, error) {
	view, err := s.engine.Run(ctx, run)
	refused, isRefusal := errors.AsType[*Error](err)
	if !isRefusal || refused.Status != http.StatusNotFound {
		return view, err
	}
	others, listed := s.engine.Runs(ctx, RunQuery{Limit: usualRuns})
	if listed != nil {
		return view, err
	}
	var names []string
	for _, other := range others {
		names = append(names, other.Run)
	}
	if near := nearest.Names(run, names); len(near) > 0 {
		return view, NotFound("did you mean "+strings.Join(near, ", ")+"?", "%s", refused.Message)
	}
	return view, err
}

// knownStage refuses a stage that neither the run has scheduled nor its build has.
func (s *Server) knownStage(ctx context.Context, view ledger.RunView, stage string) error {
	var names []string
	for _, known := range view.Stages {
		names = append(names, known.Name)
	}
	if slices.Contains(names, stage) {
		return nil
	}
	stack, err := s.engine.Stack(ctx)
	if err != nil {
		return err
	}
	for _, app := range stack.Apps {
		if app.Name == view.App && app.Build == view.Build {
			for _, known := range app.Stages {
				names = append(names, known.Name)
			}
		}
	}
	if slices.Contains(names, stage) {
		return nil
	}
	slices.Sort(names)
	names = slices.Compact(names)
	hint := "the run has scheduled no stage yet"
	if near := nearest.Names(stage, names); len(near) > 0 {
		hint = "did you mean " + strings.Join(near, ", ") + "?"
	} else if len(names) > 0 {
		hint = "there are: " + strings.Join(names, ", ")
	}
	return NotFound(hint, "run %q has no stage %q", view.Run, stage)
}

// logTeller writes one stream of lines.
type logTeller struct {
	teller
	lines chan logs.Line
	ended chan error    // how the engine's Logs has ended, after the last of lines
	until chan struct{} // closed when the run has ended; nil when that need not be told
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
	if err := t.flush(); err != nil { // the header: the run is known
		return err
	}
	gap, heartbeat := time.NewTicker(max(t.pace.gap, time.Millisecond)), time.NewTicker(t.pace.heartbeat)
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
			t.buffer.WriteString(": heartbeat\n\n")
			err = t.flush()
			t.look(ctx) // the feed tells of the end, but not whether the engine has started anew before
		case <-reader.news:
			reader.take()
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
	if err := t.put(LogLine, line); err != nil {
		return err
	}
	return t.flushLines(logBurst)
}

// flushLines writes the lines that wait if they are at least as many bytes.
func (t *logTeller) flushLines(least int) error {
	if t.buffer.Len() < least {
		return nil
	}
	return t.flush()
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
		return errors.Join(t.put(LogError, statusOf(err)), t.flush(), err)
	}
	return errors.Join(t.put(LogEnd, nothing{}), t.flush())
}
