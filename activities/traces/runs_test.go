package traces

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

var noon = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// life draws what a loop tells of one run whose clocks agree: every Record lies between the run's start and its end,
// and none is there twice.
func life(t *rapid.T) []predictor.Event {
	moment := func(name string, from, to time.Time) time.Time {
		return from.Add(time.Duration(rapid.Int64Range(0, int64(to.Sub(from))).Draw(t, name)))
	}
	end := noon.Add(time.Hour)
	started := predictor.RunStarted{Run: "run-1", Pipeline: "train", At: noon}
	if rapid.Bool().Draw(t, "event") {
		started.EventAt = noon.Add(-time.Second)
	}
	if rapid.Bool().Draw(t, "trace") {
		started.Traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	}
	events := []predictor.Event{started}
	for task := range rapid.IntRange(0, 4).Draw(t, "tasks") {
		outcomes := []predictor.Outcome{predictor.Failed, predictor.OutOfMemory, predictor.Lost, predictor.Refused}
		attempts := rapid.IntRange(1, 4).Draw(t, "attempts")
		for attempt := range attempts {
			if attempt == attempts-1 {
				outcomes = append(outcomes, predictor.Succeeded) // after which there is none
			}
			scheduled := moment("scheduled", noon, end)
			record := predictor.Record{
				Run: "run-1", Pipeline: "train", Stage: predictor.StageID{App: "a", Build: "b", Name: "s"},
				Task: fmt.Sprint("task-", task), Attempt: attempt + 1,
				Venue:   rapid.SampledFrom([]predictor.Venue{predictor.Pool, predictor.Function}).Draw(t, "venue"),
				Outcome: rapid.SampledFrom(outcomes).Draw(t, "outcome"),
				// Durations that do not agree with the times: they come from several clocks.
				Queue: time.Duration(rapid.Int64Range(-1e9, 4e12).Draw(t, "queue")),
				Start: time.Duration(rapid.Int64Range(-1e9, 1e12).Draw(t, "start")),
				Usage: quantity.Usage{
					Wall:    time.Duration(rapid.Int64Range(-1e9, 4e12).Draw(t, "wall")),
					Fetch:   time.Duration(rapid.Int64Range(-1e9, 4e12).Draw(t, "fetch")),
					Publish: time.Duration(rapid.Int64Range(-1e9, 4e12).Draw(t, "publish")),
				},
				ScheduledAt: scheduled, At: moment("end", scheduled, end),
			}
			events = append(events, record)
		}
	}
	return append(events, predictor.RunEnded{Run: "run-1", State: predictor.RunFailed, At: end})
}

func TestEverySpanLiesWithinItsParent(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		fold := newRuns(mostRuns, mostTasks, time.Time{})
		events := life(t)
		all := map[[8]byte]span{}
		for _, event := range events {
			for _, s := range fold.apply(event) {
				if other, twice := all[s.id]; twice {
					t.Fatalf("%s and %s share the ID %x", other.name, s.name, s.id)
				}
				all[s.id] = s
			}
		}
		attempts := 0
		for _, s := range all {
			parent, has := all[s.parent]
			if s.trace != all[wire.RunSpanID("run-1")].trace || s.end.Before(s.start) {
				t.Errorf("%s is of trace %x, from %v to %v", s.name, s.trace, s.start, s.end)
			}
			if s.name == "attempt s" {
				attempts++
			}
			outside := s.parent == [8]byte{} || s.remote // a root, or below the publisher's span
			if outside == has {
				t.Errorf("%s: its parent %x is exported: %t", s.name, s.parent, has)
			}
			followed := parent.name == "receive train" // a run begins where its event's span ends
			if has && !followed && (s.start.Before(parent.start) || s.end.After(parent.end)) {
				t.Errorf("%s, %v to %v, is not within %s, %v to %v", s.name, s.start, s.end, parent.name, parent.start, parent.end)
			}
			if followed && s.start.Before(parent.end) {
				t.Errorf("the run begins at %v, before its event's span ends at %v", s.start, parent.end)
			}
		}
		if want := len(events) - 2; attempts != want {
			t.Errorf("%d attempts are exported, want %d", attempts, want)
		}
	})
}

func TestPartsFollowOneAnotherAndSumToWhatTheRecordSays(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		took := func(name string) time.Duration {
			return time.Duration(rapid.Int64Range(0, 1e12).Draw(t, name))
		}
		record := predictor.Record{
			ScheduledAt: noon, Queue: took("queue"), Start: took("start"),
			Usage: quantity.Usage{Wall: took("wall")},
		}
		record.At = noon.Add(record.Queue + record.Start + record.Usage.Wall + took("after"))
		record.Usage.Fetch = min(took("fetch"), record.Usage.Wall)
		record.Usage.Publish = min(took("publish"), record.Usage.Wall-record.Usage.Fetch)
		start, parts := layout(record)
		got, at := map[string]time.Duration{}, start
		for _, p := range parts {
			if !p.start.Equal(at) {
				t.Errorf("%s begins at %v, and what was before it ends at %v", p.name, p.start, at)
			}
			got[p.name], at = p.end.Sub(p.start), p.end
		}
		for name, want := range map[string]time.Duration{
			"queue": record.Queue, "start": record.Start, "fetch": record.Usage.Fetch, "publish": record.Usage.Publish,
			"compute": record.Usage.Wall - record.Usage.Fetch - record.Usage.Publish,
		} {
			if got[name] != want {
				t.Errorf("%s took %v, want %v", name, got[name], want)
			}
		}
	})
}

