package ledger_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// TestARunIsTakenStageByStage tells of a stage of four tasks, two at a time at the pool with half a core each, of which
// one is tried twice, and two in functions; and of a task of another stage after them.
func TestARunIsTakenStageByStage(t *testing.T) {
	t.Parallel()
	begin := time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)
	second := func(s float64) time.Time { return begin.Add(time.Duration(s * float64(time.Second))) }
	l := ledger.New()
	l.Apply(predictor.RunStarted{Run: "r", Pipeline: "p", App: "app", Build: "b1", At: begin})
	attempt := func(
		stage string, task int, venue predictor.Venue, from, wall float64, outcome predictor.Outcome, number int,
	) {
		id := predictor.StageID{App: "app", Build: "b1", Name: stage}
		grant := quantity.Size{CPU: quantity.Core / 2, Memory: quantity.GiB}
		if venue == predictor.Function {
			grant = quantity.Size{Memory: 1769 * quantity.MiB}
		}
		l.Apply(predictor.AttemptStarted{
			Run: "r", Stage: id, Task: fmt.Sprint(stage, task), Attempt: number, Venue: venue, Host: "h", At: second(from),
			Grant: grant,
		})
		l.Apply(predictor.Record{
			Run: "r", Stage: id, Task: fmt.Sprint(stage, task), Attempt: number, Venue: venue, Host: "h", Outcome: outcome,
			ScheduledAt: second(from), At: second(from + wall), Grant: grant, Cost: 5,
			Usage: quantity.Usage{Wall: time.Duration(wall * float64(time.Second))},
		})
	}
	attempt("score", 0, predictor.Pool, 2, 1, predictor.Failed, 1)
	attempt("score", 0, predictor.Pool, 3, 4, predictor.Succeeded, 2)
	attempt("score", 1, predictor.Pool, 2, 4, predictor.Succeeded, 1)
	attempt("score", 2, predictor.Function, 2, 2, predictor.Succeeded, 1)
	attempt("score", 3, predictor.Function, 2.5, 2, predictor.Succeeded, 1)
	attempt("report", 0, predictor.Pool, 9, 3, predictor.Succeeded, 1)
	l.Apply(predictor.RunEnded{Run: "r", State: predictor.RunSucceeded, At: second(13)})

	view, known := l.Run("r")
	detail, kept := l.Detail("r")
	if !known || !kept {
		t.Fatal("the run is not known")
	}
	taken := detail.Taken(view)
	if taken.Seconds != 13 || taken.Pipeline != "p" || taken.App != "app" || taken.Cost != 30 || len(taken.Stages) != 2 {
		t.Fatalf("got %+v", taken)
	}
	score, report := taken.Stages[0], taken.Stages[1]
	if score.Stage != "score" || score.Tasks != 4 || score.Slots != 2 || score.Functions != 2 || score.Mean != 3 ||
		score.Start != 2 || score.End != 7 || score.Class != 1769*quantity.MiB ||
		math.Abs(score.Cost-(25*quantity.Money(1)).USD()) > 1e-20 {
		t.Errorf("score: %+v", score)
	}
	if math.Abs(score.Cores-0.75) > 0.01 || math.Abs(score.Spread-math.Ln2/2) > 1e-9 {
		t.Errorf("score had %v cores and spread %v, want 0.75 and %v", score.Cores, score.Spread, math.Ln2/2)
	}
	if report.Stage != "report" || report.Tasks != 1 || report.Mean != 3 || report.Slots != 1 || report.End != 12 {
		t.Errorf("report: %+v", report)
	}
}

// TestWorkersOfATrainingAreTakenAlike: one did the work of all three in a minute, and two found it done. That is 20 s
// for each, and not a minute for one in three.
func TestWorkersOfATrainingAreTakenAlike(t *testing.T) {
	t.Parallel()
	begin := time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)
	l := ledger.New()
	l.Apply(predictor.RunStarted{Run: "r", Pipeline: "p", App: "app", Build: "b1", At: begin})
	id := predictor.StageID{App: "app", Build: "b1", Name: "together"}
	for worker, wall := range []time.Duration{time.Minute, time.Millisecond, time.Millisecond} {
		at, task := begin.Add(time.Minute+time.Duration(worker)*time.Second), fmt.Sprint("together-", worker)
		told := &predictor.Training{Executor: "workers", Workers: 3, Steps: 600, TotalSteps: 600}
		if worker == 0 {
			told.StepSeconds, told.Computed = 0.1, 1
		}
		l.Apply(predictor.AttemptStarted{
			Run: "r", Stage: id, Task: task, Attempt: 1, Venue: predictor.Pool, At: at.Add(-wall),
		})
		l.Apply(predictor.Record{
			Run: "r", Stage: id, Task: task, Attempt: 1, Venue: predictor.Pool, Outcome: predictor.Succeeded, At: at,
			ScheduledAt: begin, Usage: quantity.Usage{Wall: wall}, Training: told,
		})
	}
	l.Apply(predictor.RunEnded{Run: "r", State: predictor.RunSucceeded, At: begin.Add(2 * time.Minute)})
	view, _ := l.Run("r")
	detail, known := l.Detail("r")
	if !known {
		t.Fatal("the run is not known")
	}
	stage := detail.Taken(view).Stages[0]
	if stage.Tasks != 3 || math.Abs(stage.Mean-20) > 0.01 || stage.Spread != 0 {
		t.Errorf("got %+v, want 20 s for each of three", stage)
	}
	if trainings, _ := l.Trainings("r"); len(trainings) != 1 || trainings[0].Task != "together-0" {
		t.Errorf("trainings: got %+v, want that of the one who trained", trainings)
	}
}

// TestWhatRanOnSeveralClassesOfGPUIsOfNone has two tasks, on GPUs of these classes: what they took in the mean is what
// neither class makes of one.
func TestWhatRanOnSeveralClassesOfGPUIsOfNone(t *testing.T) {
	t.Parallel()
	begin := time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)
	for want, classes := range map[string][2]string{"a100": {"a100", "a100"}, "": {"a100", "h200"}} {
		l := ledger.New()
		l.Apply(predictor.RunStarted{Run: "r", Pipeline: "p", App: "app", Build: "b1", At: begin})
		id := predictor.StageID{App: "app", Build: "b1", Name: "train"}
		for i, class := range classes {
			grant := quantity.Size{CPU: quantity.Core, GPU: quantity.Core, DeviceClass: class}
			at, task := begin.Add(time.Duration(i)*time.Minute), fmt.Sprint("train-", i)
			l.Apply(predictor.AttemptStarted{
				Run: "r", Stage: id, Task: task, Attempt: 1, Venue: predictor.Pool, Host: class, At: at, Grant: grant,
			})
			l.Apply(predictor.Record{
				Run: "r", Stage: id, Task: task, Attempt: 1, Venue: predictor.Pool, Host: class, Outcome: predictor.Succeeded,
				At: at.Add(time.Minute), ScheduledAt: at, Usage: quantity.Usage{Wall: time.Minute}, Grant: grant,
			})
		}
		l.Apply(predictor.RunEnded{Run: "r", State: predictor.RunSucceeded, At: begin.Add(3 * time.Minute)})
		view, _ := l.Run("r")
		detail, known := l.Detail("r")
		if !known {
			t.Fatal("the run is not known")
		}
		if got := detail.Taken(view).Stages[0].Size; got.DeviceClass != want || got.GPU != quantity.Core {
			t.Errorf("on %v: %+v, want the class %q", classes, got, want)
		}
	}
}
