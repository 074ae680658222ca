package ledger_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/timeline"
)

func attempts(t *testing.T, l *ledger.Ledger, run string) []timeline.Attempt {
	t.Helper()
	found, known := attemptsOf(l, run)
	if !known {
		t.Fatalf("run %q is not known", run)
	}
	return found
}

func TestAnAttemptIsLaidOutFromItsStartAndItsRecord(t *testing.T) {
	t.Parallel()
	begun := predictor.AttemptStarted{
		Run: "r", Stage: score, Task: "t0", Attempt: 1, Venue: predictor.Pool, Host: "h", Queue: 3 * time.Second,
		Grant: quantity.Size{CPU: 500}, At: after(4),
	}
	l := apply(started("r"), begun, begun)
	want := timeline.Attempt{
		Stage: "score", Task: "t0", Number: 1, Venue: predictor.Pool, Host: "h", ScheduledAt: after(1), StartedAt: after(4),
		Grant: quantity.Size{CPU: 500},
	}
	if diff := cmp.Diff([]timeline.Attempt{want}, attempts(t, l, "r")); diff != "" {
		t.Errorf("while it goes on (-want +got):\n%s", diff)
	}
	line := record(0, 1, predictor.Pool, predictor.Failed)
	line.Host, line.ScheduledAt, line.Queue, line.Start, line.Cold = "h", after(1), 2*time.Second, time.Second, true
	line.Cause, line.Error, line.Usage.Fetch = predictor.CauseError, strings.Repeat("é", 500), time.Second
	l.Apply(line)
	l.Apply(line)
	want = timeline.Attempt{
		Stage: "score", Task: "t0", Number: 1, Venue: predictor.Pool, Host: "h", Outcome: predictor.Failed,
		Cause: predictor.CauseError,
		Error: strings.Repeat("é", 100) + "…", ScheduledAt: after(1), AdmittedAt: after(3), StartedAt: after(4),
		EndedAt: after(10),
		Wall:    4 * time.Second, Fetch: time.Second, Cold: true, Grant: line.Grant, CPU: 2 * time.Second, PeakMemory: 100e6,
		PredictedWall: 2, PredictedMemory: 100e6, Cost: 1000,
	}
	if diff := cmp.Diff([]timeline.Attempt{want}, attempts(t, l, "r")); diff != "" {
		t.Errorf("once it ended (-want +got):\n%s", diff)
	}
	if _, known := attemptsOf(l, "nobody"); known {
		t.Error("the attempts of an unknown run are known")
	}
}

func TestClocksThatDisagreeDoNotPutAnAttemptOutOfOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		line := record(0, rapid.IntRange(1, 2).Draw(t, "attempt"), predictor.Pool, predictor.Succeeded)
		seconds := func(name string, low, high float64) time.Duration {
			return time.Duration(rapid.Float64Range(low, high).Draw(t, name) * float64(time.Second))
		}
		line.ScheduledAt = after(10).Add(seconds("scheduled", -1e6, 1e6))
		line.Queue, line.Start, line.Usage.Wall = seconds("queue", -10, 1e9), seconds("start", -10, 20),
			seconds("wall", -10, 100)
		if rapid.Bool().Draw(t, "nobody told") {
			line.ScheduledAt = time.Time{}
		}
		l := apply(started("r"), line)
		found, _ := attemptsOf(l, "r")
		a := found[0]
		if a.AdmittedAt.Before(a.ScheduledAt) || a.StartedAt.Before(a.AdmittedAt) ||
			a.EndedAt.Before(a.StartedAt.Add(a.Wall)) || !a.EndedAt.Equal(line.At) {
			t.Fatalf("%+v is laid out as %+v", line, a)
		}
	})
}

