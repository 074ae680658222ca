package agent

import (
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// meter adds up what an attempt costs while its grant changes: the host's price for the time, times the larger of its shares of the
// host's cores and memory, because room that only one of the two is left of is of no use to others.
type meter struct {
	perHour  quantity.Money
	capacity quantity.Size
	held     quantity.Size
	since    time.Time
	total    quantity.Money
}

// newMeter starts to count at now, for an attempt that holds size.
func newMeter(perHour quantity.Money, capacity, size quantity.Size, now time.Time) *meter {
	return &meter{perHour: perHour, capacity: capacity, held: size, since: now}
}

// hold says that the attempt holds size from now on.
func (m *meter) hold(size quantity.Size, now time.Time) {
	m.total += price(m.perHour, m.capacity, m.held, now.Sub(m.since))
	m.held, m.since = size, now
}

// cost returns what the attempt cost until now.
func (m *meter) cost(now time.Time) quantity.Money {
	return m.total + price(m.perHour, m.capacity, m.held, now.Sub(m.since))
}

// price returns perHour x max(CPU share, memory share) x hours. Shares of a capacity of nothing are nothing.
func price(perHour quantity.Money, capacity, held quantity.Size, wall time.Duration) quantity.Money {
	if wall <= 0 {
		return 0
	}
	share := max(ratio(float64(held.CPU), float64(capacity.CPU)), ratio(float64(held.Memory), float64(capacity.Memory)))
	return perHour.Times(share * wall.Hours())
}

func ratio(part, whole float64) float64 {
	if whole <= 0 || part <= 0 {
		return 0
	}
	return part / whole
}
