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

// What is sampled of GPUs is in what a stage held and used, and in the sums of the stage; where a driver tells nothing
// it stays unknown.
func TestSamplesOfGPUsAreAddedUpByStage(t *testing.T) {
	t.Parallel()
	at := time.Unix(1_700_000_000, 0)
	stage := predictor.StageID{App: "a", Build: "b", Name: "fit"}
	grant := quantity.Size{CPU: 1000, Memory: 1, GPU: 2000, GPUMemory: 160 * quantity.GiB, DeviceClass: "h100"}
	l := ledger.New()
	l.Apply(predictor.RunStarted{Run: "r", Pipeline: "p", App: "a", Build: "b", At: at})
	l.Apply(predictor.AttemptStarted{
		Run: "r", Stage: stage, Task: "t", Attempt: 1, Venue: predictor.Pool, Grant: grant, At: at,
	})
	const looks = 10_000 // more than are kept of a run
	for second := 1; second <= looks; second++ {
		busy := 1.5
		if second%2 == 0 {
			busy = .5
		}
		l.Apply(predictor.Sampled{
			Run: "r", Stage: stage, Task: "t", Attempt: 1, Venue: predictor.Pool, Grant: grant,
			GPU: &predictor.GPUSample{Memory: 60 * quantity.GiB, Busy: busy},
			At:  at.Add(time.Duration(second) * time.Second),
		})
	}
	end := at.Add(looks * time.Second)
	l.Apply(predictor.Record{
		Run: "r", Stage: stage, Task: "t", Attempt: 1, Venue: predictor.Pool, Outcome: predictor.Succeeded, Grant: grant,
		At: end, Usage: quantity.Usage{
			Wall: looks * time.Second, GPUPeakMemory: 61 * quantity.GiB, GPUBusy: looks * time.Second,
		},
	})
	view, _ := l.Run("r")
	want := ledger.StageGPU{
		Count: 2, Class: "h100", Peak: 61 * quantity.GiB, Grant: 160 * quantity.GiB, HeldSeconds: 2 * looks,
		BusySeconds: looks,
	}
	if diff := cmp.Diff(want, view.Stages[0].GPU); diff != "" {
		t.Error(diff)
	}
	l.Apply(predictor.RunEnded{Run: "r", State: predictor.RunSucceeded, At: end})
	detail, _ := l.Detail("r")
	for _, point := range detail.Allocation(end, 10)[0].Points {
		if point.GPUs < 1.99 || point.BusyGPUs < .98 || point.BusyGPUs > 1.02 ||
			point.UsedGPUMemory < .99*float64(60*quantity.GiB) {
			t.Errorf("%+v", point)
		}
	}
}
