package ledgerstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// ErrNotEmpty says that a ledger cannot be copied to a place that has another one.
var ErrNotEmpty = errors.New("there is another ledger already")

// Copied says what a copy has, which was compared with the original.
type Copied struct {
	// Place is where it is, and From where the original is; neither has a secret.
	Place string `json:"place"`
	From  string `json:"from"`
	// Already is true when it was there before, as after a copy whose end nobody saw.
	Already bool `json:"already,omitempty"`
	// Sequence is that of the last message of the loop's stream that was taken in.
	Sequence uint64 `json:"sequence"`
	// Tables are in the order in which they were copied.
	Tables []CopiedTable `json:"tables"`
	// Attempts is how many attempts there are one by one, and Spent what all that is kept has cost, without what of it
	// went to nobody.
	Attempts int            `json:"attempts"`
	Spent    quantity.Money `json:"spent_picodollars"`
}

// CopiedTable is a table of a copy.
type CopiedTable struct {
	// Name is the table's, Rows how many it has.
	Name string `json:"name"`
	Rows int64  `json:"rows"`
}

// table is how a table is copied: its columns of text and its numbers.
type table struct {
	name           string
	texts, numbers []string
}

// tables are all but meta, of which a copy has a schema of its own.
var tables = []table{
	{"spent", []string{"id", "task_id", "run", "pipeline", "stage", "venue", "host"}, []string{
		"owned", "from_ns", "to_ns", "counted_ns", "attempts", "tasks", "reused", "held_ns", "pool_pd", "function_pd",
		"wasted_pd", "idle_pd",
	}},
	{"present", []string{"host"}, []string{"from_ns", "to_ns", "price_pd", "told"}},
	{"runs", []string{"run", "pipeline", "app", "state", "shown"}, []string{
		"generation", "ended_ns", "settled", "begun_ns", "told_ns", "forgotten", "first_sequence", "last_sequence",
		"started_ns", "whole", "deadline_ns", "budget_pd", "cost_pd",
	}},
	{"gaps", nil, []string{"since_ns", "until_ns"}},
	{"sums", []string{"run", "pipeline", "stage", "venue", "host"}, slices.Concat(
		[]string{"day", "all_runs", "owned", "first_ns"}, sumColumns)},
}

// copyRows is how many rows are written with one statement: SQLite takes 32,766 values.
const copyRows = 1000

// Copy copies what a ledger has to one that is empty, and compares the two, all in one transaction: after an error, or
// a kill at any time, there is nothing, and it can be begun again. A copy that is there and has all that the original
// has is left as it is. It fails with ErrNotEmpty where there is anything else. Tell, where it is not nil, is called
// now and then with how many rows of a table are there.
func Copy(ctx context.Context, from, to *Store, tell func(table string, rows int64)) (copied Copied, err error) {
	if tell == nil {
		tell = func(string, int64) {}
	}
	source, err := from.readable()
	if err != nil {
		return copied, err
	}
	read, err := source.BeginTx(ctx, from.dialect.reading)
	if err != nil {
		return copied, fmt.Errorf("read the ledger %s: %w", from, err)
	}
	defer func() { err = errors.Join(err, read.Rollback()) }()
	to.writing.Lock()
	defer to.writing.Unlock()
	db, err := to.writable()
	if err != nil {
		return copied, err
	}
	w, err := to.beginWriting(ctx, db)
	if err != nil {
		return copied, fmt.Errorf("write the ledger %s: %w", to, explain(err))
	}
	ended := false
	defer func() {
		if !ended {
			err = errors.Join(err, w.tx.Rollback())
		}
	}()
	copied = Copied{Place: to.String(), From: from.String()}
	want, err := readProgress(ctx, read)
	if err != nil {
		return copied, err
	}
	copied.Sequence, copied.Attempts = want.cursor, want.attempts
	if copied.Already, err = hasRows(ctx, w.tx); err != nil {
		return copied, err
	}
	if !copied.Already {
		if err := copyAll(ctx, read, w.tx, tell); err != nil {
			return copied, fmt.Errorf("copy the ledger: %w", explain(err))
		}
	}
	if copied.Tables, err = compare(ctx, read, w.tx, copied.Already); err != nil {
		return copied, err
	}
	if copied.Spent, err = spentIn(ctx, w.tx); err != nil {
		return copied, err
	}
	if err := w.tx.Commit(); err != nil {
		return copied, fmt.Errorf("copy the ledger: %w", explain(err))
	}
	ended = true
	to.follows(want)
	return copied, nil
}

// hasRows says whether anything was written to a ledger.
func hasRows(ctx context.Context, tx *sql.Tx) (has bool, err error) {
	for _, t := range tables {
		rows := 0
		if err := tx.QueryRowContext(ctx, `SELECT COUNT(*) FROM (SELECT 1 FROM `+t.name+` LIMIT 1) AS first`).
			Scan(&rows); err != nil || rows > 0 {
			return rows > 0, err
		}
	}
	return false, nil
}

