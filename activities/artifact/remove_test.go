package artifact_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/artifact"
)

// listed are the digests that List tells, sorted.
func listed(t *testing.T, store *artifact.Files) (digests []string) {
	t.Helper()
	err := store.List(t.Context(), func(info artifact.Info) error {
		digests = append(digests, info.Digest)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(digests)
	return digests
}

// wantRead wants that the artifact can be read, or not.
func wantRead(t *testing.T, store *artifact.Files, data string, want bool) {
	t.Helper()
	got, err := activities.ReadAll(t.Context(), store, digestOf(data))
	switch {
	case want && (err != nil || string(got) != data):
		t.Errorf("read %q: got %q, %v", data, got, err)
	case !want && !errors.Is(err, activities.ErrMissing):
		t.Errorf("read %q: got %v, want %v", data, err, activities.ErrMissing)
	}
}

func TestWhatIsTakenAsideIsThereUntilItIsDeleted(t *testing.T) {
	t.Parallel()
	store := open(t)
	put(t, store, "a")
	put(t, store, "b")
	for _, data := range []string{"a", "b"} {
		if taken, err := store.Discard(t.Context(), digestOf(data), time.Now()); !taken || err != nil {
			t.Fatalf("Discard(%q) = %v, %v", data, taken, err)
		}
		wantRead(t, store, data, true)
	}
	both := []string{digestOf("a"), digestOf("b")}
	slices.Sort(both)
	if diff := cmp.Diff(both, listed(t, store)); diff != "" {
		t.Errorf("listed (-want +got):\n%s", diff)
	}
	if gone, err := store.Delete(t.Context(), digestOf("a")); !gone || err != nil {
		t.Fatalf("Delete = %v, %v", gone, err)
	}
	wantRead(t, store, "a", false)

	// The process is killed here: the next one puts back what it had not deleted.
	again, err := artifact.Open(store.Dir())
	if err != nil {
		t.Fatal(err)
	}
	if err := again.RestoreAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantRead(t, again, "b", true)
	if diff := cmp.Diff([]string{digestOf("b")[:2] + "/" + digestOf("b")[2:]}, stored(t, again)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

func TestWhatIsPutOrAskedForSinceTheDecisionIsNotTaken(t *testing.T) {
	t.Parallel()
	for name, since := range map[string]func(*testing.T, *artifact.Files) error{
		"put again": func(t *testing.T, store *artifact.Files) error {
			t.Helper()
			put(t, store, "a")
			return nil
		},
		"asked for": func(_ *testing.T, store *artifact.Files) error { return store.Touch(t.Context(), digestOf("a")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := open(t)
			put(t, store, "a")
			old := time.Now().Add(-time.Hour)
			if err := os.Chtimes(path(store, digestOf("a")), old, old); err != nil {
				t.Fatal(err)
			}
			if err := since(t, store); err != nil {
				t.Fatal(err)
			}
			if taken, err := store.Discard(t.Context(), digestOf("a"), old); taken || err != nil {
				t.Errorf("Discard = %v, %v, want that it is not taken", taken, err)
			}
			wantRead(t, store, "a", true)
			if names := stored(t, store); len(names) != 1 {
				t.Errorf("files: %q, want one", names)
			}
		})
	}
}

func TestAnArtifactThatIsPutWhileItIsAsideIsPutAgain(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*artifact.Files, string) error{
		"and is put back": func(f *artifact.Files, digest string) error { return f.Restore(t.Context(), digest) },
		"and is to be removed": func(f *artifact.Files, digest string) error {
			_, err := f.Delete(t.Context(), digest)
			return err
		},
		"and nothing comes then": func(*artifact.Files, string) error { return nil },
	} {
		store := open(t)
		put(t, store, "text")
		if taken, err := store.Discard(t.Context(), digestOf("text"), time.Now()); !taken || err != nil {
			t.Fatalf("Discard = %v, %v", taken, err)
		}
		put(t, store, "text")
		if err := end(store, digestOf("text")); err != nil {
			t.Fatal(err)
		}
		err := store.List(t.Context(), func(info artifact.Info) error {
			if !info.Again {
				t.Errorf("%s: it is said to be put once", name)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		wantRead(t, store, "text", true)
	}
}

// TestAnArtifactOfAnEarlierBuildIsMoreThanOnes has binaries put that were built before files said who counts on them:
// they rename a file of theirs to its name, whatever is there.
func TestAnArtifactOfAnEarlierBuildIsMoreThanOnes(t *testing.T) {
	t.Parallel()
	store := open(t)
	put(t, store, "put anew")
	for _, text := range []string{"put", "put anew"} {
		name := path(store, digestOf(text))
		err := os.MkdirAll(filepath.Dir(name), 0o700)
		if err == nil {
			err = os.WriteFile(name+".new", []byte(text), 0o600)
		}
		if err := errors.Join(err, os.Rename(name+".new", name)); err != nil {
			t.Fatal(err)
		}
	}
	err := store.List(t.Context(), func(info artifact.Info) error {
		if !info.Again {
			t.Errorf("%s is said to be put once", info.Digest)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestAnArtifactTellsWhetherMoreThanOneHasPutIt has one put, and then others put the same or ask for it, one after the
// other and at once.
func TestAnArtifactTellsWhetherMoreThanOneHasPutIt(t *testing.T) {
	t.Parallel()
	store := open(t)
	again := func(text string) (again bool) {
		t.Helper()
		found := false
		err := store.List(t.Context(), func(info artifact.Info) error {
			if info.Digest == digestOf(text) {
				again, found = info.Again, true
			}
			return nil
		})
		if err != nil || !found {
			t.Fatalf("%q is listed: %v, %v", text, found, err)
		}
		return again
	}
	for _, text := range []string{"put", "asked for"} {
		put(t, store, text)
		if again(text) {
			t.Errorf("%q was put once, and is said to be put again", text)
		}
	}
	put(t, store, "put")
	if err := store.Touch(t.Context(), digestOf("asked for")); err != nil {
		t.Fatal(err)
	}
	var putting sync.WaitGroup
	for range 8 {
		putting.Go(func() { put(t, store, "at once") })
	}
	putting.Wait()
	for _, text := range []string{"put", "asked for", "at once"} {
		if !again(text) {
			t.Errorf("%q was wanted twice, and is said to be put once", text)
		}
		wantRead(t, store, text, true)
	}
	if taken, err := store.Discard(t.Context(), digestOf("put"), time.Now()); !taken || err != nil {
		t.Fatalf("Discard = %v, %v", taken, err)
	}
	if !again("put") {
		t.Error("what is aside has forgotten that it was put twice")
	}
	if gone, err := store.Delete(t.Context(), digestOf("put")); !gone || err != nil {
		t.Fatalf("Delete = %v, %v", gone, err)
	}
	put(t, store, "put")
	if again("put") {
		t.Error("what was deleted and put once is said to be put again")
	}
}

func TestWhatIsPutWhileItIsAsideStays(t *testing.T) {
	t.Parallel()
	store := open(t)
	remove := func(digest string) error {
		gone, err := store.Delete(t.Context(), digest)
		if gone {
			t.Error("what was put meanwhile is said to be gone")
		}
		return err
	}
	restore := func(digest string) error { return store.Restore(t.Context(), digest) }
	touch := func(digest string) error { return store.Touch(t.Context(), digest) }
	for _, end := range []func(string) error{remove, restore, touch} {
		put(t, store, "a")
		if taken, err := store.Discard(t.Context(), digestOf("a"), time.Now()); !taken || err != nil {
			t.Fatalf("Discard = %v, %v", taken, err)
		}
		put(t, store, "a")
		if diff := cmp.Diff([]string{digestOf("a")}, listed(t, store)); diff != "" {
			t.Errorf("listed (-want +got):\n%s", diff)
		}
		if err := end(digestOf("a")); err != nil {
			t.Fatal(err)
		}
		wantRead(t, store, "a", true)
		if names := stored(t, store); len(names) > 2 {
			t.Errorf("files: %q", names)
		}
	}
}

// TestNoPutIsLostToARemoval has one process put and read the same bytes while another removes them: once a Put has
// returned, what was put stays, as the decision to remove it was older.
func TestNoPutIsLostToARemoval(t *testing.T) {
	t.Parallel()
	store := open(t)
	done := make(chan struct{})
	var remover sync.WaitGroup
	remover.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			var last artifact.Info
			err := store.List(t.Context(), func(info artifact.Info) error { last = info; return nil })
			if err == nil && last.Digest != "" {
				var taken bool
				if taken, err = store.Discard(t.Context(), last.Digest, last.Written); taken {
					err = errors.Join(err, store.Restore(t.Context(), last.Digest))
				}
			}
			if err != nil {
				t.Error(err)
				return
			}
		}
	})
	for range 300 {
		put(t, store, "a")
		wantRead(t, store, "a", true)
	}
	close(done)
	remover.Wait()
}

func TestPins(t *testing.T) {
	t.Parallel()
	store := open(t)
	pinned := func() (digests []string) {
		err := store.Pins(t.Context(), func(info artifact.Info) error {
			if age := time.Since(info.Written); age > time.Hour {
				t.Errorf("pin %s is %s old", info.Digest, age)
			}
			digests = append(digests, info.Digest)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return digests
	}
	if got := pinned(); len(got) > 0 {
		t.Errorf("pins at first: %q", got)
	}
	put(t, store, "a")
	for range 2 {
		if err := store.Pin(t.Context(), digestOf("a")); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]string{digestOf("a")}, pinned()); diff != "" {
		t.Errorf("pins (-want +got):\n%s", diff)
	}
	if err := store.Unpin(t.Context(), digestOf("a"), time.Now().Add(-time.Minute)); err != nil || len(pinned()) != 1 {
		t.Errorf("pins that were made again since: %q, %v; want that they stay", pinned(), err)
	}
	if err := errors.Join(store.Unpin(t.Context(), digestOf("a"), time.Now()), store.Unpin(t.Context(), digestOf("a"), time.Now())); err != nil {
		t.Fatal(err)
	}
	if got := pinned(); len(got) > 0 {
		t.Errorf("pins at the end: %q", got)
	}
}

func TestNothingOutsideTheStoreIsNamed(t *testing.T) {
	t.Parallel()
	store := open(t)
	for _, digest := range []string{"", "../../etc/passwd", strings.Repeat("A", 64)} {
		_, discard := store.Discard(t.Context(), digest, time.Now())
		_, remove := store.Delete(t.Context(), digest)
		for name, err := range map[string]error{
			"Discard": discard, "Restore": store.Restore(t.Context(), digest), "Delete": remove, "Touch": store.Touch(t.Context(), digest),
			"Pin": store.Pin(t.Context(), digest), "Unpin": store.Unpin(t.Context(), digest, time.Now()),
		} {
			if err == nil {
				t.Errorf("%s(%q) was not refused", name, digest)
			}
		}
	}
}

func TestPutsCanBeRefused(t *testing.T) {
	t.Parallel()
	store := open(t)
	put(t, store, "a")
	const why = "the disk has 1 GiB left"
	if err := store.Refuse(why); err != nil {
		t.Fatal(err)
	}
	other, err := artifact.Open(store.Dir()) // of another process
	if err != nil {
		t.Fatal(err)
	}
	_, err = other.Put(t.Context(), strings.NewReader("b"))
	if !errors.Is(err, activities.ErrNoRoom) || !strings.Contains(err.Error(), why) {
		t.Errorf("Put: %v, want %v with %q", err, activities.ErrNoRoom, why)
	}
	wantRead(t, other, "a", true)
	if err := errors.Join(store.Refuse(""), store.Refuse("")); err != nil {
		t.Fatal(err)
	}
	put(t, other, "b")
}

// TestWhatIsPutBackWhileAllAreListedIsListed has somebody ask for an artifact that is aside while a collection lists
// what there is.
func TestWhatIsPutBackWhileAllAreListedIsListed(t *testing.T) {
	t.Parallel()
	store := open(t)
	texts := []string{"a", "b"}
	slices.SortFunc(texts, func(a, b string) int { return strings.Compare(digestOf(a), digestOf(b)) })
	first, second := texts[0], texts[1] // in the order in which they are listed
	put(t, store, first)
	put(t, store, second)
	if taken, err := store.Discard(t.Context(), digestOf(first), time.Now()); err != nil || !taken {
		t.Fatal(taken, err)
	}
	var listed []string
	err := store.List(t.Context(), func(info artifact.Info) error {
		listed = append(listed, info.Digest)
		return store.Touch(t.Context(), digestOf(first))
	})
	slices.Sort(listed)
	if diff := cmp.Diff([]string{digestOf(first), digestOf(second)}, listed); diff != "" || err != nil {
		t.Errorf("listed (-want +got):\n%s%v", diff, err)
	}
}
