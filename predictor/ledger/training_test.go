package ledger_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
)

// training is one that has done so many steps.
func training(steps int64) *predictor.Training {
	return &predictor.Training{
		Executor: "torch", Schedule: "gpipe", Steps: steps, TotalSteps: 10, PredictedStepSeconds: 0.5,
		Parts: []predictor.TrainingPart{{Device: "cpu:0", Kind: "cpu", Ops: 3}},
	}
}

func sampled(task string, attempt int, at float64, told *predictor.Training) predictor.Sampled {
	return predictor.Sampled{
		Run: "r", Stage: score, Task: task, Attempt: attempt, Venue: predictor.Pool, Host: "h",
		At: after(at), Training: told,
	}
}

func trainings(t *testing.T, l *ledger.Ledger) []ledger.TrainingView {
	t.Helper()
	found, known := l.Trainings("r")
	if !known {
		t.Fatal("run r is not known")
	}
	return found
}

func TestATrainingIsSeenWhileItGoesOnAndAsItsRecordTells(t *testing.T) {
	t.Parallel()
	l := apply(started("r"), sampled("t0", 1, 2, training(1)), sampled("t0", 1, 3, nil), sampled("t0", 1, 4, training(3)))
	want := ledger.TrainingView{Stage: "score", Task: "t0", Attempt: 1, Host: "h", At: after(4), Training: *training(3)}
	if diff := cmp.Diff([]ledger.TrainingView{want}, trainings(t, l)); diff != "" {
		t.Errorf("while it goes on (-want +got):\n%s", diff)
	}
	end := record(0, 1, predictor.Pool, predictor.Failed)
	end.Host, end.Training = "h", training(5)
	l.Apply(end)
	l.Apply(sampled("t0", 1, 11, training(4))) // late
	want.Outcome, want.At, want.Training = predictor.Failed, end.At, *training(5)
	if diff := cmp.Diff([]ledger.TrainingView{want}, trainings(t, l)); diff != "" {
		t.Errorf("once it ended (-want +got):\n%s", diff)
	}
	if _, known := l.Trainings("nobody"); known {
		t.Error("the trainings of an unknown run are known")
	}
}

func TestWhyAPlanWasChosenStaysWhenLaterSamplesLeaveItOut(t *testing.T) {
	t.Parallel()
	first := training(1)
	first.Reason, first.Alternatives = "the fastest", []predictor.TrainingAlternative{{Partitions: 2}}
	l := apply(started("r"), sampled("t0", 1, 2, first), sampled("t0", 1, 3, training(2)))
	want := *training(2)
	want.Reason, want.Alternatives = first.Reason, first.Alternatives
	if diff := cmp.Diff(want, trainings(t, l)[0].Training); diff != "" {
		t.Errorf("after two samples (-want +got):\n%s", diff)
	}
}

func TestATrainingOfWhichNothingMoreIsHeardIsLost(t *testing.T) {
	t.Parallel()
	l := apply(started("r"), sampled("t0", 1, 2, training(1)), sampled("t0", 2, 5, training(1)),
		sampled("t1", 1, 5, training(2)))
	if found := trainings(t, l); found[0].Outcome != predictor.Lost || found[1].Outcome != "" || found[2].Outcome != "" {
		t.Errorf("outcomes: %+v, want the attempt before to be lost and the others to go on", found)
	}
	l.Apply(predictor.RunEnded{Run: "r", State: predictor.RunCancelled, At: after(6)})
	if found := trainings(t, l); found[0].Outcome != predictor.Lost || found[1].Outcome != predictor.Cancelled ||
		found[2].Outcome != predictor.Cancelled {
		t.Errorf("outcomes after the run's end: %+v, want them cancelled with it", found)
	}
}

func TestTheTrainingsOfARunAreBounded(t *testing.T) {
	t.Parallel()
	l := apply(started("r"))
	for task := range 100 {
		l.Apply(sampled(fmt.Sprint("t", task), 1, 2, training(1)))
	}
	if found := trainings(t, l); len(found) != 64 {
		t.Errorf("got %d, want the first 64", len(found))
	}
}
