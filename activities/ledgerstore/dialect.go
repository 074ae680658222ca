package ledgerstore

import (
	"context"
	"database/sql"
	"strings"

	"github.com/spillway-ml/spillway/predictor/ledger"
)

// dialect is what SQLite and PostgreSQL do not say alike. All else is written once, for both.
type dialect struct {
	// definition turns a statement that defines tables, as SQLite takes it, into one of the dialect.
	definition func(string) string
	// tables counts the tables named meta.
	tables string
	// lock has a transaction wait until no other one writes; empty where the database sees to that by itself.
	lock string
	// reading are the options of a transaction that sees everything as of its first query.
	reading *sql.TxOptions
	// few tells a reading transaction that conditions which follow hold for few rows; empty where the database does as it
	// is told (see addAcross).
	few string
	// prepares is whether statements are prepared for a transaction; drivers may do so by themselves.
	prepares bool
}

// sqliteDialect: the writer's transactions begin with a lock (_txlock), and a reader's sees one moment.
var sqliteDialect = dialect{
	definition: func(statement string) string { return statement },
	tables:     `SELECT COUNT(*) FROM sqlite_master WHERE name = 'meta'`,
	prepares:   true,
}

// postgresDialect: names are compared byte by byte, as SQLite does and as pages of runs are put together, whatever the
// database's own order is.
//
// How many rows lie across days it cannot know: it keeps statistics of columns, not of two that are compared, and would
// read the whole table for a handful.
//
// Who writes takes a lock of the transaction, not of the session, so that a pooler may lie between. A server whose host
// is gone in the middle of a transaction would keep the lock until the kernel notices, in hours: so its session ends
// after a minute in which it said nothing.
var postgresDialect = dialect{
	definition: strings.NewReplacer(" TEXT ", ` TEXT COLLATE "C" `).Replace,
	tables:     `SELECT COUNT(*) FROM pg_tables WHERE schemaname = current_schema() AND tablename = 'meta'`,
	lock: `SELECT set_config('lock_timeout', '30s', true),
		set_config('idle_in_transaction_session_timeout', '60s', true),
		pg_advisory_xact_lock(hashtext('spillway ledger'), hashtext(current_schema()))`,
	few:     `SELECT set_config('enable_seqscan', 'off', true)`,
	reading: &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true},
}

// begin begins a transaction that writes, once no other one does.
func (d *dialect) begin(ctx context.Context, db *sql.DB) (*sql.Tx, error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil || d.lock == "" {
		return tx, err
	}
	if _, err := tx.ExecContext(ctx, d.lock); err != nil {
		_ = tx.Rollback() // what began with a failure ends with it
		return nil, err
	}
	return tx, nil
}

// expectFew tells a reading transaction that the conditions which follow hold for few rows.
func (d *dialect) expectFew(ctx context.Context, tx *sql.Tx, _ *ledger.Statement) error {
	if d.few == "" {
		return nil
	}
	_, err := tx.ExecContext(ctx, d.few)
	return err
}