func TestAnAttemptOfWhichNothingMoreWasHeardIsLost(t *testing.T) {
	t.Parallel()
	begun := predictor.AttemptStarted{
		Run: "r", Stage: score, Task: "t0", Attempt: 1, Venue: predictor.Pool, Host: "h",
		At: after(4),
	}
	next := attempt(begun, 2)
	next.At, next.Queue = after(9), time.Second
	l := apply(started("r"), begun, next)
	if got := attempts(t, l, "r")[0]; got.Outcome != predictor.Lost || got.Cause != predictor.CauseHostLost ||
		!got.EndedAt.Equal(after(8)) {
		t.Errorf("before the next attempt: %+v, want lost when the next was taken", got)
	}
	late := record(0, 1, predictor.Pool, predictor.OutOfMemory)
	late.At = after(7)
	l.Apply(late)
	if got := attempts(t, l, "r")[0]; got.Outcome != predictor.OutOfMemory || !got.EndedAt.Equal(after(7)) {
		t.Errorf("its Record came late: %+v", got)
	}
	l.Apply(predictor.RunEnded{Run: "r", State: predictor.RunCancelled, At: after(12)})
	if got := attempts(t, l, "r")[1]; got.Outcome != predictor.Cancelled || !got.EndedAt.Equal(after(12)) {
		t.Errorf("of a cancelled run: %+v", got)
	}
	last := record(0, 2, predictor.Pool, predictor.Succeeded)
	last.At = after(13)
	l.Apply(last)
	if got := attempts(t, l, "r"); len(got) != 2 || got[1].Outcome != predictor.Succeeded {
		t.Errorf("a Record after the end: %+v", got)
	}
}

func TestTheTimeOfARunIsBrokenDownWhileItGoesOn(t *testing.T) {
	t.Parallel()
	begin := started("r")
	begin.EventAt = after(-1)
	l := apply(begin,
		predictor.Scheduled{Run: "r", Stage: score, Tasks: 2, At: after(2)},
		predictor.AttemptStarted{
			Run: "r", Stage: score, Task: "t0", Attempt: 1, Venue: predictor.Pool,
			Queue: 3 * time.Second, At: after(5),
		},
	)
	line := record(0, 1, predictor.Pool, predictor.Succeeded)
	line.ScheduledAt, line.Queue, line.Start, line.Usage.Wall, line.Usage.Publish = after(2), 2*time.Second, time.Second,
		5*time.Second, time.Second
	l.Apply(line)
	got, known := breakdownOf(l, "r", after(12))
	want := timeline.Breakdown{
		Wall: 13 * time.Second, Broker: time.Second, Engine: 2 * time.Second, Queue: 4 * time.Second, Start: time.Second,
		Compute: 4 * time.Second, Publish: time.Second,
	}
	if diff := cmp.Diff(want, got); diff != "" || !known {
		t.Errorf("with a task that nobody took (-want +got):\n%s", diff)
	}
	l.Apply(predictor.RunEnded{Run: "r", State: predictor.RunSucceeded, At: after(12)})
	want.Queue, want.Engine = 2*time.Second, 4*time.Second
	if got, _ = breakdownOf(l, "r", after(99)); got != want {
		t.Errorf("a run that succeeded waits for nothing:\n%s", cmp.Diff(want, got))
	}
	detail, _ := l.Detail("r")
	laid := detail.Timeline(after(99), 10)
	if !laid.From.Equal(after(-1)) || !laid.To.Equal(after(12)) || len(laid.Lanes) != 1 || laid.Lanes[0].Count != 1 {
		t.Errorf("laid out as %+v", laid)
	}
	for name, known := range map[string]bool{
		"detail": second(l.Detail("nobody")), "curves": second(l.Curves("nobody")),
	} {
		if known {
			t.Errorf("the %s of an unknown run is known", name)
		}
	}
}

func second[T any](_ T, known bool) bool { return known }

func TestSamplesSayWhatAnAttemptUsed(t *testing.T) {
	t.Parallel()
	begun := predictor.AttemptStarted{
		Run: "r", Stage: score, Task: "t0", Attempt: 1, Venue: predictor.Pool,
		Grant: quantity.Size{CPU: 1000}, At: after(0),
	}
	l := apply(started("r"), begun)
	const seconds = 40_000 // more than a run keeps
	for s := 1; s <= seconds; s++ {
		l.Apply(predictor.Sampled{
			Run: "r", Stage: score, Task: "t0", Attempt: 1, CPU: quantity.Milli(500 + 500*(s%2)), Memory: 100,
			Grant: quantity.Size{CPU: 1000}, At: after(float64(s)),
		})
	}
	detail, known := l.Detail("r")
	stages := detail.Allocation(after(seconds), 10)
	if !known || len(stages) != 1 || len(stages[0].Points) != 10 {
		t.Fatalf("%+v", stages)
	}
	for i, point := range stages[0].Points { // 0.75 cores in the mean, which thinning keeps
		if point.UsedCPU < 0.749 || point.UsedCPU > 0.751 || point.GrantedCPU < 0.999 || point.GrantedCPU > 1.001 ||
			point.UsedMemory < 99.9 || point.UsedMemory > 100.1 {
			t.Errorf("point %d is %+v", i, point)
		}
	}
}

