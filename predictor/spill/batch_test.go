package spill

import (
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor/plan"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/venue"
)

// worked is the example of the comment of Parcel.
func worked(change ...func(*Parcel)) Parcel {
	p := Parcel{
		Offer: Offer{
			Tasks: 2000, Slots: 1, Wall: 0.005, Function: 0.005, Highest: 0.01, Class: 512 * quantity.MiB,
			Venue: venue.Functions{
				Enabled: true, MaxDuration: 15 * time.Minute, PerGiBSecond: 16_666_700, PerRequest: 200_000,
			},
		},
		Chosen: 4, Value: quantity.USD, Slack: math.Inf(1), InFlight: 500,
	}
	for _, one := range change {
		one(&p)
	}
	return p
}

func TestABatchIsWhatLimitsAndPricesLeave(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		change func(*Parcel)
		want   plan.Batch
		says   string
	}{
		{"the worked example", func(*Parcel) {}, plan.Batch{Tasks: 16, Wait: 75 * time.Millisecond}, "save $0.000382"},
		{
			"nobody values time: as many as are worth it", func(p *Parcel) { p.Value = 0 },
			plan.Batch{Tasks: 64, Wait: 315 * time.Millisecond},
			"2000 tasks take 0.005 s each",
		},
		{"latency at any price", func(p *Parcel) { p.Hurry = true }, plan.Batch{}, "minimises latency"},
		{
			"a deadline bounds it", func(p *Parcel) { p.Value, p.Slack = 0, 1.45 },
			plan.Batch{Tasks: 8, Wait: 35 * time.Millisecond},
			"a deadline leaves 1.4",
		},
		{"a deadline that is lost", func(p *Parcel) { p.Value, p.Slack = 0, -3 }, plan.Batch{}, "a deadline leaves 0 s"},
		{
			"no more tasks than slots take", func(p *Parcel) { p.Value, p.Tasks = 0, 20 },
			plan.Batch{Tasks: 4, Wait: 15 * time.Millisecond},
			"no more for 4 function slots",
		},
		{
			"windows", func(p *Parcel) { p.Value, p.InFlight = 0, 64 },
			plan.Batch{Tasks: 16, Wait: 75 * time.Millisecond},
			"windows let no more",
		},
		{
			"payloads", func(p *Parcel) { p.Value, p.Input = 0, quantity.MiB },
			plan.Batch{Tasks: 4, Wait: 15 * time.Millisecond},
			"inputs of up to 1 MiB come to the 6 MiB",
		},
		{"a payload as large as it may be", func(p *Parcel) { p.Input = MaxPayload }, plan.Batch{}, "inputs of up to 6 MiB"},
		{
			"half a second: the request is a twentieth of the price", func(p *Parcel) {
				p.Value, p.Function, p.Highest = 0, 0.5, 0.5
			}, plan.Batch{Tasks: 4, Wait: 1500 * time.Millisecond}, "small beside that of its tasks",
		},
		{
			"half a second, and time has a value", func(p *Parcel) { p.Function, p.Highest = 0.5, 0.5 },
			plan.Batch{},
			"costs more than the $0.0000002042 of an invoke",
		},
		{
			"minutes", func(p *Parcel) { p.Value, p.Function, p.Highest = 0, 120, 300 },
			plan.Batch{},
			"small beside that of its tasks",
		},
		{
			"the limit of an invoke, where requests are dear", func(p *Parcel) {
				p.Value, p.Function, p.Highest, p.Venue.PerRequest = 0, 120, 300, quantity.USD
			}, plan.Batch{Tasks: 2, Wait: 2 * time.Minute}, "within the limit of 15m0s",
		},
		{"a free request", func(p *Parcel) { p.Venue.PerRequest, p.Venue.PerGiBSecond = 0, 0 }, plan.Batch{}, "costs more"},
		{"no slot", func(p *Parcel) { p.Chosen = 0 }, plan.Batch{}, "nothing is known"},
		{
			"one that is held and about as good", func(p *Parcel) { p.Held = plan.Batch{Tasks: 32, Wait: time.Millisecond} },
			plan.Batch{Tasks: 32, Wait: time.Millisecond},
			"",
		},
		{
			"one that is held, and waited longer", func(p *Parcel) { p.Held = plan.Batch{Tasks: 32, Wait: time.Hour} },
			plan.Batch{Tasks: 32, Wait: 155 * time.Millisecond},
			"",
		},
		{
			"one that is held and costs twice what single tasks do, not quite", func(p *Parcel) {
				p.Tasks, p.Held = 10, plan.Batch{Tasks: 2, Wait: time.Millisecond} // $0.0000038, and $0.0000020
			},
			plan.Batch{Tasks: 2, Wait: time.Millisecond},
			"",
		},
		{
			"one that is held and costs far more than it saves", func(p *Parcel) {
				p.Tasks, p.Held = 8, plan.Batch{Tasks: 2, Wait: time.Millisecond}
				p.Function, p.Highest = 0.02, 0.02
			},
			plan.Batch{},
			"to wait for another task costs more",
		},
		{
			"one that is held and four times as large", func(p *Parcel) {
				p.Held = plan.Batch{Tasks: 64, Wait: time.Millisecond}
			},
			plan.Batch{Tasks: 16, Wait: 75 * time.Millisecond},
			"batches save",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, reason := worked(tt.change).Batch()
			if got != tt.want || !strings.Contains(reason, tt.says) {
				t.Errorf("got %+v, %q; want %+v, and that it says %q", got, reason, tt.want, tt.says)
			}
		})
	}
}

