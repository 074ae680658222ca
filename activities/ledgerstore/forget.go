package ledgerstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/predictor/ledger/spend"
)

// For how long costs are known by the hour: by default, at least and at most. What is younger than a month may still be
// told again, and what is older than a run is known for could not be divided by run any more.
const (
	UsualHours = 90 * 24 * time.Hour
	LeastHours = 30 * 24 * time.Hour
	MostHours  = forgetAfter
)

const (
	// forgetAfter is how long ago the end of a run was told, and the last Record behind it, before it is forgotten, if
	// nothing of it is kept one by one. What is told of it later is of another run of that name; the stream tells nothing
	// again after two weeks.
	forgetAfter = 365 * 24 * time.Hour
	// forgetBatch is how many rows are removed in one transaction: nothing is taken in meanwhile. On a machine with ten
	// times the work that it can do a row took a millisecond.
	forgetBatch = 500
)

// Forget removes what is too old by now, the time by which things age: runs whose end was told a year ago, with what
// each has spent by the day, and sums of hours that are older than hours (0 is UsualHours). What was spent stays known
// by the day for each pipeline, stage, venue and host. It may be called at any time, and goes on where another call was
// cut off.
//
// At 50 pipelines of 10 stages on 5 hosts that all run once in every hour, a day takes 60,000 rows of hours (19 MiB),
// as many of what each run has spent that day, and 2,500 of the day over all runs (11 MiB together): without this
// 11 GiB a year (see TestTheGrowthOfAYearIsMeasured).
func (s *Store) Forget(ctx context.Context, now time.Time, hours time.Duration) error {
	if hours == 0 {
		hours = UsualHours
	}
	for _, forget := range []func() error{
		func() error { return s.forgetRuns(ctx, spend.Nanoseconds(now.Add(-forgetAfter))) },
		func() error { return s.forgetDaysOfRuns(ctx, spend.Nanoseconds(now.Add(-forgetAfter))/dayLength) },
		func() error { return s.forgetHours(ctx, spend.Nanoseconds(now.Add(-hours))/dayLength*dayLength) },
	} {
		if err := forget(); err != nil {
			return fmt.Errorf("remove from the ledger what is too old: %w", err)
		}
	}
	return nil
}

// forgetRuns removes the runs that have ended, of which nothing was told since, and nothing is kept one by one: builds
// may tell of any number.
func (s *Store) forgetRuns(ctx context.Context, since int64) error {
	for {
		changed := int64(0)
		err := s.write(ctx, func(w *writer) (err error) {
			changed, err = w.exec(ctx, `DELETE FROM runs WHERE run IN (
				SELECT run FROM runs WHERE settled IN (0, 1, 2) AND ended_ns > 0 AND told_ns < $1 AND NOT EXISTS
					(SELECT 1 FROM spent WHERE spent.run = runs.run AND spent.task_id <> '') LIMIT $2)`, since, forgetBatch)
			return err
		})
		if err != nil || changed < forgetBatch {
			return err
		}
	}
}

// forgetDaysOfRuns removes what runs that are not known any more have spent in the days before one. The sums over all
// runs stay.
func (s *Store) forgetDaysOfRuns(ctx context.Context, day int64) error {
	for {
		runs, err := s.texts(ctx, `SELECT DISTINCT run FROM sums WHERE all_runs = 0 AND day < $1 AND NOT EXISTS
			(SELECT 1 FROM runs WHERE runs.run = sums.run) LIMIT $2`, day, forgetBatch)
		if err != nil || len(runs) == 0 {
			return err
		}
		err = s.write(ctx, func(w *writer) error {
			list, values := listed(runs, day)
			_, err := w.exec(ctx, `DELETE FROM sums WHERE all_runs = 0 AND day < $1 AND run IN `+list, values...)
			return errors.Join(err, setMeta(ctx, w.tx, metaRuns, day*dayLength))
		})
		if err != nil {
			return err
		}
		s.mu.Lock()
		s.at.runsFrom = day * dayLength
		s.mu.Unlock()
	}
}

// forgetHours removes sums of hours before a whole day. From the first word on bills count whole days before it, so
// that none sees a part of them.
func (s *Store) forgetHours(ctx context.Context, before int64) error {
	s.mu.RLock()
	known := s.at.hoursFrom
	s.mu.RUnlock()
	if before = max(before, known); before > known {
		if err := s.write(ctx, func(w *writer) error { return setMeta(ctx, w.tx, metaHours, before) }); err != nil {
			return err
		}
		s.mu.Lock()
		s.at.hoursFrom = before
		s.mu.Unlock()
	}
	for first := int64(0); ; {
		// A plain comparison would have SQLite read all hours that there are.
		ids, err := s.texts(ctx, `SELECT id FROM spent WHERE from_ns >= $1 AND from_ns < $2 AND NOT (task_id <> '')
			ORDER BY from_ns LIMIT $3`, first, before, forgetBatch)
		if err != nil || len(ids) == 0 {
			return err
		}
		if err := s.write(ctx, func(w *writer) (err error) {
			first, err = w.dropHours(ctx, ids)
			return err
		}); err != nil {
			return err
		}
	}
}

// dropHours removes sums of hours, and returns when the last of them began. One that lasts up to midnight is in no sum
// of a day yet.
func (w *writer) dropHours(ctx context.Context, ids []string) (last int64, err error) {
	list, values := listed(ids)
	if err := eachSpan(ctx, w.tx, `WHERE id IN `+list, values, func(span spend.Span) {
		last = max(last, span.From)
		if span.From/dayLength != span.To/dayLength {
			w.countIn(span.From/dayLength, span, 1)
		}
	}); err != nil {
		return 0, err
	}
	_, err = w.exec(ctx, `DELETE FROM spent WHERE id IN `+list, values...)
	return last, err
}

// listed is a list of values for a query, with these before them.
func listed(texts []string, before ...any) (list string, values []any) {
	names := make([]string, len(texts))
	values = before
	for i, text := range texts {
		values = append(values, text)
		names[i] = "$" + strconv.Itoa(len(values))
	}
	return "(" + strings.Join(names, ", ") + ")", values
}

// texts reads a column.
func (s *Store) texts(ctx context.Context, query string, values ...any) (texts []string, err error) {
	db, err := s.readable()
	if err != nil {
		return nil, err
	}
	rows, err := db.QueryContext(ctx, query, values...)
	if err != nil {
		return nil, err
	}
	defer func(rows *sql.Rows) { err = errors.Join(err, rows.Close()) }(rows)
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			return nil, err
		}
		texts = append(texts, text)
	}
	return texts, rows.Err()
}