func TestCurvesKeepOnePointForEachStepWithinTheirBounds(t *testing.T) {
	t.Parallel()
	l := apply(started("r"))
	report := func(task string, step int, at float64, metrics map[string]float64) {
		l.Apply(predictor.Sampled{
			Run: "r", Stage: score, Task: task, Attempt: 1, Step: step, Metrics: metrics,
			At: after(at),
		})
	}
	for step := 1; step <= 10; step++ {
		report("t0", step, float64(step), map[string]float64{"loss": 1 / float64(step)})
		report("t0", step, float64(step)+0.5, map[string]float64{"loss": 1 / float64(step)}) // looked at again
	}
	report("t0", 4, 2, map[string]float64{"loss": 9})                   // late
	report("t0", 6, 20, map[string]float64{"loss": 6, "accuracy": 0.5}) // went on from a checkpoint
	curves, _ := l.Curves("r")
	if len(curves) != 2 || curves[0].Metric != "loss" || len(curves[0].Points) != 6 || curves[0].Points[5].Value != 6 ||
		curves[0].Points[3].Value != 0.25 {
		t.Fatalf("%+v, want 5 steps and the sixth again", curves)
	}
	for step := 7; step <= 5000; step++ {
		report("t0", step, float64(step)+20, map[string]float64{"loss": float64(step)})
	}
	for task := range 100 {
		report(fmt.Sprint("other", task), 1, 6000, map[string]float64{"loss": 1})
	}
	curves, _ = l.Curves("r")
	points := curves[0].Points
	if len(curves) != 64 || len(points) > 512 || len(points) < 256 || points[0].Step != 1 ||
		points[len(points)-1].Step != 5000 {
		t.Errorf("%d curves, the first of %d points from %d to %d", len(curves), len(points), points[0].Step,
			points[len(points)-1].Step)
	}
	for i, point := range points[1:] {
		if point.Step <= points[i].Step {
			t.Fatalf("step %d comes after step %d", point.Step, points[i].Step)
		}
	}
}

func TestTheLastWordOfAnAttemptEndsItsCurve(t *testing.T) {
	t.Parallel()
	l := apply(started("r"))
	sample := func(step int, at, loss float64) predictor.Sampled {
		return predictor.Sampled{
			Run: "r", Stage: score, Task: "t0", Attempt: 1, Step: step,
			Metrics: map[string]float64{"loss": loss}, At: after(at),
		}
	}
	for step := 1; step <= 3; step++ {
		l.Apply(sample(step, float64(step), 1/float64(step)))
	}
	end := record(0, 1, predictor.Pool, predictor.Succeeded)
	end.Step, end.Of, end.Metrics = 5, 20, map[string]float64{"loss": 0.125, "accuracy": 0.9}
	l.Apply(end)
	check := func(when string, losses ...float64) {
		t.Helper()
		curves, _ := l.Curves("r")
		var got []float64
		for _, point := range curves[0].Points {
			got = append(got, point.Value)
		}
		if !slices.Equal(got, losses) || len(curves) != 2 || curves[1].Metric != "accuracy" {
			t.Errorf("%s: got %v of %d curves, want %v and the accuracy", when, got, len(curves), losses)
		}
		if got := view(t, l, "r").Stages[0]; got.Step != 5 || got.Of != 20 || got.Metrics["loss"] != 0.125 {
			t.Errorf("%s: the stage is at step %d of %d with %v, want the last word", when, got.Step, got.Of, got.Metrics)
		}
	}
	check("when it ended", 1, 0.5, 1.0/3, 0.125)
	l.Apply(end)
	l.Apply(sample(3, 9, 1.0/3))
	l.Apply(sample(4, 9.5, 0.25))
	check("told twice, and by late samples", 1, 0.5, 1.0/3, 0.125)
}

