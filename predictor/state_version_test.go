package predictor_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/usage"
)

// foldedState is what the events of a recorded stream come to, without the decisions.
func foldedState(t *testing.T) predictor.State {
	t.Helper()
	var state predictor.State
	for _, step := range readStream(t, "testdata/streams/chain.jsonl.gz") {
		if step.event != nil {
			state = predictor.Fold(predictor.Pass(state, step.event.When()), step.event)
		}
	}
	return state
}

// TestAStateIsStoredAsItsVersionSays compares the checkpoint of a recorded stream with that of its version. What is
// stored in another way, or means something else, is another version: raise SavedVersion, read the one before as what
// it meant, and let SPILLWAY_UPDATE=1 write the file of the new one. That of a version is never written twice.
func TestAStateIsStoredAsItsVersionSays(t *testing.T) {
	t.Parallel()
	got := encode(t, foldedState(t))
	var stored struct {
		Version int `json:"v"`
	}
	if err := json.Unmarshal(got, &stored); err != nil {
		t.Fatal(err)
	}
	path := fmt.Sprintf("testdata/states/v%d.json.gz", stored.Version)
	if _, err := os.Stat(path); os.Getenv("SPILLWAY_UPDATE") == "1" && os.IsNotExist(err) {
		writeCompressed(t, path, got)
	}
	var gotValue, want any
	for data, value := range map[*any][]byte{&gotValue: got, &want: readCompressed(t, path)} {
		if err := json.Unmarshal(value, data); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(want, gotValue); diff != "" {
		t.Errorf("a checkpoint of version %d (-as it was +as it is): raise SavedVersion in memory/memory.go\n%s",
			stored.Version, diff)
	}
}

// TestStatesOfEarlierVersionsAreReadAndSizesAreNotForgotten sizes by each checkpoint what the newest sizes. What may
// differ is how run times hang together with inputs and how good their predictions were, which is known from version 6
// on, and how fast attempts are at other sizes, from version 8 on; but not that they are known.
func TestStatesOfEarlierVersionsAreReadAndSizesAreNotForgotten(t *testing.T) {
	t.Parallel()
	var snapshot predictor.Snapshot
	var stages []predictor.Scheduled
	for _, step := range readStream(t, "testdata/streams/chain.jsonl.gz") {
		if step.tick != nil && len(step.tick.Hosts) > 0 {
			snapshot = *step.tick
		}
		if hinted, ok := step.event.(predictor.Scheduled); ok && hinted.Tasks > 0 {
			stages = append(stages, hinted)
		}
	}
	sized := func(state predictor.State) []predictor.Sizing {
		for _, hinted := range stages {
			hinted.Run, hinted.At = "next", snapshot.Now
			state = predictor.Fold(state, hinted)
		}
		plan, _ := predictor.Decide(state, snapshot)
		for i := range plan.Sizings {
			if known := plan.Sizings[i].Duration; known.Attempts == 0 {
				t.Errorf("the run time of %s is %+v, want what is remembered", plan.Sizings[i].Stage, known)
			}
			plan.Sizings[i].Duration, plan.Sizings[i].Speed = usage.Duration{}, usage.Speed{}
		}
		return plan.Sizings
	}
	want := sized(foldedState(t))
	if len(want) != 2 || !want[0].Learned || !want[1].Learned {
		t.Fatalf("the stream teaches the sizes %+v, want those of two stages", want)
	}
	paths, err := filepath.Glob("testdata/states/v*.json.gz")
	if err != nil || len(paths) < 2 {
		t.Fatalf("got the states %v of earlier versions: %v", paths, err)
	}
	for _, path := range paths {
		var state predictor.State
		if err := json.Unmarshal(readCompressed(t, path), &state); err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		if diff := cmp.Diff(want, sized(state)); diff != "" {
			t.Errorf("%s: sizes (-newest +by this one):\n%s", path, diff)
		}
	}
}
