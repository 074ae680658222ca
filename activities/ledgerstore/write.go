package ledgerstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/ledger/spend"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// writer writes in one transaction.
type writer struct {
	tx         *sql.Tx
	at         progress // when the transaction began
	book       *spend.Book
	prepares   bool
	statements map[string]*sql.Stmt
	// runs are those that were looked up, since Records of a run come together and each question waits for a network.
	runs     map[string]runOf
	attempts int // how many there are more
	sums     map[sumKey]*sumDelta
	costs    map[string]quantity.Money // by how much runs have cost more, until charge writes it
}

// prepare returns a statement that is prepared once for the transaction; nil where the driver sees to that by itself.
func (w *writer) prepare(ctx context.Context, query string) (statement *sql.Stmt, err error) {
	statement = w.statements[query]
	if statement == nil && w.prepares {
		if statement, err = w.tx.PrepareContext(ctx, query); err != nil {
			return nil, err
		}
		w.statements[query] = statement
	}
	return statement, nil
}

// exec runs a statement, and returns how many rows it has changed.
func (w *writer) exec(ctx context.Context, query string, values ...any) (changed int64, err error) {
	statement, err := w.prepare(ctx, query)
	if err != nil {
		return 0, err
	}
	var result sql.Result
	if statement != nil {
		result, err = statement.ExecContext(ctx, values...)
	} else {
		result, err = w.tx.ExecContext(ctx, query, values...)
	}
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// all takes in all messages.
func (w *writer) all(ctx context.Context, lines []loop.Line) error {
	cursor, stored := w.at.cursor, w.at.stored
	for _, line := range lines {
		if line.Sequence > cursor+1 {
			if err := w.gap(ctx, stored, line.Stored); err != nil {
				return err
			}
		}
		if err := w.take(ctx, line); err != nil {
			return fmt.Errorf("take in message %d: %w", line.Sequence, err)
		}
		cursor, stored = line.Sequence, line.Stored
	}
	if err := w.charge(ctx); err != nil {
		return err
	}
	idle, closed := w.book.Closed()
	for _, s := range idle {
		if err := w.hour(ctx, "idle", s); err != nil {
			return err
		}
	}
	if _, err := w.exec(ctx, `DELETE FROM present WHERE to_ns <= $1`, closed); err != nil {
		return err
	}
	return errors.Join(setMeta(ctx, w.tx, metaCursor, int64(cursor)), setMeta(ctx, w.tx, metaStored, stored.UnixNano()),
		setMeta(ctx, w.tx, metaClosed, closed))
}

// charge adds what was recorded to what runs have cost: once for all Records of a run, which come together.
func (w *writer) charge(ctx context.Context) error {
	for run, cost := range w.costs {
		if _, err := w.exec(ctx, `UPDATE runs SET cost_pd = CASE WHEN cost_pd > $3 THEN $4 ELSE cost_pd + $2 END
			WHERE run = $1`, run, int64(cost), math.MaxInt64-int64(cost), int64(math.MaxInt64)); err != nil {
			return err
		}
	}
	clear(w.costs)
	return nil
}

// gap notes that messages are missing that were stored between two times. Nothing is missing where the first is not
// before the second: all up to the first was taken in.
func (w *writer) gap(ctx context.Context, since, until time.Time) error {
	if !since.Before(until) {
		return nil
	}
	_, err := w.exec(ctx, `INSERT INTO gaps (since_ns, until_ns) VALUES ($1, $2)`, spend.Nanoseconds(since),
		spend.Nanoseconds(until))
	return err
}

// hour writes a sum of an hour, or adds it to its day where hours are not kept any more.
func (w *writer) hour(ctx context.Context, kind string, s spend.Span) error {
	if s.From < w.at.hoursFrom {
		w.countIn(s.From/dayLength, s, 1)
		return nil
	}
	var owner spend.Owner
	if s.Owner != nil {
		owner = *s.Owner
	}
	id := nameOf(kind, owner.Run, owner.Pipeline, owner.Stage, string(s.Venue), s.Host,
		strconv.FormatInt(s.From-s.From%int64(time.Hour), 10))
	changed, err := w.exec(ctx, insertSpan, spanValues(id, "", s)...)
	if err == nil && changed == 0 { // attempts that ended late in an hour that was summed up before
		if err = w.countRows(ctx, -1, `WHERE id = $1`, id); err != nil {
			return err
		}
		_, err = w.exec(ctx, `UPDATE spent SET from_ns = CASE WHEN from_ns < $2 THEN from_ns ELSE $2 END,
			to_ns = CASE WHEN to_ns > $3 THEN to_ns ELSE $3 END, attempts = attempts + $4, tasks = tasks + $5,
				reused = reused + $6,
			held_ns = held_ns + $7, pool_pd = pool_pd + $8, function_pd = function_pd + $9, wasted_pd = wasted_pd + $10,
				idle_pd = idle_pd + $11
			WHERE id = $1`, id, s.From, s.To, s.Attempts, s.Tasks, s.Reused,
			int64(s.Held), int64(s.Pool), int64(s.Function), int64(s.Wasted), int64(s.Idle))
		return errors.Join(err, w.countRows(ctx, 1, `WHERE id = $1`, id))
	}
	w.count(s, changed)
	return err
}

// take takes in one message.
func (w *writer) take(ctx context.Context, line loop.Line) error {
	switch e := fitEvent(line.Message.Event).(type) {
	case predictor.RunStarted:
		defer w.forget(e.Run)
		return w.runStarted(ctx, e, line)
	case predictor.GoalChanged:
		defer w.forget(e.Run)
		return w.goalChanged(ctx, e)
	case predictor.RunEnded:
		defer w.forget(e.Run)
		return w.runEnded(ctx, e, line)
	case predictor.Record:
		return w.recorded(ctx, recordIn(e, line.Stored), line)
	case predictor.Reused:
		return w.reused(ctx, e, line.Stored)
	case predictor.HostHeld:
		return w.held(ctx, heldIn(e, line.Stored), line.Sequence)
	default:
		return nil
	}
}

// runOf is what is known of a run; the zero value is a run of which nothing is.
type runOf struct {
	generation, ended, settled int64
	begun, forgotten           int64
	first, started             int64
	pipeline, app              string
}

// run is what is known of a run. Whoever changes that says so to forget.
func (w *writer) run(ctx context.Context, name string) (r runOf, err error) {
	if r, known := w.runs[name]; known {
		return r, nil
	}
	err = w.tx.QueryRowContext(ctx, `SELECT generation, pipeline, ended_ns, settled, app, begun_ns, forgotten,
			first_sequence, started_ns FROM runs WHERE run = $1`, name).
		Scan(&r.generation, &r.pipeline, &r.ended, &r.settled, &r.app, &r.begun, &r.forgotten, &r.first, &r.started)
	if errors.Is(err, sql.ErrNoRows) {
		r, err = runOf{}, nil
	}
	if err == nil {
		if w.runs == nil {
			w.runs = map[string]runOf{}
		}
		w.runs[name] = r
	}
	return r, err
}

// forget has a run looked up again.
func (w *writer) forget(name string) { delete(w.runs, name) }

// runStarted notes that a run has begun, or that another of the same name has. Only the app whose run it was may run it
// again; it may do so with another build.
func (w *writer) runStarted(ctx context.Context, e predictor.RunStarted, line loop.Line) error {
	if e.Run == "" {
		return nil
	}
	r, err := w.run(ctx, e.Run)
	if err != nil || r.app != "" && e.App != r.app {
		return err
	}
	stored := line.Stored
	at := max(1, spend.Nanoseconds(e.At.Add(correction(e.At, stored))))
	if r.ended > 0 && at > r.ended {
		delete(w.costs, e.Run)
		if _, err := w.exec(ctx, `UPDATE runs SET generation = generation + 1, pipeline = $2, ended_ns = 0, settled = 0,
			app = $3, begun_ns = $4, told_ns = $5, first_sequence = $6, last_sequence = 0, cost_pd = 0,
			forgotten = CASE WHEN settled = 0 THEN forgotten ELSE 1 END WHERE run = $1`, e.Run,
			e.Pipeline, e.App, at, spend.Nanoseconds(stored), int64(line.Sequence)); err != nil {
			return err
		}
		return w.show(ctx, ledger.Begun(e))
	}
	if r.settled == removed {
		return nil
	}
	if _, err = w.exec(ctx, `INSERT INTO runs (run, generation, pipeline, ended_ns, settled, app, begun_ns, told_ns,
			first_sequence)
		VALUES ($1, 0, $2, 0, 0, $3, $4, $5, $6)
		ON CONFLICT (run) DO UPDATE SET app = excluded.app,
			pipeline = CASE WHEN runs.pipeline = '' THEN excluded.pipeline ELSE runs.pipeline END,
			begun_ns = CASE WHEN runs.begun_ns = 0 THEN excluded.begun_ns ELSE runs.begun_ns END`, e.Run, e.Pipeline, e.App, at,
		spend.Nanoseconds(stored), int64(line.Sequence)); err != nil {
		return err
	}
	if r.started == 0 {
		if err := w.show(ctx, ledger.Begun(e)); err != nil {
			return err
		}
	}
	if r.pipeline != "" {
		return nil
	}
	if err := w.countRows(ctx, -1, `WHERE run = $1`, e.Run); err != nil {
		return err
	}
	_, err = w.exec(ctx, `UPDATE spent SET pipeline = $2 WHERE run = $1 AND pipeline = ''`, e.Run, e.Pipeline)
	return errors.Join(err, w.countRows(ctx, 1, `WHERE run = $1`, e.Run))
}

// runEnded notes that a run has ended. The end of an earlier run of that name, which is told again, is none of this
// one.
func (w *writer) runEnded(ctx context.Context, e predictor.RunEnded, line loop.Line) error {
	r, err := w.run(ctx, e.Run)
	if err != nil || r.ended > 0 {
		return err
	}
	at := max(1, spend.Nanoseconds(e.At.Add(correction(e.At, line.Stored))))
	if r.generation > 0 && at <= r.begun {
		return nil
	}
	if _, err = w.exec(ctx, `INSERT INTO runs (run, generation, pipeline, ended_ns, settled, told_ns, first_sequence,
			last_sequence) VALUES ($1, 0, '', $2, 0, $3, $4, $4)
		ON CONFLICT (run) DO UPDATE SET ended_ns = excluded.ended_ns, told_ns = excluded.told_ns,
			last_sequence = excluded.last_sequence`, e.Run, max(at, r.begun), spend.Nanoseconds(line.Stored),
		int64(line.Sequence)); err != nil {
		return err
	}
	return w.over(ctx, e)
}

// over shows a run as one that has ended so.
func (w *writer) over(ctx context.Context, e predictor.RunEnded) error {
	view, known, err := w.shown(ctx, e.Run)
	if err != nil {
		return err
	}
	if !known { // its start was lost
		view = ledger.Begun(predictor.RunStarted{Run: e.Run, At: e.At})
	}
	return w.show(ctx, view.Over(e))
}

// attemptID names an attempt of a run, and taskID its task, so that they are counted once.
func attemptID(generation int64, run, task string, attempt int) string {
	return nameOf("attempt", strconv.FormatInt(generation, 10), run, task, strconv.Itoa(attempt))
}

func taskID(generation int64, run, task string) string {
	return nameOf("task", strconv.FormatInt(generation, 10), run, task)
}

// reusedTask is the task_id of what was reused, alongsideTask that of what other hosts of a gang cost: they are summed
// up with the attempts of their runs, and are none.
const (
	reusedTask    = "reused"
	alongsideTask = "alongside"
)

// recorded takes in what an attempt has cost.
func (w *writer) recorded(ctx context.Context, e predictor.Record, line loop.Line) error {
	if e.Run == "" || e.Task == "" || e.Stage.Name == "" {
		return nil
	}
	r, err := w.run(ctx, e.Run)
	if err != nil || r.settled == settled {
		return err
	}
	if r.first == 0 && r.ended == 0 { // its start was lost, or comes yet
		if _, err := w.exec(ctx, `INSERT INTO runs (run, generation, pipeline, ended_ns, settled, told_ns, first_sequence)
			VALUES ($1, 0, '', 0, 0, $2, $3) ON CONFLICT (run) DO UPDATE SET first_sequence = excluded.first_sequence`, e.Run,
			spend.Nanoseconds(line.Stored), int64(line.Sequence)); err != nil {
			return err
		}
		w.forget(e.Run)
	}
	spans := ledger.Charge(e)
	span := spans[0]
	generation, again, err := w.generation(ctx, r, e, span)
	if err != nil || again {
		return err
	}
	if r.pipeline != "" {
		span.Owner.Pipeline = r.pipeline
	}
	if e.Outcome == predictor.Succeeded {
		span.Tasks = 1
	}
	changed, err := w.insertAttempt(ctx, attemptID(generation, e.Run, e.Task, e.Attempt),
		taskID(generation, e.Run, e.Task), &span)
	if err != nil || !changed {
		return err
	}
	w.count(span, 1)
	w.attempts++
	if generation == r.generation {
		if w.costs == nil {
			w.costs = map[string]quantity.Money{}
		}
		for _, one := range spans {
			w.costs[e.Run] = w.costs[e.Run].Plus(one.Pool).Plus(one.Function)
		}
	}
	if span.Venue == predictor.Pool {
		w.book.Hold(span)
	}
	for _, other := range spans[1:] {
		if err := w.alongside(ctx, generation, e, other); err != nil {
			return err
		}
	}
	if r.ended > 0 { // it was not over, or not all was told: others may come
		_, err = w.exec(ctx, `UPDATE runs SET told_ns = $2, last_sequence = $3 WHERE run = $1`, e.Run,
			spend.Nanoseconds(line.Stored), int64(line.Sequence))
	}
	return err
}

// alongside takes in what another host has cost that an attempt held: it is a row of its own, which counts no attempt.
func (w *writer) alongside(ctx context.Context, generation int64, e predictor.Record, span spend.Span) error {
	id := nameOf("alongside", strconv.FormatInt(generation, 10), e.Run, e.Task, strconv.Itoa(e.Attempt), span.Host)
	changed, err := w.exec(ctx, insertSpan, spanValues(id, alongsideTask, span)...)
	if err != nil || changed == 0 {
		return err
	}
	w.count(span, 1)
	w.attempts++
	w.book.Hold(span)
	return nil
}

// insertAttempt writes an attempt, unless it is there. One that finishes a task which is finished already counts for no
// other, which is found out in the same question: the span is told.
func (w *writer) insertAttempt(ctx context.Context, id, task string, span *spend.Span) (changed bool, err error) {
	statement, err := w.prepare(ctx, insertAttempt)
	if err != nil {
		return false, err
	}
	ask := func(values ...any) *sql.Row {
		if statement != nil {
			return statement.QueryRowContext(ctx, values...)
		}
		return w.tx.QueryRowContext(ctx, insertAttempt, values...)
	}
	err = ask(spanValues(id, task, *span)...).Scan(&span.Tasks)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

// mostGenerations is how many earlier runs of a name are looked through for a Record that is told again.
const mostGenerations = 16

// generation is that of the run whose attempt a Record is about; again says that it is known to have been taken in. A
// Record that is told again, as from a stream that is taken in as a whole, may be of an earlier run of the name, where
// the same attempt ended at the same moment. Where attempts of earlier runs are not kept one by one any more, what
// ended long before this one began is theirs.
func (w *writer) generation(ctx context.Context, r runOf, e predictor.Record, span spend.Span) (
	generation int64, again bool, err error,
) {
	if r.generation == 0 {
		return 0, false, nil
	}
	for earlier := r.generation - 1; earlier >= max(0, r.generation-mostGenerations); earlier-- {
		found := 0
		if err := w.tx.QueryRowContext(ctx, `SELECT COUNT(*) FROM spent WHERE id = $1 AND to_ns = $2`,
			attemptID(earlier, e.Run, e.Task, e.Attempt), span.To).Scan(&found); err != nil || found > 0 {
			return 0, true, err
		}
	}
	if r.begun > 0 && span.To < r.begun-int64(mostAhead) {
		return r.generation - 1, r.forgotten != 0, nil
	}
	return r.generation, false, nil
}

// reused takes in what a run took from an earlier one.
func (w *writer) reused(ctx context.Context, e predictor.Reused, stored time.Time) error {
	if e.Run == "" || e.Tasks <= 0 || e.Stage.Name == "" {
		return nil
	}
	r, err := w.run(ctx, e.Run)
	if err != nil || r.settled != 0 {
		return err
	}
	e.At = e.At.Add(correction(e.At, stored))
	span := ledger.ChargeReused(e)
	span.Owner.Pipeline = r.pipeline
	if r.generation > 0 && r.begun > 0 && span.From < r.begun {
		return nil // told again
	}
	id := nameOf(reusedTask, strconv.FormatInt(r.generation, 10), e.Run, e.Stage.App, e.Stage.Build, e.Stage.Name, e.From,
		strconv.Itoa(e.Tasks), strconv.FormatInt(span.From, 10))
	changed, err := w.exec(ctx, insertSpan, spanValues(id, reusedTask, span)...)
	w.attempts += int(changed)
	w.count(span, changed)
	return err
}

// held takes in that a host was there.
func (w *writer) held(ctx context.Context, e predictor.HostHeld, sequence uint64) error {
	from, to := spend.Nanoseconds(e.From), spend.Nanoseconds(e.At)
	if e.Host == "" || from >= to {
		return nil
	}
	changed, err := w.exec(ctx, `INSERT INTO present (host, from_ns, to_ns, price_pd, told) VALUES ($1, $2, $3, $4, $5)
		ON CONFLICT (host, from_ns, to_ns) DO NOTHING`, e.Host, from, to, int64(e.PricePerHour), int64(sequence))
	if err == nil && changed > 0 {
		w.book.Present(e)
	}
	return err
}
