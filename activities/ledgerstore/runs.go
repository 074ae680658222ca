package ledgerstore

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/ledger/spend"
)

// matching is the condition of the runs that a query selects, but for where its page begins, with its values behind
// those that are given.
func matching(query ledger.Query, values ...any) (condition string, all []any) {
	condition = "started_ns > 0"
	add := func(text string, value any) {
		values = append(values, value)
		condition += text + "$" + strconv.Itoa(len(values))
	}
	if query.State != "" {
		add(" AND state = ", fit(string(query.State), mostText))
	}
	if query.Pipeline != "" {
		add(" AND pipeline = ", fit(query.Pipeline, mostText))
	}
	if !query.Since.IsZero() {
		add(" AND started_ns >= ", spend.Nanoseconds(query.Since))
	}
	return condition, values
}

// Runs returns what is kept of a page of runs, by their places. Of a run that goes on, or whose end was not kept as a
// whole yet, that is what its start and its end tell.
func (s *Store) Runs(ctx context.Context, query ledger.Query) (part ledger.Part, err error) {
	condition, values := matching(query)
	if !query.After.IsZero() {
		condition += fmt.Sprintf(" AND (started_ns, run) < ($%d, $%d)", len(values)+1, len(values)+2)
		values = append(values, query.After.Nanoseconds(), query.After.Run)
	}
	statement := `SELECT shown FROM runs WHERE ` + condition + ` ORDER BY started_ns DESC, run DESC`
	if query.Limit > 0 {
		values = append(values, query.Limit)
		statement += " LIMIT $" + strconv.Itoa(len(values))
	}
	db, err := s.readable()
	if err != nil {
		return part, fmt.Errorf("list runs: %w", err)
	}
	rows, err := db.QueryContext(ctx, statement, values...)
	if err != nil {
		return part, fmt.Errorf("list runs: %w", err)
	}
	defer rows.Close() //nolint:errcheck // Err tells
	for rows.Next() {
		var shown string
		if err := rows.Scan(&shown); err != nil {
			return part, fmt.Errorf("list runs: %w", err)
		}
		view, err := decodeRun(shown)
		if err != nil {
			return part, fmt.Errorf("list runs: %w", err)
		}
		part.Runs = append(part.Runs, view)
	}
	if query.Limit > 0 && len(part.Runs) == query.Limit {
		part.End = ledger.PlaceOf(part.Runs[len(part.Runs)-1])
	}
	return part, rows.Err()
}

// Totals adds up the runs that a query selects, of whichever page; those that go on have taken until now.
func (s *Store) Totals(ctx context.Context, query ledger.Query, now time.Time) (totals ledger.RunTotals, err error) {
	db, err := s.readable()
	if err != nil {
		return totals, fmt.Errorf("add up runs: %w", err)
	}
	statement, values := totalsStatement(query, now)
	rows, err := db.QueryContext(ctx, statement, values...)
	if err != nil {
		return totals, fmt.Errorf("add up runs: %w", err)
	}
	defer rows.Close() //nolint:errcheck // Err tells
	totals = ledger.NewRunTotals()
	for rows.Next() {
		var state predictor.RunState
		var runs, late, dear int
		var cost exact
		if err := rows.Scan(&state, &runs, &cost.whole, &cost.rest, &late, &dear); err != nil {
			return totals, fmt.Errorf("add up runs: %w", err)
		}
		totals.Add(state, ledger.RunTotals{Runs: runs, Cost: cost.money(), MissedDeadlines: late, MissedBudgets: dear})
	}
	if err := rows.Err(); err != nil {
		return totals, fmt.Errorf("add up runs: %w", err)
	}
	return totals, nil
}

// scanned keeps a database from looking runs up by these columns: no index has the expressions. PostgreSQL takes them
// as well.
var scanned = strings.NewReplacer("started_ns", "(started_ns + 0)", "pipeline", "(pipeline || '')")

// totalsStatement adds up runs by their states. It reads the index that has all of the columns, and no run.
func totalsStatement(query ledger.Query, now time.Time) (statement string, values []any) {
	condition, values := matching(query, spend.Nanoseconds(now))
	return `SELECT state, COUNT(*), SUM(cost_pd / 1000000000000), SUM(cost_pd % 1000000000000),
			SUM(CASE WHEN deadline_ns > 0 AND deadline_ns < CASE WHEN ended_ns > 0 THEN ended_ns ELSE $1 END - started_ns
				THEN 1 ELSE 0 END),
			SUM(CASE WHEN budget_pd > 0 AND budget_pd < cost_pd THEN 1 ELSE 0 END)
		FROM runs WHERE ` + scanned.Replace(condition) + ` GROUP BY state`, values
}

