package ledgerstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
)

// migrations lead from each schema to the next: the first makes schema 1 of an empty database.
var migrations = [][]string{
	{
		`CREATE TABLE meta (name TEXT PRIMARY KEY, value BIGINT NOT NULL)`,
		// Something that was spent evenly from from_ns to to_ns, as spend.Span has it. The id names what told of it, so that
		// it is there once. task_id is that of an attempt's task, and empty of what is no attempt. Nobody caused what is not
		// owned.
		`CREATE TABLE spent (
			id TEXT PRIMARY KEY, task_id TEXT NOT NULL, run TEXT NOT NULL, pipeline TEXT NOT NULL, stage TEXT NOT NULL,
				owned BIGINT NOT NULL,
			venue TEXT NOT NULL, host TEXT NOT NULL, from_ns BIGINT NOT NULL, to_ns BIGINT NOT NULL, counted_ns BIGINT NOT NULL,
			attempts BIGINT NOT NULL, tasks BIGINT NOT NULL, reused BIGINT NOT NULL, held_ns BIGINT NOT NULL,
			pool_pd BIGINT NOT NULL, function_pd BIGINT NOT NULL, wasted_pd BIGINT NOT NULL, idle_pd BIGINT NOT NULL)`,
		`CREATE INDEX spent_run ON spent (run)`,
		`CREATE INDEX spent_task ON spent (task_id)`,
		`CREATE INDEX spent_to ON spent (to_ns)`,
		// When a host was there, in the minutes that are not closed; told is the sequence of the message that said so.
		`CREATE TABLE present (
			host TEXT NOT NULL, from_ns BIGINT NOT NULL, to_ns BIGINT NOT NULL, price_pd BIGINT NOT NULL, told BIGINT NOT NULL,
			PRIMARY KEY (host, from_ns, to_ns))`,
		// generation counts how often the name has started anew; ended_ns is 0 while the run goes on. The attempts of a
		// settled run are summed up by the hour, and what is told of it late is ignored.
		`CREATE TABLE runs (
			run TEXT PRIMARY KEY, generation BIGINT NOT NULL, pipeline TEXT NOT NULL, ended_ns BIGINT NOT NULL,
				settled BIGINT NOT NULL)`,
		`CREATE INDEX runs_ended ON runs (settled, ended_ns)`,
		// Times of which messages are missing.
		`CREATE TABLE gaps (since_ns BIGINT NOT NULL, until_ns BIGINT NOT NULL)`,
	},
	{
		// app is whose run it is, and begun_ns when the generation began; empty and 0 where that is not known. told_ns is
		// when the server stored the last start or end of the run, or a Record that came behind its end: only that decides
		// when it is settled, since anybody may tell of an end in 1970. forgotten says that generations before this one were
		// settled.
		`ALTER TABLE runs ADD COLUMN app TEXT NOT NULL DEFAULT ''`,
		`ALTER TABLE runs ADD COLUMN begun_ns BIGINT NOT NULL DEFAULT 0`,
		`ALTER TABLE runs ADD COLUMN told_ns BIGINT NOT NULL DEFAULT 0`,
		`ALTER TABLE runs ADD COLUMN forgotten BIGINT NOT NULL DEFAULT 0`,
		`UPDATE runs SET told_ns = COALESCE((SELECT value FROM meta WHERE name = 'stored_ns'), 0)`,
		`UPDATE runs SET told_ns = ended_ns WHERE ended_ns > 0 AND ended_ns < told_ns`,
		`DROP INDEX runs_ended`,
		`CREATE INDEX runs_told ON runs (settled, told_ns) WHERE ended_ns > 0`,
		// What was reused has a task_id too: it is summed up with the run's attempts.
		`UPDATE spent SET task_id = 'reused' WHERE task_id = '' AND reused > 0`,
		// A clock that was ahead has closed minutes that are still to come. What it told is taken for what had ended when the
		// last message was stored, and minutes begin again at the hour after it. 15 days (and 8 days, what is closed being a
		// week old) are more than a stream that is being taken in again can be behind.
		`DELETE FROM present WHERE to_ns > (SELECT value + 1296000000000000 FROM meta WHERE name = 'stored_ns')`,
		`UPDATE spent SET from_ns = from_ns - to_ns + (SELECT value FROM meta WHERE name = 'stored_ns'),
				counted_ns = counted_ns - to_ns + (SELECT value FROM meta WHERE name = 'stored_ns'),
				to_ns = (SELECT value FROM meta WHERE name = 'stored_ns')
			WHERE to_ns > (SELECT value + 1296000000000000 FROM meta WHERE name = 'stored_ns')`,
		`UPDATE meta SET value = (
			SELECT value / 3600000000000 * 3600000000000 + 3600000000000 FROM meta WHERE name = 'stored_ns')
			WHERE name = 'closed_ns'
				AND value > (SELECT value + 691200000000000 FROM meta WHERE name = 'stored_ns')`,
	},
	{
		// What is shown of a run, as JSON: what its start and its end tell until all that it did is kept, which whole says.
		// first_sequence and last_sequence are those of the messages about it; the last is 0 while it goes on. started_ns is
		// 0 of a run of which nothing can be shown.
		`ALTER TABLE runs ADD COLUMN first_sequence BIGINT NOT NULL DEFAULT 0`,
		`ALTER TABLE runs ADD COLUMN last_sequence BIGINT NOT NULL DEFAULT 0`,
		`ALTER TABLE runs ADD COLUMN started_ns BIGINT NOT NULL DEFAULT 0`,
		`ALTER TABLE runs ADD COLUMN state TEXT NOT NULL DEFAULT ''`,
		`ALTER TABLE runs ADD COLUMN whole BIGINT NOT NULL DEFAULT 0`,
		`ALTER TABLE runs ADD COLUMN shown TEXT NOT NULL DEFAULT ''`,
		`CREATE INDEX runs_started ON runs (started_ns, run)`,
		`CREATE INDEX runs_pipeline ON runs (pipeline, started_ns, run)`,
		`CREATE INDEX runs_state ON runs (state, started_ns, run)`,
		`CREATE INDEX runs_open ON runs (whole, first_sequence)`,
		// Up to here nothing that is shown was taken in.
		`INSERT INTO meta (name, value) SELECT 'shown', value FROM meta WHERE name = 'cursor'`,
	},
	{
		// Sums of the rows of spent that lie in one day (in UTC, since 1970), of each run and, with all_runs, of all; spans
		// is how many rows those are. Bills of months read these, and rows only at their edges and where they lie across
		// days.
		`CREATE TABLE sums (
			day BIGINT NOT NULL, all_runs BIGINT NOT NULL, run TEXT NOT NULL, pipeline TEXT NOT NULL, stage TEXT NOT NULL,
				owned BIGINT NOT NULL, venue TEXT NOT NULL, host TEXT NOT NULL, first_ns BIGINT NOT NULL,
			spans BIGINT NOT NULL, attempts BIGINT NOT NULL, tasks BIGINT NOT NULL, reused BIGINT NOT NULL,
				held_s BIGINT NOT NULL, held_ns BIGINT NOT NULL, pool_usd BIGINT NOT NULL, pool_pd BIGINT NOT NULL,
				function_usd BIGINT NOT NULL, function_pd BIGINT NOT NULL, wasted_usd BIGINT NOT NULL,
				wasted_pd BIGINT NOT NULL, idle_usd BIGINT NOT NULL, idle_pd BIGINT NOT NULL,
			PRIMARY KEY (all_runs, day, run, pipeline, stage, owned, venue, host))`,
		`CREATE INDEX sums_run ON sums (run, day) WHERE all_runs = 0`,
		`CREATE INDEX spent_from ON spent (from_ns)`,
		`CREATE INDEX spent_across ON spent (from_ns) WHERE ` + acrossDays,
		sumRows("0, from_ns / 86400000000000, run", ", run"), sumRows("1, from_ns / 86400000000000, ''", ""),
	},
	{
		// What lists of runs are added up by, all of it in one index, so that no run is read for it: the limits of the goal
		// in force, 0 for none, and what the attempts have cost, at most what 64 bits hold.
		`ALTER TABLE runs ADD COLUMN deadline_ns BIGINT NOT NULL DEFAULT 0`,
		`ALTER TABLE runs ADD COLUMN budget_pd BIGINT NOT NULL DEFAULT 0`,
		`ALTER TABLE runs ADD COLUMN cost_pd BIGINT NOT NULL DEFAULT 0`,
		`UPDATE runs SET cost_pd = COALESCE((SELECT CASE
				WHEN SUM(pool_pd / 1000000000000 + function_pd / 1000000000000) > 8000000 THEN 9223372036854775807
				ELSE SUM(pool_pd / 1000000000000 + function_pd / 1000000000000) * 1000000000000
					+ SUM(pool_pd % 1000000000000 + function_pd % 1000000000000) END
			FROM spent WHERE spent.run = runs.run AND from_ns >= runs.begun_ns), 0)`,
		`CREATE INDEX runs_totals ON runs (state, pipeline, started_ns, ended_ns, deadline_ns, budget_pd, cost_pd)`,
	},
}