func TestTheLastWordOfAnAttemptThatWasSampledIsNoPointMore(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		last float64
		want []float64
	}{
		"the same value":                   {0.5, []float64{1, 0.5}},
		"another value of the latest step": {0.25, []float64{1, 0.25}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := apply(started("r"))
			for step := 1; step <= 2; step++ {
				metrics := map[string]float64{"loss": 1 / float64(step)}
				l.Apply(predictor.Sampled{
					Run: "r", Stage: score, Task: "t0", Attempt: 1, Step: step, Metrics: metrics,
					At: after(float64(step)),
				})
			}
			end := record(0, 1, predictor.Pool, predictor.Succeeded)
			end.Step, end.Metrics = 2, map[string]float64{"loss": c.last}
			l.Apply(end)
			curves, _ := l.Curves("r")
			var got []float64
			for _, point := range curves[0].Points {
				got = append(got, point.Value)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

func TestWhatARunReusedIsCountedOnce(t *testing.T) {
	t.Parallel()
	reused := predictor.Reused{Run: "r", Stage: score, Tasks: 3, From: "q", Saved: cent, Wall: time.Minute, At: after(1)}
	later := reused
	later.Tasks, later.From, later.At = 1, "p", after(2)
	again := started("r")
	again.RetryOf, again.EventAt = "q", after(-1)
	got := view(t, apply(again, reused, later, reused, later), "r")
	want := ledger.Reuse{Tasks: 4, Saved: 2 * cent, Seconds: 120, From: "p"}
	if got.Reused != want || got.Stages[0].Reused != want || got.RetryOf != "q" || !got.EventAt.Equal(after(-1)) {
		t.Errorf("%+v of %+v, want %+v", got.Stages[0].Reused, got, want)
	}
}

func TestTasksThatWillNotComeAreNotExpected(t *testing.T) {
	t.Parallel()
	told := func(tasks, expected, withdrawn int) predictor.Event {
		return predictor.Scheduled{
			Run: "r", Stage: score, Tasks: tasks, Expected: expected, Withdrawn: withdrawn, At: after(1),
		}
	}
	for _, row := range []struct {
		name   string
		events []predictor.Event
		want   int
	}{
		{"all are to come", []predictor.Event{told(0, 27, 0), told(4, 0, 0)}, 27},
		{"few are not", []predictor.Event{told(0, 27, 0), told(4, 0, 0), told(0, 0, 3)}, 24},
		{"none is", []predictor.Event{told(0, 27, 0), told(4, 0, 0), told(0, 0, 100)}, 4},
		{"others were announced since", []predictor.Event{told(0, 27, 0), told(0, 0, 27), told(0, 5, 0)}, 5},
		{"more came", []predictor.Event{told(0, 2, 0), told(4, 0, 0), told(0, 0, 1)}, 4},
	} {
		if got := view(t, apply(append([]predictor.Event{started("r")}, row.events...)...), "r"); len(got.Stages) != 1 ||
			got.Stages[0].Expected != row.want {
			t.Errorf("%s: %+v, want %d expected", row.name, got.Stages, row.want)
		}
	}
}

func TestTwoRunsAreComparedStageByStage(t *testing.T) {
	t.Parallel()
	a, b := run("r"), run("s")
	a.Input, b.Input = []byte(`{"n":1}`), []byte(`{"n":1}`)
	b.Goal = predictor.Goal{Budget: cent}
	l := apply(a, b,
		line("r", "prep", "t0", predictor.Pool, "h", 0, 1, 1), line("r", "score", "t1", predictor.Pool, "h", 1, 2, 1),
		line("s", "score", "t0", predictor.Pool, "h", 0, 1, 1), line("s", "report", "t1", predictor.Pool, "h", 1, 2, 1),
	)
	diff := ledger.Compare(view(t, l, "r"), view(t, l, "s"))
	if diff.A.Run != "r" || diff.B.Run != "s" || !diff.SameInput || !diff.SameBuild || diff.SameGoal {
		t.Errorf("%+v", diff)
	}
	var got []string
	for _, stage := range diff.Stages {
		got = append(got, fmt.Sprintf("%s %t %t", stage.Name, stage.A != nil, stage.B != nil))
	}
	if want := []string{"prep true false", "score true true", "report false true"}; !cmp.Equal(want, got) {
		t.Errorf("stages %v, want %v", got, want)
	}
	cut := run("u")
	cut.Input = make([]byte, 1024)
	l.Apply(cut)
	if diff := ledger.Compare(view(t, l, "u"), view(t, l, "u")); diff.SameInput {
		t.Error("an input that may have been cut is said to be the same")
	}
}

// attemptsOf are all attempts of a run by when they were scheduled.
func attemptsOf(l *ledger.Ledger, run string) (attempts []timeline.Attempt, known bool) {
	detail, known := l.Detail(run)
	if !known {
		return nil, false
	}
	return detail.Attempts(ledger.AttemptQuery{Run: run}), true
}

func breakdownOf(l *ledger.Ledger, run string, now time.Time) (breakdown timeline.Breakdown, known bool) {
	detail, known := l.Detail(run)
	if !known {
		return timeline.Breakdown{}, false
	}
	return detail.Breakdown(now), true
}
