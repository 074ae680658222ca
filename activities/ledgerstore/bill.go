package ledgerstore

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/ledger/spend"
)

// Request asks for a bill.
type Request struct {
	ledger.BillQuery

	// Now is until when what goes on has cost something; Latest is the latest time of which anything is known.
	Now, Latest time.Time
	// Accruing are the attempts that go on.
	Accruing []ledger.Accruing
}

// names are the columns that name the lines of a bill.
var names = map[ledger.Dimension]string{
	ledger.ByRun: "run", ledger.ByPipeline: "pipeline", ledger.ByStage: "stage", ledger.ByHost: "host",
	ledger.ByTeam:  "stage", // which says the team, too: see predictor.StageID.Charged
	ledger.ByVenue: "CASE WHEN owned = 0 THEN '' ELSE venue END",
}

// Bill returns who spent what, as ledger.Statement adds it up.
func (s *Store) Bill(ctx context.Context, request Request) (bill ledger.Bill, err error) {
	request.Run, request.Pipeline = fit(request.Run, wire.MaxName), fit(request.Pipeline, mostText)
	from := s.reader()
	defer func() {
		if damaged(err) {
			s.suspect(from, err)
		}
	}()
	latest := request.Now
	if request.Latest.After(latest) {
		latest = request.Latest
	}
	if err := s.prepare(ctx); err != nil {
		return ledger.Bill{}, fmt.Errorf("make a bill: %w", err)
	}
	var statement *ledger.Statement
	var since, until int64
	var rounded, forgotten time.Time
	tx, err := s.begin(ctx, func(tx *sql.Tx, at progress, book *spend.Book) error {
		rounded = round(&request.BillQuery, at.hoursFrom)
		if request.By == ledger.ByRun && request.Run == "" {
			forgotten = spend.Time(at.runsFrom)
		}
		statement = ledger.NewStatement(request.BillQuery, latest)
		since, until = statement.Window()
		running, err := unrecorded(ctx, tx, request.Accruing)
		if err != nil {
			return err
		}
		for _, span := range running {
			statement.Add(span)
		}
		book.Each(since, until, running, statement.Add)
		return nil
	})
	if err != nil {
		return ledger.Bill{}, fmt.Errorf("make a bill: %w", err)
	}
	defer func() { err = errors.Join(err, tx.Rollback()) }() // it has only read
	for _, add := range []func(context.Context, *sql.Tx, *ledger.Statement) error{
		addWhole, addCut, s.dialect.expectFew, addAcross,
	} {
		if err := add(ctx, tx, statement); err != nil {
			return ledger.Bill{}, fmt.Errorf("make a bill: %w", err)
		}
	}
	bill = statement.Bill(request.Now)
	if bill.Incomplete, err = gaps(ctx, tx, since, until); err != nil {
		return ledger.Bill{}, fmt.Errorf("make a bill: %w", err)
	}
	bill.HoursSince = rounded
	if since < spend.Nanoseconds(forgotten) {
		bill.Incomplete = append([]ledger.Gap{{Until: forgotten}}, bill.Incomplete...)
	}
	return bill, nil
}

// round has a window begin and end with whole days where hours are not known any more, and returns from when on they
// are; the zero time where that changes nothing.
func round(query *ledger.BillQuery, hoursFrom int64) (known time.Time) {
	if query.Since.IsZero() && query.Until.IsZero() {
		return known
	}
	whole := func(bound *time.Time, up int64) {
		at := spend.Nanoseconds(*bound)
		if bound.IsZero() || at >= hoursFrom || at%dayLength == 0 {
			return
		}
		*bound, known = spend.Time((at/dayLength+up)*dayLength), spend.Time(hoursFrom)
	}
	whole(&query.Since, 0)
	whole(&query.Until, 1)
	return known
}

