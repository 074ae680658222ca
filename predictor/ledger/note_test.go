package ledger_test

import (
	"slices"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
)

func TestANoteStandsWhileItsRunGoesOn(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	l := ledger.New()
	for _, run := range []string{"a", "b"} {
		l.Apply(predictor.RunStarted{Run: run, At: at})
	}
	if !l.Note("a", "blocked") || l.Note("a", "blocked") || l.Note("unknown", "blocked") {
		t.Error("a note is news the first time only, and only of a run that is known")
	}
	if view, _ := l.Run("a"); view.Notice != "blocked" {
		t.Errorf("got notice %q", view.Notice)
	}
	l.Apply(predictor.RunEnded{Run: "a", State: predictor.RunSucceeded, At: at.Add(time.Second)})
	if view, _ := l.Run("a"); view.Notice != "" || l.Note("a", "late") {
		t.Errorf("a run that has ended has the notice %q", view.Notice)
	}
	if going := l.Going(); !slices.Equal(going, []string{"b"}) {
		t.Errorf("runs that go on: %q, want b alone", going)
	}
}
