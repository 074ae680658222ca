package activities_test

import (
	"context"
	"errors"
	"maps"
	"math"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/artifact"
)

// attempt returns a context with an attempt whose reports are kept.
func attempt(t *testing.T, resume activities.Ref) (context.Context, *activities.Attempt) {
	t.Helper()
	store, err := artifact.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	a := &activities.Attempt{Store: store, Resume: resume}
	return activities.NewContext(t.Context(), a), a
}

func TestValuesComeBackAsTheyWerePut(t *testing.T) {
	t.Parallel()
	ctx, a := attempt(t, activities.Ref{})
	raw, err := activities.Put(ctx, []byte("as it is"))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := raw.Get(ctx); err != nil || string(got) != "as it is" || raw.Bytes != 8 {
		t.Errorf("bytes: got %q, %v of %d bytes", got, err, raw.Bytes)
	}
	object, err := activities.Put(ctx, map[string]int{"a": 1})
	if err != nil {
		t.Fatal(err)
	}
	got, err := object.Get(ctx)
	if diff := cmp.Diff(map[string]int{"a": 1}, got); diff != "" || err != nil {
		t.Errorf("JSON: %v (-want +got):\n%s", err, diff)
	}
	if a.Read() != 15 || a.Written() != 15 {
		t.Errorf("read %d and wrote %d bytes, want 15 each", a.Read(), a.Written())
	}
}

func TestAStreamIsStoredAndCounted(t *testing.T) {
	t.Parallel()
	ctx, a := attempt(t, activities.Ref{})
	ref, err := activities.PutStream(ctx, strings.NewReader("twelve bytes"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := activities.Artifact[[]byte]{Ref: ref}.Get(ctx)
	if string(got) != "twelve bytes" || err != nil || a.Written() != 12 || a.Published() <= 0 {
		t.Errorf("got %q, %v; %d bytes in %v are counted", got, err, a.Written(), a.Published())
	}
	broken := errors.New("the reader breaks")
	if _, err := activities.PutStream(ctx, iotest.ErrReader(broken)); !errors.Is(err, broken) || a.Written() != 12 {
		t.Errorf("got %v, %d bytes", err, a.Written())
	}
}

func TestACheckpointIsWhatTheNextAttemptStartsFrom(t *testing.T) {
	t.Parallel()
	ctx, a := attempt(t, activities.Ref{})
	var state activities.Checkpoint[int]
	if _, ok, err := state.Restore(ctx); ok || err != nil {
		t.Errorf("before any was saved: %v, %v", ok, err)
	}
	a.Checkpoint = func(ref activities.Ref, _ ...activities.Ref) { a.Resume = ref }
	for step := range 3 {
		if err := state.Save(ctx, step); err != nil {
			t.Fatal(err)
		}
	}
	if got, ok, err := state.Restore(ctx); got != 2 || !ok || err != nil {
		t.Errorf("got %d, %v, %v; want the newest, 2", got, ok, err)
	}
}

func TestProgressTellsWhatIsNoNumberToo(t *testing.T) {
	t.Parallel()
	ctx, a := attempt(t, activities.Ref{})
	var got map[string]float64
	a.Progress = func(_, _ int, metrics map[string]float64) { got = metrics }
	want := map[string]float64{"loss": 0.5, "nan": math.NaN(), "inf": math.Inf(1)}
	activities.Progress(ctx, 1, maps.Clone(want))
	if diff := cmp.Diff(want, got, cmpopts.EquateNaNs()); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
}

func TestOutsideAnAttemptEveryCallSaysSoOrDoesNothing(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	activities.Progress(ctx, 1, nil)
	activities.Log(ctx).Info("discarded")
	_, put := activities.Put(ctx, 1)
	_, stream := activities.PutStream(ctx, strings.NewReader(""))
	_, get := activities.Artifact[int]{Ref: activities.Ref{Digest: "x"}}.Get(ctx)
	for name, err := range map[string]error{
		"put": put, "put a stream": stream, "get": get,
		"save": activities.Checkpoint[int]{}.Save(ctx, 1),
	} {
		if !errors.Is(err, activities.ErrNoAttempt) {
			t.Errorf("%s: got %v, want ErrNoAttempt", name, err)
		}
	}
}

func TestAnArtifactThatIsNotThereIsMissing(t *testing.T) {
	t.Parallel()
	ctx, _ := attempt(t, activities.Ref{})
	_, err := activities.Artifact[int]{Ref: activities.Ref{Digest: strings.Repeat("0", 64)}}.Get(ctx)
	if !errors.Is(err, activities.ErrMissing) {
		t.Errorf("got %v, want ErrMissing", err)
	}
}
