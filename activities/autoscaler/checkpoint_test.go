package autoscaler

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
)

// folded returns a state of n stages.
func folded(n int) (state predictor.State) {
	for i := range n {
		stage := predictor.StageID{App: "digits", Build: "b1", Name: fmt.Sprintf("stage-%d", i)}
		state = predictor.Fold(state, scheduled(stage, i+1))
		for task := range 3 {
			state = predictor.Fold(state, record(stage, fmt.Sprintf("task-%d-%d", i, task)))
		}
	}
	return state
}

// asJSON is what a state remembers.
func asJSON(t *testing.T, state predictor.State) string {
	t.Helper()
	data, err := json.Marshal(state)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestACheckpointComesBackAsItWas(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		stages     int
		compressed bool
	}{{0, false}, {3, false}, {1000, true}} {
		want := checkpoint{Version: wire.Version, Term: 4, Sequence: 1234, State: folded(row.stages)}
		data, err := encodeCheckpoint(want)
		if err != nil {
			t.Fatal(err)
		}
		if compressed := !bytes.HasPrefix(data, []byte("{")); compressed != row.compressed {
			t.Errorf("%d stages: %d bytes, compressed is %v, want %v", row.stages, len(data), compressed, row.compressed)
		}
		got, err := decodeCheckpoint(data)
		if err != nil {
			t.Fatal(err)
		}
		if got.Term != want.Term || got.Sequence != want.Sequence {
			t.Errorf("term and sequence = %d, %d, want %d, %d", got.Term, got.Sequence, want.Term, want.Sequence)
		}
		if diff := cmp.Diff(asJSON(t, want.State), asJSON(t, got.State)); diff != "" {
			t.Errorf("%d stages: state (-want +got):\n%s", row.stages, diff)
		}
	}
}

func TestADamagedCheckpointIsNeverUsed(t *testing.T) {
	t.Parallel()
	large, err := encodeCheckpoint(checkpoint{Version: wire.Version, Sequence: 9, State: folded(1000)})
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{
		"empty":                  nil,
		"not JSON":               []byte("state"),
		"cut short":              []byte(`{"v":1,"term":3`),
		"of a later version":     []byte(`{"v":99,"term":1,"sequence":7,"state":{}}`),
		"without a version":      []byte(`{"term":1}`),
		"of the largest term":    []byte(`{"v":1,"term":18446744073709551615,"sequence":7,"state":{}}`),
		"state of another shape": []byte(`{"v":1,"term":1,"sequence":7,"state":[1,2]}`),
		"compressed, cut short":  large[:len(large)/2],
		"compressed, flipped":    append(bytes.Clone(large[:len(large)-4]), 0, 0, 0, 0),
		"only the gzip mark":     {0x1f, 0x8b},
	} {
		if got, err := decodeCheckpoint(data); !errors.Is(err, errCheckpoint) {
			t.Errorf("%s: %+v, %v, want %v", name, got, err, errCheckpoint)
		}
	}
}

func TestOnlyTheNewestTermSavesCheckpoints(t *testing.T) {
	t.Parallel()
	js := stream(t)
	storeOf := func() *checkpointStore {
		v, err := openCheckpoints(t.Context(), js)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := v.load(t.Context()); err != nil {
			t.Fatal(err)
		}
		return v
	}
	save := func(v *checkpointStore, term, sequence uint64) error {
		return v.save(t.Context(), checkpoint{Version: wire.Version, Term: term, Sequence: sequence})
	}
	old := storeOf()
	if err := save(old, 1, 10); err != nil {
		t.Fatal(err)
	}
	fresh := storeOf()
	if err := save(old, 1, 20); err != nil { // not yet known to be deposed
		t.Fatal(err)
	}
	if err := save(fresh, 2, 15); err != nil {
		t.Errorf("the new leader's first checkpoint: %v", err)
	}
	if err := save(old, 1, 30); !errors.Is(err, ErrSuperseded) {
		t.Errorf("the old leader's checkpoint: %v, want %v", err, ErrSuperseded)
	}
	got, err := storeOf().load(t.Context())
	if err != nil || got.Term != 2 || got.Sequence != 15 {
		t.Errorf("newest checkpoint: term %d, sequence %d, %v; want 2, 15", got.Term, got.Sequence, err)
	}
}

func TestACheckpointThatTheServerDoesNotTakeIsExplained(t *testing.T) {
	t.Parallel()
	v, err := openCheckpoints(t.Context(), stream(t))
	if err != nil {
		t.Fatal(err)
	}
	v.limit = 2 << 10
	err = v.save(t.Context(), checkpoint{Version: wire.Version, State: folded(20)})
	if err == nil || !strings.Contains(err.Error(), "max_payload") {
		t.Errorf("save: %v, want advice on max_payload", err)
	}
}