func record(run, task string, attempt int, outcome predictor.Outcome) predictor.Record {
	return predictor.Record{
		Run: run, Stage: predictor.StageID{Name: "s"}, Task: task, Attempt: attempt, Outcome: outcome, ScheduledAt: noon,
		At:    noon.Add(time.Second),
		Usage: quantity.Usage{Wall: time.Second},
	}
}

func TestWhatIsRememberedIsBounded(t *testing.T) {
	t.Parallel()
	const runsKept, tasksKept = 8, 50
	fold := newRuns(runsKept, tasksKept, time.Time{})
	exported := map[string]int{}
	apply := func(event predictor.Event) {
		for _, s := range fold.apply(event) {
			exported[s.name]++
		}
	}
	const runsStarted, tasksEach = 500, 20
	for i := range runsStarted { // none ever ends, but every fifth
		id := fmt.Sprint("run-", i)
		apply(predictor.RunStarted{Run: id, Pipeline: "p", At: noon})
		for j := range tasksEach {
			apply(record(id, fmt.Sprint("task-", j), 1, predictor.Failed))
		}
		if i%5 == 0 {
			apply(predictor.RunEnded{Run: id, State: predictor.RunSucceeded, At: noon})
		}
		tasks := 0
		for _, known := range fold.all {
			tasks += len(known.tasks)
		}
		if fold.going > runsKept || len(fold.all) > runsKept+mostEnded || len(fold.order) > 2*runsKept+1 ||
			tasks > tasksKept || len(fold.tasks) > 2*tasksKept+2 {
			t.Fatalf("after %d runs: %d go on, %d are known, %d in order, %d tasks, %d in order", i+1, fold.going, len(fold.all),
				len(fold.order), tasks, len(fold.tasks))
		}
	}
	for i := range runsStarted {
		apply(predictor.RunEnded{Run: fmt.Sprint("run-", i), State: predictor.RunSucceeded, At: noon})
	}
	if exported["run p"] != runsStarted || exported["task s"] != runsStarted*tasksEach ||
		exported["attempt s"] != runsStarted*tasksEach {
		t.Errorf("exported %v, want every run, task and attempt once", exported)
	}
}

func TestWhatComesTwiceOrLateIsExportedOnce(t *testing.T) {
	t.Parallel()
	fold := newRuns(mostRuns, mostTasks, time.Time{})
	exported := map[string]int{}
	for range 2 {
		for _, event := range []predictor.Event{
			predictor.RunStarted{Run: "run-1", Pipeline: "p", EventAt: noon, At: noon},
			record("run-1", "a", 1, predictor.Failed), record("run-1", "a", 2, predictor.Succeeded),
			record("run-1", "b", 1, predictor.Failed),
			predictor.RunEnded{Run: "run-1", State: predictor.RunFailed, At: noon.Add(time.Minute)},
			record("run-1", "b", 2, predictor.Lost), record("run-1", "c", 1, predictor.Lost),
		} {
			for _, s := range fold.apply(event) {
				exported[s.name]++
			}
		}
	}
	if exported["receive p"] != 1 || exported["run p"] != 1 || exported["task s"] != 3 || exported["attempt s"] != 5 {
		t.Errorf("exported %v", exported)
	}
}

func TestARunWhoseStartIsToldAtItsEndIsOneTrace(t *testing.T) {
	t.Parallel()
	fold := newRuns(mostRuns, mostTasks, time.Time{})
	var all []span
	for _, event := range []predictor.Event{
		record("run-1", "a", 1, predictor.Succeeded),
		predictor.RunStarted{
			Run: "run-1", Pipeline: "p", EventAt: noon,
			Traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", At: noon,
		},
		predictor.RunEnded{Run: "run-1", State: predictor.RunSucceeded, At: noon.Add(time.Minute)},
	} {
		all = append(all, fold.apply(event)...)
	}
	for _, s := range all {
		if s.trace != wire.TraceID("run-1") {
			t.Errorf("%s is of trace %x", s.name, s.trace)
		}
	}
	if last := all[len(all)-1]; last.name != "run p" || !last.start.Equal(noon) {
		t.Errorf("the last span is %s from %v", last.name, last.start)
	}
}
