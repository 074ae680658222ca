package slot

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
)

// forgotten is a Temporal that knows no attempt any more.
type forgotten struct{ client.Client }

// CompleteActivity implements client.Client.
func (forgotten) CompleteActivity(context.Context, []byte, any, error) error {
	return serviceerror.NewNotFound("it is over")
}

// proving takes Records with what is shown for their attempts meanwhile.
type proving struct {
	activities.Recorder

	proofs *Proofs
	shown  []string
}

// Record implements activities.Recorder.
func (p *proving) Record(_ context.Context, record predictor.Record) error {
	p.shown = append(p.shown, p.proofs.Of(record.Run, record.Task, record.Attempt))
	return nil
}

// TestWhatAFormerSelfWasGivenIsShown: the proof of an attempt outlives the process that was given it, in the journal,
// and is kept no longer than there is something to tell.
func TestWhatAFormerSelfWasGivenIsShown(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	open := func(instance string, proofs *Proofs) *Journal {
		t.Helper()
		j, err := OpenJournal(dir, predictor.Pool, "h", instance, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		j.Proofs = proofs
		return j
	}
	former := open("a", &Proofs{})
	a := &Attempt{Task: wire.Task{Run: "r", ID: "t"}, Number: 2, taken: time.Now()}
	former.take(a, wire.WithProof("the proof", []byte("a token")))
	if err := former.Close(false); err != nil {
		t.Fatal(err)
	}
	proofs := &Proofs{}
	next, recorder := open("b", proofs), &proving{proofs: proofs}
	next.GiveBack(t.Context(), forgotten{}, recorder)
	if len(recorder.shown) != 1 || recorder.shown[0] != "the proof" {
		t.Errorf("with the Record %q is shown, want the proof", recorder.shown)
	}
	if left := proofs.Of("r", "t", 0); left != "" {
		t.Errorf("%q is kept, want nothing", left)
	}
	if err := next.Close(true); err != nil {
		t.Error(err)
	}
}

func TestAProofIsOfTheAttemptThatCameWithIt(t *testing.T) {
	t.Parallel()
	var p Proofs
	p.take("r", "t", 1, wire.WithProof("first", []byte("x")))
	p.take("r", "t", 2, wire.WithProof("second", []byte("y")))
	p.take("r", "u", 1, []byte("a token of an engine of a version before"))
	for _, c := range []struct {
		run, task string
		attempt   int
		want      string
	}{
		{"r", "t", 1, "first"},
		{"r", "t", 2, "second"},
		{"r", "t", 0, "second"},
		{"r", "t", 3, ""},
		{"r", "u", 1, ""},
		{"q", "t", 1, ""},
	} {
		if got := p.Of(c.run, c.task, c.attempt); got != c.want {
			t.Errorf("attempt %d of %s of %s: got %q, want %q", c.attempt, c.task, c.run, got, c.want)
		}
	}
	p.forget("r", "t", 2)
	if got := p.Of("r", "t", 0); got != "first" {
		t.Errorf("of the task that is left: got %q, want that of the first attempt", got)
	}
	p.forget("r", "t", 1)
	if len(p.of) != 0 {
		t.Errorf("%v is kept, want nothing", p.of)
	}
}