// goalsSince is the first schema that has the limits of goals in columns of their own.
const goalsSince = 5

// sumRows sums up the rows that there are, by run or over all.
func sumRows(of, run string) string {
	return `INSERT INTO sums (all_runs, day, run, pipeline, stage, owned, venue, host, first_ns, ` +
		strings.Join(sumColumns, ", ") + `) SELECT ` + of + `, pipeline, stage, owned, venue,
			host, MIN(from_ns), COUNT(*), SUM(attempts), SUM(tasks), SUM(reused),
			SUM(held_ns / 1000000000), SUM(held_ns % 1000000000),
			SUM(pool_pd / 1000000000000), SUM(pool_pd % 1000000000000),
			SUM(function_pd / 1000000000000), SUM(function_pd % 1000000000000),
			SUM(wasted_pd / 1000000000000), SUM(wasted_pd % 1000000000000),
			SUM(idle_pd / 1000000000000), SUM(idle_pd % 1000000000000)
		FROM spent WHERE NOT (` + acrossDays + `)
		GROUP BY from_ns / 86400000000000` + run + `, pipeline, stage, owned, venue, host`
}

// Names in the table meta.
const (
	metaSchema   = "schema"
	metaCursor   = "cursor"    // the sequence of the last message that was taken in
	metaStored   = "stored_ns" // when that was stored
	metaStream   = "stream_ns" // when its stream was made
	metaTerm     = "term"      // of the leading server that wrote last
	metaClosed   = "closed_ns" // until when minutes are closed
	metaAttempts = "attempts"  // how many attempts are kept one by one
	metaHours    = "hours_ns"  // from when on hours are known; before it whole days are
	metaRuns     = "runs_ns"   // from when on what runs that are forgotten have spent is known by run
	// metaShown is the sequence up to which starts and ends of runs were taken in by an engine that did not keep what is
	// shown of them; 0 where there is nothing of that kind.
	metaShown = "shown"
)

