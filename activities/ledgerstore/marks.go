package ledgerstore

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/activities/streams"
	"github.com/spillway-ml/spillway/predictor/ledger/spend"
)

// metaMark begins the names in the table meta of what is remembered of streams; the stream's name and the value's
// follow.
const metaMark = "mark "

// Marks are how far the streams were that Remember was told of last, by their names. It is none of a ledger that was
// made anew.
func (s *Store) Marks(ctx context.Context) (map[string]streams.Mark, error) {
	db, err := s.readable()
	if err != nil {
		return nil, fmt.Errorf("look up how far the streams were: %w", err)
	}
	rows, err := db.QueryContext(ctx, `SELECT name, value FROM meta WHERE name LIKE $1`, metaMark+"%")
	if err != nil {
		return nil, fmt.Errorf("look up how far the streams were: %w", err)
	}
	defer rows.Close() //nolint:errcheck // Err tells
	marks := map[string]streams.Mark{}
	for rows.Next() {
		var name string
		var value int64
		if err := rows.Scan(&name, &value); err != nil {
			return nil, fmt.Errorf("look up how far the streams were: %w", err)
		}
		stream, field, _ := strings.Cut(strings.TrimPrefix(name, metaMark), " ")
		mark := marks[stream]
		switch field {
		case "first":
			mark.First = uint64(value)
		case "last":
			mark.Last = uint64(value)
		case "missing":
			mark.Missing = uint64(value)
		case "bytes":
			mark.Bytes = uint64(value)
		case "first_ns":
			mark.FirstStored = storedAt(value)
		case "last_ns":
			mark.LastStored = storedAt(value)
		}
		marks[stream] = mark
	}
	return marks, rows.Err()
}

// storedAt is a time as Remember writes it; 0 is the zero time.
func storedAt(nanoseconds int64) time.Time {
	if nanoseconds == 0 {
		return time.Time{}
	}
	return spend.Time(nanoseconds)
}

// Remember keeps how far streams are, by their names.
func (s *Store) Remember(ctx context.Context, marks map[string]streams.Mark) error {
	err := s.write(ctx, func(w *writer) error {
		for stream, mark := range marks {
			for field, value := range map[string]int64{
				"first": int64(mark.First), "last": int64(mark.Last), "missing": int64(mark.Missing),
				"bytes": int64(mark.Bytes), "first_ns": nanoseconds(mark.FirstStored),
				"last_ns": nanoseconds(mark.LastStored),
			} {
				if err := setMeta(ctx, w.tx, metaMark+stream+" "+field, value); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("remember how far the streams are: %w", err)
	}
	return nil
}

// nanoseconds is the inverse of storedAt.
func nanoseconds(at time.Time) int64 {
	if at.IsZero() {
		return 0
	}
	return spend.Nanoseconds(at)
}
