package ledgerstore

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger/spend"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

const selectSpans = `SELECT run, pipeline, stage, owned, venue, host, from_ns, to_ns, counted_ns, attempts,
	tasks, reused, held_ns,
	pool_pd, function_pd, wasted_pd, idle_pd FROM spent `

const (
	insertSpan     = intoSpent + `$13` + unlessThere
	insertAttempt  = intoSpent + unlessFinished + unlessThere + ` RETURNING tasks`
	unlessFinished = `CASE WHEN EXISTS (SELECT 1 FROM spent WHERE task_id = $2 AND tasks > 0) THEN 0 ELSE $13 END`

	intoSpent = `INSERT INTO spent (id, task_id, run, pipeline, stage, owned, venue, host, from_ns, to_ns,
		counted_ns, attempts, tasks, reused, held_ns, pool_pd, function_pd, wasted_pd, idle_pd)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, `
	unlessThere = `, $14, $15, $16, $17, $18, $19) ON CONFLICT (id) DO NOTHING`
)

// spanValues are what insertSpan takes.
func spanValues(id, task string, s spend.Span) []any {
	owned, owner := 0, spend.Owner{}
	if s.Owner != nil {
		owned, owner = 1, *s.Owner
	}
	return []any{
		id, task, owner.Run, owner.Pipeline, owner.Stage, owned, string(s.Venue), s.Host, s.From, s.To, s.Counted,
		s.Attempts, s.Tasks, s.Reused,
		int64(s.Held), int64(s.Pool), int64(s.Function), int64(s.Wasted), int64(s.Idle),
	}
}

// scanSpan reads a row of selectSpans.
func scanSpan(rows *sql.Rows) (s spend.Span, err error) {
	var owner spend.Owner
	var owned int
	err = rows.Scan(&owner.Run, &owner.Pipeline, &owner.Stage, &owned, &s.Venue, &s.Host, &s.From, &s.To, &s.Counted,
		&s.Attempts, &s.Tasks, &s.Reused, &s.Held, &s.Pool, &s.Function, &s.Wasted, &s.Idle)
	if owned != 0 {
		s.Owner = &owner
	}
	return s, err
}

// querier is a database, or a transaction in one.
type querier interface {
	QueryContext(ctx context.Context, query string, values ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, values ...any) *sql.Row
}

// eachSpan calls do with the spans of the rows that are selected.
func eachSpan(ctx context.Context, from querier, where string, values []any, do func(spend.Span)) error {
	rows, err := from.QueryContext(ctx, selectSpans+where, values...)
	if err != nil {
		return err
	}
	defer rows.Close() //nolint:errcheck // Err tells
	for rows.Next() {
		span, err := scanSpan(rows)
		if err != nil {
			return err
		}
		do(span)
	}
	return rows.Err()
}

// eachHeld calls do with what the book is told of the attempts at the pool that ended after a time. Each column takes
// its time: of those of selectSpans these are what it needs.
func eachHeld(ctx context.Context, from querier, after int64, do func(spend.Span)) error {
	rows, err := from.QueryContext(ctx, `SELECT run, pipeline, stage, host, from_ns, to_ns, pool_pd FROM spent
		WHERE to_ns > $1 AND venue = 'pool' AND task_id <> '' AND owned <> 0`, after)
	if err != nil {
		return err
	}
	defer rows.Close() //nolint:errcheck // Err tells
	for rows.Next() {
		var owner spend.Owner
		s := spend.Span{Owner: &owner, Venue: predictor.Pool}
		if err := rows.Scan(&owner.Run, &owner.Pipeline, &owner.Stage, &s.Host, &s.From, &s.To, &s.Pool); err != nil {
			return err
		}
		do(s)
	}
	return rows.Err()
}

// scanHeld reads when a host was there.
func scanHeld(rows *sql.Rows) (e predictor.HostHeld, err error) {
	var from, to int64
	err = rows.Scan(&e.Host, &from, &to, &e.PricePerHour)
	e.From, e.At = time.Unix(0, from), time.Unix(0, to)
	return e, err
}

// nameOf names something in 128 bits.
func nameOf(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:16])
}

// exact is a sum as the database makes it: of whole units and of the rest.
type exact struct{ whole, rest int64 }

// in adds up the sum, where a unit is so much; what does not fit into 64 bits is cut.
func (e exact) in(unit int64) int64 {
	whole := e.whole + e.rest/unit
	if whole > (1<<63-1)/unit-1 {
		return 1<<63 - 1
	}
	return whole*unit + e.rest%unit
}

func (e exact) money() quantity.Money { return quantity.Money(e.in(int64(quantity.USD))).Plus(0) }

func (e exact) duration() time.Duration { return time.Duration(e.in(int64(time.Second))) }
