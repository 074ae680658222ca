package predictor_test

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

func anew(venue predictor.Venue, instance string, at float64) predictor.HostStarted {
	return predictor.HostStarted{Host: "laptop", Venue: venue, Instance: instance, At: after(at)}
}

func by(instance string, e predictor.AttemptStarted) predictor.AttemptStarted {
	e.Instance = instance
	return e
}

func atFunction(e predictor.AttemptStarted) predictor.AttemptStarted {
	e.Venue, e.Host, e.Supervisor = predictor.Function, "app-1769", "laptop"
	return e
}

func lost(e predictor.Record) predictor.Record {
	e.Outcome, e.Cause, e.Usage = predictor.Lost, predictor.CauseHostLost, quantity.Usage{}
	return e
}

func sample(run, stage string, task int, at float64) predictor.Sampled {
	return predictor.Sampled{
		Run: run, Stage: stageNamed(stage), Task: fmt.Sprintf("%s-%d", stage, task), Attempt: 1, Venue: predictor.Pool,
		Host: "laptop", At: after(at),
	}
}

func TestWhatAFormerSelfRanIsLostAtOnce(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		events []predictor.Event
		want   string // of the pool's reason
	}{
		{"at the pool", []predictor.Event{
			hint("r", "score", 3, 0), by("a", start("r", "score", 0, 0)), by("a", start("r", "score", 1, 0)),
			anew(predictor.Pool, "b", 1),
		}, "3 tasks wait and none runs"},
		{"of an engine that named no instance", []predictor.Event{
			hint("r", "score", 3, 0), start("r", "score", 0, 0), anew(predictor.Pool, "b", 1),
		}, "3 tasks wait and none runs"},
		{"at functions", []predictor.Event{
			hint("r", "score", 3, 0), by("a", atFunction(start("r", "score", 0, 0))), anew(predictor.Function, "b", 1),
		}, "3 tasks wait and none runs"},
		{"at functions, by an engine that named no supervisor", []predictor.Event{
			hint("r", "score", 3, 0), venued(start("r", "score", 0, 0)), anew(predictor.Function, "b", 1),
		}, "3 tasks wait and none runs"},
		{"but not what the new instance runs, however often it says that it is new", []predictor.Event{
			hint("r", "score", 3, 0), by("a", start("r", "score", 0, 0)), anew(predictor.Pool, "b", 1),
			by("b", start("r", "score", 1, 1)),
			anew(predictor.Pool, "b", 1),
		}, "2 tasks wait and 1 runs"},
		{"but not what the other venue of the host runs", []predictor.Event{
			hint("r", "score", 3, 0), by("a", start("r", "score", 0, 0)), anew(predictor.Function, "b", 1),
		}, "2 tasks wait and 1 runs"},
		{"and its Record changes nothing", []predictor.Event{
			hint("r", "score", 3, 0), by("a", start("r", "score", 0, 0)), anew(predictor.Pool, "b", 1),
			lost(record("r", "score", 0, 1, 1)),
		}, "3 tasks wait and none runs"},
		{"and the next attempt takes its task once, whenever its Record comes", []predictor.Event{
			hint("r", "score", 1, 0), by("a", start("r", "score", 0, 0)), anew(predictor.Pool, "b", 1),
			by("b", again(start("r", "score", 0, 1), 2)), lost(record("r", "score", 0, 1, 1)),
		}, "no task waits and 1 runs"},
		{"and a sample shows that it lives", []predictor.Event{
			hint("r", "score", 2, 0), by("a", start("r", "score", 0, 0)), anew(predictor.Pool, "b", 1),
			sample("r", "score", 0, 1),
		}, "1 task waits and 1 runs"},
		{"and a sample after its task was taken again does not", []predictor.Event{
			hint("r", "score", 2, 0), by("a", start("r", "score", 0, 0)), anew(predictor.Pool, "b", 1),
			by("b", again(start("r", "score", 0, 1), 2)), sample("r", "score", 0, 1),
		}, "1 task waits and 1 runs"},
		{"and when it ended well after all its task waits no more", []predictor.Event{
			hint("r", "score", 2, 0), by("a", start("r", "score", 0, 0)), anew(predictor.Pool, "b", 1),
			record("r", "score", 0, 1, 1),
		}, "1 task waits and none runs"},
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

// venued is an attempt at functions as earlier builds told of it.
func venued(e predictor.AttemptStarted) predictor.AttemptStarted {
	e.Venue, e.Host = predictor.Function, "app-1769"
	return e
}

// TestAfterACrashDecisionsAreAsUndisturbed kills a pool of one core again and again while 14 runs of 44 tasks wait:
// what runs, what waits, the slots and the functions are then those of a pool that was never killed.
func TestAfterACrashDecisionsAreAsUndisturbed(t *testing.T) {
	t.Parallel()
	const runs, tasks, kills = 14, 44, 20
	backlog := func() predictor.State {
		state := learn(predictor.State{}, "score", 10, 1)
		for run := range runs {
			id := fmt.Sprint("run-", run)
			state = fold(state, started(id, 0, predictor.Goal{}), hint(id, "score", tasks, 0))
		}
		return state
	}
	wanted, _ := predictor.Decide(fold(backlog(), by("last", start("run-0", "score", 0, 41))), laptop(41, 1))
	state := backlog()
	for kill := range kills {
		now, instance := float64(2*kill), fmt.Sprint("instance-", kill)
		state = fold(state, anew(predictor.Pool, instance, now), anew(predictor.Function, instance, now))
		// Each instance takes a task at the pool and some at functions, of which nobody hears again.
		state = fold(state, by(instance, start(fmt.Sprint("run-", kill%runs), "score", kill, now)))
		for i := range 8 {
			state = fold(state, by(instance, atFunction(start(fmt.Sprint("run-", (kill+i)%runs), "score", 20+i, now))))
		}
		_, state = predictor.Decide(state, laptop(now+1, 1))
	}
	state = fold(state, anew(predictor.Pool, "last", 40), anew(predictor.Function, "last", 40),
		by("last", again(start("run-0", "score", 0, 41), 2)))
	plan, state := predictor.Decide(state, laptop(41, 1))
	for _, venue := range []predictor.Venue{predictor.Pool, predictor.Function} {
		if got, want := slots(plan, "score", venue), slots(wanted, "score", venue); got != want || got == 0 {
			t.Errorf("%s: %d slots after %d kills, %d when undisturbed\n%s", venue, got, kills, want,
				strings.Join(reasons(plan), "\n"))
		}
	}
	running, waiting := counted(t, state)
	if running != 1 || waiting != runs*tasks-1 {
		t.Errorf("after %d kills %d attempts run and %d tasks wait, want 1 and %d", kills, running, waiting, runs*tasks-1)
	}
}

// TestAnAttemptWhoseHostHasNoLeaseIsLost takes the lease of a host away, for a moment and for good.
func TestAnAttemptWhoseHostHasNoLeaseIsLost(t *testing.T) {
	t.Parallel()
	state := fold(predictor.State{}, started("r", 0, predictor.Goal{}), hint("r", "score", 3, 0),
		by("a", start("r", "score", 0, 0)))
	tick := func(now float64, present bool) {
		snap := laptop(now, 1)
		if !present {
			snap.Hosts[0].ID = "another"
		}
		_, state = predictor.Decide(state, snap)
	}
	expect := func(when string, want int) {
		t.Helper()
		if got, _ := counted(t, state); got != want {
			t.Errorf("%s %d attempts run, want %d", when, got, want)
		}
	}
	for now := range 10 {
		tick(float64(now), true)
	}
	for now := 10; now < 24; now++ {
		tick(float64(now), false)
	}
	expect("after 14 s without a lease", 1)
	tick(25, true) // back
	for now := 26; now < 40; now++ {
		tick(float64(now), false)
	}
	expect("after a lease that came back", 1)
	state = fold(state, sample("r", "score", 0, 39)) // its host cannot reach its lease, but tells of it
	for now := 40; now < 54; now++ {
		tick(float64(now), false)
	}
	expect("and are heard of", 1)
	state = fold(state, sample("r", "score", 0, 54))
	tick(24*3600, false) // a jump of the clock is no silence
	expect("after a jump of the clock", 1)
	for now := range 20 {
		tick(24*3600+float64(now), false)
	}
	expect("long after the last word of its host", 0)
}

// fataler is a test, or a property of one.
type fataler interface {
	Helper()
	Fatalf(format string, arguments ...any)
}

// counted returns how many attempts a state takes to be running, and how many tasks to be waiting.
func counted(tb fataler, state predictor.State) (running, waiting int) {
	tb.Helper()
	var saved struct {
		Attempts []struct{ Lost, Replaced bool }
		Stages   []struct{ Queues []struct{ Tasks int } }
	}
	data, err := json.Marshal(state)
	if err == nil {
		err = json.Unmarshal(data, &saved)
	}
	if err != nil {
		tb.Fatalf("read the state: %v", err)
	}
	for _, attempt := range saved.Attempts {
		if !attempt.Lost && !attempt.Replaced {
			running++
		}
	}
	for _, stage := range saved.Stages {
		for _, queue := range stage.Queues {
			waiting += queue.Tasks
		}
	}
	return running, waiting
}

// TestTasksAreCountedOnceWhateverDies takes, loses, revives and ends attempts of few tasks at random; what waits and
// what runs is then known exactly, because every word arrives.
func TestTasksAreCountedOnceWhateverDies(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		const tasks = 6
		state := fold(predictor.State{}, started("r", 0, predictor.Goal{}), hint("r", "score", tasks, 0))
		var (
			attempt [tasks]int  // the latest; 0 before the first
			runs    [tasks]bool // the latest is known to run
			done    [tasks]bool
			owing   []predictor.Record // Records of lost attempts that are still to come
			selves  = 1
		)
		for step := range rapid.IntRange(1, 60).Draw(t, "steps") {
			now := float64(step)
			task := rapid.IntRange(0, tasks-1).Draw(t, "task")
			switch action := rapid.IntRange(0, 4).Draw(t, "action"); {
			case action == 0: // the host dies and starts anew
				selves++
				for i := range tasks {
					if runs[i] {
						line := lost(record("r", "score", i, now, 1))
						line.Attempt, runs[i] = attempt[i], false
						owing = append(owing, line)
					}
				}
				state = fold(state, anew(predictor.Pool, strconv.Itoa(selves), now))
			case action == 1 && len(owing) > 0:
				state = fold(state, owing[0], owing[0])
				owing = owing[1:]
			case done[task]:
			case runs[task]:
				line := record("r", "score", task, now, 1)
				line.Attempt = attempt[task]
				if runs[task], done[task] = false, action == 2; !done[task] {
					line.Outcome = predictor.Failed
				}
				state = fold(state, line)
			default:
				attempt[task]++
				runs[task] = true
				state = fold(state, by(strconv.Itoa(selves), again(start("r", "score", task, now), attempt[task])))
			}
			wantRunning, wantWaiting := 0, 0
			for i := range tasks {
				switch {
				case runs[i]:
					wantRunning++
				case !done[i]:
					wantWaiting++
				}
			}
			_, state = predictor.Decide(state, laptop(now, 1))
			if running, waiting := counted(t, state); running != wantRunning || waiting != wantWaiting {
				t.Fatalf("step %d: %d run and %d wait, want %d and %d", step, running, waiting, wantRunning, wantWaiting)
			}
		}
	})
}
