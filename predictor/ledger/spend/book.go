package spend

import (
	"cmp"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/pricing"
)

// Bounds of what is kept.
const (
	// minutesFor is for how long it is known minute by minute who held a host. Before that, idle time has been attributed
	// minute by minute and is kept in sums of an hour: who kept a host for a minute of an hour does not pay for the rest
	// of it.
	minutesFor = int64(7 * 24 * time.Hour)
	// maxEntries bounds holders of minutes and intervals of hosts; beyond them the oldest hours are summed up earlier than
	// minutesFor.
	maxEntries = 300_000

	minute = int64(time.Minute)
	hour   = int64(time.Hour)
)

// Book attributes what hosts cost while nobody held them, minute by minute. Use New or Reopen; a Book must not be used
// concurrently.
//
// It keeps the latest minutes. What is older it closes: Closed returns that once, for whoever keeps it. What comes
// later than minutesFor, by the latest time that was heard of, finds its minutes closed: the idle time of the host
// stays as it was attributed.
//
// A Book that is reopened at the time until which another was closed, and is told again all that was not over by then,
// says the same as the other.
type Book struct {
	hosts   map[string]*host
	closed  int64  // minutes before it are closed; a whole hour
	sums    []Span // of minutes that were closed, by hour, until Closed returns them
	latest  int64  // the latest time heard of
	entries int
	most    int // entries
}

// Nanoseconds is a time as this package counts it: since 1970, at least 0, and at most to the year 2200, so that
// differences are exact.
func Nanoseconds(t time.Time) int64 {
	const most = 230 * 365 * 24 * 3600 // seconds
	seconds := max(0, min(t.Unix(), most))
	if seconds != t.Unix() {
		return seconds * int64(time.Second)
	}
	return t.UnixNano()
}

// Time is the time, in UTC, that Nanoseconds counts; the zero time for 0.
func Time(nanoseconds int64) time.Time {
	if nanoseconds == 0 {
		return time.Time{}
	}
	return time.Unix(0, nanoseconds).UTC()
}

// New returns an empty Book.
func New() *Book { return Reopen(0) }

// Reopen returns a Book of which all is closed before a time, in nanoseconds since 1970, that Closed has returned.
func Reopen(closed int64) *Book {
	return &Book{hosts: map[string]*host{}, closed: closed, latest: closed, most: maxEntries}
}

// Present says that a host was there from e.From to e.At. Intervals may be told in any order; what is told again counts
// once, at the price of the first.
func (b *Book) Present(e predictor.HostHeld) {
	from, to := Nanoseconds(e.From), Nanoseconds(e.At)
	if e.Host == "" || from >= to {
		return
	}
	b.advance(to)
	price := pricing.Host{PerHour: e.PricePerHour, Capacity: e.Capacity}
	b.entries += b.host(e.Host).present(presence{from: max(from, b.closed), to: to, price: price})
	b.shrink()
}

// Hold says that the span's owner held room on its host.
func (b *Book) Hold(s Span) {
	if s.Host == "" || s.From >= s.To {
		return
	}
	b.advance(s.To)
	b.entries += b.host(s.Host).hold(s, b.closed)
	b.shrink()
}

// Closed returns the idle time of the minutes that were closed since it was last called, by owner, host and hour, and
// until when, in nanoseconds since 1970, all minutes are closed.
func (b *Book) Closed() (idle []Span, until int64) {
	idle, b.sums = b.sums, nil
	return idle, b.closed
}

// Each calls visit with what hosts cost while nobody held them, from since up to until, in the minutes that are not
// closed. Running are attempts that go on: they hold their hosts as if they had been told to Hold. The order is not
// determined.
func (b *Book) Each(since, until int64, running []Span, visit func(Span)) {
	held := map[string][]Span{}
	for _, s := range running {
		held[s.Host] = append(held[s.Host], s)
	}
	for name, h := range b.hosts {
		if extra := held[name]; len(extra) > 0 {
			h = h.with(extra, b.closed)
		}
		h.idle(name, since, until, func(s Span) {
			if s.Sums = s.Within(since, until); s.Sums != (Sums{}) {
				s.From, s.To = max(s.From, since), min(s.To, until)
				visit(s)
			}
		})
	}
}

func (b *Book) host(name string) *host {
	h := b.hosts[name]
	if h == nil {
		h = &host{minutes: map[int64][]holder{}}
		b.hosts[name] = h
	}
	return h
}

// advance takes note of the time and closes what is old.
func (b *Book) advance(at int64) {
	b.latest = max(b.latest, at)
	if before := floor(b.latest-minutesFor, hour); before > b.closed {
		b.close(before)
	}
}

// shrink closes hours until entries are within their bound, and leaves the current hour open.
func (b *Book) shrink() {
	for b.entries > b.most && b.closed < floor(b.latest, hour) {
		first := b.latest
		for _, h := range b.hosts {
			first = min(first, h.first(b.latest))
		}
		b.close(min(max(b.closed, floor(first, hour))+hour, floor(b.latest, hour)))
	}
}

// close sums up the minutes before a whole hour.
func (b *Book) close(before int64) {
	sums := Hours{}
	for name, h := range b.hosts {
		h.idle(name, b.closed, before, sums.Add)
		b.entries -= h.forget(before)
		if len(h.presences) == 0 && len(h.minutes) == 0 {
			delete(b.hosts, name)
		}
	}
	b.sums = append(b.sums, sums.Spans()...)
	b.closed = before
}

// compareOwners orders by run, stage and pipeline; nobody comes first.
func compareOwners(a, b *Owner) int {
	switch {
	case a == b:
		return 0
	case a == nil:
		return -1
	case b == nil:
		return 1
	}
	return cmp.Or(cmp.Compare(a.Run, b.Run), cmp.Compare(a.Stage, b.Stage), cmp.Compare(a.Pipeline, b.Pipeline))
}
