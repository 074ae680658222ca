package agent

import (
	"context"
	"errors"
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

// moneyPatience is how long an attempt waits in its slot for the run's word that it may cost something.
const moneyPatience = 2 * time.Minute

// errUnaffordable says that the run's money does not allow to wait for a child any longer.
var errUnaffordable = errors.New("the run's money does not allow to wait for the stage's process any longer")

// perLook is what the attempt costs from one look to the next.
func (r *running) perLook() quantity.Money {
	a := r.agent
	own := ledger.PoolCost(predictor.Host{PricePerHour: a.perHour(), Capacity: a.capacity()}, r.held(), a.sampleEvery)
	return own + r.gang.perLook(a.sampleEvery)
}

// affords reports whether the run's money allows the attempt to go on until the next look.
func (r *running) affords(ctx context.Context) bool {
	return r.try.Afford(ctx, r.cost(r.agent.now()), r.perLook())
}

// unaffordable ends an attempt that may cost no more.
func (r *running) unaffordable(f *finish) {
	ending := r.try.Unaffordable()
	f.stopped, f.cause, f.reason = ending.Outcome, ending.Cause, ending.Message
}

// stopMeter stops the cost at now.
func (r *running) stopMeter(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.meter.hold(quantity.Size{}, now)
}

// cost is what the attempt cost until now; nothing when it was never admitted.
func (r *running) cost(now time.Time) quantity.Money {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.meter == nil {
		return 0
	}
	return r.meter.cost(now) + r.gang.cost(now)
}
