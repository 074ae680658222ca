package spill

import (
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor/calm"
	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/usage"
)

// oneCore is the class that comes with one core.
const oneCore = 1769 * quantity.MiB

const second = fact.Instant(time.Second)

// waits is a backlog of 100 tasks of a second at two pool slots, with functions as fast, of which one run has all.
func waits(run Waiting) Backlog {
	run.Run, run.Part, run.Due = "r", 1, run.Left
	return Backlog{
		Offer: Offer{
			Tasks: 100, Slots: 2, Wall: 1, Function: 1, Highest: 1, Cold: 0.1, Class: quantity.GiB, Venue: lambda(),
			Scatter: Scatter{Logs: drawnLogs(32, 0.2, 1)},
		},
		Queued: 100, Limit: 8, Runs: []Waiting{run}, ValueOfTime: quantity.USD,
	}
}

func TestTheGoalOfARunChoosesItsFunctions(t *testing.T) {
	t.Parallel()
	deadline := fact.Goal{Deadline: time.Minute}
	poor := fact.Goal{Minimise: fact.Latency, Budget: quantity.USD.Times(0.001)}
	for _, row := range []struct {
		name   string
		with   func(*Backlog)
		run    Waiting
		slots  int
		reason string
	}{
		{"a deadline takes the fewest that meet it", nil, Waiting{Goal: deadline, Left: 40, Limited: true}, 1, "left to the"},
		{"an easy one takes none", nil, Waiting{Goal: deadline, Left: 100, Limited: true}, 0, "well within"},
		{"one hardly met takes one more", nil, Waiting{Goal: deadline, Left: 34, Limited: true}, 2, "left to the deadline"},
		{
			"but not where a plan makes up for it", nil,
			Waiting{Goal: deadline, Left: 34, Limited: true, Divided: "so"},
			1, "34 s of the 34 s to the deadline that the plan leaves it (so)",
		},
		{
			"who is behind a plan has what that gives", nil,
			Waiting{
				Goal: deadline, Left: 20, Limited: true, Divided: "so", After: []float64{15}, Planned: 3,
			},
			3, "behind which it is; 3 function slots finish",
		},
		{
			"who is behind every plan is lost", nil,
			Waiting{
				Goal: deadline, Left: 20, Limited: true, Divided: "so", After: []float64{15}, Planned: 3, Hastened: 15,
			},
			8, "which is lost",
		},
		{
			"what a plan gave is paid as it is expected", func(b *Backlog) { b.Held, b.Highest = 6, 2 },
			Waiting{Goal: poor, Budget: quantity.USD.Times(0.0014), Divided: "so"},
			6, "minimises latency",
		},
		{
			"and given as it may be at most", func(b *Backlog) { b.Highest = 2 },
			Waiting{Goal: poor, Budget: quantity.USD.Times(0.0014), Divided: "so"},
			1, "so it is 1 slot",
		},
		{
			"what follows cannot be paid first where nobody else takes the tasks", func(b *Backlog) { b.Wait = NoPool },
			Waiting{Goal: poor, Reserved: quantity.USD.Times(0.002), Divided: "so", Planned: 2},
			2, "which pays for these tasks first, as the pool takes none",
		},
		{
			"but where all that is left does not pay for them", func(b *Backlog) { b.Wait = NoPool },
			Waiting{Goal: poor, Reserved: quantity.USD.Times(0.0014), Divided: "so", Planned: 2},
			0, "so it is 0 slots",
		},
		{
			"and what follows is kept where the pool takes them", nil,
			Waiting{Goal: poor, Reserved: quantity.USD.Times(0.002), Divided: "so", Planned: 2},
			0, "that the plan keeps",
		},
		{"a lost one takes the fastest", nil, Waiting{Goal: deadline, Limited: true}, 8, "which is lost"},
		{"latency takes all that help", nil, Waiting{Goal: fact.Goal{Minimise: fact.Latency}}, 8, "minimises latency"},
		{"cost takes none", nil, Waiting{Goal: fact.Goal{Minimise: fact.Cost}}, 0, "minimises cost"},
		{"without a goal, what is worth its price", nil, Waiting{}, 8, "are worth"},
		{"time worth little", func(b *Backlog) { b.ValueOfTime = quantity.USD.Times(0.01) }, Waiting{}, 0, "more than the"},
		{"a budget bounds it", nil, Waiting{Goal: poor, Budget: quantity.USD.Times(0.0009)}, 2, "is left and that may"},
		{"a free pool slot for each", func(b *Backlog) { b.Free = 100 }, Waiting{}, 0, "a pool slot is free"},
		{"the venue is full", func(b *Backlog) { b.Limit = 0 }, Waiting{}, 0, "every function slot is taken"},
		{"one more than is held is no news", func(b *Backlog) { b.Held = 7 }, Waiting{}, 8, "are worth"},
		{
			"slots that are held stay while they help", func(b *Backlog) {
				b.Held, b.Eased, b.Clock = 3, calm.Eased{Since: 1}, 11*second
			},
			Waiting{Goal: deadline, Left: 52.4, Limited: true},
			1, "well within",
		},
		{
			"even where they have not for a moment", func(b *Backlog) {
				b.Held, b.Eased, b.Clock = 3, calm.Eased{Since: 1}, 9*second
			},
			Waiting{Goal: deadline, Left: 120, Limited: true},
			3, "well within",
		},
		{
			"as many as were needed of late", func(b *Backlog) {
				b.Held, b.Eased, b.Clock = 3, calm.Eased{Since: 1, Most: 2}, 11*second
			},
			Waiting{Goal: deadline, Left: 120, Limited: true},
			2, "well within",
		},
		{
			"and go once they do not", func(b *Backlog) { b.Held, b.Eased, b.Clock = 3, calm.Eased{Since: 1}, 11*second },
			Waiting{Goal: deadline, Left: 120, Limited: true},
			0, "well within",
		},
		{
			"an empty queue is not believed at once", func(b *Backlog) { b.Held, b.Queued, b.Refills = 3, 0, true },
			Waiting{},
			3, "no room for more",
		},
		{"but then", func(b *Backlog) { b.Held, b.Queued, b.Tasks = 3, 0, 0 }, Waiting{}, 0, "no task waits any more"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			b := waits(row.run)
			if row.with != nil {
				row.with(&b)
			}
			got := b.Choose()
			if got.Slots != row.slots || !strings.Contains(got.Reason, row.reason) {
				t.Errorf("got %d slots (%s), want %d (%s)", got.Slots, got.Reason, row.slots, row.reason)
			}
		})
	}
}

