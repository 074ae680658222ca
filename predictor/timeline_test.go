package predictor_test

import (
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// moment is one row of a time line: what happens, and what the tick after it grants the stage "score".
type moment struct {
	at             float64
	events         []predictor.Event
	pool, function int
	reason         string // part of the reason of some decision of the tick; empty when nothing may change
}

func TestTimeLines(t *testing.T) {
	t.Parallel()
	for _, line := range []struct {
		name    string
		goal    predictor.Goal
		known   float64 // seconds that earlier attempts took; 0 for a stage nobody ran
		cores   int
		change  func(*predictor.Snapshot)
		moments []moment
	}{
		{
			name:  "a stage gets its slots on the first hint, keeps them while idle, then none, and is back on the next hint",
			known: 1, cores: 2,
			change: func(s *predictor.Snapshot) { s.Functions.Enabled = false },
			moments: []moment{
				{at: 0},
				{
					at: 1, events: []predictor.Event{hint("r", "score", 5, 1)}, pool: 2,
					reason: "5 tasks wait and none runs, 1 s each: done in 2.5 s at the pool; the hosts have no room for more slots",
				},
				{at: 2, events: []predictor.Event{start("r", "score", 0, 1.1), start("r", "score", 1, 1.1)}, pool: 2},
				{at: 3, events: []predictor.Event{
					record("r", "score", 0, 2.1, 1), record("r", "score", 1, 2.1, 1), start("r", "score", 2, 2.2),
					start("r", "score", 3, 2.2),
				}, pool: 2},
				{at: 4, events: []predictor.Event{
					record("r", "score", 2, 3.1, 1), record("r", "score", 3, 3.2, 1),
					start("r", "score", 4, 3.3),
				}, pool: 2},
				{at: 5, events: []predictor.Event{record("r", "score", 4, 5, 1)}, pool: 2},
				{at: 10, pool: 2},
				{at: 15, pool: 2},
				{at: 20, pool: 2}, // the second was needed lately
				{at: 25, pool: 1, reason: "no task waits or runs; one slot stays for 10 s more"},
				{at: 34, pool: 1},
				{at: 35, pool: 0, reason: "no task for 30 s: an idle stage holds nothing"},
				{at: 36},
				{at: 100, events: []predictor.Event{hint("r", "score", 1, 100)}, pool: 1, reason: "1 task waits"},
			},
		},
		{
			name: "nothing spills before an attempt told how long a task takes", cores: 1,
			moments: []moment{
				{
					at: 0, events: []predictor.Event{hint("r", "score", 500, 0)}, pool: 1,
					reason: "no attempt has ended yet to tell how long one takes",
				},
				{at: 1, events: []predictor.Event{start("r", "score", 0, 0.5)}, pool: 1},
				{
					at: 9, events: []predictor.Event{record("r", "score", 0, 9, 8)}, pool: 1, function: 8,
					reason: "8 function slots finish",
				},
			},
		},
		{
			name: "functions cost more than the time is worth, and that is told once", known: 0.1, cores: 1,
			change: func(s *predictor.Snapshot) { s.Functions.PerGiBSecond *= 1000; s.Functions.PerRequest *= 1000 },
			moments: []moment{
				{
					at: 0, events: []predictor.Event{hint("r", "score", 240, 0)}, pool: 1,
					reason: "240 tasks wait 24 s at 1 pool slot; 1 function slot would finish 12 s sooner for $0.3724, more than " +
						"the $0.003319 that 12 s are worth",
				},
				{at: 1, pool: 1},
				{at: 2, events: []predictor.Event{hint("r", "score", 100, 2)}, pool: 1},
			},
		},
		{
			name: "without burst nothing spills and nothing is said about it", known: 0.1, cores: 1,
			change: func(s *predictor.Snapshot) { s.Functions.Enabled = false },
			moments: []moment{
				{at: 0, events: []predictor.Event{hint("r", "score", 240, 0)}, pool: 1, reason: "240 tasks wait and none runs"},
				{at: 1, pool: 1},
			},
		},
		{
			name: "a deadline takes the least slots that meet it", known: 1, cores: 1,
			goal: predictor.Goal{Deadline: 40 * time.Second},
			moments: []moment{
				// 100 tasks at 1 s: T(1) = 50 s and T(2) = 33.4 s, and 40 s are left.
				{
					at: 0, events: []predictor.Event{hint("r", "score", 100, 0)}, pool: 1, function: 2,
					reason: "100 tasks wait 100 s at 1 pool slot, with 40 s left to the deadline, which the pool alone meets " +
						"with 0 %; 2 function slots finish in 33 s for",
				},
				{at: 1, pool: 1, function: 2},
			},
		},
		{
			name: "a run that minimises cost spills only for its deadline", known: 1, cores: 1,
			goal: predictor.Goal{Deadline: 500 * time.Second, Minimise: predictor.Cost},
			moments: []moment{
				{
					at: 0, events: []predictor.Event{hint("r", "score", 100, 0)}, pool: 1,
					reason: "well within the 8m20s left to the deadline",
				},
				{at: 1, events: []predictor.Event{predictor.GoalChanged{
					Run: "r", Goal: predictor.Goal{Minimise: predictor.Cost},
					At: after(1),
				}}, pool: 1, reason: ""},
				{
					at: 2, events: []predictor.Event{predictor.GoalChanged{
						Run:  "r",
						Goal: predictor.Goal{Deadline: 40 * time.Second, Minimise: predictor.Cost}, At: after(2),
					}}, pool: 1, function: 2,
					reason: "left to the deadline, which the pool alone meets with 0 %; 2 function slots finish",
				},
			},
		},
		{
			name: "a run that minimises latency takes all that helps, whatever it costs", known: 1, cores: 1,
			goal:   predictor.Goal{Minimise: predictor.Latency},
			change: func(s *predictor.Snapshot) { s.Functions.PerGiBSecond *= 1000 },
			moments: []moment{
				{
					at: 0, events: []predictor.Event{hint("r", "score", 100, 0)}, pool: 1, function: 8,
					reason: "the run minimises latency: 8 function slots finish 89 s sooner",
				},
			},
		},
		{
			name: "a budget bounds what latency may cost", known: 1, cores: 1,
			goal: predictor.Goal{Minimise: predictor.Latency, Budget: quantity.USD / 500},
			moments: []moment{
				// A task costs $0.0000290: 100 of them may cost at most $0.0029, and $0.002 is enough for two slots, which take 67
				// tasks.
				{
					at: 0, events: []predictor.Event{hint("r", "score", 100, 0)}, pool: 1, function: 2,
					reason: "of the budget of $0.002000 is left",
				},
			},
		},
		{
			name: "a budget that is spent ends the spilling at once", known: 1, cores: 1,
			goal: predictor.Goal{Minimise: predictor.Latency, Budget: quantity.USD},
			moments: []moment{
				{at: 0, events: []predictor.Event{hint("r", "score", 100, 0)}, pool: 1, function: 8, reason: "8 function slots"},
				{
					at: 1, events: []predictor.Event{costly(record("r", "score", 0, 1, 1), quantity.USD)}, pool: 1, function: 0,
					reason: "$0 of the budget of $1.00 is left",
				},
			},
		},
		{
			name: "with the predictor off functions stay unused and slots are as many as fit", known: 0.1, cores: 2,
			change: func(s *predictor.Snapshot) { s.Policy.Static = true },
			moments: []moment{
				{at: 0, events: []predictor.Event{hint("r", "score", 240, 0)}, pool: 2, reason: "240 tasks wait"},
			},
		},
		{
			name: "work that runs keeps its slots while the queue is corrected to empty", known: 1, cores: 4,
			change: func(s *predictor.Snapshot) { s.Functions.Enabled = false },
			moments: []moment{
				{at: 0, events: []predictor.Event{hint("r", "score", 4, 0)}, pool: 4, reason: "4 tasks wait"},
				{at: 20, events: []predictor.Event{
					start("r", "score", 0, 0), start("r", "score", 1, 0), start("r", "score", 2, 0),
					predictor.BacklogObserved{Stage: stageNamed("score"), Tasks: 0, At: after(20)},
				}, pool: 4},
				{at: 25, pool: 4},
				{at: 30, pool: 4},
				{at: 35, pool: 4},
				{at: 40, pool: 3, reason: "no task waits and 3 run: no more slots are needed"},
			},
		},
		{
			name: "a task the pool alone may run does not spill", known: 1, cores: 1,
			moments: []moment{
				{at: 0, events: []predictor.Event{predictor.Scheduled{
					Run: "r", Stage: stageNamed("score"), Tasks: 100,
					PoolOnly: true, At: after(0),
				}}, pool: 1, reason: "100 tasks wait"},
			},
		},
	} {
		t.Run(line.name, func(t *testing.T) {
			t.Parallel()
			var state predictor.State
			if line.known > 0 {
				state = learn(state, "score", 10, line.known)
			}
			state = fold(state, started("r", 0, line.goal))
			for _, now := range line.moments {
				state = fold(state, now.events...)
				snap := laptop(now.at, line.cores)
				if line.change != nil {
					line.change(&snap)
				}
				var plan predictor.Plan
				plan, state = predictor.Decide(state, snap)
				told := strings.Join(reasons(plan), "\n")
				if got := slots(plan, "score", predictor.Pool); got != now.pool {
					t.Errorf("at %v s: %d pool slots, want %d\n%s", now.at, got, now.pool, told)
				}
				if got := slots(plan, "score", predictor.Function); got != now.function {
					t.Errorf("at %v s: %d function slots, want %d\n%s", now.at, got, now.function, told)
				}
				if now.reason == "" && told != "" || !strings.Contains(told, now.reason) {
					t.Errorf("at %v s: decisions\n%s\nwant one with %q", now.at, told, now.reason)
				}
			}
		})
	}
}

func costly(record predictor.Record, cost quantity.Money) predictor.Record {
	record.Cost = cost
	return record
}

// TestABurstSpillsDrainsAndEndsAtZero serves a burst by the plan, task by task, and counts how often the function slots
// change.
func TestABurstSpillsDrainsAndEndsAtZero(t *testing.T) {
	t.Parallel()
	const tasks, tick, wall = 400, 0.5, 0.1
	state := fold(learn(predictor.State{}, "score", 10, wall), started("r", 0, predictor.Goal{}))
	served, changes, before, most, spilled := 0, 0, 0, 0, 0
	// The run's window lets 64 tasks wait at a time, and tells how many are to come.
	scheduled := 0
	announced := hint("r", "score", 0, 0)
	announced.Expected = tasks
	state = fold(state, announced)
	for now := 0.0; now < 60; now += tick {
		for scheduled < tasks && scheduled-served < 64 {
			state = fold(state, hint("r", "score", 1, now))
			scheduled++
		}
		var plan predictor.Plan
		plan, state = predictor.Decide(state, laptop(now, 1))
		functions := slots(plan, "score", predictor.Function)
		if functions != before {
			changes++
			before = functions
		}
		most = max(most, functions)
		for venue, n := range map[predictor.Venue]int{
			predictor.Pool:     slots(plan, "score", predictor.Pool),
			predictor.Function: functions,
		} {
			for range n * int(tick/wall) {
				if served == scheduled {
					break
				}
				began, ended := start("r", "score", served, now), record("r", "score", served, now+tick, wall)
				began.Venue, ended.Venue = venue, venue
				state = fold(state, began, ended)
				served++
				if venue == predictor.Function {
					spilled++
				}
			}
		}
	}
	plan, _ := predictor.Decide(state, laptop(60, 1))
	if served != tasks || most == 0 || spilled == 0 {
		t.Errorf("%d tasks served, %d of them by functions with up to %d slots; want %d, and some spilled", served, spilled,
			most, tasks)
	}
	if len(plan.Grants) > 0 || len(plan.Sizings) > 0 {
		t.Errorf("long after the burst the plan still has rows: %+v", plan)
	}
	if changes > 3 {
		t.Errorf("the function slots changed %d times, want up once or twice and down once", changes)
	}
}

func TestAPhantomBacklogIsNotBroughtBackByAnOldObservation(t *testing.T) {
	t.Parallel()
	observed := func(tasks int, at float64) predictor.Event {
		return predictor.BacklogObserved{Stage: stageNamed("score"), Tasks: tasks, At: after(at)}
	}
	for _, c := range []struct {
		name   string
		events []predictor.Event
		want   string // the pool's reason
	}{
		{
			"an observation from before a burst does not erase it",
			[]predictor.Event{hint("r", "score", 9, 0), observed(0, 1)},
			"9 tasks wait",
		},
		{"an observation well after it does", []predictor.Event{hint("r", "score", 9, 0), observed(2, 20)}, "2 tasks wait"},
		{"lost hints are looked for", []predictor.Event{observed(7, 1)}, "the queue still counts 7 tasks: one slot looks"},
		{"tasks that started meanwhile do not come back", []predictor.Event{
			hint("r", "score", 2, 0), start("r", "score", 0, 0.5), start("r", "score", 1, 0.6), observed(2, 1),
		}, "no task waits and 2 run"},
		{"a doubled start takes one task", []predictor.Event{
			hint("r", "score", 3, 0), start("r", "score", 0, 0),
			start("r", "score", 0, 0),
		}, "2 tasks wait and 1 runs"},
		{
			"a Record without its start takes one task",
			[]predictor.Event{hint("r", "score", 3, 0), record("r", "score", 0, 0, 1)},
			"2 tasks wait and none runs",
		},
		{"a doubled Record takes one task", []predictor.Event{
			hint("r", "score", 3, 0), record("r", "score", 0, 0, 1),
			record("r", "score", 0, 0, 1),
		}, "2 tasks wait and none runs"},
		{"a start after its Record is late news", []predictor.Event{
			hint("r", "score", 3, 0), record("r", "score", 0, 0, 1),
			start("r", "score", 0, 0),
		}, "2 tasks wait and none runs"},
		{"a failed attempt puts its task back", []predictor.Event{
			hint("r", "score", 3, 0), start("r", "score", 0, 0),
			failed(record("r", "score", 0, 1, 1)),
		}, "3 tasks wait and none runs"},
		{"a retry takes the place of an attempt whose host died silently", []predictor.Event{
			hint("r", "score", 3, 0), start("r", "score", 0, 0), again(start("r", "score", 0, 30), 2),
		}, "2 tasks wait and 1 runs"},
		{"the end of a run takes what it had queued", []predictor.Event{
			hint("r", "score", 3, 0), started("other", 0, predictor.Goal{}), hint("other", "score", 5, 0),
			predictor.RunEnded{Run: "other", State: predictor.RunCancelled, At: after(1)},
			hint("other", "score", 5, 2),
		}, "3 tasks wait and none runs"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			state := fold(fold(predictor.State{}, started("r", 0, predictor.Goal{})), c.events...)
			plan, _ := predictor.Decide(state, laptop(1, 1))
			if told := strings.Join(reasons(plan), "\n"); !strings.Contains(told, c.want) {
				t.Errorf("decisions\n%s\nwant one with %q", told, c.want)
			}
		})
	}
}

func failed(record predictor.Record) predictor.Record {
	record.Outcome = predictor.Failed
	return record
}

func again(started predictor.AttemptStarted, attempt int) predictor.AttemptStarted {
	started.Attempt = attempt
	return started
}
