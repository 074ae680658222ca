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
	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/ledger/spend"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Accruing is an attempt that goes on, and what its grant on one host has cost until now.
type Accruing struct {
	Task    string
	Attempt int
	Span    spend.Span
}

// Accruing returns what the attempts that go on at the pool have cost until now: what their grants cost there. At
// functions nothing is known before the end, and of a host without a price nothing at all.
func (l *Ledger) Accruing(now time.Time) (accruing []Accruing) {
	for _, a := range l.order {
		for key, one := range a.running {
			if place, known := a.detail.places[key]; known {
				accruing = append(accruing, l.accruing(a.detail.attempts.at(int(place)), one.members, spend.Nanoseconds(now))...)
			}
		}
	}
	return accruing
}

// Accrue adds to the view of a run that goes on what its running attempts have cost until now, as Accruing tells it.
func (l *Ledger) Accrue(view *RunView, now time.Time) {
	a := l.runs[view.Run]
	if a == nil || a.dropped || a.ended() {
		return
	}
	for key, going := range a.running { // sums of whole numbers do not depend on their order
		place, known := a.detail.places[key]
		if !known {
			continue
		}
		one := a.detail.attempts.at(int(place))
		at := slices.IndexFunc(view.Stages, func(st StageView) bool { return st.Name == one.stage.id.Name })
		if at < 0 {
			continue
		}
		for _, of := range l.accruing(one, going.members, spend.Nanoseconds(now)) {
			view.Stages[at].Cost = view.Stages[at].Cost.Plus(of.Span.Pool)
			view.Totals.Cost = view.Totals.Cost.Plus(of.Span.Pool)
			view.Actual.Cost = view.Actual.Cost.Plus(of.Span.Pool)
		}
	}
}

// accruing is what an attempt that goes on has cost until now on its own host and on each of the others of its gang;
// nothing for what is not paid for by the hour, or not any more.
func (l *Ledger) accruing(attempt *attempt, members []predictor.HostShare, now int64) (all []Accruing) {
	m := attempt.manner.Value()
	price, priced := l.prices.Of(m.host)
	if attempt.ended != 0 || m.venue != predictor.Pool || now <= attempt.started {
		return nil
	}
	held := time.Duration(now - attempt.started)
	owner := *attempt.stage.owner // names may be filled in later
	add := func(host string, cost quantity.Money) {
		all = append(all, Accruing{Task: attempt.task, Attempt: int(attempt.number), Span: spend.Span{
			Owner: &owner, Venue: m.venue, Host: host, From: attempt.started, To: now, Counted: math.MaxInt64,
			Sums: spend.Sums{Held: held, Pool: cost},
		}})
	}
	if priced {
		add(m.host, price.For(attempt.grant.Value(), held))
	}
	for _, one := range members {
		add(one.Host, max(0, one.PerHour).Prorated(quantity.Fraction{Of: int64(held), In: int64(time.Hour)}))
	}
	return all
}

// Charge is what an attempt held and cost, as its Record tells: its cost, spread evenly over the time for which the
// grant was held. A lost attempt held it for as long as it was seen to run, however much later somebody found it lost.
// It does not say whether the attempt was the first to finish its task. Owner has the names that the Record has.
//
// The first span is that of the attempt's own host. Of a gang one follows for each other host, which counts no attempt;
// they sum to the cost of the Record, whatever that says of its parts.
func Charge(e predictor.Record) []spend.Span {
	var a attempt
	a.record(e)
	to := a.ended
	if e.Outcome == predictor.Lost {
		to = min(to, a.started+int64(a.wall+a.settle))
	}
	s := spend.Span{
		Owner: &spend.Owner{Run: e.Run, Pipeline: e.Pipeline, Stage: e.Stage.Charged()}, Venue: e.Venue, Host: e.Host,
		From: a.admitted, To: to, Counted: a.ended,
		Sums: spend.Sums{Attempts: 1, Held: time.Duration(to - a.admitted)},
	}
	if e.Outcome != predictor.Succeeded {
		s.Wasted = a.cost
	}
	if e.Venue == predictor.Function {
		s.Function = a.cost
	} else {
		s.Pool = a.cost
	}
	spans := []spend.Span{s}
	for _, one := range e.Members {
		part := min(max(0, one.Cost), spans[0].Pool)
		at := slices.IndexFunc(spans, func(s spend.Span) bool { return s.Host == one.Host })
		if at == 0 || one.Host == "" {
			continue
		}
		if at < 0 {
			other := s
			other.Host, at = one.Host, len(spans)
			if one.Held > 0 { // it left before the end
				other.To = min(to, a.admitted+int64(one.Held))
			}
			other.Sums = spend.Sums{Held: time.Duration(other.To - a.admitted)}
			spans = append(spans, other)
		}
		spans[0].Pool -= part
		spans[at].Pool += part
		if s.Wasted > 0 {
			spans[0].Wasted -= part
			spans[at].Wasted += part
		}
	}
	return spans
}

// ChargeReused is what a stage took from earlier runs: something that happened, and cost nothing.
func ChargeReused(e predictor.Reused) spend.Span {
	at := spend.Nanoseconds(e.At)
	return spend.Span{
		Owner: &spend.Owner{
			Run:   e.Run,
			Stage: e.Stage.Charged(),
		}, From: at, To: at, Counted: at, Sums: spend.Sums{Reused: max(0, e.Tasks)},
	}
}

