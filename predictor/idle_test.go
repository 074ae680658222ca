package predictor_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// priced is a snapshot of one host with four cores, at 16 cents an hour: a slot of a core costs 4 cents.
func priced(now float64) predictor.Snapshot {
	snap := laptop(now, 4)
	snap.Hosts[0].PricePerHour = 16 * quantity.USD / 100
	return snap
}

// cold is a record whose child took so many seconds to start.
func cold(run, stage string, task int, at, wall, started float64) predictor.Record {
	line := record(run, stage, task, at, wall)
	line.Cold, line.Start = true, time.Duration(started*float64(time.Second))
	return line
}

// idle is a state in which a task of a stage has ended at 0 that took a second of start, and one slot is held.
func idle(t *testing.T, snapshot func(now float64) predictor.Snapshot, started float64) predictor.State {
	t.Helper()
	state := fold(predictor.State{}, begun("r"), hint("r", "score", 1, -1))
	_, state = predictor.Decide(state, snapshot(-1))
	state = fold(state, start("r", "score", 0, -1), cold("r", "score", 0, 0, 1, started))
	plan, state := predictor.Decide(state, snapshot(0))
	if slots(plan, "score", predictor.Pool) != 1 {
		t.Fatalf("a stage whose task has just ended holds %d slots, want 1", slots(plan, "score", predictor.Pool))
	}
	return state
}

func begun(run string) predictor.RunStarted { return started(run, -2, predictor.Goal{}) }

// until is when the stage gave its last slot back, to the second, and what was said of it.
func until(
	t *testing.T, state predictor.State, snapshot func(now float64) predictor.Snapshot,
) (at float64, why string) {
	t.Helper()
	var plan predictor.Plan
	for now := 1.0; now < 2000; now++ {
		plan, state = predictor.Decide(state, snapshot(now))
		if slots(plan, "score", predictor.Pool) == 0 {
			return now, strings.Join(reasons(plan), "\n")
		}
	}
	return 2000, "never"
}

// TestAnIdleSlotIsKeptForWhatAStartIsWorth has an hour worth a dollar, so that a start is worth 26 times as long of a
// slot that costs 4 cents, and no forecast yet.
func TestAnIdleSlotIsKeptForWhatAStartIsWorth(t *testing.T) {
	t.Parallel()
	bounded := func(limit time.Duration) func(float64) predictor.Snapshot {
		return func(now float64) predictor.Snapshot {
			snap := priced(now)
			snap.Policy.IdleAfter = limit
			return snap
		}
	}
	for _, one := range []struct {
		name     string
		snapshot func(float64) predictor.Snapshot
		started  float64
		want     float64
		why      string
	}{
		{"a start of four seconds", priced, 4, 105, "no task for 105 s: an idle stage holds nothing, as a start takes 4 s, " +
			"which is worth 104 s of an idle slot"},
		{"a start of ten milliseconds: no more changes than can be read", priced, 0.01, 10, "worth 0.26 s of an idle slot"},
		{"a start of a minute, as long as the user lets it", priced, 60, 600, "no task for 10m0s"},
		{"a bound of a quarter of a minute", bounded(15 * time.Second), 4, 15, "no task for 15 s"},
		{"nothing is to be kept", bounded(0), 4, 1, "an idle stage holds nothing"},
		{"hosts without a price", func(now float64) predictor.Snapshot { return laptop(now, 4) }, 4, 30, "no task for 30 s"},
		{"starts that nobody measured", priced, 0, 30, "no task for 30 s"},
		{"no predictor", func(now float64) predictor.Snapshot {
			snap := priced(now)
			snap.Policy.Static = true
			return snap
		}, 4, 30, "no task for 30 s"},
	} {
		t.Run(one.name, func(t *testing.T) {
			t.Parallel()
			var state predictor.State
			if one.want > 1 {
				state = idle(t, one.snapshot, one.started)
			} else {
				state = idle(t, priced, one.started)
			}
			at, why := until(t, state, one.snapshot)
			if at != one.want || !strings.Contains(why, one.why) {
				t.Errorf("it was given back after %v s, want %v: %q, want %q in it", at, one.want, why, one.why)
			}
		})
	}
}

