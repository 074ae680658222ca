package spend

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/pricing"
)

// EarlierRuns is the Run of what was spent so long ago that it is not known any more by which run.
const EarlierRuns = "earlier runs"

// Bounds of what is kept.
const (
	// minutesFor is for how long it is known minute by minute who held a host. Before that, idle time has been attributed minute by minute
	// and is kept in sums of an hour: who kept a host for a minute of an hour does not pay for the rest of it.
	minutesFor = int64(7 * 24 * time.Hour)
	// maxEntries bounds holders of minutes and intervals of hosts; beyond them the oldest hours are summed up earlier than minutesFor.
	maxEntries = 300_000
	// maxCells bounds sums; beyond them the older half is summed up by longer times and without runs: see coarsen.
	maxCells = 100_000

	minute = int64(time.Minute)
	hour   = int64(time.Hour)
	day    = 24 * hour
)

// Book keeps what was spent. Use New; a Book must not be used concurrently.
//
// What comes later than minutesFor, by the latest time that was heard of, finds its minutes closed: its cost is kept, the idle time of the
// host stays as it was attributed.
type Book struct {
	hosts   map[string]*host
	cells   map[key]cell
	latest  int64 // the latest time heard of
	closed  int64 // minutes before it are summed up in cells; a whole hour
	entries int
	prices  int // how often a price has changed
	bounds  bounds
}

// bounds are variables for tests.
type bounds struct{ entries, cells int }

// key is what is summed up together.
type key struct {
	owner *Owner
	venue predictor.Venue
	host  string
	at    int64 // the hour, or the day
}

// cell is a sum, from the first to the last of what is in it.
type cell struct {
	from, to int64
	Sums
}

// plus joins two cells; c counts where it is known.
func (c cell) plus(other cell, known bool) cell {
	if !known {
		return other
	}
	c.from, c.to = min(c.from, other.from), max(c.to, other.to)
	c.Add(other.Sums)
	return c
}

// Nanoseconds is a time as this package counts it: since 1970, at least 0, and at most to the year 2200, so that differences are exact.
func Nanoseconds(t time.Time) int64 {
	const most = 230 * 365 * 24 * 3600 // seconds
	seconds := max(0, min(t.Unix(), most))
	if seconds != t.Unix() {
		return seconds * int64(time.Second)
	}
	return t.UnixNano()
}

// New returns an empty Book.
func New() *Book { return newBook(bounds{entries: maxEntries, cells: maxCells}) }

func newBook(bounds bounds) *Book {
	return &Book{hosts: map[string]*host{}, cells: map[key]cell{}, bounds: bounds}
}

// Present says that a host was there from e.From to e.At. Intervals may be told in any order; what is told again counts once, at the price
// of the first.
func (b *Book) Present(e predictor.HostHeld) {
	from, to := Nanoseconds(e.From), Nanoseconds(e.At)
	if e.Host == "" || from >= to {
		return
	}
	b.advance(to)
	h := b.host(e.Host)
	price := pricing.Host{PerHour: e.PricePerHour, Capacity: e.Capacity}
	if to >= h.told {
		if h.told == 0 || h.price != price {
			b.prices++
		}
		h.price, h.told = price, to
	}
	b.entries += h.present(presence{base: max(from, b.closed), from: max(from, b.closed), to: to, price: price})
	b.shrink()
}

// Hold says that the span's owner held room on its host. It does not count the span's money as spent: that is Keep's.
func (b *Book) Hold(s Span) {
	if s.Host == "" || s.From >= s.To {
		return
	}
	b.advance(s.To)
	b.entries += b.host(s.Host).hold(s, b.closed)
	b.shrink()
}

// Keep counts what was spent, by hour from now on.
func (b *Book) Keep(s Span) {
	s.each(hour, func(part Span) {
		k := key{s.Owner, s.Venue, s.Host, floor(part.From, hour)}
		c, known := b.cells[k]
		b.cells[k] = c.plus(cell{part.From, part.To, part.Sums}, known)
	})
	if len(b.cells) > b.bounds.cells {
		b.coarsen()
	}
}

