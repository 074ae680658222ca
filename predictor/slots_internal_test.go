package predictor

import (
	"testing"

	"github.com/spillway-ml/spillway/predictor/memory"
	"github.com/spillway-ml/spillway/predictor/plan"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// TestAHostWithoutAPriceIsNotTheCheapest whatever the hosts are called.
func TestAHostWithoutAPriceIsNotTheCheapest(t *testing.T) {
	t.Parallel()
	room := quantity.Size{CPU: 4000, Memory: 8 * quantity.GiB}
	priced := plan.Host{Capacity: room, PricePerHour: 16 * quantity.USD / 100}
	free := plan.Host{Capacity: room}
	w := &work{stage: &memory.Stage{}, size: quantity.Size{CPU: 1000, Memory: quantity.GiB}}
	price := func(hosts ...plan.Host) quantity.Money { return (&decider{hosts: hosts}).slotPrice(w) }
	dear := priced
	dear.PricePerHour *= 2
	want := price(priced)
	if want <= 0 || price(free) != 0 {
		t.Fatalf("a slot costs %v on a host with a price and %v on one without", want, price(free))
	}
	for _, hosts := range [][]plan.Host{{priced, free}, {free, priced}, {dear, free, priced}, {priced, free, dear}} {
		if got := price(hosts...); got != want {
			t.Errorf("a slot costs %v of %v, want %v", got, hosts, want)
		}
	}
}