// Run returns what is kept of a run; known is false when that is nothing.
func (s *Store) Run(ctx context.Context, run string) (view ledger.RunView, known bool, err error) {
	shown := ""
	db, err := s.readable()
	if err != nil {
		return view, false, fmt.Errorf("look up run %q: %w", run, err)
	}
	err = db.QueryRowContext(ctx, `SELECT shown FROM runs WHERE run = $1`, fit(run, wire.MaxName)).Scan(&shown)
	if errors.Is(err, sql.ErrNoRows) || err == nil && shown == "" {
		return view, false, nil
	}
	if err == nil {
		view, err = decodeRun(shown)
	}
	if err != nil {
		return view, false, fmt.Errorf("look up run %q: %w", run, err)
	}
	return view, true, nil
}

// EachRun calls each with the runs that go on, or have ended since a time, as far as they were not removed: ended is
// the zero time of those that go on, and began of those of which the start is not known. Told is when its start or its
// end was told last. It stops at the first error that each returns.
func (s *Store) EachRun(
	ctx context.Context, since time.Time, each func(run string, began, ended, told time.Time) error,
) error {
	db, err := s.readable()
	if err != nil {
		return fmt.Errorf("list runs: %w", err)
	}
	rows, err := db.QueryContext(ctx, `SELECT run, begun_ns, ended_ns, told_ns FROM runs
		WHERE settled <> $1 AND (ended_ns = 0 OR ended_ns >= $2)`, removed, spend.Nanoseconds(since))
	if err != nil {
		return fmt.Errorf("list runs: %w", err)
	}
	defer rows.Close() //nolint:errcheck // Err tells
	for rows.Next() {
		var run string
		var began, ended, told int64
		if err := rows.Scan(&run, &began, &ended, &told); err != nil {
			return fmt.Errorf("list runs: %w", err)
		}
		if err := each(run, spend.Time(began), spend.Time(ended), spend.Time(told)); err != nil {
			return err
		}
	}
	return rows.Err()
}

// Told is which messages of the loop's stream tell of a run that has ended, by the sequences of the first and the last;
// known is false where that is not known.
func (s *Store) Told(ctx context.Context, run string) (first, last uint64, known bool, err error) {
	var from, to int64
	db, err := s.readable()
	if err != nil {
		return 0, 0, false, fmt.Errorf("look up what tells of run %q: %w", run, err)
	}
	err = db.QueryRowContext(ctx, `SELECT first_sequence, last_sequence FROM runs
		WHERE run = $1 AND started_ns > 0`, fit(run, wire.MaxName)).Scan(&from, &to)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, 0, false, nil
	}
	if err != nil {
		return 0, 0, false, fmt.Errorf("look up what tells of run %q: %w", run, err)
	}
	return uint64(from), uint64(to), from > 0 && to >= from, nil
}

// Oldest is the sequence of the first message of the loop's stream that tells of a run which goes on, or that was not
// taken in yet; 0 where that is not known.
func (s *Store) Oldest(ctx context.Context) (sequence uint64, err error) {
	db, err := s.readable()
	if err != nil {
		return 0, fmt.Errorf("look up the oldest run that goes on: %w", err)
	}
	next := int64(s.Cursor()) + 1
	var first sql.NullInt64
	if err := db.QueryRowContext(ctx, `SELECT MIN(first_sequence) FROM runs
		WHERE whole = 0 AND first_sequence > 0 AND ended_ns = 0`).Scan(&first); err != nil {
		return 0, fmt.Errorf("look up the oldest run that goes on: %w", err)
	}
	if first.Valid {
		next = min(next, first.Int64)
	}
	return uint64(next), nil
}

// readable is what is read from, or why nothing can be now.
func (s *Store) readable() (*sql.DB, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if !s.usable {
		return nil, cmp.Or(s.failure, errClosed)
	}
	return s.readers, nil
}

// KeepRuns keeps all that ended runs did. What was kept of them before goes, unless it tells more; a run of which the
// store does not know the end, or that has started anew since, is left as it is.
func (s *Store) KeepRuns(ctx context.Context, views []ledger.RunView) error {
	return s.write(ctx, func(w *writer) error {
		for _, view := range views {
			view.Run, view.Pipeline = fit(view.Run, wire.MaxName), fit(view.Pipeline, mostText)
			before, known, err := w.shown(ctx, view.Run)
			if err != nil {
				return fmt.Errorf("keep run %q: %w", view.Run, err)
			}
			if known && (!before.EndedAt.Equal(view.EndedAt) || before.Fuller(view)) {
				continue
			}
			shown, err := json.Marshal(view)
			if err != nil {
				return fmt.Errorf("keep run %q: %w", view.Run, err)
			}
			if _, err := w.exec(ctx, `UPDATE runs SET started_ns = $2, state = $3, whole = 1, shown = $4,
				pipeline = CASE WHEN $5 = '' THEN pipeline ELSE $5 END, deadline_ns = $6, budget_pd = $7
				WHERE run = $1 AND ended_ns > 0 AND settled <> $8`,
				view.Run, max(1, spend.Nanoseconds(view.StartedAt)), string(view.State), string(shown), view.Pipeline,
				int64(view.Goal.Deadline), int64(view.Goal.Budget), removed); err != nil {
				return fmt.Errorf("keep run %q: %w", view.Run, err)
			}
		}
		return nil
	})
}

