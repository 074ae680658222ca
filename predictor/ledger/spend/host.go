package spend

import (
	"maps"
	"slices"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/pricing"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// host is when a host was there, and who held it in which minute.
type host struct {
	presences []presence // sorted and disjoint
	minutes   map[int64][]holder
}

// presence is an interval in which a host was there at a price. What it has cost by t is counted from the last whole
// hour before it, so that neither cutting it nor joining it with another changes what a part of it costs: a whole hour
// costs the price, without rounding.
type presence struct {
	from, to int64
	price    pricing.Host
}

// holder is who held something of a host in a minute.
type holder struct {
	owner *Owner
	held  time.Duration // over all its attempts
	cost  quantity.Money
}

// cost is the price of the presence from since up to until, rounded as in Span.Within.
func (p presence) cost(since, until int64) quantity.Money {
	base := floor(p.from, hour)
	owed := func(t int64) quantity.Money {
		t = max(p.from, min(t, p.to))
		return quantity.Money(prorated(int64(max(0, p.price.PerHour)), t-base, hour))
	}
	if since = max(since, p.from); since >= min(until, p.to) {
		return 0
	}
	return owed(until) - owed(since)
}

// present adds what is not there yet of an interval, and returns how many intervals there are more.
func (h *host) present(p presence) int {
	before := len(h.presences)
	i, _ := slices.BinarySearchFunc(h.presences, p.from, func(q presence, from int64) int {
		if q.to < from {
			return -1
		}
		return 1
	})
	// All before i end before p begins. Those from i on that begin before p ends are joined with it.
	j := i
	joined := make([]presence, 0, 2)
	for ; j < len(h.presences) && h.presences[j].from <= p.to; j++ {
		there := h.presences[j]
		if p.from < there.from {
			joined = join(joined, presence{from: p.from, to: there.from, price: p.price})
		}
		joined = join(joined, there)
		p.from = max(p.from, there.to)
	}
	if p.from < p.to {
		joined = join(joined, p)
	}
	h.presences = slices.Replace(h.presences, i, j, joined...)
	return len(h.presences) - before
}

// join appends p, as a part of the last where it goes on at the same price.
func join(presences []presence, p presence) []presence {
	if n := len(presences); n > 0 && presences[n-1].to == p.from && presences[n-1].price == p.price {
		presences[n-1].to = p.to
		return presences
	}
	return append(presences, p)
}

// hold adds a span to the minutes that are not closed, and returns how many holders there are more.
func (h *host) hold(s Span, closed int64) int {
	if s.To <= closed {
		return 0
	}
	more := 0
	open := s
	open.From, open.Sums = max(s.From, closed), s.Within(closed, 1<<63-1)
	open.each(minute, func(part Span) {
		at := floor(part.From, minute)
		holders := h.minutes[at]
		i, known := slices.BinarySearchFunc(holders, s.Owner, func(h holder, o *Owner) int {
			return compareOwners(h.owner, o)
		})
		if !known {
			holders = slices.Insert(holders, i, holder{owner: s.Owner})
			more++
		}
		holders[i].held += time.Duration(part.To - part.From)
		holders[i].cost = holders[i].cost.Plus(part.Pool)
		h.minutes[at] = holders
	})
	return more
}

// with is a copy of the host that spans hold as well.
func (h *host) with(spans []Span, closed int64) *host {
	other := &host{presences: h.presences, minutes: maps.Clone(h.minutes)}
	for at, holders := range other.minutes {
		other.minutes[at] = slices.Clone(holders)
	}
	for _, s := range spans {
		other.hold(s, closed)
	}
	return other
}

// first is the earliest time of which something is kept, latest when nothing is.
func (h *host) first(latest int64) int64 {
	if len(h.presences) > 0 {
		latest = min(latest, h.presences[0].from)
	}
	for at := range h.minutes {
		latest = min(latest, at)
	}
	return latest
}

// forget drops what was before, and returns how much that was.
func (h *host) forget(before int64) int {
	dropped := 0
	maps.DeleteFunc(h.minutes, func(at int64, holders []holder) bool {
		if at < before {
			dropped += len(holders)
		}
		return at < before
	})
	count := len(h.presences)
	h.presences = slices.DeleteFunc(h.presences, func(p presence) bool { return p.to <= before })
	if len(h.presences) > 0 {
		h.presences[0].from = max(h.presences[0].from, before)
	}
	return dropped + count - len(h.presences)
}

// idle calls visit with what the host cost while nobody held it, over all minutes and gaps between them that lie, with
// at least a part, between since and until.
//
// A minute costs what the host's presence in it costs. What is left of that when the holders' own costs are taken off
// is idle, and never less than nothing. It is divided by the time for which each held anything, whatever its size: any
// holding, large or small, keeps the host from being given back. What was there while nobody held anything for a whole
// minute is nobody's.
func (h *host) idle(name string, since, until int64, visit func(Span)) {
	if len(h.presences) == 0 {
		return
	}
	held := make([]int64, 0, len(h.minutes))
	for at := range h.minutes {
		if at < until && at+minute > since {
			held = append(held, at)
		}
	}
	slices.Sort(held)
	last := since
	for _, at := range held {
		h.unheld(name, last, at, visit)
		h.attribute(name, at, visit)
		last = at + minute
	}
	h.unheld(name, last, until, visit)
}

// unheld is what the host cost in a time in which nobody held it.
func (h *host) unheld(name string, since, until int64, visit func(Span)) {
	for _, p := range h.there(since, until) {
		from, to := max(p.from, since), min(p.to, until)
		visit(Span{Venue: predictor.Pool, Host: name, From: from, To: to, Counted: from, Sums: Sums{Idle: p.cost(from, to)}})
	}
}

// attribute divides the idle time of a minute.
func (h *host) attribute(name string, at int64, visit func(Span)) {
	there := h.there(at, at+minute)
	if len(there) == 0 {
		return
	}
	var price, cost quantity.Money
	for _, p := range there {
		price = price.Plus(p.cost(at, at+minute))
	}
	holders := h.minutes[at]
	times := make([]time.Duration, len(holders))
	for i, holder := range holders {
		times[i] = holder.held
		cost = cost.Plus(holder.cost)
	}
	from, to := max(at, there[0].from), min(at+minute, there[len(there)-1].to)
	for i, idle := range pricing.Apportion(max(0, price-cost), times) {
		visit(Span{
			Owner: holders[i].owner, Venue: predictor.Pool, Host: name, From: from, To: to, Counted: from,
			Sums: Sums{Idle: idle},
		})
	}
}

// there are the presences that lie between since and until with at least a part.
func (h *host) there(since, until int64) []presence {
	if since >= until {
		return nil
	}
	first, _ := slices.BinarySearchFunc(h.presences, since, func(p presence, since int64) int {
		if p.to <= since {
			return -1
		}
		return 1
	})
	last := first
	for last < len(h.presences) && h.presences[last].from < until {
		last++
	}
	return h.presences[first:last]
}
