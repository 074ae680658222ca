package ledgerstore

import (
	"context"
	"database/sql"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/ledger/spend"
)

// dayLength is the length of the days, in UTC, by which what was spent is summed up, in nanoseconds.
const dayLength = int64(24 * time.Hour)

// acrossDays is the condition of rows that lie in more than one day, which are in no sum; an index has it too.
const acrossDays = `from_ns / 86400000000000 <> to_ns / 86400000000000`

// sumKey is what is summed up together. Run is empty in the sums over all runs, which allRuns says.
type sumKey struct {
	day                  int64 // since 1970
	allRuns, owned       bool
	run, pipeline, stage string
	venue, host          string
}

// sumColumns are those of a sum that are added up, in the order of sumDelta. Amounts are in two parts, of whole units
// and of the rest, so that they neither overflow nor are rounded.
var sumColumns = []string{
	"spans", "attempts", "tasks", "reused", "held_s", "held_ns", "pool_usd", "pool_pd", "function_usd", "function_pd",
	"wasted_usd", "wasted_pd", "idle_usd", "idle_pd",
}

// sumDelta is by how much a sum changes.
type sumDelta struct {
	first   int64 // when the first of what was added began
	values  [14]int64
	removes bool
}

// count takes a row into the sums (sign 1), or out of them (-1); at 0 it does nothing.
func (w *writer) count(s spend.Span, sign int64) {
	if day := s.From / dayLength; sign != 0 && day == s.To/dayLength {
		w.countIn(day, s, sign)
	}
}

// countIn takes a row into the sums of a day (sign 1), or out of them (-1).
func (w *writer) countIn(day int64, s spend.Span, sign int64) {
	key := sumKey{day: day, venue: string(s.Venue), host: s.Host, owned: s.Owner != nil}
	if s.Owner != nil {
		key.run, key.pipeline, key.stage = s.Owner.Run, s.Owner.Pipeline, s.Owner.Stage
	}
	const usd, second = 1_000_000_000_000, int64(time.Second)
	held := int64(s.Held)
	values := [14]int64{
		1, int64(s.Attempts), int64(s.Tasks), int64(s.Reused), held / second, held % second,
		int64(s.Pool) / usd, int64(s.Pool) % usd, int64(s.Function) / usd, int64(s.Function) % usd,
		int64(s.Wasted) / usd, int64(s.Wasted) % usd, int64(s.Idle) / usd, int64(s.Idle) % usd,
	}
	if w.sums == nil {
		w.sums = map[sumKey]*sumDelta{}
	}
	for _, all := range []bool{false, true} {
		if key.allRuns = all; all {
			key.run = ""
		}
		d := w.sums[key]
		if d == nil {
			d = &sumDelta{first: math.MaxInt64}
			w.sums[key] = d
		}
		for i, value := range values {
			d.values[i] += sign * value
		}
		if sign > 0 {
			d.first = min(d.first, s.From)
		} else {
			d.removes = true
		}
	}
}

// countRows takes the rows that are selected into the sums (sign 1), or out of them (-1).
func (w *writer) countRows(ctx context.Context, sign int64, where string, values ...any) error {
	return eachSpan(ctx, w.tx, where, values, func(span spend.Span) { w.count(span, sign) })
}

// addToSum and dropSum are what adds to a sum, and what drops one of which nothing is left.
var addToSum, dropSum = sumStatements()

func sumStatements() (add, drop string) {
	keys := []string{"day", "all_runs", "run", "pipeline", "stage", "owned", "venue", "host"}
	names, update := slices.Concat(keys, []string{"first_ns"}), []string{
		"first_ns = CASE WHEN excluded.first_ns < sums.first_ns THEN excluded.first_ns ELSE sums.first_ns END",
	}
	for _, column := range sumColumns {
		names = append(names, column)
		update = append(update, column+" = sums."+column+" + excluded."+column)
	}
	values, match := make([]string, len(names)), make([]string, len(keys))
	for i := range names {
		values[i] = "$" + strconv.Itoa(i+1)
	}
	for i, key := range keys {
		match[i] = key + " = " + values[i]
	}
	return "INSERT INTO sums (" + strings.Join(names, ", ") + ") VALUES (" + strings.Join(values, ", ") +
			") ON CONFLICT (" +
			strings.Join(keys, ", ") + ") DO UPDATE SET " + strings.Join(update, ", "),
		"DELETE FROM sums WHERE " + strings.Join(match, " AND ") + " AND spans = 0"
}

// sumAll writes what was counted.
func (w *writer) sumAll(ctx context.Context) error {
	for key, d := range w.sums {
		values := []any{
			key.day, number(key.allRuns), key.run, key.pipeline, key.stage, number(key.owned), key.venue, key.host,
		}
		all := slices.Concat(values, []any{d.first})
		for _, value := range d.values {
			all = append(all, value)
		}
		if _, err := w.exec(ctx, addToSum, all...); err != nil {
			return err
		}
		if !d.removes {
			continue
		}
		if _, err := w.exec(ctx, dropSum, values...); err != nil {
			return err
		}
	}
	clear(w.sums)
	return nil
}

// number is 1 for what is so, as tables have it.
func number(so bool) int64 {
	if so {
		return 1
	}
	return 0
}

// parts says how a window is read: whole days from sums, and what lies at its edges row by row.
type parts struct {
	since, until    int64
	firstDay, after int64 // whole days, from the first to the one after the last
	edges           [][2]int64
}

