package results_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/activities/natstest"
	"github.com/spillway-ml/spillway/activities/results"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
)

// open returns results on a real server, and the directory of their artifacts.
func open(t *testing.T) (*results.Results, string) {
	t.Helper()
	r, _, dir := openOn(t, newSigning(t))
	return r, dir
}

// newSigning returns the keys of an engine.
func newSigning(t *testing.T) results.Signing {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	return results.Signing{Public: public, Sign: func(message []byte) []byte { return ed25519.Sign(private, message) }}
}

// openOn returns results on a real server as an engine with these keys has them, the server's JetStream, and the
// directory of their artifacts.
func openOn(t *testing.T, signing results.Signing) (*results.Results, jetstream.JetStream, string) {
	t.Helper()
	js := natstest.Start(t).Connect()
	for range 2 { // it may be made again
		if err := results.EnsureStream(t.Context(), js); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	store, err := artifact.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return results.New(js, store, signing), js, dir
}

func TestTheStreamOfResultsIsBoundedByMessagesBecauseEachHasASubject(t *testing.T) {
	t.Parallel()
	_, js, _ := openOn(t, newSigning(t))
	stream, err := js.Stream(t.Context(), wire.ResultStream)
	if err != nil {
		t.Fatal(err)
	}
	if got := stream.CachedInfo().Config; got.MaxMsgs != 200_000 || got.MaxMsgsPerSubject != 1 ||
		got.Discard != jetstream.DiscardOld {
		t.Errorf("got %d messages, %d for each subject, %v; want 200,000, 1 and the oldest to go", got.MaxMsgs,
			got.MaxMsgsPerSubject, got.Discard)
	}
}

func key(stage, build, input string) wire.ResultKey {
	return wire.NewResultKey(predictor.StageID{App: "app", Build: build, Name: stage}, false, "", json.RawMessage(input))
}

// midnight is when most results are made: the first second of a day.
var midnight = time.Now().UTC().Truncate(24 * time.Hour)

func keep(t *testing.T, r *results.Results, run, stage, build, input, output string) {
	t.Helper()
	keepAt(t, r, midnight, run, stage, build, input, output)
}

func keepAt(t *testing.T, r *results.Results, at time.Time, run, stage, build, input, output string) {
	t.Helper()
	kept := wire.Kept{
		Key: key(stage, build, input), Run: run, Stage: stage, Task: stage + "-0", Output: json.RawMessage(output),
		Cost: 7, Wall: time.Second, At: at,
	}
	if err := r.Keep(t.Context(), kept); err != nil {
		t.Fatal(err)
	}
}

func find(t *testing.T, r *results.Results, lookup wire.Lookup) []string {
	t.Helper()
	found, err := r.Find(t.Context(), lookup)
	if err != nil {
		t.Fatal(err)
	}
	outputs := make([]string, len(found))
	for i, one := range found {
		if one != nil {
			outputs[i] = one.Run + ": " + string(one.Output)
		}
	}
	return outputs
}

func TestAResultIsFoundByWhatItWasMadeOf(t *testing.T) {
	t.Parallel()
	r, _ := open(t)
	keep(t, r, "first run", "train", "b1", `{"seed":1}`, `"one"`)
	keep(t, r, "second.run", "train", "b1", `{"seed":1}`, `"two"`)
	keep(t, r, "second.run", "train", "b2", `{"seed":2}`, `null`)
	for _, c := range []struct {
		name   string
		lookup wire.Lookup
		want   string
	}{
		{"the latest of the same code and input", wire.Lookup{
			Shared: true,
			Keys:   []wire.ResultKey{key("train", "b1", `{"seed":1}`)},
		}, `second.run: "two"`},
		{"that of the run first", wire.Lookup{
			Run: "first run", Shared: true,
			Keys: []wire.ResultKey{key("train", "b1", `{"seed":1}`)},
		}, `first run: "one"`},
		{"that of the run by other code", wire.Lookup{
			Run:  "second.run",
			Keys: []wire.ResultKey{key("train", "b9", `{"seed":2}`)},
		}, `second.run: null`},
		{"none of other code", wire.Lookup{Shared: true, Keys: []wire.ResultKey{key("train", "b2", `{"seed":1}`)}}, ""},
		{"none of another input", wire.Lookup{Shared: true, Keys: []wire.ResultKey{key("train", "b1", `{"seed":3}`)}}, ""},
		{"none of another stage", wire.Lookup{Shared: true, Keys: []wire.ResultKey{key("test", "b1", `{"seed":1}`)}}, ""},
		{
			"none of others when only the run's are wanted",
			wire.Lookup{Run: "third", Keys: []wire.ResultKey{key("train", "b1", `{"seed":1}`)}},
			"",
		},
	} {
		if diff := cmp.Diff([]string{c.want}, find(t, r, c.lookup)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

func TestOnlyResultsOfTheSameVersionAreFoundAndNoneThatAreTooOld(t *testing.T) {
	t.Parallel()
	r, _ := open(t)
	keep(t, r, "one", "train", "b1", `1`, `"old"`)
	plain := key("train", "b1", `1`)
	second := wire.NewResultKey(predictor.StageID{App: "app", Build: "b1", Name: "train"}, false, "2",
		json.RawMessage(`1`))
	for _, c := range []struct {
		name   string
		lookup wire.Lookup
		want   string
	}{
		{"of any age", wire.Lookup{Shared: true, Keys: []wire.ResultKey{plain}}, `one: "old"`},
		{"just young enough", wire.Lookup{Shared: true, NotBefore: midnight, Keys: []wire.ResultKey{plain}}, `one: "old"`},
		{"too old", wire.Lookup{Shared: true, NotBefore: midnight.Add(time.Nanosecond), Keys: []wire.ResultKey{plain}}, ""},
		{
			"too old, but what the run itself had finished",
			wire.Lookup{Run: "one", NotBefore: midnight.Add(time.Hour), Keys: []wire.ResultKey{plain}},
			`one: "old"`,
		},
		{"of another version", wire.Lookup{Shared: true, Keys: []wire.ResultKey{second}}, ""},
		{"of another version, of the run itself", wire.Lookup{Run: "one", Keys: []wire.ResultKey{second}}, ""},
	} {
		if diff := cmp.Diff([]string{c.want}, find(t, r, c.lookup)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

func TestWhatARunTookIsItsOwnFromThenOn(t *testing.T) {
	t.Parallel()
	r, _ := open(t)
	large := `"` + string(bytes.Repeat([]byte("x"), 1<<15)) + `"`
	keep(t, r, "one", "train", "b1", `1`, large)
	keep(t, r, "one", "train", "b1", `2`, `"two"`)
	keys := []wire.ResultKey{key("train", "b2", `1`), key("train", "b2", `2`), key("train", "b2", `3`)}
	find(t, r, wire.Lookup{Run: "one", Keys: keys}) // a run that keeps nothing
	if diff := cmp.Diff([]string{"one: " + large, `one: "two"`, ""},
		find(t, r, wire.Lookup{Run: "one", Keys: keys, For: "two"})); diff != "" {
		t.Errorf("a retry by another build (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"two: " + large, `two: "two"`, ""},
		find(t, r, wire.Lookup{Run: "two", Keys: keys, For: "three"})); diff != "" {
		t.Errorf("a retry of the retry (-want +got):\n%s", diff)
	}
	kept, unsigned, err := r.OfRun(t.Context(), "two")
	if err != nil || len(kept) != 2 || unsigned != 0 || !kept[0].At.Equal(midnight) || kept[0].Cost != 7 {
		t.Errorf("kept of the retry: got %+v and error %v, want both as they were made", kept, err)
	}
}

func TestWhatARunTookIsNotSharedOn(t *testing.T) {
	t.Parallel()
	r, _ := open(t)
	keys := []wire.ResultKey{key("train", "b1", `1`)}
	shared := wire.Lookup{Shared: true, Keys: keys, For: "taker"}
	keepAt(t, r, midnight.Add(-31*24*time.Hour), "ancient", "train", "b1", `1`, `"ancient"`)
	if diff := cmp.Diff([]string{""}, find(t, r, shared)); diff != "" {
		t.Errorf("made more than 30 days ago (-want +got):\n%s", diff)
	}
	keepAt(t, r, midnight.Add(-time.Hour), "older", "train", "b1", `1`, `"older"`)
	keep(t, r, "newer", "train", "b1", `1`, `"newer"`)
	if diff := cmp.Diff([]string{`older: "older"`},
		find(t, r, wire.Lookup{Run: "older", Keys: keys, For: "retry"})); diff != "" {
		t.Errorf("the retry of an older run (-want +got):\n%s", diff)
	}
	for range 2 {
		if diff := cmp.Diff([]string{`newer: "newer"`}, find(t, r, shared)); diff != "" {
			t.Errorf("the newest that was made (-want +got):\n%s", diff)
		}
	}
	if diff := cmp.Diff([]string{`retry: "older"`}, find(t, r, wire.Lookup{Run: "retry", Keys: keys})); diff != "" {
		t.Errorf("what the retry took (-want +got):\n%s", diff)
	}
}

func TestACommandIsFoundWhateverItsChain(t *testing.T) {
	t.Parallel()
	of := func(build, code, argument string) wire.ResultKey {
		input, err := json.Marshal(wire.Command{Arguments: []string{argument}, Code: activities.Ref{Digest: code}})
		if err != nil {
			t.Fatal(err)
		}
		return wire.NewResultKey(predictor.StageID{Build: build, Name: "prepare"}, true, "", input)
	}
	one := of("b1", "c1", "x")
	if other := of("b2", "c1", "x"); one != other {
		t.Errorf("of two chains: got %v and %v, want one key", one, other)
	}
	if other := of("b1", "c2", "x"); one.Content != other.Content || one.Code == other.Code {
		t.Errorf("of other code: got %v and %v, want the same content and another code", one, other)
	}
	if other := of("b1", "c1", "y"); one.Content == other.Content {
		t.Errorf("with another argument: got %v and %v, want another content", one, other)
	}
}

func TestALargeOutputIsAnArtifactAndNoResultWhenItIsGone(t *testing.T) {
	t.Parallel()
	r, dir := open(t)
	large := `"` + string(bytes.Repeat([]byte("x"), 1<<20)) + `"`
	keep(t, r, "run", "train", "b1", `1`, large)
	lookup := wire.Lookup{Shared: true, Keys: []wire.ResultKey{key("train", "b1", `1`), key("train", "b1", `2`)}}
	if diff := cmp.Diff([]string{"run: " + large, ""}, find(t, r, lookup)); diff != "" {
		t.Errorf("a large output (-want +got):\n%s", diff)
	}
	kept, _, err := r.OfRun(t.Context(), "run")
	if err != nil || len(kept) != 1 || kept[0].Stored == (activities.Ref{}) {
		t.Fatalf("got %d results of the run and error %v, want one that is stored", len(kept), err)
	}
	err = filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() {
			return os.Remove(path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"", ""}, find(t, r, lookup)); diff != "" {
		t.Errorf("an output that is gone (-want +got):\n%s", diff)
	}
}

// A job of a tuning is taken with the checkpoint from which its trial goes on, and not without it.
func TestAResultWhoseCheckpointIsGoneIsNone(t *testing.T) {
	t.Parallel()
	r, dir := open(t)
	store, err := artifact.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	checkpoint, err := store.Put(t.Context(), strings.NewReader("weights"))
	if err != nil {
		t.Fatal(err)
	}
	told := wire.Told{Checkpoint: checkpoint, Metrics: map[string]float64{"loss": 0.25}}
	for input, one := range map[string]*wire.Told{`1`: &told, `2`: {Checkpoint: activities.Ref{Digest: strings.Repeat(
		"ab", 32)}}, `3`: {}} {
		err := r.Keep(t.Context(), wire.Kept{
			Key: key("train", "b1", input), Run: "first", Stage: "train", Task: "train-0", Output: json.RawMessage(`7`),
			At: time.Now(), Told: one,
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	found, err := r.Find(t.Context(), wire.Lookup{
		Run: "first", For: "second",
		Keys: []wire.ResultKey{key("train", "b2", `1`), key("train", "b2", `2`), key("train", "b2", `3`)},
	})
	if err != nil || len(found) != 3 || found[0] == nil || found[1] != nil || found[2] == nil {
		t.Fatalf("found %v, %v; want all but the one whose checkpoint is gone", found, err)
	}
	if diff := cmp.Diff(&told, found[0].Told); diff != "" {
		t.Errorf("what the job told (-want +got):\n%s", diff)
	}
}

func TestTheResultsOfARunAreListed(t *testing.T) {
	t.Parallel()
	r, _ := open(t)
	if kept, _, err := r.OfRun(t.Context(), "run"); err != nil || len(kept) != 0 {
		t.Errorf("a run of which nothing is kept: got %d results and error %v", len(kept), err)
	}
	for _, input := range []string{"1", "2", "3", "2"} {
		keep(t, r, "run", "score", "b1", input, input)
	}
	keep(t, r, "other", "score", "b1", "4", "4")
	kept, _, err := r.OfRun(t.Context(), "run")
	if err != nil {
		t.Fatal(err)
	}
	var outputs []string
	for _, one := range kept {
		outputs = append(outputs, string(one.Output))
	}
	if diff := cmp.Diff([]string{"1", "3", "2"}, outputs); diff != "" {
		t.Errorf("outputs (-want +got):\n%s", diff)
	}
}
