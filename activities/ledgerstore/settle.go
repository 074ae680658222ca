package ledgerstore

import (
	"context"
	"time"

	"github.com/spillway-ml/spillway/predictor/ledger/spend"
)

const (
	// settleRuns is how many runs are settled in one transaction at most.
	settleRuns = 100
	// settleAfter is how long ago the end of a run was told, and the last Record behind it, before it is settled.
	settleAfter = int64(time.Hour)
)

// Values of runs.settled.
const (
	unsettled = 0 // its attempts are kept one by one
	settled   = 1 // its attempts are summed up
	removed   = 2 // it is forgotten once its attempts are summed up
)

// settle sums up the attempts of runs by the hour, as far as their minutes are closed: until then a late Record may
// change who pays for idle time. Those are the runs that were removed and, while there are more attempts than are kept
// one by one, those whose end was told first.
func (s *Store) settle(ctx context.Context, w *writer, attempts int) error {
	_, closed := w.book.Closed()
	for range settleRuns {
		run, told, err := w.oldest(ctx, removed)
		if err != nil {
			return err
		}
		gone := run != "" && told+settleAfter < closed
		if !gone { // one that was removed of late holds up none of the others
			if attempts <= s.options.Attempts {
				return nil
			}
			if run, told, err = w.oldest(ctx, unsettled); err != nil || run == "" || told+settleAfter >= closed {
				return err
			}
		}
		summed, err := w.sumUp(ctx, run)
		if err != nil {
			return err
		}
		if gone {
			if _, err := w.exec(ctx, `DELETE FROM runs WHERE run = $1`, run); err != nil {
				return err
			}
		}
		w.attempts -= summed
		attempts -= summed
	}
	return nil
}

// oldest is the run whose end was told first of those that are settled so, and when; empty when there is none.
func (w *writer) oldest(ctx context.Context, which int) (run string, told int64, err error) {
	rows, err := w.tx.QueryContext(ctx, `SELECT run, CASE WHEN told_ns > ended_ns THEN told_ns ELSE ended_ns END FROM runs
		WHERE settled = $1 AND ended_ns > 0 ORDER BY told_ns LIMIT 1`, which)
	if err != nil {
		return "", 0, err
	}
	defer rows.Close() //nolint:errcheck // Err tells
	if rows.Next() {
		if err := rows.Scan(&run, &told); err != nil {
			return "", 0, err
		}
	}
	return run, told, rows.Err()
}

// sumUp puts sums by the hour in the place of the attempts of a run and of what it reused, and returns how many those
// were.
func (w *writer) sumUp(ctx context.Context, run string) (attempts int, err error) {
	sums := spend.Hours{}
	if err := eachSpan(ctx, w.tx, `WHERE run = $1 AND task_id <> ''`, []any{run}, func(span spend.Span) {
		attempts++
		sums.Add(span)
		w.count(span, -1)
	}); err != nil {
		return 0, err
	}
	if _, err := w.exec(ctx, `DELETE FROM spent WHERE run = $1 AND task_id <> ''`, run); err != nil {
		return 0, err
	}
	for _, span := range sums.Spans() {
		if err := w.hour(ctx, "attempts", span); err != nil {
			return 0, err
		}
	}
	_, err = w.exec(ctx, `UPDATE runs SET settled = $2 WHERE run = $1`, run, settled)
	return attempts, err
}