// partsOf divides a window.
func partsOf(since, until int64) parts {
	p := parts{since: since, until: until, firstDay: since / dayLength, after: until / dayLength}
	if since%dayLength > 0 {
		p.firstDay++
	}
	if p.firstDay >= p.after { // no day is whole
		p.after = p.firstDay
		p.edges = [][2]int64{{since, until}}
		return p
	}
	for _, edge := range [][2]int64{{since, p.firstDay * dayLength}, {p.after * dayLength, until}} {
		if edge[0] < edge[1] {
			p.edges = append(p.edges, edge)
		}
	}
	return p
}

// sumsOf are the columns of a table as addSums reads them; the first begins the first of what is summed up.
const (
	sumsOfSums = `MIN(first_ns), SUM(attempts), SUM(tasks), SUM(reused), SUM(held_s), SUM(held_ns), SUM(pool_usd),
		SUM(pool_pd), SUM(function_usd), SUM(function_pd), SUM(wasted_usd), SUM(wasted_pd), SUM(idle_usd), SUM(idle_pd)
		FROM sums`
	sumsOfSpans = `MIN(from_ns), SUM(attempts), SUM(tasks), SUM(reused), SUM(held_ns / 1000000000),
		SUM(held_ns % 1000000000), SUM(pool_pd / 1000000000000), SUM(pool_pd % 1000000000000),
		SUM(function_pd / 1000000000000), SUM(function_pd % 1000000000000), SUM(wasted_pd / 1000000000000),
		SUM(wasted_pd % 1000000000000), SUM(idle_pd / 1000000000000), SUM(idle_pd % 1000000000000) FROM spent`
)

// addWhole adds what lies within one day and within the window as a whole: days from their sums, and at its edges the
// rows, which the database sums up. A plus before a column keeps SQLite from looking it up by an
// index.
func addWhole(ctx context.Context, tx *sql.Tx, statement *ledger.Statement) error {
	query := statement.Query()
	p := partsOf(statement.Window())
	if p.firstDay < p.after {
		level := "0" // written out, as the index of a run's sums wants it
		if query.By != ledger.ByRun && query.Run == "" {
			level = "1"
		}
		condition, values := filter(query, []any{p.firstDay, p.after})
		if err := addSums(ctx, tx, statement, sumsOfSums+` WHERE all_runs = `+level+` AND day >= $1 AND day < $2`+condition,
			values); err != nil {
			return err
		}
	}
	for _, edge := range p.edges {
		condition, values := filter(query, []any{edge[0], edge[1], p.until})
		if err := addSums(ctx, tx, statement, sumsOfSpans+` WHERE from_ns >= $1 AND from_ns < $2 AND +to_ns < $3 AND NOT (`+
			acrossDays+`)`+condition, values); err != nil {
			return err
		}
	}
	return nil
}

// addAcross adds what lies across days: within the window as a whole, and then across a bound of it.
func addAcross(ctx context.Context, tx *sql.Tx, statement *ledger.Statement) error {
	since, until := statement.Window()
	condition, values := filter(statement.Query(), []any{since, until})
	if err := addSums(ctx, tx, statement, sumsOfSpans+` WHERE `+acrossDays+` AND +from_ns >= $1 AND +to_ns < $2`+
		condition, values); err != nil {
		return err
	}
	return eachSpan(ctx, tx, `WHERE `+acrossDays+` AND +to_ns >= $1 AND +from_ns < $2 AND (from_ns < $1 OR to_ns >= $2)`+
		condition, values, statement.Add)
}

// addSums adds the sums of a query by the dimension of the bill.
func addSums(ctx context.Context, tx *sql.Tx, statement *ledger.Statement, from string, values []any) error {
	rows, err := tx.QueryContext(ctx, `SELECT `+names[statement.Query().By]+` AS name, owned, `+from+
		` GROUP BY name, owned`, values...)
	if err != nil {
		return err
	}
	defer rows.Close() //nolint:errcheck // Err tells
	for rows.Next() {
		var name string
		var owned int
		var first int64
		var sum spend.Sums
		var held, pool, function, wasted, idle exact
		if err := rows.Scan(&name, &owned, &first, &sum.Attempts, &sum.Tasks, &sum.Reused, &held.whole, &held.rest,
			&pool.whole, &pool.rest, &function.whole, &function.rest, &wasted.whole, &wasted.rest, &idle.whole,
			&idle.rest); err != nil {
			return err
		}
		sum.Held, sum.Pool, sum.Function, sum.Wasted, sum.Idle =
			held.duration(), pool.money(), function.money(), wasted.money(), idle.money()
		statement.AddSums(name, owned != 0, first, sum)
	}
	return rows.Err()
}

// addCut adds what lies within one day and across a bound of the window.
func addCut(ctx context.Context, tx *sql.Tx, statement *ledger.Statement) error {
	since, until := statement.Window()
	add := func(condition string, values ...any) error {
		more, values := filter(statement.Query(), values)
		return eachSpan(ctx, tx, `WHERE `+condition+more, values, statement.Add)
	}
	const oneDay = `from_ns >= $1 AND from_ns < $2 AND +to_ns >= $3 AND NOT (` + acrossDays + `)`
	if err := add(oneDay, since-since%dayLength, since, since); err != nil {
		return err
	}
	return add(oneDay, max(since, until-until%dayLength), until, until)
}
