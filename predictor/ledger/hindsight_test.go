package ledger_test

import (
	"bytes"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/hindsight"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// hindsightOf is that of a run; none where it is not known.
func hindsightOf(t *testing.T, l *ledger.Ledger, stage string) []hindsight.Stage {
	t.Helper()
	detail, known := l.Detail("r")
	if !known {
		t.Fatal("the ledger knows nothing of the run")
	}
	return detail.Hindsight(stage, 100, nil)
}

func TestHindsightHasWhatWasKnownPredictedAndCame(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)
	l := ledger.New()
	l.Apply(predictor.RunStarted{Run: "r", Pipeline: "p", App: "app", Build: "b", At: at})
	for i := range 8 {
		features := map[string]float64{"epochs": float64(i), "huge": 1e300, "none": math.NaN()}
		if i == 7 {
			for more := range 20 {
				features[fmt.Sprint("x", more)] = 1
			}
		}
		l.Apply(predictor.Record{
			Run: "r", Stage: predictor.StageID{App: "app", Build: "b", Name: "fit"}, Task: fmt.Sprint("t", i), Attempt: 1,
			Venue: predictor.Pool, Outcome: predictor.Succeeded, At: at.Add(time.Duration(i) * time.Minute),
			Grant: quantity.Size{Memory: 200}, Features: features,
			Usage: quantity.Usage{PeakMemory: quantity.Bytes(100 + i), Wall: time.Duration(10+i) * time.Second, Input: 5},
			Predicted: predictor.Prediction{
				Memory: predictor.Interval{Low: 80, Mid: 100, High: 105}, Wall: predictor.Interval{Low: 1, Mid: 2, High: 1e300},
			},
		})
	}
	all := hindsightOf(t, l, "")
	if len(all) != 1 || all[0].Memory.Feature != "epochs" || all[0].Wall.Feature != "epochs" {
		t.Fatalf("got %+v, want fit over epochs", all)
	}
	want := hindsight.Point{
		At: 3, Venue: predictor.Pool, Predicted: predictor.Interval{Low: 80, Mid: 100, High: 105}, Actual: 103, Granted: 200,
	}
	if diff := cmp.Diff(want, all[0].Memory.Points[3]); diff != "" {
		t.Errorf("the peak of the fourth attempt (-want +got):\n%s", diff)
	}
	if got := all[0]; got.Memory.Within != 6 || got.Wall.Within != 8 {
		t.Errorf("%d peaks and %d run times are within the band, want 6 and 8", got.Memory.Within, got.Wall.Within)
	}
	if other := hindsightOf(t, l, "other"); len(other) != 0 {
		t.Errorf("of another stage: %+v, want none", other)
	}
	var saved bytes.Buffer
	if err := l.Checkpoint().Encode(&saved); err != nil {
		t.Fatal(err)
	}
	restored, err := ledger.Restore(&saved)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(all, hindsightOf(t, restored, "")); diff != "" {
		t.Errorf("after a restart (-before +after):\n%s", diff)
	}
}

// Who finds an attempt lost knows of it that it was started, and not what it held.
func TestALostAttemptKeepsWhatItWasGranted(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)
	stage := predictor.StageID{App: "app", Build: "b", Name: "fit"}
	grant := quantity.Size{CPU: 1000, Memory: quantity.GiB}
	l := ledger.New()
	l.Apply(predictor.RunStarted{Run: "r", Pipeline: "p", App: "app", Build: "b", At: at})
	l.Apply(predictor.AttemptStarted{
		Run: "r", Stage: stage, Task: "t", Attempt: 1, Venue: predictor.Pool, Grant: grant, At: at,
	})
	l.Apply(predictor.Record{
		Run: "r", Stage: stage, Task: "t", Attempt: 1, Venue: predictor.Pool, Outcome: predictor.Lost,
		Cause: predictor.CauseHostLost, At: at.Add(time.Second),
	})
	l.Apply(predictor.Record{
		Run: "r", Stage: stage, Task: "never heard of", Attempt: 1, Venue: predictor.Pool, Outcome: predictor.Lost,
		Cause: predictor.CauseHostLost, At: at.Add(2 * time.Second),
	})
	detail, _ := l.Detail("r")
	attempts := detail.Attempts(ledger.AttemptQuery{Run: "r"})
	if len(attempts) != 2 || attempts[0].Grant != grant || !attempts[1].Grant.IsZero() {
		t.Errorf("got %+v, want that the first held %s and nothing of the second", attempts, grant)
	}
}

// What a function is invoked with is expected of the pool, so nothing was expected of its peak.
func TestPeaksOfFunctionsAreNotComparedWithThosePredictedOfThePool(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)
	l := ledger.New()
	l.Apply(predictor.RunStarted{Run: "r", Pipeline: "p", App: "app", Build: "b", At: at})
	for task, venue := range []predictor.Venue{predictor.Pool, predictor.Function} {
		l.Apply(predictor.Record{
			Run: "r", Stage: predictor.StageID{App: "app", Build: "b", Name: "fit"}, Task: fmt.Sprint("t", task), Attempt: 1,
			Venue: venue, Outcome: predictor.Succeeded, At: at.Add(time.Second),
			Usage:     quantity.Usage{PeakMemory: quantity.Bytes(100 + 400*task), Wall: time.Second},
			Predicted: predictor.Prediction{Memory: predictor.Interval{Low: 90, Mid: 100, High: 110 + float64(task)*900}},
		})
	}
	view, _ := l.Run("r")
	if got := view.Stages[0]; got.MemoryErrors != 1 || got.MemoryError != 0 || got.PredictedMemory.High != 110 {
		t.Errorf("got %+v, want the prediction and the error of the pool alone", got)
	}
	memory := hindsightOf(t, l, "")[0].Memory
	if memory.Attempts != 2 || memory.Predicted != 1 || memory.Within != 1 {
		t.Errorf("got %+v, want two attempts, of which one was predicted", memory)
	}
}

func TestAStopAtTheBudgetIsKnown(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)
	l := ledger.New()
	l.Apply(predictor.RunStarted{Run: "r", Pipeline: "p", App: "app", Build: "b", At: at})
	if l.Stopped("r") || l.Stopped("none") {
		t.Error("a run that goes on is stopped")
	}
	l.Apply(predictor.Record{
		Run: "r", Stage: predictor.StageID{App: "app", Build: "b", Name: "fit"}, Task: "t", Attempt: 1,
		Venue: predictor.Pool, Outcome: predictor.Failed, Cause: predictor.CauseBudget, At: at.Add(time.Second),
	})
	var saved bytes.Buffer
	if err := l.Checkpoint().Encode(&saved); err != nil {
		t.Fatal(err)
	}
	restored, err := ledger.Restore(&saved)
	if err != nil || !l.Stopped("r") || !restored.Stopped("r") {
		t.Errorf("it is stopped: %v, after a restart %v (%v); want true", l.Stopped("r"), restored.Stopped("r"), err)
	}
}