// TestACheckpointThatIsTooLargeForgetsWhatRanLongestAgo lets the server take less than all stages come to, of which the
// run of the newest goes on.
func TestACheckpointThatIsTooLargeForgetsWhatRanLongestAgo(t *testing.T) {
	t.Parallel()
	v, err := openCheckpoints(t.Context(), stream(t))
	if err != nil {
		t.Fatal(err)
	}
	state := folded(40)
	whole := len(asJSON(t, state))
	v.limit = int64(whole / 2)
	var told bytes.Buffer
	leading := &term{
		saves: v, state: state, sequence: 7, plan: &planWriter{term: 1}, log: slog.New(slog.NewTextHandler(&told, nil)),
	}
	if err := leading.save(t.Context()); err != nil {
		t.Fatal(err)
	}
	if c, err := v.load(t.Context()); err == nil && c.Sequence == 7 {
		t.Fatalf("of stages that a run works on some were forgotten: %s", told.String())
	}
	leading.state = predictor.Fold(state, predictor.RunEnded{
		Run: "run-1", State: predictor.RunSucceeded, At: time.Unix(2_000_000_000, 0),
	})
	leading.sequence = 8
	if err := leading.save(t.Context()); err != nil {
		t.Fatal(err)
	}
	c, err := v.load(t.Context())
	if err != nil || c.Sequence != 8 || len(asJSON(t, c.State)) > whole/2 {
		t.Fatalf("checkpoint: sequence %d of %d bytes, %v; want 8, and at most %d bytes\n%s", c.Sequence,
			len(asJSON(t, c.State)), err, whole/2, told.String())
	}
	if !strings.Contains(told.String(), "ran longest ago") || !strings.Contains(told.String(), "max_payload") {
		t.Errorf("the log says\n%s\nwant that stages are forgotten, and what would help", told.String())
	}
}

// A build that is gone back to cannot read what a later one wrote: it goes on with what it was left with, and the later
// one, when it is back, with what there is then.
func TestWhoGoesBackToAnEarlierBuildFindsWhatThatKnew(t *testing.T) {
	t.Parallel()
	js := stream(t)
	v, err := openCheckpoints(t.Context(), js)
	if err != nil {
		t.Fatal(err)
	}
	load := func() (checkpoint, error) { return v.load(t.Context()) }
	state := folded(2)
	written := func(sequence uint64, version int) []byte { // as the build of that version writes it
		data, err := encodeCheckpoint(checkpoint{Version: wire.Version, Term: 1, Sequence: sequence, State: state})
		if err != nil {
			t.Fatal(err)
		}
		own, other := fmt.Sprintf(`"state":{"v":%d,`, predictor.StateVersion), fmt.Sprintf(`"state":{"v":%d,`, version)
		if !bytes.Contains(data, []byte(own)) {
			t.Fatalf("no version %s in %s", own, data)
		}
		return bytes.Replace(data, []byte(own), []byte(other), 1)
	}
	put := func(key string, data []byte) {
		if _, err := v.bucket.Put(t.Context(), key, data); err != nil {
			t.Fatal(err)
		}
	}

	put(wire.StateKey, written(20, predictor.StateVersion+1))
	if got, err := load(); !errors.Is(err, errCheckpoint) {
		t.Errorf("a checkpoint of a later build: %+v, %v, want %v", got, err, errCheckpoint)
	}
	put(formerKey(predictor.StateVersion), written(10, predictor.StateVersion)) // as the later build has kept it
	got, err := load()
	if err != nil || got.Sequence != 10 || asJSON(t, got.State) != asJSON(t, state) {
		t.Errorf("beside a checkpoint of a later build: sequence %d, %v, want what this one knew at 10", got.Sequence, err)
	}
	if err := v.save(t.Context(), checkpoint{Version: wire.Version, Term: 2, Sequence: 30}); err != nil {
		t.Fatal(err)
	}
	if got, err = load(); err != nil || got.Sequence != 30 {
		t.Errorf("its own: sequence %d, %v, want 30", got.Sequence, err)
	}

	earlier := written(40, predictor.StateVersion-1)
	put(wire.StateKey, earlier)
	if got, err = load(); err != nil || got.Sequence != 40 {
		t.Errorf("a checkpoint of an earlier build: sequence %d, %v, want 40", got.Sequence, err)
	}
	kept, err := v.bucket.Get(t.Context(), formerKey(predictor.StateVersion-1))
	if err != nil || !bytes.Equal(kept.Value(), earlier) {
		t.Errorf("kept for the earlier build: %v, want what it had written", err)
	}
}

