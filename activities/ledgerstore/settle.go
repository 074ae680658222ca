package ledgerstore

import (
	"context"

	"github.com/spillway-ml/spillway/predictor/ledger/spend"
)

// settleRuns is how many runs are settled in one transaction at most.
const settleRuns = 100

// settle sums up the attempts of the runs that ended first by the hour, while there are more than are kept one by one,
// as far as their minutes are closed: until then a late Record may change who pays for idle time.
func (s *Store) settle(ctx context.Context, w *writer, attempts int) error {
	for range settleRuns {
		if attempts <= s.options.Attempts {
			return nil
		}
		run, ended, err := w.oldest(ctx)
		if err != nil || run == "" {
			return err
		}
		_, closed := w.book.Closed()
		if ended >= closed {
			return nil
		}
		summed, err := w.sumUp(ctx, run)
		if err != nil {
			return err
		}
		w.attempts -= summed
		attempts -= summed
	}
	return nil
}

// oldest is the run that ended first of those whose attempts are kept one by one, and when; empty when there is none.
func (w *writer) oldest(ctx context.Context) (run string, ended int64, err error) {
	rows, err := w.tx.QueryContext(ctx, `SELECT run, ended_ns FROM runs WHERE settled = 0 AND ended_ns > 0
		ORDER BY ended_ns LIMIT 1`)
	if err != nil {
		return "", 0, err
	}
	defer rows.Close() //nolint:errcheck // Err tells
	if rows.Next() {
		if err := rows.Scan(&run, &ended); err != nil {
			return "", 0, err
		}
	}
	return run, ended, rows.Err()
}

// sumUp puts sums by the hour in the place of the attempts of a run, and returns how many attempts that were.
func (w *writer) sumUp(ctx context.Context, run string) (attempts int, err error) {
	rows, err := w.tx.QueryContext(ctx, selectSpans+`WHERE run = $1 AND task_id <> ''`, run)
	if err != nil {
		return 0, err
	}
	defer rows.Close() //nolint:errcheck // Err tells
	sums := spend.Hours{}
	for rows.Next() {
		span, err := scanSpan(rows)
		if err != nil {
			return 0, err
		}
		attempts++
		sums.Add(span)
	}
	if err := rows.Err(); err != nil {
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
	_, err = w.exec(ctx, `UPDATE runs SET settled = 1 WHERE run = $1`, run)
	return attempts, err
}
