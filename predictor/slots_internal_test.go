package predictor

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/memory"
	"github.com/spillway-ml/spillway/predictor/plan"
	"github.com/spillway-ml/spillway/predictor/provision"
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

// TestASlotStaysForNoTimeThatHasPassed: whatever it costs to keep one, and however long its stage has been idle.
func TestASlotStaysForNoTimeThatHasPassed(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		now := fact.Instant(time.Hour)
		idle := time.Duration(rapid.Int64Range(0, int64(10*time.Minute)).Draw(t, "idle"))
		d := &decider{now: now, policy: plan.Policy{IdleAfter: time.Duration(
			rapid.Int64Range(0, int64(10*time.Minute)).Draw(t, "idle after"))}}
		w := &work{stage: &memory.Stage{Active: now - fact.Instant(idle)}, idling: idling{
			known: rapid.Bool().Draw(t, "known"), started: time.Second,
			terms: provision.Idle{
				Start: quantity.Money(rapid.Int64Range(1, 1_000_000).Draw(t, "start")),
				Hour:  quantity.Money(rapid.Int64Range(1, 1_000_000_000).Draw(t, "hour")),
			},
		}}
		if said := d.stayReason(w); strings.Contains(said, "-") {
			t.Fatalf("after %s: %s", idle, said)
		}
	})
}

// TestWhatWasNotMeasuredIsNotToldInNumbers has a sizing that was learned, and nothing that says how: as where a host
// has come back and the stage's need is not known any more.
func TestWhatWasNotMeasuredIsNotToldInNumbers(t *testing.T) {
	t.Parallel()
	model := &memory.Model{}
	model.Change.Attempts, model.Change.Factor = 3, 2
	st := &memory.Stage{Model: model}
	d := &decider{
		memory: memory.New(), largest: map[quantity.Size]quantity.Size{}, perCore: map[quantity.Size]quantity.Money{},
	}
	next := Sizing{Learned: true, Source: "23 attempts"}
	said := d.sizeReason(&work{stage: st}, next, quantity.Size{CPU: quantity.Core})
	if strings.Contains(said, "-100") || strings.Contains(said, "NaN") || !strings.Contains(said, "no peak was measured") {
		t.Errorf("it says %q", said)
	}
	held := Sizing{Attempts: 1, Learned: true}
	d.tellChange(st, held, Sizing{Attempts: 4})
	if len(d.plan.Decisions) > 0 {
		t.Errorf("what is not known is told: %+v", d.plan.Decisions)
	}
}