// begin begins to read what was written so far, and calls look while nothing more is: what it sees of the book is of
// the same moment. Where another server has written since, the book is read again.
func (s *Store) begin(ctx context.Context, look func(*sql.Tx, progress, *spend.Book) error) (tx *sql.Tx, err error) {
	s.minutes.RLock()
	defer s.minutes.RUnlock()
	s.mu.RLock()
	readers, usable, failure, cursor := s.readers, s.usable, s.failure, s.at.cursor
	s.mu.RUnlock()
	book := s.book
	if !usable || failure != nil && book == nil {
		return nil, fmt.Errorf("the ledger is not kept now, and is tried again: %w", cmp.Or(failure, errClosed))
	}
	if tx, err = readers.BeginTx(ctx, s.dialect.reading); err != nil {
		return nil, err
	}
	at, err := readProgress(ctx, tx) // what is read first decides which moment is seen
	if err == nil && (book == nil || at.cursor != cursor) {
		book, err = readBook(ctx, tx)
	}
	if err == nil {
		err = look(tx, at, book)
	}
	if err != nil {
		return nil, errors.Join(err, tx.Rollback())
	}
	return tx, nil
}

// maxValues is how many values a query is asked with: SQLite takes 32,766, and PostgreSQL 65,535.
const maxValues = 10_000

// unrecorded is what the attempts have spent that seem to go on and whose Record is not here. All are looked up in a
// few queries, since nothing is taken in meanwhile.
func unrecorded(ctx context.Context, tx *sql.Tx, accruing []ledger.Accruing) (running []spend.Span, err error) {
	if len(accruing) == 0 {
		return nil, nil
	}
	generations := map[string]int64{}
	for _, a := range accruing {
		generations[a.Span.Owner.Run] = 0
	}
	runs := slices.Sorted(maps.Keys(generations))
	err = lookUp(ctx, tx, `SELECT run, generation FROM runs WHERE run IN `, runs, func(rows *sql.Rows) error {
		var run string
		var generation int64
		err := rows.Scan(&run, &generation)
		generations[run] = generation
		return err
	})
	if err != nil {
		return nil, err
	}
	ids := make([]string, len(accruing))
	for i, a := range accruing {
		ids[i] = attemptID(generations[a.Span.Owner.Run], a.Span.Owner.Run, a.Task, a.Attempt)
	}
	recorded := map[string]bool{}
	err = lookUp(ctx, tx, `SELECT id FROM spent WHERE id IN `, ids, func(rows *sql.Rows) error {
		var id string
		err := rows.Scan(&id)
		recorded[id] = true
		return err
	})
	if err != nil {
		return nil, err
	}
	for i, a := range accruing {
		if !recorded[ids[i]] {
			running = append(running, a.Span)
		}
	}
	return running, nil
}

// lookUp calls visit with each row of a query that ends before a list of texts.
func lookUp(ctx context.Context, tx *sql.Tx, query string, texts []string, visit func(*sql.Rows) error) error {
	for part := range slices.Chunk(texts, maxValues) {
		list, values := listed(part)
		rows, err := tx.QueryContext(ctx, query+list, values...)
		if err != nil {
			return err
		}
		for rows.Next() {
			if err = visit(rows); err != nil {
				break
			}
		}
		if err := errors.Join(err, rows.Err(), rows.Close()); err != nil {
			return err
		}
	}
	return nil
}

// filter is the condition of what a bill is about, with its values behind those of a window.
func filter(query ledger.BillQuery, values []any) (condition string, all []any) {
	if query.Run != "" {
		values = append(values, query.Run)
		condition += " AND run = $" + strconv.Itoa(len(values))
	}
	if query.Pipeline != "" {
		values = append(values, query.Pipeline)
		condition += " AND pipeline = $" + strconv.Itoa(len(values))
	}
	switch query.Team {
	case "":
	case predictor.DefaultTeam:
		condition += " AND owned = 1 AND stage NOT LIKE '%~%'"
	default: // names of teams have no character that is one of LIKE's
		values = append(values, "%~"+query.Team)
		condition += " AND stage LIKE $" + strconv.Itoa(len(values))
	}
	return condition, values
}

// gaps are the times of which messages are missing, as far as they lie in a window; oldest first.
func gaps(ctx context.Context, tx *sql.Tx, since, until int64) (found []ledger.Gap, err error) {
	rows, err := tx.QueryContext(ctx, `SELECT since_ns, until_ns FROM gaps WHERE until_ns > $1 AND since_ns < $2
		ORDER BY since_ns`, since, until)
	if err != nil {
		return nil, err
	}
	defer rows.Close() //nolint:errcheck // Err tells
	for rows.Next() {
		var from, to int64
		if err := rows.Scan(&from, &to); err != nil {
			return nil, err
		}
		found = append(found, ledger.Gap{Since: spend.Time(from), Until: spend.Time(to)})
	}
	return found, rows.Err()
}