// A build that is come back to after an earlier one goes on with what it knew itself, where the stream still has all
// that came since; else with what the earlier one knew. The earlier one keeps it, however often they take turns.
func TestWhoComesBackAfterAnEarlierBuildFindsWhatItKnewItself(t *testing.T) {
	t.Parallel()
	v, err := openCheckpoints(t.Context(), stream(t))
	if err != nil {
		t.Fatal(err)
	}
	written := func(term, sequence uint64, state predictor.State, version int) []byte {
		data, err := encodeCheckpoint(checkpoint{Version: wire.Version, Term: term, Sequence: sequence, State: state})
		if err != nil {
			t.Fatal(err)
		}
		own, other := fmt.Sprintf(`"state":{"v":%d,`, predictor.StateVersion), fmt.Sprintf(`"state":{"v":%d,`, version)
		return bytes.Replace(data, []byte(own), []byte(other), 1)
	}
	put := func(key string, data []byte) {
		if _, err := v.bucket.Put(t.Context(), key, data); err != nil {
			t.Fatal(err)
		}
	}

	later := written(1, 20, folded(2), predictor.StateVersion+1)
	put(formerKey(predictor.StateVersion), written(1, 10, folded(1), predictor.StateVersion))
	put(wire.StateKey, later)
	if got, err := v.load(t.Context()); err != nil || got.Sequence != 10 {
		t.Fatalf("the earlier build: sequence %d, %v, want 10", got.Sequence, err)
	}
	if err := v.save(t.Context(), checkpoint{Version: wire.Version, Term: 2, Sequence: 30}); err != nil {
		t.Fatal(err)
	}
	kept, err := v.bucket.Get(t.Context(), formerKey(predictor.StateVersion+1))
	if err != nil || !bytes.Equal(kept.Value(), later) {
		t.Errorf("kept for the later build: %v, want what it had written", err)
	}

	own := folded(3)
	put(formerKey(predictor.StateVersion), written(1, 20, own, predictor.StateVersion))
	put(wire.StateKey, written(2, 30, folded(1), predictor.StateVersion-1))
	for _, row := range []struct{ first, want uint64 }{{1, 20}, {21, 20}, {22, 30}} {
		v.first = row.first
		got, err := v.load(t.Context())
		if err != nil || got.Sequence != row.want || got.Term != 2 {
			t.Errorf("with messages from %d on: sequence %d, term %d, %v, want %d and 2", row.first, got.Sequence, got.Term,
				err, row.want)
		}
		if knows := asJSON(t, got.State) == asJSON(t, own); knows != (row.want == 20) {
			t.Errorf("with messages from %d on it goes on with what it knew itself: %v", row.first, knows)
		}
	}
}

func TestALeaderThatWasDeposedByALaterBuildSavesNothing(t *testing.T) {
	t.Parallel()
	v, err := openCheckpoints(t.Context(), stream(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := v.save(t.Context(), checkpoint{Version: wire.Version, Term: 1, Sequence: 10}); err != nil {
		t.Fatal(err)
	}
	data, err := encodeCheckpoint(checkpoint{Version: wire.Version, Term: 3, Sequence: 20, State: folded(1)})
	if err != nil {
		t.Fatal(err)
	}
	own := fmt.Sprintf(`"state":{"v":%d,`, predictor.StateVersion)
	later := bytes.Replace(data, []byte(own), []byte(fmt.Sprintf(`"state":{"v":%d,`, predictor.StateVersion+1)), 1)
	for _, kept := range []string{"nothing of this build", "what this build knew"} {
		if _, err := v.bucket.Put(t.Context(), wire.StateKey, later); err != nil {
			t.Fatal(err)
		}
		err = v.save(t.Context(), checkpoint{Version: wire.Version, Term: 2, Sequence: 30})
		if !errors.Is(err, ErrSuperseded) {
			t.Errorf("with %s kept: %v, want %v", kept, err, ErrSuperseded)
		}
		if entry, err := v.bucket.Get(t.Context(), wire.StateKey); err != nil || !bytes.Equal(entry.Value(), later) {
			t.Fatalf("with %s kept: the later leader's checkpoint is gone (%v)", kept, err)
		}
		former, err := encodeCheckpoint(checkpoint{Version: wire.Version, Term: 1, Sequence: 10})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := v.bucket.Put(t.Context(), formerKey(predictor.StateVersion), former); err != nil {
			t.Fatal(err)
		}
	}
}
