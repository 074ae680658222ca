package ledger

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger/spend"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Bill returns who spent what until now.
//
// An attempt's Record tells its cost, which is spread evenly over the time for which the grant was held. An attempt that goes on at the
// pool counts with what its grant costs there until now; at functions nothing is known before the end. What a host cost while nobody held
// it is attributed minute by minute to those who held something of it in that minute, by the time for which they held it; a minute in
// which nobody did is Unused. Of runs whose attempts are not kept any more, sums by the hour are: then Since and Until divide an hour.
//
// A window begins at Since and ends before Until. The bills of adjacent windows sum to the bill of both.
func (l *Ledger) Bill(query BillQuery, now time.Time) Bill {
	s := newStatement(query, now, l.latest)
	var running []spend.Span
	for _, a := range l.order {
		for i := range a.detail.attempts {
			attempt := &a.detail.attempts[i]
			if attempt.recorded {
				s.span(attempt.span())
			} else if span, known := l.accruing(a, attempt, spend.Nanoseconds(now)); known {
				running = append(running, span)
				s.span(span)
			}
		}
	}
	l.book.Each(s.since, s.until, running, s.add)
	return s.bill(now)
}

// accruing is what an attempt that goes on has cost until now; known is false for what is not paid for by the hour, or not any more.
func (l *Ledger) accruing(a *account, attempt *attempt, now int64) (span spend.Span, known bool) {
	m := attempt.manner.Value()
	price, priced := l.book.Price(m.host)
	if a.ended() || attempt.ended != 0 || m.venue != predictor.Pool || !priced || now <= attempt.started {
		return spend.Span{}, false
	}
	held := time.Duration(now - attempt.started)
	return spend.Span{
		Owner: attempt.stage.owner, Venue: m.venue, Host: m.host, From: attempt.started, To: now, Counted: math.MaxInt64,
		Sums: spend.Sums{Held: held, Pool: price.For(attempt.grant.Value(), held)},
	}, true
}

// statement adds up a bill.
type statement struct {
	query        BillQuery
	since, until int64
	first        int64 // of what was added
	lines        map[string]*Line
	total        Bill
}

func newStatement(query BillQuery, now time.Time, latest int64) *statement {
	if query.By == "" {
		query.By = ByStage
	}
	s := &statement{query: query, until: math.MaxInt64, first: math.MaxInt64, lines: map[string]*Line{}}
	s.total = Bill{By: query.By, Since: query.Since, Until: query.Until, Lines: []Line{}}
	if !query.Since.IsZero() {
		s.since = spend.Nanoseconds(query.Since)
	}
	if query.Until.IsZero() {
		s.total.Until = timeOf(max(latest, spend.Nanoseconds(now)))
	} else {
		s.until = spend.Nanoseconds(query.Until)
	}
	return s
}

// span adds the part of a span that is asked for.
func (s *statement) span(span spend.Span) {
	if span.To < s.since || span.From >= s.until {
		return
	}
	if span.Sums = span.Within(s.since, s.until); span.Sums != (spend.Sums{}) {
		span.From = max(span.From, s.since)
		s.add(span)
	}
}

// add adds what was spent, if it is asked for.
func (s *statement) add(span spend.Span) {
	owner := span.Owner
	if owner == nil {
		if s.query.Run != "" || s.query.Pipeline != "" {
			return
		}
		s.total.Unused = s.total.Unused.Plus(span.Idle)
		owner = &spend.Owner{}
	}
	if s.query.Run != "" && owner.Run != s.query.Run || s.query.Pipeline != "" && owner.Pipeline != s.query.Pipeline {
		return
	}
	if s.query.By == ByHost || s.query.By == ByVenue {
		span.Reused = 0 // nothing ran anywhere
	}
	if span.Sums == (spend.Sums{}) {
		return
	}
	name := s.query.By.name(owner, span)
	line := s.lines[name]
	if line == nil {
		line = &Line{Name: name}
		s.lines[name] = line
	}
	line.add(span.Sums)
	s.first = min(s.first, span.From)
}

// name is that of the line to which a span belongs.
func (by Dimension) name(owner *spend.Owner, span spend.Span) string {
	switch by {
	case ByRun:
		return owner.Run
	case ByPipeline:
		return owner.Pipeline
	case ByHost:
		return span.Host
	case ByVenue:
		if span.Owner == nil {
			return ""
		}
		return string(span.Venue)
	case ByStage:
	}
	return owner.Stage
}

func (line *Line) add(sums spend.Sums) {
	line.Count += sums.Attempts
	line.Tasks += sums.Tasks
	line.Reused += sums.Reused
	line.Held += sums.Held
	line.Pool = line.Pool.Plus(sums.Pool)
	line.Function = line.Function.Plus(sums.Function)
	line.Idle = line.Idle.Plus(sums.Idle)
	line.Wasted = line.Wasted.Plus(sums.Wasted)
	line.Total = line.Pool.Plus(line.Function).Plus(line.Idle)
}

func (s *statement) bill(now time.Time) Bill {
	b := s.total
	if b.Since.IsZero() {
		b.Since = now.UTC()
		if s.first != math.MaxInt64 {
			b.Since = timeOf(max(1, s.first))
		}
	}
	for _, line := range s.lines {
		b.Lines = append(b.Lines, *line)
		b.Pool = b.Pool.Plus(line.Pool)
		b.Function = b.Function.Plus(line.Function)
		b.Idle = b.Idle.Plus(line.Idle)
	}
	slices.SortFunc(b.Lines, func(a, b Line) int { return cmp.Or(cmp.Compare(b.Total, a.Total), cmp.Compare(a.Name, b.Name)) })
	b.Attempts = b.Pool.Plus(b.Function)
	b.Total = b.Attempts.Plus(b.Idle)
	return b
}

// WriteCSV writes the bill as CSV (RFC 4180): a header that names the dimension and the units, then one record for each line, in the order of
// the lines. Amounts are US dollars with all their digits, times seconds. A name that a spreadsheet would compute begins with an apostrophe. An error is that of w.
func (b Bill) WriteCSV(w io.Writer) error {
	out := csv.NewWriter(w)
	rows := [][]string{{
		string(b.By), "attempts", "tasks", "reused", "held_seconds", "pool_usd", "function_usd", "idle_usd", "total_usd", "wasted_usd", "since", "until",
	}}
	for _, line := range b.Lines {
		rows = append(rows, []string{
			cell(line.Name), strconv.Itoa(line.Count), strconv.Itoa(line.Tasks), strconv.Itoa(line.Reused), seconds(line.Held),
			line.Pool.Decimal(), line.Function.Decimal(), line.Idle.Decimal(), line.Total.Decimal(), line.Wasted.Decimal(),
			b.Since.UTC().Format(time.RFC3339Nano), b.Until.UTC().Format(time.RFC3339Nano),
		})
	}
	if err := out.WriteAll(rows); err != nil {
		return fmt.Errorf("write a bill of %d lines: %w", len(b.Lines), err)
	}
	return nil
}

// cell keeps a name from being computed: a spreadsheet takes what begins with one of these characters for a formula
// (https://owasp.org/www-community/attacks/CSV_Injection).
func cell(name string) string {
	if name != "" && strings.IndexByte("=+-@\t\r", name[0]) >= 0 {
		return "'" + name
	}
	return name
}

// seconds writes a duration in seconds with all its digits.
func seconds(d time.Duration) string {
	return quantity.Money(d).Times(float64(quantity.USD) / float64(time.Second)).Decimal()
}