// Price is what a host costs, by what was told of it last; known is false for a host that was not there within the last week.
func (b *Book) Price(name string) (price pricing.Host, known bool) {
	h := b.hosts[name]
	if h == nil || h.told == 0 {
		return pricing.Host{}, false
	}
	return h.price, true
}

// Revision changes whenever a Price does.
func (b *Book) Revision() int { return b.prices }

// Hosts are the names of the hosts that have a Price, sorted.
func (b *Book) Hosts() []string {
	var names []string
	for name, h := range b.hosts {
		if h.told != 0 {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Each calls visit with what was kept, and with what hosts cost while nobody held them, from since up to until. Running are attempts that
// go on: they hold their hosts as if they had been told to Hold. The order is not determined.
func (b *Book) Each(since, until int64, running []Span, visit func(Span)) {
	within := func(s Span) {
		if s.Sums = s.Within(since, until); s.Sums != (Sums{}) {
			s.From, s.To = max(s.From, since), min(s.To, until)
			visit(s)
		}
	}
	for k, c := range b.cells {
		within(Span{Owner: k.owner, Venue: k.venue, Host: k.host, From: c.from, To: c.to, Counted: c.from, Sums: c.Sums})
	}
	held := map[string][]Span{}
	for _, s := range running {
		held[s.Host] = append(held[s.Host], s)
	}
	for name, h := range b.hosts {
		if extra := held[name]; len(extra) > 0 {
			h = h.with(extra, b.closed)
		}
		h.idle(name, since, until, within)
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
	for b.entries > b.bounds.entries && b.closed < floor(b.latest, hour) {
		first := b.latest
		for _, h := range b.hosts {
			first = min(first, h.first(b.latest))
		}
		b.close(min(max(b.closed, floor(first, hour))+hour, floor(b.latest, hour)))
	}
}

// close sums up the minutes before a whole hour.
func (b *Book) close(before int64) {
	for name, h := range b.hosts {
		h.idle(name, b.closed, before, b.Keep)
		b.entries -= h.forget(before)
		if len(h.presences) == 0 && len(h.minutes) == 0 && h.told < before {
			delete(b.hosts, name)
			b.prices++
		}
	}
	b.closed = before
}

// coarsen sums up the older half of the cells without runs, by no longer steps than are needed to get rid of a quarter: by day, by month,
// and then all together. Only what is still too much, for there are too many stages and hosts, is forgotten, the oldest first.
func (b *Book) coarsen() {
	most := b.bounds.cells * 3 / 4
	for _, step := range []int64{day, 30 * day, math.MaxInt64} {
		if b.cells = b.coarser(step); len(b.cells) <= most {
			return
		}
	}
	keys := slices.SortedFunc(maps.Keys(b.cells), compareKeys)
	for _, k := range keys[:len(keys)-most] {
		delete(b.cells, k)
	}
}

// coarser are the cells, the older half by step and without runs.
func (b *Book) coarser(step int64) map[key]cell {
	keys := slices.SortedFunc(maps.Keys(b.cells), compareKeys)
	earlier := map[Owner]*Owner{}
	cells := make(map[key]cell, len(keys))
	for i, k := range keys {
		c := b.cells[k]
		if i < len(keys)/2 {
			k.at, k.owner = floor(k.at, step), withoutRun(k.owner, earlier)
		}
		sum, known := cells[k]
		cells[k] = sum.plus(c, known)
	}
	return cells
}

// withoutRun is the owner that stands for all runs, kept in earlier.
func withoutRun(owner *Owner, earlier map[Owner]*Owner) *Owner {
	if owner == nil {
		return nil
	}
	names := *owner
	names.Run = EarlierRuns
	if earlier[names] == nil {
		earlier[names] = &names
	}
	return earlier[names]
}

// compareKeys orders by time, and then so that the order is the same whatever came first.
func compareKeys(a, b key) int {
	return cmp.Or(cmp.Compare(a.at, b.at), compareOwners(a.owner, b.owner), cmp.Compare(a.venue, b.venue), cmp.Compare(a.host, b.host))
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