// Latest is the latest time of any event; the zero time before the first.
func (l *Ledger) Latest() time.Time { return spend.Time(l.latest) }

// Statement adds up a Bill.
//
// An attempt's Record tells its cost, which is spread evenly over the time for which the grant was held. An attempt
// that goes on at the pool counts with what its grant costs there until now; at functions nothing is known before the
// end. What a host cost while nobody held it is attributed minute by minute to those who held something of it in that
// minute, by the time for which they held it; a minute in which nobody did is Unused. What was summed up by the hour is
// divided evenly within it.
//
// A window begins at Since and ends before Until. The bills of adjacent windows sum to the bill of both.
type Statement struct {
	query        BillQuery
	since, until int64
	first        int64 // of what was added
	lines        map[string]*Line
	total        Bill
}

// NewStatement begins a bill. Latest is the latest time of which anything is known: that is where a bill without a
// bound ends.
func NewStatement(query BillQuery, latest time.Time) *Statement {
	if query.By == "" {
		query.By = ByStage
	}
	s := &Statement{query: query, until: math.MaxInt64, first: math.MaxInt64, lines: map[string]*Line{}}
	s.total = Bill{By: query.By, Since: query.Since, Until: query.Until, Lines: []Line{}}
	if !query.Since.IsZero() {
		s.since = spend.Nanoseconds(query.Since)
	}
	if query.Until.IsZero() {
		s.total.Until = spend.Time(spend.Nanoseconds(latest))
	} else {
		s.until = spend.Nanoseconds(query.Until)
	}
	return s
}

// Window is the time that the bill is about, in nanoseconds since 1970: from since up to until.
func (s *Statement) Window() (since, until int64) { return s.since, s.until }

// Query is what the bill is about, with its dimension.
func (s *Statement) Query() BillQuery { return s.query }

// Add adds the part of a span that is asked for.
func (s *Statement) Add(span spend.Span) {
	if span.To < s.since || span.From >= s.until {
		return
	}
	span.Sums = span.Within(s.since, s.until)
	owner := span.Owner
	if owner == nil {
		owner = &spend.Owner{}
	}
	if s.query.Run != "" && owner.Run != s.query.Run || s.query.Pipeline != "" && owner.Pipeline != s.query.Pipeline {
		return
	}
	if _, team := fact.TeamOf(owner.Stage); s.query.Team != "" &&
		(span.Owner == nil || predictor.TeamName(team) != s.query.Team) {
		return
	}
	s.AddSums(s.query.By.name(owner, span), span.Owner != nil, max(span.From, s.since), span.Sums)
}

// AddSums adds sums of what is asked for to the line of that name; owned is false for what nobody caused. From is when
// the first of it began.
func (s *Statement) AddSums(name string, owned bool, from int64, sums spend.Sums) {
	if s.query.By == ByHost || s.query.By == ByVenue {
		sums.Reused = 0 // nothing ran anywhere
	}
	if sums == (spend.Sums{}) {
		return
	}
	if model, team := fact.TeamOf(name); owned && s.query.By == ByStage {
		name = model
	} else if owned && s.query.By == ByTeam {
		name = predictor.TeamName(team)
	}
	if !owned {
		s.total.Unused = s.total.Unused.Plus(sums.Idle)
	}
	line := s.lines[name]
	if line == nil {
		line = &Line{Name: name}
		s.lines[name] = line
	}
	line.add(sums)
	s.first = min(s.first, from)
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
	case ByStage, ByTeam:
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

// Bill is what was added so far; it begins with the first of it where the query has no bound, and at now where there is
// nothing.
func (s *Statement) Bill(now time.Time) Bill {
	b := s.total
	if b.Since.IsZero() {
		b.Since = now.UTC()
		if s.first != math.MaxInt64 {
			b.Since = spend.Time(max(1, s.first))
		}
	}
	for _, line := range s.lines {
		b.Lines = append(b.Lines, *line)
		b.Pool = b.Pool.Plus(line.Pool)
		b.Function = b.Function.Plus(line.Function)
		b.Idle = b.Idle.Plus(line.Idle)
	}
	slices.SortFunc(b.Lines, func(a, b Line) int {
		return cmp.Or(cmp.Compare(b.Total, a.Total), cmp.Compare(a.Name, b.Name))
	})
	b.Attempts = b.Pool.Plus(b.Function)
	b.Total = b.Attempts.Plus(b.Idle)
	return b
}

// WriteCSV writes the bill as CSV (RFC 4180): a header that names the dimension and the units, then one record for each
// line, in the order of the lines. Amounts are US dollars with all their digits, times seconds. A name that a
// spreadsheet would compute begins with an apostrophe. An error is that of w.
func (b Bill) WriteCSV(w io.Writer) error {
	out := csv.NewWriter(w)
	rows := [][]string{{
		string(b.By), "attempts", "tasks", "reused", "held_seconds", "pool_usd", "function_usd", "idle_usd", "total_usd",
		"wasted_usd", "since", "until",
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
