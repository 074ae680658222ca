package ledgerstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// drawEvent draws what is told next at a time: of few runs and hosts, across the bounds of days, and starts that are
// lost.
func drawEvent(r *rand.Rand, number int, at time.Time) predictor.Event {
	run := fmt.Sprint("r", number/50+r.IntN(3))
	stage := predictor.StageID{App: "app", Build: "b", Name: []string{"prep", "train"}[r.IntN(2)]}
	venue := []predictor.Venue{predictor.Pool, predictor.Pool, predictor.Function}[r.IntN(3)]
	outcome := []predictor.Outcome{predictor.Succeeded, predictor.Succeeded, predictor.Failed}[r.IntN(3)]
	wall := time.Duration(r.Int64N(int64(3 * time.Hour)))
	switch r.IntN(10) {
	case 0:
		return predictor.RunStarted{Run: run, Pipeline: []string{"p", "q"}[r.IntN(2)], App: "app", Build: "b", At: at}
	case 1:
		return predictor.RunEnded{Run: run, State: predictor.RunSucceeded, At: at}
	case 2:
		return predictor.Reused{Run: run, Stage: stage, From: "other", Tasks: 1 + r.IntN(3), At: at}
	case 3, 4:
		return predictor.HostHeld{
			Host: fmt.Sprint("h", r.IntN(2)), Capacity: quantity.Size{CPU: 4000, Memory: quantity.GiB},
			PricePerHour: 123_456_789_012, From: at.Add(-wall / 10), At: at,
		}
	default:
		return predictor.Record{
			Run: run, Pipeline: []string{"p", ""}[r.IntN(2)], Stage: stage, Task: fmt.Sprint("t", r.IntN(20)),
			Attempt: 1 + r.IntN(2), Venue: venue, Host: fmt.Sprint("h", r.IntN(2)), Outcome: outcome, At: at,
			Usage: quantity.Usage{Wall: wall}, Cost: quantity.Money(r.Int64N(5_000_000_000_000)),
		}
	}
}

// sumsOf lists the sums, but for when the first of each began: that may be of a row that has gone to another.
func (s *Store) sumsOf(ctx context.Context, t *testing.T) (rows []string) {
	t.Helper()
	columns := "all_runs, day, run, pipeline, stage, owned, venue, host, " + strings.Join(sumColumns, ", ")
	found, err := s.db.QueryContext(ctx, `SELECT `+strings.ReplaceAll(columns, ", ", " || '/' || ")+` AS text
		FROM sums ORDER BY text`)
	if err != nil {
		t.Fatal(err)
	}
	defer found.Close() //nolint:errcheck // Err tells
	for found.Next() {
		var text string
		if err := found.Scan(&text); err != nil {
			t.Fatal(err)
		}
		rows = append(rows, text)
	}
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	return rows
}

// rowByRow is a bill that adds up every row.
func (s *Store) rowByRow(t *testing.T, query ledger.BillQuery, now time.Time) ledger.Bill {
	t.Helper()
	statement := ledger.NewStatement(query, now)
	since, until := statement.Window()
	s.book.Each(since, until, nil, statement.Add)
	if err := eachSpan(t.Context(), s.db, "", nil, statement.Add); err != nil {
		t.Fatal(err)
	}
	return statement.Bill(now)
}

// TestBillsOfSumsAreThoseOfAllRows takes in what happened in three weeks, of which the first is summed up by the hour,
// and compares the sums with all rows, and bills of any window with those that add up each row by itself.
func TestBillsOfSumsAreThoseOfAllRows(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		r := rand.New(rand.NewPCG(seed, 3))
		s, err := OpenAnywhere(t.Context(), filepath.Join(t.TempDir(), "ledger.db"), &Options{Attempts: 50})
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
		now := begun
		for number := range 900 {
			now = now.Add(time.Duration(r.Int64N(int64(70 * time.Minute))))
			if r.IntN(20) == 0 {
				now = now.Truncate(24 * time.Hour).Add(24 * time.Hour) // the bound itself
			}
			line := loop.Line{
				Sequence: uint64(number) + 1, Stored: now, Message: wire.Message{Event: drawEvent(r, number, now)},
			}
			if err := s.Take(t.Context(), []loop.Line{line}); err != nil {
				t.Fatal(err)
			}
			if number%100 != 99 {
				continue
			}
			got := s.sumsOf(t.Context(), t)
			if _, err := s.db.ExecContext(t.Context(), `CREATE TEMP TABLE kept AS SELECT * FROM sums; DELETE FROM sums; `+
				sumRows("0, from_ns / 86400000000000, run", ", run")+`; `+
				sumRows("1, from_ns / 86400000000000, ''", "")); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(s.sumsOf(t.Context(), t), got); diff != "" {
				t.Fatalf("seed %d: after %d messages the sums are others than those of all rows (-rows +sums):\n%s", seed,
					number+1, diff)
			}
			if _, err := s.db.ExecContext(t.Context(), `DELETE FROM sums; INSERT INTO sums SELECT * FROM kept;
				DROP TABLE kept`); err != nil {
				t.Fatal(err)
			}
			for range 30 {
				query := ledger.BillQuery{By: []ledger.Dimension{
					ledger.ByRun, ledger.ByPipeline, ledger.ByStage, ledger.ByVenue, ledger.ByHost,
				}[r.IntN(5)]}
				bound := func() time.Time {
					at := begun.Add(time.Duration(r.Int64N(int64(now.Sub(begun) + time.Hour))))
					return []time.Time{{}, at, at, at.Truncate(24 * time.Hour)}[r.IntN(4)]
				}
				query.Since, query.Until = bound(), bound()
				if !query.Until.IsZero() && query.Until.Before(query.Since) {
					query.Since, query.Until = query.Until, query.Since
				}
				query.Run = []string{"", "", fmt.Sprint("r", r.IntN(number/50+1))}[r.IntN(3)]
				query.Pipeline = []string{"", "", "p"}[r.IntN(3)]
				want := s.rowByRow(t, query, now)
				got, err := s.Bill(t.Context(), Request{BillQuery: query, Now: now})
				if err != nil {
					t.Fatal(err)
				}
				got.Incomplete = nil
				if diff := cmp.Diff(want, got); diff != "" {
					t.Fatalf("seed %d: the bill of %+v (-row by row +got):\n%s", seed, query, diff)
				}
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
