package chaos

import (
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/timeline"
)

// TestALostAttemptCostsNoMoreThanItCan: what a lost attempt cost is known to nobody, but not everything can be.
func TestALostAttemptCostsNoMoreThanItCan(t *testing.T) {
	t.Parallel()
	venue := predictor.FunctionVenue{
		MaxMemory: 10 * quantity.GiB, MaxDuration: 15 * time.Minute, PerGiBSecond: 16_666_667, PerRequest: 200_000,
	}
	limit := venue.Price(quantity.GiB, venue.MaxDuration)
	gibibyte := quantity.Size{Memory: quantity.GiB}
	for _, tt := range []struct {
		name    string
		attempt timeline.Attempt
		budget  quantity.Money
		held    int64 // by the host, where it wrote that down
		partly  bool  // it was killed before it wrote down the rest
		wrong   bool
	}{
		{name: "an invoke up to its limit", attempt: timeline.Attempt{
			Venue: predictor.Function, Grant: gibibyte,
			Cost: limit,
		}},
		{
			name: "beyond it", attempt: timeline.Attempt{Venue: predictor.Function, Grant: gibibyte, Cost: limit + 1},
			wrong: true,
		},
		{name: "of a class that nobody told", attempt: timeline.Attempt{Venue: predictor.Function, Cost: limit + 1}},
		{
			name: "with a budget that its limit passes", attempt: timeline.Attempt{
				Venue: predictor.Function, Grant: gibibyte,
				Cost: limit,
			},
			budget: limit / 45, wrong: true,
		},
		{name: "what a host held", attempt: timeline.Attempt{Venue: predictor.Pool, Cost: 70}, held: 70},
		{name: "more than it held", attempt: timeline.Attempt{Venue: predictor.Pool, Cost: 71}, held: 70, wrong: true},
		{
			name: "more than it wrote down of it", attempt: timeline.Attempt{Venue: predictor.Pool, Cost: 175}, held: 70,
			partly: true,
		},
		{name: "what a host did not write down any more", attempt: timeline.Attempt{Venue: predictor.Pool, Cost: 1000}},
		{name: "more than a host costs", attempt: timeline.Attempt{Venue: predictor.Pool, Cost: 1001}, wrong: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			own := account{attempts: map[string]*held{}, invokes: map[string][]held{}, whole: big.NewInt(1000), venue: venue}
			if tt.held > 0 {
				own.attempts[attemptKey("r", "t", "1")] = &held{cost: big.NewInt(tt.held), whole: !tt.partly}
			}
			tt.attempt.Task, tt.attempt.Number, tt.attempt.Outcome = "t", 1, predictor.Lost
			view := ledger.RunView{Goal: predictor.Goal{Budget: tt.budget}, Totals: ledger.Totals{Cost: tt.attempt.Cost}}
			b := compare(map[string][]timeline.Attempt{"r": {tt.attempt}}, map[string]ledger.RunView{"r": view}, own)
			if wrong := len(b.wrong) > 0; wrong != tt.wrong {
				t.Errorf("found wrong: %s; want something wrong: %t", strings.Join(b.wrong, "; "), tt.wrong)
			}
		})
	}
}

// TestALostAttemptIsTheInvokeThatCostAsMuch: then the invoke is in a Record.
func TestALostAttemptIsTheInvokeThatCostAsMuch(t *testing.T) {
	t.Parallel()
	own := account{
		attempts: map[string]*held{}, invokes: map[string][]held{"5": {{cost: big.NewInt(5)}}}, whole: new(big.Int),
		venue: predictor.FunctionVenue{MaxMemory: quantity.GiB, MaxDuration: time.Minute, PerRequest: 5},
	}
	lost := timeline.Attempt{Task: "t", Number: 1, Venue: predictor.Function, Outcome: predictor.Lost, Cost: 5}
	view := ledger.RunView{Totals: ledger.Totals{Cost: 5}}
	b := compare(map[string][]timeline.Attempt{"r": {lost}}, map[string]ledger.RunView{"r": view}, own)
	if len(b.wrong) > 0 || b.unrecorded > 0 || b.lost != 1 {
		t.Errorf("got %+v, want the invoke to be that of the lost attempt", b)
	}
}

// TestALostAttemptTakesNoInvokeOfAnother has one that is taken to have cost what the invoke of another did.
func TestALostAttemptTakesNoInvokeOfAnother(t *testing.T) {
	t.Parallel()
	own := account{
		attempts: map[string]*held{}, invokes: map[string][]held{"5": {{cost: big.NewInt(5)}}}, whole: new(big.Int),
		venue: predictor.FunctionVenue{MaxMemory: quantity.GiB, MaxDuration: time.Minute, PerRequest: 5},
	}
	lost := timeline.Attempt{Task: "t", Number: 1, Venue: predictor.Function, Outcome: predictor.Lost, Cost: 5}
	done := timeline.Attempt{Task: "t", Number: 2, Venue: predictor.Function, Outcome: predictor.Succeeded, Cost: 5}
	view := ledger.RunView{Totals: ledger.Totals{Cost: 10}}
	b := compare(map[string][]timeline.Attempt{"r": {lost, done}}, map[string]ledger.RunView{"r": view}, own)
	if len(b.wrong) > 0 || b.unrecorded > 0 || b.lost != 1 || b.attempts != 2 {
		t.Errorf("got %+v, want the invoke to be that of the attempt that succeeded", b)
	}
}

// TestTheInvokeOfALostAttemptIsInARecord has an attempt that is taken to have cost less than its invoke did, and a
// second invoke that is nobody's.
func TestTheInvokeOfALostAttemptIsInARecord(t *testing.T) {
	t.Parallel()
	listed := map[string][]timeline.Attempt{"r": {{
		Task: "t", Number: 1, Venue: predictor.Function, Outcome: predictor.Lost, Cost: 3,
	}}}
	views := map[string]ledger.RunView{"r": {Totals: ledger.Totals{Cost: 3}}}
	for invokes, wrong := range []int{0, 0, 1} {
		own := account{
			attempts: map[string]*held{}, invokes: map[string][]held{}, whole: new(big.Int),
			venue: predictor.FunctionVenue{MaxDuration: time.Hour, PerRequest: 1000},
		}
		for range invokes {
			own.invokes["5"] = append(own.invokes["5"], held{cost: big.NewInt(5), whole: true})
		}
		if b := compare(listed, views, own); len(b.wrong) != wrong {
			t.Errorf("%d invokes beside one lost attempt: got %q, want %d things wrong", invokes, b.wrong, wrong)
		}
	}
}
