package slot_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workers/slot"
	"github.com/spillway-ml/spillway/workers/slot/slottest"
)

// TestCheckpointsThatTheServerNeedsNoMoreAreSuperseded makes checkpoints faster than they are acknowledged. Whatever is
// superseded is older than what a retry would start from, and what newer ones hold as well stays.
func TestCheckpointsThatTheServerNeedsNoMoreAreSuperseded(t *testing.T) {
	t.Parallel()
	f, c := slottest.Start(t)
	ref := func(digest string) activities.Ref { return activities.Ref{Digest: digest, Bytes: 1} }
	gone := make(chan []activities.Ref, 100)
	goOn := make(chan struct{})
	w := start(t, c, func(ctx context.Context, task wire.Task, input json.RawMessage) (wire.Result, error) {
		a, err := slot.Begin(ctx, task, input, nil, time.Now())
		if err != nil {
			return wire.Result{}, err
		}
		a.OnSuperseded(func(older []activities.Ref, _ time.Time) { gone <- older })
		a.Checkpoint(ref("1"), ref("unchanged"), ref("part 1"))
		<-goOn
		for _, digest := range []string{"2", "3", "4"} {
			a.Checkpoint(ref(digest), ref("unchanged"), ref("part "+digest))
		}
		<-goOn
		ending := slot.Ending{Outcome: predictor.Succeeded}
		return a.End(ctx, slot.Durable{Recorder: &kept{}}, a.Record(predictor.Pool, "h", ending), ending, input)
	})
	set(t, w, 1, false)
	a := f.Submit(t, stage.Queue(), task("train-1"), "in")
	newest := func(digest string) {
		t.Helper()
		a.AwaitDetails(t, "checkpoint "+digest, func(left wire.Heartbeat) bool { return left.Checkpoint.Digest == digest })
	}
	newest("1")
	goOn <- struct{}{}
	newest("4")
	var got []string
	for len(got) < 6 { // once no heartbeat with an older one can be on its way
		for _, ref := range <-gone {
			got = append(got, ref.Digest)
		}
	}
	goOn <- struct{}{}
	if _, err := a.Wait(t); err != nil {
		t.Fatal(err)
	}
	want := []string{"1", "part 1", "2", "part 2", "3", "part 3"}
	if !slices.Equal(got, want) || len(gone) > 0 {
		t.Errorf("superseded: got %v and %d more, want %v: the newest and what it holds stay", got, len(gone), want)
	}
}

// keeper keeps results, of one attempt after another.
type keeper []wire.Kept

func (k *keeper) Keep(_ context.Context, kept wire.Kept) error {
	*k = append(*k, kept)
	return nil
}

// TestAResultTellsTheCheckpointAndTheMetricsWhereItsTaskAsks has the task before it in its trial, whose checkpoint it
// goes on from, and makes one of its own or none.
func TestAResultTellsTheCheckpointAndTheMetricsWhereItsTaskAsks(t *testing.T) {
	t.Parallel()
	f, c := slottest.Start(t)
	before, own := activities.Ref{Digest: "before", Bytes: 1}, activities.Ref{Digest: "own", Bytes: 1}
	keep := &keeper{}
	w := start(t, c, func(ctx context.Context, task wire.Task, input json.RawMessage) (wire.Result, error) {
		a, err := slot.Begin(ctx, task, input, nil, time.Now())
		if err != nil {
			return wire.Result{}, err
		}
		if a.State().Checkpoint != task.Resume {
			t.Errorf("task %s goes on from %v, want %v", task.ID, a.State().Checkpoint, task.Resume)
		}
		for step := 1; step <= 4; step++ { // of five, of fifteen in all
			a.Progress(wire.Progress{Step: step, Metrics: map[string]float64{"loss": 2 + 1/float64(step)}})
		}
		a.Progress(wire.NewProgress(5, 5, map[string]float64{"loss": 2, "rate": math.NaN()}))
		if string(input) == `"saves"` {
			a.Checkpoint(own)
		}
		ending := slot.Ending{Outcome: predictor.Succeeded}
		record := a.Record(predictor.Pool, "h", ending)
		record.Queue, record.Start, record.Usage.Wall = time.Hour, time.Second, time.Minute
		return a.End(ctx, slot.Durable{Recorder: &kept{}, Keeper: keep}, record, ending, input)
	})
	set(t, w, 1, false)
	for i, c := range []struct {
		asks   bool
		input  string
		resume activities.Ref
		want   activities.Ref
	}{
		{true, "saves", before, own},
		{true, "", before, before},
		{true, "saves", activities.Ref{}, own},
		{true, "", activities.Ref{}, activities.Ref{}},
		{false, "saves", before, activities.Ref{}},
	} {
		asked := task(fmt.Sprint("train-", i))
		asked.Tells, asked.Resume = c.asks, c.resume
		if c.asks {
			asked.Stretch = &predictor.Stretch{Before: 1, To: 3, Most: 9}
		}
		result, err := f.Submit(t, stage.Queue(), asked, c.input).Wait(t)
		if err != nil {
			t.Fatal(err)
		}
		if result.Checkpoint != c.want || (result.Metrics["loss"] == 2) != c.asks ||
			slices.Equal(result.NotFinite, []string{"rate"}) != c.asks || (result.Took == 61*time.Second) != c.asks {
			t.Errorf("%+v: got %v, %v, %v and %s", c, result.Checkpoint, result.Metrics, result.NotFinite, result.Took)
		}
		if p := result.Prospect; (p != nil) != c.asks || p != nil && (p.Metric != "loss" || p.Value != 2 || p.Low > 2 ||
			p.Before == nil || *p.Before != 3) {
			t.Errorf("%+v: its loss is expected to come to %+v", c, p)
		}
		var want *wire.Told
		if c.asks {
			want = &wire.Told{
				Checkpoint: result.Checkpoint, Metrics: result.Metrics, NotFinite: result.NotFinite, Prospect: result.Prospect,
				Stretch: asked.Stretch,
			}
		}
		if diff := cmp.Diff(want, (*keep)[i].Told); diff != "" {
			t.Errorf("%+v: what is kept of that (-want +got):\n%s", c, diff)
		}
	}
}