// copyAll copies all tables.
func copyAll(ctx context.Context, from, to *sql.Tx, tell func(string, int64)) error {
	for _, t := range tables {
		if err := t.copy(ctx, from, to, func(rows int64) { tell(t.name, rows) }); err != nil {
			return fmt.Errorf("table %s: %w", t.name, err)
		}
	}
	rows, err := from.QueryContext(ctx, `SELECT name, value FROM meta WHERE name <> $1`, metaSchema)
	if err != nil {
		return err
	}
	values := map[string]int64{}
	for rows.Next() {
		var name string
		var value int64
		if err = rows.Scan(&name, &value); err != nil {
			break
		}
		values[name] = value
	}
	if err := errors.Join(err, rows.Err(), rows.Close()); err != nil {
		return err
	}
	for name, value := range values {
		if err := setMeta(ctx, to, name, value); err != nil {
			return err
		}
	}
	return nil
}

// copy copies a table.
func (t table) copy(ctx context.Context, from, to *sql.Tx, tell func(rows int64)) (err error) {
	columns := slices.Concat(t.texts, t.numbers)
	rows, err := from.QueryContext(ctx, `SELECT `+strings.Join(columns, ", ")+` FROM `+t.name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	var values []any
	copied := int64(0)
	write := func() error {
		if len(values) == 0 {
			return nil
		}
		_, err := to.ExecContext(ctx, t.insert(len(values)/len(columns)), values...)
		copied += int64(len(values) / len(columns))
		tell(copied)
		values = values[:0]
		return err
	}
	for rows.Next() {
		texts, numbers := make([]string, len(t.texts)), make([]int64, len(t.numbers))
		row := make([]any, 0, len(columns))
		for i := range texts {
			row = append(row, &texts[i])
		}
		for i := range numbers {
			row = append(row, &numbers[i])
		}
		if err := rows.Scan(row...); err != nil {
			return err
		}
		for _, text := range texts {
			values = append(values, text)
		}
		for _, number := range numbers {
			values = append(values, number)
		}
		if len(values) == copyRows*len(columns) {
			if err := write(); err != nil {
				return err
			}
		}
	}
	if err := rows.Err(); err != nil {
		return err
	}
	return write()
}

// insert is the statement that writes so many rows.
func (t table) insert(rows int) string {
	columns := slices.Concat(t.texts, t.numbers)
	var text strings.Builder
	text.WriteString(`INSERT INTO ` + t.name + ` (` + strings.Join(columns, ", ") + `) VALUES `)
	number := 0
	for row := range rows {
		if row > 0 {
			text.WriteString(", ")
		}
		for column := range columns {
			number++
			text.WriteString(map[bool]string{true: "(", false: ", "}[column == 0] + "$" + strconv.Itoa(number))
		}
		text.WriteString(")")
	}
	return text.String()
}

// compare compares two ledgers by the rows of each table, the sums of all numbers and the lengths of all texts.
func compare(ctx context.Context, from, to *sql.Tx, before bool) (compared []CopiedTable, err error) {
	for _, t := range tables {
		want, err := t.sums(ctx, from)
		if err != nil {
			return nil, fmt.Errorf("compare table %s: %w", t.name, err)
		}
		got, err := t.sums(ctx, to)
		if err != nil {
			return nil, fmt.Errorf("compare table %s: %w", t.name, err)
		}
		if !slices.Equal(want, got) {
			if before {
				return nil, fmt.Errorf("%w: table %s has %d rows there and %d here, or others; give an empty database, or drop "+
					"its tables where nothing needs them", ErrNotEmpty, t.name, got[0], want[0])
			}
			return nil, fmt.Errorf("the copy of table %s is not the same, and was not kept: rows and sums are %v, want %v",
				t.name, got, want)
		}
		compared = append(compared, CopiedTable{t.name, want[0]})
	}
	return compared, nil
}

// sums are how many rows a table has, and the sums of its columns: of numbers in two parts, as they are exact.
func (t table) sums(ctx context.Context, tx *sql.Tx) ([]int64, error) {
	columns := []string{"COUNT(*)"}
	for _, text := range t.texts {
		columns = append(columns, "COALESCE(SUM(LENGTH("+text+")), 0)")
	}
	for _, number := range t.numbers {
		columns = append(columns, "COALESCE(SUM("+number+" / 1000000000), 0)", "COALESCE(SUM("+number+" % 1000000000), 0)")
	}
	sums, places := make([]int64, len(columns)), make([]any, len(columns))
	for i := range sums {
		places[i] = &sums[i]
	}
	err := tx.QueryRowContext(ctx, `SELECT `+strings.Join(columns, ", ")+` FROM `+t.name).Scan(places...)
	return sums, err
}

// spentIn is what all that a ledger has cost: what is summed up by the day, and what lies across days.
func spentIn(ctx context.Context, tx *sql.Tx) (quantity.Money, error) {
	var days, across exact
	if err := tx.QueryRowContext(ctx, `SELECT COALESCE(SUM(pool_usd + function_usd), 0),
		COALESCE(SUM(pool_pd + function_pd), 0) FROM sums WHERE all_runs = 1`).Scan(&days.whole, &days.rest); err != nil {
		return 0, err
	}
	err := tx.QueryRowContext(ctx, `SELECT COALESCE(SUM(pool_pd / 1000000000000 + function_pd / 1000000000000), 0),
		COALESCE(SUM(pool_pd % 1000000000000 + function_pd % 1000000000000), 0) FROM spent WHERE `+acrossDays).
		Scan(&across.whole, &across.rest)
	return days.money().Plus(across.money()), err
}
