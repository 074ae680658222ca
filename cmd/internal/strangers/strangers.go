// Package strangers bounds how often something is done for who is not known, by the address that they come from, so
// that one of them leaves the others their turn.
package strangers

import (
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

const (
	// most is how many addresses are remembered.
	most = 10_000
	// prefixBits is how much of an IPv6 address counts: the rest is one host's, or one network's, to choose.
	prefixBits = 64
)

// Limit bounds how often one address may do something. Its methods may be called concurrently. Use New.
type Limit struct {
	pause time.Duration
	burst int

	mu   sync.Mutex
	from map[string]*rate.Limiter // by address, of those that have less than all left; guarded by mu
}

// New returns a limit of once every pause in the long run, and of so often at once.
func New(pause time.Duration, burst int) *Limit {
	return &Limit{pause: pause, burst: burst, from: map[string]*rate.Limiter{}}
}

// May says whether an address, with or without its port, may do it now.
func (l *Limit) May(from string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	limiter := l.from[network(from)]
	return limiter == nil || limiter.TokensAt(now) >= 1
}

// Count notes that an address has done it.
func (l *Limit) Count(from string, now time.Time) { _ = l.Allow(from, now) }

// Allow is May and, where it may, Count.
func (l *Limit) Allow(from string, now time.Time) bool {
	from = network(from)
	l.mu.Lock()
	defer l.mu.Unlock()
	limiter := l.from[from]
	if limiter == nil {
		if len(l.from) >= most {
			l.makeRoom(now)
		}
		limiter = rate.NewLimiter(rate.Every(l.pause), l.burst)
		l.from[from] = limiter
	}
	return limiter.AllowN(now, 1)
}

// makeRoom forgets who has all left, and one more where that is nobody. The caller holds mu.
func (l *Limit) makeRoom(now time.Time) {
	for other, limiter := range l.from {
		if limiter.TokensAt(now) >= float64(l.burst) {
			delete(l.from, other)
		}
	}
	for other := range l.from {
		if len(l.from) < most {
			return
		}
		delete(l.from, other)
	}
}

// network is what counts of an address.
func network(from string) string {
	address, err := netip.ParseAddr(from)
	if err != nil {
		port, err := netip.ParseAddrPort(from)
		if err != nil {
			return from
		}
		address = port.Addr()
	}
	address = address.Unmap().WithZone("")
	if address.Is4() {
		return address.String()
	}
	prefix, err := address.Prefix(prefixBits)
	if err != nil {
		return from
	}
	return prefix.String()
}
