package agent

import (
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// meter adds up what an attempt costs while its grant changes.
type meter struct {
	host  predictor.Host // its price and its capacity
	held  quantity.Size
	since time.Time
	total quantity.Money
	// told is called with every time for which one size was held: the host's own account of what was held, beside the
	// Records. Last says that nothing is held any more: without it, the attempt has held more than was told.
	told func(size quantity.Size, held time.Duration, last bool)
}

// newMeter starts to count at now, for an attempt that holds size.
func newMeter(perHour quantity.Money, capacity, size quantity.Size, now time.Time) *meter {
	return &meter{host: predictor.Host{PricePerHour: perHour, Capacity: capacity}, held: size, since: now}
}

// hold says that the attempt holds size from now on.
func (m *meter) hold(size quantity.Size, now time.Time) {
	held := now.Sub(m.since)
	m.total += ledger.PoolCost(m.host, m.held, held)
	if m.told != nil && !m.held.IsZero() {
		m.told(m.held, held, size.IsZero())
	}
	m.held, m.since = size, now
}

// cost returns what the attempt cost until now.
func (m *meter) cost(now time.Time) quantity.Money {
	return m.total + ledger.PoolCost(m.host, m.held, now.Sub(m.since))
}
