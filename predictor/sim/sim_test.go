package sim_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/sim"
)

var (
	epoch = time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)
	stage = predictor.StageID{App: "app", Build: "b1", Name: "score"}
	room  = quantity.Size{CPU: 8 * quantity.Core, Memory: 32 * quantity.GiB}
)

func newStack(tick time.Duration) *sim.Simulation {
	return sim.New(sim.Options{
		Start: epoch, Tick: tick, Hosts: []predictor.Host{{ID: "host", Capacity: room, Free: room}},
	})
}

func hint(at time.Time) predictor.Scheduled {
	return predictor.Scheduled{
		Run: "r", Stage: stage, Tasks: 1, Declared: quantity.Size{CPU: quantity.Core, Memory: 4 * quantity.GiB}, At: at,
	}
}

func record(task int, peak quantity.Bytes, at time.Time) predictor.Record {
	return predictor.Record{
		Run: "r", Pipeline: "p", Stage: stage, Task: fmt.Sprintf("score-%d", task), Attempt: 1, Venue: predictor.Pool,
		Host: "host", Outcome: predictor.Succeeded, At: at,
		Usage: quantity.Usage{CPU: time.Second, Wall: time.Second, PeakMemory: peak},
	}
}

func tell(tb testing.TB, stack *sim.Simulation, events ...predictor.Event) {
	tb.Helper()
	for _, event := range events {
		if err := stack.Tell(tb.Context(), event); err != nil {
			tb.Fatal(err)
		}
	}
}

func sizing(tb testing.TB, stack *sim.Simulation) predictor.Sizing {
	tb.Helper()
	row, known := stack.Sizing(stage)
	if !known {
		tb.Fatalf("the plan at %s does not size the stage", stack.Now())
	}
	return row
}

func TestASizeRestsOnWhatWasToldUntilNow(t *testing.T) {
	t.Parallel()
	stack := newStack(0)
	tell(t, stack, hint(epoch))
	if first := sizing(t, stack); first.Learned || first.Base.Memory != 4*quantity.GiB {
		t.Errorf("first %+v, want what is declared", first)
	}
	for i := range 5 {
		tell(t, stack, record(i, 100*quantity.MiB, epoch.Add(time.Second)))
	}
	if now := sizing(t, stack); !now.Learned || now.Base.Memory > 200*quantity.MiB {
		t.Errorf("after five attempts at the same moment %+v, want what they took", now)
	}
}

// The hysteresis of sizes counts time as it passes: a size that has been too large for two minutes comes down however
// long nothing is told.
func TestTimePassesWhileNothingIsTold(t *testing.T) {
	t.Parallel()
	stack := newStack(0)
	waiting := hint(epoch)
	waiting.Tasks = 1000 // a stage without work has no size
	tell(t, stack, waiting)
	for i := range 8 {
		tell(t, stack, record(i, quantity.Bytes(1+i%2)*quantity.GiB, epoch.Add(time.Second)))
	}
	large := sizing(t, stack).Base.Memory
	for i := range 64 {
		tell(t, stack, record(8+i, quantity.GiB, epoch.Add(2*time.Second)))
	}
	if soon := sizing(t, stack).Base.Memory; soon != large {
		t.Errorf("%s at once, want the %s that is held for a while", soon, large)
	}
	if err := stack.Advance(t.Context(), epoch.Add(10*time.Minute)); err != nil {
		t.Fatal(err)
	}
	if later := sizing(t, stack).Base.Memory; later >= large {
		t.Errorf("%s ten minutes later, want less than %s", later, large)
	}
}

func TestVirtualTimeNeverRunsBackwards(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		stack := newStack(time.Duration(rapid.IntRange(0, 60).Draw(rt, "tick seconds")) * time.Second)
		steps := rapid.SliceOfN(rapid.Int64Range(-20, 600), 1, 40).Draw(rt, "seconds")
		planned := stack.Plan()
		for i, seconds := range steps {
			before := stack.Now()
			to := before.Add(time.Duration(seconds) * time.Second)
			err := stack.Tell(t.Context(), record(i, quantity.GiB, to))
			switch now := stack.Now(); {
			case seconds < 0 && (!errors.Is(err, sim.ErrPast) || !now.Equal(before)):
				rt.Fatalf("told of %s at %s: %v, and it is %s", to, before, err, now)
			case seconds >= 0 && (err != nil || !now.Equal(to)):
				rt.Fatalf("told of %s at %s: %v, and it is %s", to, before, err, now)
			}
			plan := stack.Plan()
			if plan.At.Before(planned.At) || plan.At.After(stack.Now()) || plan.Tick < planned.Tick {
				rt.Fatalf("at %s the plan is of %s, tick %d, after that of %s, tick %d", stack.Now(), plan.At, plan.Tick,
					planned.At, planned.Tick)
			}
			planned = plan
		}
	})
}

// Everything that a plan is made of is in the events: a stack that is asked for its plan at every step, and one that is
// told the same and asked in the end, have decided as often and end with the same plan.
func TestTheSameEventsGiveTheSamePlans(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		steps := rapid.SliceOfN(rapid.IntRange(1, 500), 1, 60).Draw(rt, "seconds")
		replay := func(asked bool) string {
			stack, at := newStack(0), epoch
			for i, seconds := range steps {
				at = at.Add(time.Duration(seconds) * time.Second)
				tell(t, stack, hint(at), record(i, quantity.Bytes(seconds)*quantity.MiB, at))
				if asked {
					stack.Plan()
					stack.Sizing(stage) // of the same plan
				}
			}
			data, err := json.Marshal(stack.Plan())
			if err != nil {
				rt.Fatal(err)
			}
			return string(data)
		}
		if often, once := replay(true), replay(false); often != once {
			rt.Fatalf("asked at every step\n%s\nasked once\n%s", often, once)
		}
	})
}

// Of many events within the gap one plan comes, at its end.
func TestPlansThatAreAskedForKeepTheirDistance(t *testing.T) {
	t.Parallel()
	for gap, want := range map[time.Duration]int{0: 101, 200 * time.Millisecond: 6} {
		room := quantity.Size{CPU: quantity.Core, Memory: quantity.GiB}
		hosts := []predictor.Host{{ID: "host", Capacity: room, Free: room}}
		stack := sim.New(sim.Options{Start: epoch, Hosts: hosts, Gap: gap})
		plans := map[time.Time]bool{stack.Plan().At: true}
		for i := range 100 { // one each 10 ms
			at := epoch.Add(time.Duration(i+1) * 10 * time.Millisecond)
			started := predictor.RunStarted{Run: strconv.Itoa(i), Pipeline: "p", App: "app", At: at}
			if err := stack.Tell(t.Context(), started); err != nil {
				t.Fatal(err)
			}
			plans[stack.Plan().At] = true
		}
		if len(plans) != want {
			t.Errorf("with a gap of %s: %d plans, want %d", gap, len(plans), want)
		}
	}
}