// TestABatchIsTheCheapest holds the choice against all that there are, and against the root of the formula.
func TestABatchIsTheCheapest(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := drawParcel(t)
		p.Value = quantity.Money(rapid.Int64Range(1, 1_000_000_000_000_000).Draw(t, "value"))
		got, best := p.cheapest(mostBatch), 1
		for b := 1; b <= mostBatch; b++ {
			if p.cost(b) < p.cost(best) {
				best = b
			}
		}
		// Of the parts of the cost that the size of a batch changes, a power of two has at most six percent more.
		constant := float64(p.Value) / 3600 * 2 * p.Function
		if p.cost(got)+constant > (p.cost(best)+constant)*1.0607 {
			t.Errorf("got %d for %g, and %d are for %g", got, p.cost(got), best, p.cost(best))
		}
		root := math.Sqrt(p.Tasks * float64(p.request()) * 3600 / (2 * p.Function * float64(p.Value)))
		if want := min(max(root, 1), mostBatch); math.Abs(float64(best)-want) > 1 {
			t.Errorf("the formula says %g, and %d is best", want, best)
		}
	})
}

// TestABatchKeepsItsLimits: whatever is asked, a batch is within what an invoke takes and what deadlines leave, no slot
// is without tasks, and what its end costs is less than what it saves, or not much more where it is held.
func TestABatchKeepsItsLimits(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := drawParcel(t)
		batch, _ := p.Batch()
		n := float64(batch.Most())
		late := 2 * (n - 1) * p.Function
		switch {
		case batch == (plan.Batch{}):
			return
		case batch.Tasks < 2 || batch.Tasks > mostBatch || batch.Wait <= 0:
			t.Errorf("got %+v", batch)
		case n*float64(p.Chosen) > p.Tasks || n*float64(p.Chosen) > float64(p.InFlight):
			t.Errorf("%d tasks for each of %d slots, and there are %g, %d at a time", batch.Tasks, p.Chosen, p.Tasks, p.InFlight)
		case n*float64(p.Input) > float64(MaxPayload):
			t.Errorf("%d inputs of %s", batch.Tasks, p.Input)
		case n*p.Highest > p.Venue.MaxDuration.Seconds():
			t.Errorf("%d tasks of up to %g s", batch.Tasks, p.Highest)
		case late > slackShare*p.Slack:
			t.Errorf("ends up to %g s later, with %g s left", late, p.Slack)
		case p.Hurry:
			t.Errorf("got %+v for a run in a hurry", batch)
		case p.Held.Tasks == batch.Tasks && p.cost(batch.Tasks) > 2*p.cost(1)+1:
			t.Errorf("is held for %g, and single tasks are for %g", p.cost(batch.Tasks), p.cost(1))
		case p.Held.Tasks != batch.Tasks && float64(p.saves(batch.Tasks)) < late*float64(p.Value)/3600-1:
			t.Errorf("saves %s, and %g s cost more", p.saves(batch.Tasks), late)
		case batch.Wait.Seconds() > (n-1)*p.Function+1e-3:
			t.Errorf("waits %s for %d tasks of %g s", batch.Wait, batch.Tasks, p.Function)
		}
	})
}

func drawParcel(t *rapid.T) Parcel {
	return worked(func(p *Parcel) {
		p.Tasks = float64(rapid.IntRange(1, 100_000).Draw(t, "tasks"))
		p.Function = math.Exp(rapid.Float64Range(-7, 7).Draw(t, "log of the run time"))
		p.Highest = p.Function * rapid.Float64Range(1, 10).Draw(t, "longest")
		p.Chosen = rapid.IntRange(1, 100).Draw(t, "slots")
		p.InFlight = rapid.IntRange(1, 5000).Draw(t, "in flight")
		p.Input = quantity.Bytes(rapid.Int64Range(0, int64(MaxPayload)).Draw(t, "input"))
		p.Value = quantity.Money(rapid.SampledFrom([]int64{0, 1, 1_000_000_000_000, 1 << 50}).Draw(t, "value"))
		p.Slack = rapid.SampledFrom([]float64{-1, 0, 1, 100, math.Inf(1)}).Draw(t, "slack")
		p.Hurry = rapid.Bool().Draw(t, "hurry")
		if rapid.Bool().Draw(t, "holds one") {
			p.Held = plan.Batch{
				Tasks: rapid.IntRange(2, mostBatch).Draw(t, "held"),
				Wait:  time.Duration(rapid.Int64Range(1, int64(time.Hour)).Draw(t, "its wait")),
			}
		}
	})
}
