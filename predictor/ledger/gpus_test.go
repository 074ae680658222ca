package ledger_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Which GPUs an attempt had is known from its start on, also of one that was lost, and is kept with what it took of
// them.
func TestAnAttemptSaysWhichGPUsItHad(t *testing.T) {
	t.Parallel()
	at := time.Unix(1_700_000_000, 0)
	stage := predictor.StageID{App: "a", Build: "b", Name: "fit"}
	gpus := []string{"GPU-0", "GPU-1"}
	l := ledger.New()
	l.Apply(predictor.RunStarted{Run: "r", Pipeline: "p", App: "a", Build: "b", At: at})
	for _, task := range []string{"done", "lost"} {
		l.Apply(predictor.AttemptStarted{
			Run: "r", Stage: stage, Task: task, Attempt: 1, Venue: predictor.Pool, Host: "h", GPUs: gpus, At: at,
		})
	}
	l.Apply(predictor.Record{
		Run: "r", Stage: stage, Task: "done", Attempt: 1, Venue: predictor.Pool, Host: "h", GPUs: gpus,
		Outcome: predictor.Succeeded, At: at.Add(time.Minute), Usage: quantity.Usage{GPUPeakMemory: 3 * quantity.GiB},
	})
	l.Apply(predictor.Record{ // by whoever found it
		Run: "r", Stage: stage, Task: "lost", Attempt: 1, Venue: predictor.Pool, Host: "h", Outcome: predictor.Lost,
		At: at.Add(time.Minute),
	})
	var stored bytes.Buffer
	if err := l.Checkpoint().Encode(&stored); err != nil {
		t.Fatal(err)
	}
	restored, err := ledger.Restore(&stored)
	if err != nil {
		t.Fatal(err)
	}
	for name, l := range map[string]*ledger.Ledger{"told": l, "restored": restored} {
		detail, _ := l.Detail("r")
		peaks := map[string]quantity.Bytes{}
		for _, attempt := range detail.Attempts(ledger.AttemptQuery{}) {
			peaks[attempt.Task] = attempt.GPUPeakMemory
			if diff := cmp.Diff(gpus, attempt.GPUs); diff != "" {
				t.Errorf("%s, %s: %s", name, attempt.Task, diff)
			}
		}
		if diff := cmp.Diff(map[string]quantity.Bytes{"done": 3 * quantity.GiB, "lost": 0}, peaks); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}