// served is what a stage costs at which a task comes at some times: starts, and idle slots.
type served struct {
	starts, changes int
	idle            time.Duration
}

// cost is in cents: a start of four seconds, at a dollar an hour of waiting and 4 cents of room.
func (s served) cost() float64 { return 100 * (float64(s.starts)*4*1.04/3600 + s.idle.Hours()*0.04) }

// serve lets a task come at each second that comes says, for days of which the last counts, decided every five seconds.
func serve(
	days int, snapshot func(now float64) predictor.Snapshot, comes func(second int) bool,
) (last served, why string) {
	const second, day = 5, 24 * 3600
	state := fold(predictor.State{}, begun("r"))
	held, task, words := 0, 0, []string{}
	for now := 0; now < days*day; now += second {
		at := float64(now)
		came := comes(now)
		if came {
			state = fold(state, hint("r", "score", 1, at))
		}
		plan, next := predictor.Decide(state, snapshot(at))
		state = next
		slots, counts := slots(plan, "score", predictor.Pool), now >= (days-1)*day
		if counts && slots != held {
			last.changes++
		}
		if counts && slots > 0 && !came {
			last.idle += second * time.Second
		}
		if counts && held > 0 && slots == 0 && len(words) < 1 {
			words = append(words, reasons(plan)...)
		}
		if came {
			line := record("r", "score", task, at+1, 1)
			if held == 0 {
				line = cold("r", "score", task, at+1, 1, 4)
				if counts {
					last.starts++
				}
			}
			state = fold(state, start("r", "score", task, at), line)
			task++
		}
		held = slots
	}
	return last, fmt.Sprint(words)
}

// TestIdleSlotsCostWhatTheForecastIsWorth has tasks that come at times which can be known: the bound is then 1 + 1/2
// times what hindsight pays. Half a minute, for which each slot was kept before, is the better guess where a gap is a
// little longer than what a start is worth, and costs more where it is shorter.
func TestIdleSlotsCostWhatTheForecastIsWorth(t *testing.T) {
	if testing.Short() {
		t.Skip("a day of decisions")
	}
	t.Parallel()
	usual := func(now float64) predictor.Snapshot {
		snap := priced(now)
		snap.Policy.IdleAfter = 30 * time.Second
		return snap
	}
	for _, one := range []struct {
		name  string
		comes func(second int) bool
		least float64 // what half a minute costs over it
	}{
		{"every two minutes", func(s int) bool { return s%120 == 0 }, 0.8},
		{"each full hour", func(s int) bool { return s%3600 == 0 }, 0.8},
		{"from nine to five each minute and a half", func(s int) bool {
			return s%(24*3600) >= 9*3600 && s%(24*3600) < 17*3600 && s%90 == 0
		}, 1.5},
	} {
		t.Run(one.name, func(t *testing.T) {
			t.Parallel()
			best, since := served{}, -1
			for s := 0; s < 2*24*3600; s += 5 {
				if !one.comes(s) {
					continue
				}
				gap := time.Duration(s-since) * time.Second
				switch since, gap = s, gap-time.Second; {
				case s < 24*3600:
				case gap.Hours()*0.04 < 4*1.04/3600:
					best.idle += gap
				default:
					best.starts++
				}
			}
			ours, why := serve(2, priced, one.comes)
			before, _ := serve(2, usual, one.comes)
			t.Logf("%+v: %.2f cents; with half a minute %+v: %.2f; hindsight %.2f", ours, ours.cost(), before, before.cost(),
				best.cost())
			t.Log(why)
			if ours.cost() > 1.5*best.cost() {
				t.Errorf("it costs %.2f cents, %.2f times what hindsight pays, want 1.5 at most", ours.cost(),
					ours.cost()/best.cost())
			}
			if before.cost() < one.least*ours.cost() {
				t.Errorf("it costs %.2f cents, with half a minute %.2f: want that to be %.2f times as much at least", ours.cost(),
					before.cost(), one.least)
			}
		})
	}
}