// RemoveRun forgets a run that has ended: what is shown of it at once, and its attempts as soon as their minutes are
// closed, since until then they say who pays for idle time. What it has spent stays in sums of an hour. A Record that
// comes for it after that counts as one of another run of that name. A run that goes on, or that there is not, stays as
// it is.
func (s *Store) RemoveRun(ctx context.Context, run string) error {
	err := s.write(ctx, func(w *writer) error {
		_, err := w.exec(ctx, `UPDATE runs SET settled = $2, started_ns = 0, state = '', whole = 1, shown = ''
			WHERE run = $1 AND ended_ns > 0`, run, removed)
		return err
	})
	if err != nil {
		return fmt.Errorf("remove run %q from the ledger: %w", run, err)
	}
	return nil
}

// write changes what is kept in one transaction; it does not move the cursor.
func (s *Store) write(ctx context.Context, change func(*writer) error) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	db, err := s.writable()
	if err != nil {
		return err
	}
	return s.bounded(ctx, func(ctx context.Context) error {
		w, err := s.beginWriting(ctx, db)
		if err != nil {
			return err
		}
		if err = change(w); err == nil {
			err = w.sumAll(ctx)
		}
		if err != nil {
			return errors.Join(err, w.tx.Rollback())
		}
		return w.tx.Commit()
	})
}

// writable is what is written to, or why nothing can be now.
func (s *Store) writable() (*sql.DB, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if !s.usable {
		return nil, cmp.Or(s.failure, errClosed)
	}
	if damaged(s.failure) { // a bill may have met the damage
		return nil, s.failure
	}
	return s.db, nil
}

// beginWriting begins to write, once nobody else does, from where the ledger is.
func (s *Store) beginWriting(ctx context.Context, db *sql.DB) (*writer, error) {
	tx, err := s.dialect.begin(ctx, db)
	if err != nil {
		return nil, err
	}
	w := &writer{tx: tx, prepares: s.dialect.prepares, statements: map[string]*sql.Stmt{}}
	if w.at, err = readProgress(ctx, tx); err == nil {
		err = s.fence(ctx, w)
	}
	if err != nil {
		return nil, errors.Join(err, tx.Rollback())
	}
	return w, nil
}

// decodeRun reads what is shown of a run.
func decodeRun(shown string) (view ledger.RunView, err error) {
	if err := json.Unmarshal([]byte(shown), &view); err != nil {
		return view, fmt.Errorf("read what is kept of a run: %w", err)
	}
	return view, nil
}

// show writes what is shown of a run that is not kept as a whole.
func (w *writer) show(ctx context.Context, view ledger.RunView) error {
	shown, err := json.Marshal(view)
	if err != nil {
		return err
	}
	_, err = w.exec(ctx, `UPDATE runs SET started_ns = $2, state = $3, whole = 0, shown = $4,
		pipeline = CASE WHEN $5 = '' THEN pipeline ELSE $5 END, deadline_ns = $6, budget_pd = $7 WHERE run = $1`,
		view.Run, max(1, spend.Nanoseconds(view.StartedAt)), string(view.State), string(shown), view.Pipeline,
		int64(view.Goal.Deadline), int64(view.Goal.Budget))
	return err
}

// shown is what is shown of a run; known is false where that is nothing.
func (w *writer) shown(ctx context.Context, run string) (view ledger.RunView, known bool, err error) {
	shown := ""
	err = w.tx.QueryRowContext(ctx, `SELECT shown FROM runs WHERE run = $1`, run).Scan(&shown)
	if errors.Is(err, sql.ErrNoRows) || err == nil && shown == "" {
		return view, false, nil
	}
	if err == nil {
		view, err = decodeRun(shown)
	}
	return view, err == nil, err
}

// goalChanged notes another goal.
func (w *writer) goalChanged(ctx context.Context, e predictor.GoalChanged) error {
	r, err := w.run(ctx, e.Run)
	if err != nil || r.ended != 0 {
		return err
	}
	view, known, err := w.shown(ctx, e.Run)
	if err != nil || !known {
		return err
	}
	view.Goal = e.Goal
	return w.show(ctx, view)
}
