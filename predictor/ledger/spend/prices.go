package spend

import (
	"maps"
	"slices"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/pricing"
)

// Prices are those of hosts, by what was told of each last. The zero value knows none.
type Prices struct {
	hosts   map[string]told
	latest  int64
	changed int
}

type told struct {
	price pricing.Host
	at    int64
}

// Present takes the price of a host that was there until e.At. Hosts that were not there within the week before are
// forgotten.
func (p *Prices) Present(e predictor.HostHeld) {
	at := Nanoseconds(e.At)
	if e.Host == "" || Nanoseconds(e.From) >= at {
		return
	}
	price := pricing.Host{PerHour: e.PricePerHour, Capacity: e.Capacity}
	if p.hosts == nil {
		p.hosts = map[string]told{}
	}
	before, known := p.hosts[e.Host]
	if known && at < before.at {
		return
	}
	p.hosts[e.Host] = told{price, at}
	if !known || before.price != price {
		p.changed++
	}
	if floor(at, hour) <= floor(p.latest, hour) {
		return
	}
	p.latest = at
	maps.DeleteFunc(p.hosts, func(_ string, h told) bool {
		old := h.at < floor(p.latest-minutesFor, hour)
		if old {
			p.changed++
		}
		return old
	})
}

// Of is what a host costs; known is false for a host that was not there within the last week.
func (p *Prices) Of(host string) (price pricing.Host, known bool) {
	h, known := p.hosts[host]
	return h.price, known
}

// Revision changes whenever a price does.
func (p *Prices) Revision() int { return p.changed }

// Hosts are the names of the hosts that have a price, sorted.
func (p *Prices) Hosts() []string { return slices.Sorted(maps.Keys(p.hosts)) }

// Clone is a copy.
func (p *Prices) Clone() Prices {
	return Prices{hosts: maps.Clone(p.hosts), latest: p.latest, changed: p.changed}
}

// HostPrice is the price of a host.
type HostPrice struct {
	Host  string
	Price pricing.Host
	// At is until when the host was there, in nanoseconds since 1970, as it said so last.
	At int64
}

// Told are all prices that are known, by the names of their hosts.
func (p *Prices) Told() []HostPrice {
	prices := make([]HostPrice, 0, len(p.hosts))
	for _, host := range p.Hosts() {
		prices = append(prices, HostPrice{Host: host, Price: p.hosts[host].price, At: p.hosts[host].at})
	}
	return prices
}

// PricesOf returns Prices that know what others have told; their Revision is another.
func PricesOf(prices []HostPrice) Prices {
	p := Prices{hosts: make(map[string]told, len(prices))}
	for _, one := range prices {
		p.hosts[one.Host] = told{one.Price, one.At}
		p.latest = max(p.latest, one.At)
	}
	return p
}