func TestTheRunThatWantsMostDecides(t *testing.T) {
	t.Parallel()
	b := waits(Waiting{Goal: fact.Goal{Minimise: fact.Cost}})
	b.Runs[0].Part = 0.5
	b.Runs = append(b.Runs, Waiting{Run: "s", Part: 0.5, Goal: fact.Goal{Minimise: fact.Latency}})
	if got := b.Choose(); got.Run != "s" || got.Slots != 8 {
		t.Errorf("run %q gets %d slots, want all 8 for s: %s", got.Run, got.Slots, got.Reason)
	}
}

func TestTheClassIsTheCheapestThatHoldsATask(t *testing.T) {
	t.Parallel()
	venue := lambda()
	venue.Classes = []quantity.Bytes{512 * quantity.MiB, quantity.GiB, oneCore, 2 * oneCore}
	parallel := usage.Speed{Most: 2, Far: 2, Busy: 1, Rate: 1, Parallel: 1}
	usual := Demand{Memory: 100 * quantity.MiB, Wall: 1, Longest: 2}
	for _, row := range []struct {
		name   string
		with   func(*Demand)
		class  quantity.Bytes
		reason string
	}{
		{"of equal prices the fastest", func(*Demand) {}, oneCore, ""},
		{"less of a core, less memory", func(d *Demand) { d.Speed = usage.Speed{Most: 1} }, 512 * quantity.MiB, ""},
		{"more than a core", func(d *Demand) { d.Speed = parallel }, 2 * oneCore, ""},
		{"what is held stays", func(d *Demand) { d.Held = quantity.GiB }, quantity.GiB, ""},
		{"what is too small does not", func(d *Demand) { d.Held, d.Memory = quantity.GiB, quantity.GiB+1 }, oneCore, ""},
		{"too large", func(d *Demand) { d.Memory = 9 * quantity.GiB }, 0, "more than the largest function has"},
		{"too long", func(d *Demand) { d.Longest = 800 }, 0, "too close to the limit"},
		{"a device", func(d *Demand) { d.Device = true }, 0, "needs a GPU"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			demand := usual
			row.with(&demand)
			class, why := demand.Class(venue)
			if class != row.class || !strings.Contains(string(why), row.reason) || why == "" != (row.reason == "") {
				t.Errorf("%+v gets %s (%s), want %s (%s)", demand, class, why, row.class, row.reason)
			}
		})
	}
}