// schemaOf is the schema of a database; 0 of an empty one.
func schemaOf(ctx context.Context, from querier, d dialect) (schema int, err error) {
	tables := 0
	if err := from.QueryRowContext(ctx, d.tables).Scan(&tables); err != nil || tables == 0 {
		return 0, err
	}
	err = from.QueryRowContext(ctx, `SELECT value FROM meta WHERE name = $1`, metaSchema).Scan(&schema)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	return schema, err
}

// checkSchema refuses what a newer engine has written.
func checkSchema(schema int) error {
	if newest := len(migrations); schema > newest {
		return fmt.Errorf("%w: it has schema %d, this engine reads up to %d; start that engine, or give this one another "+
			"ledger: what the stream of events still has is then taken in again", ErrNewer, schema, newest)
	}
	return nil
}

// migrate brings a database to the newest schema, in one transaction, and returns what it has then: another server may
// have brought it there meanwhile, or further.
func migrate(ctx context.Context, db *sql.DB, d dialect) (schema int, err error) {
	tx, err := d.begin(ctx, db)
	if err != nil {
		return 0, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, tx.Rollback())
		}
	}()
	if schema, err = schemaOf(ctx, tx, d); err != nil {
		return 0, err
	}
	for ; schema < len(migrations); schema++ {
		for _, statement := range migrations[schema] {
			if _, err := tx.ExecContext(ctx, d.definition(statement)); err != nil {
				return 0, fmt.Errorf("bring it from schema %d to %d: %w", schema, schema+1, err)
			}
		}
		if schema+1 == goalsSince {
			if err := fillGoals(ctx, tx); err != nil {
				return 0, fmt.Errorf("bring it from schema %d to %d: %w", schema, schema+1, err)
			}
		}
		if err := setMeta(ctx, tx, metaSchema, int64(schema+1)); err != nil {
			return 0, err
		}
	}
	return schema, tx.Commit()
}

// goalsAtOnce is of how many runs fillGoals holds the limits at a time.
const goalsAtOnce = 1000

// fillGoals copies the limits of goals from what is shown of runs, in the order of their names.
func fillGoals(ctx context.Context, tx *sql.Tx) error {
	for after, more := "", true; more; {
		goals := make(map[string]predictor.Goal, goalsAtOnce)
		rows, err := tx.QueryContext(ctx, `SELECT run, shown FROM runs WHERE run > $1 AND shown <> ''
			ORDER BY run LIMIT $2`, after, goalsAtOnce)
		if err != nil {
			return err
		}
		for err == nil && rows.Next() {
			var shown string
			var view ledger.RunView
			if err = rows.Scan(&after, &shown); err == nil {
				view, err = decodeRun(shown)
			}
			goals[after] = view.Goal
		}
		if err := errors.Join(err, rows.Err(), rows.Close()); err != nil {
			return err
		}
		for run, goal := range goals {
			if goal.Deadline <= 0 && goal.Budget <= 0 {
				continue
			}
			if _, err := tx.ExecContext(ctx, `UPDATE runs SET deadline_ns = $2, budget_pd = $3 WHERE run = $1`, run,
				int64(goal.Deadline), int64(goal.Budget)); err != nil {
				return err
			}
		}
		more = len(goals) == goalsAtOnce
	}
	return nil
}

func setMeta(ctx context.Context, tx *sql.Tx, name string, value int64) error {
	_, err := tx.ExecContext(ctx,
		`INSERT INTO meta (name, value) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value`, name, value)
	return err
}

// meta reads a number; 0 where it was never set.
func meta(ctx context.Context, from querier, name string) (value int64, err error) {
	err = from.QueryRowContext(ctx, `SELECT value FROM meta WHERE name = $1`, name).Scan(&value)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	return value, err
}
