package ledger

import (
	"fmt"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

var morning = time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)

// tight is a ledger that keeps little.
func tight() *Ledger {
	l := New()
	l.bounds = bounds{attempts: 100, looks: 200, runLooks: 80, points: 50}
	return l
}

// live tells of a run of tasks attempts, each of which is looked at and reports progress; they end if the run does.
func live(l *Ledger, id string, tasks int, ends bool) {
	stage := predictor.StageID{App: "app", Build: "b1", Name: "score"}
	second := func(s int) time.Time { return morning.Add(time.Duration(s) * time.Second) }
	l.Apply(predictor.RunStarted{Run: id, Pipeline: "p", App: "app", Build: "b1", At: morning})
	for task := range tasks {
		name := fmt.Sprint("t", task)
		l.Apply(predictor.AttemptStarted{
			Run: id, Stage: stage, Task: name, Attempt: 1, Venue: predictor.Pool, Host: "h",
			At: second(task),
		})
		for step := 1; step <= 5; step++ {
			l.Apply(predictor.Sampled{
				Run: id, Stage: stage, Task: name, Attempt: 1, CPU: 1000, Memory: 10, Step: step,
				Metrics: map[string]float64{"loss": 1}, At: second(task + step),
			})
		}
		if ends {
			l.Apply(predictor.Record{
				Run: id, Stage: stage, Task: name, Attempt: 1, Venue: predictor.Pool, Host: "h", Outcome: predictor.Succeeded,
				ScheduledAt: second(task), At: second(task + 6),
				Usage: quantity.Usage{Wall: 6 * time.Second}, Cost: 1000,
			})
		}
	}
	if ends {
		l.Apply(predictor.RunEnded{Run: id, State: predictor.RunSucceeded, At: second(tasks + 7)})
	}
}

// checkCounts compares what is counted as kept with what is kept.
func checkCounts(t *testing.T, l *Ledger) {
	t.Helper()
	var found tally
	for _, a := range l.order {
		found.attempts += a.detail.attempts.count
		found.looks += len(a.detail.looks)
		points := 0
		for _, c := range a.detail.curves {
			points += len(c.points)
		}
		if points != a.detail.points {
			t.Errorf("run %s counts %d points and has %d", a.id, a.detail.points, points)
		}
		found.points += points
	}
	if found != l.kept {
		t.Errorf("%+v are counted, %+v are kept", l.kept, found)
	}
	if l.kept.attempts > l.bounds.attempts || l.kept.looks > l.bounds.looks {
		t.Errorf("%+v are kept, want at most %+v", l.kept, l.bounds)
	}
}

func TestTheDetailOfTheOldestEndedRunIsDroppedFirst(t *testing.T) {
	t.Parallel()
	l := tight()
	live(l, "first", 30, false)
	for _, id := range []string{"a", "b", "c"} {
		live(l, id, 30, true)
		checkCounts(t, l)
	}
	for id, want := range map[string]int{"first": 30, "a": 0, "b": 30, "c": 30} {
		if got := l.runs[id].detail.attempts.count; got != want {
			t.Errorf("%d attempts of %s are kept, want %d", got, id, want)
		}
	}
	if got, _ := l.Run("a"); got.Totals.Attempts != 30 || got.Static.Actual != 30_000 {
		t.Errorf("the sums of a run whose attempts are not kept: %+v", got)
	}
	if curves, _ := l.Curves("first"); len(curves) == 0 {
		t.Error("the curves of a run that goes on are dropped")
	}
}

func TestWhenRunsThatGoOnTakeAllRoomTheRestIsOnlySummedUp(t *testing.T) {
	t.Parallel()
	l := tight()
	live(l, "large", 250, false)
	live(l, "late", 10, true)
	checkCounts(t, l)
	if got := l.runs["large"].detail.attempts.count; got != 100 {
		t.Errorf("%d attempts are kept, want 100", got)
	}
	if got, _ := l.Run("large"); got.Stages[0].Running != 250 {
		t.Errorf("%d attempts run, want 250", got.Stages[0].Running)
	}
	for range 2 { // told twice
		live(l, "late", 10, true)
	}
	if got, _ := l.Run("late"); got.Totals.Attempts != 10 || got.Totals.Cost != 10_000 {
		t.Errorf("the sums of a run without room are %+v", got.Totals)
	}
}

// TestADetailIsOfTheMomentWhenItWasMade takes in more behind snapshots, which share what does not change.
func TestADetailIsOfTheMomentWhenItWasMade(t *testing.T) {
	t.Parallel()
	stage := predictor.StageID{App: "app", Build: "b1", Name: "score"}
	l := New()
	l.Apply(predictor.RunStarted{Run: "r", Pipeline: "p", App: "app", Build: "b1", At: morning})
	const tasks = chunkSize + 10
	var details []*Detail
	for i := range 2 * tasks {
		task, at := fmt.Sprint("t", i%tasks), morning.Add(time.Duration(i)*time.Second)
		if i < tasks {
			l.Apply(predictor.AttemptStarted{Run: "r", Stage: stage, Task: task, Attempt: 1, Venue: predictor.Pool, At: at})
		} else {
			l.Apply(predictor.Record{
				Run: "r", Stage: stage, Task: task, Attempt: 1, Venue: predictor.Pool, Outcome: predictor.Succeeded, At: at,
			})
		}
		detail, known := l.Detail("r")
		if !known {
			t.Fatal("there is no run")
		}
		details = append(details, detail)
	}
	for i, detail := range details {
		begun, ended := min(i+1, tasks), max(0, i+1-tasks)
		if got := len(detail.Attempts(AttemptQuery{})); got != begun {
			t.Fatalf("detail %d has %d attempts, want %d", i, got, begun)
		}
		if got := len(detail.Attempts(AttemptQuery{Outcome: string(predictor.Succeeded)})); got != ended {
			t.Fatalf("in detail %d %d attempts have ended, want %d", i, got, ended)
		}
		if got := len(detail.Attempts(AttemptQuery{Outcome: Running})); got != begun-ended {
			t.Fatalf("in detail %d %d attempts go on, want %d", i, got, begun-ended)
		}
	}
	last := details[2*tasks-1]
	page := last.Attempts(AttemptQuery{Stage: "score", Offset: tasks - 2, Limit: 5})
	if len(page) != 2 || page[1].Task != fmt.Sprint("t", tasks-1) || last.Attempts(AttemptQuery{Stage: "x"}) == nil ||
		len(last.Attempts(AttemptQuery{Offset: 2 * tasks})) != 0 {
		t.Errorf("the last page is %+v", page)
	}
}
