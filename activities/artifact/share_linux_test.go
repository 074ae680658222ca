package artifact_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/artifact"
)

// strangers is the user and the group of nobody, as most systems number it.
const strangers = 65534

// asStranger calls f with the rights to files of a user that has none but those of the group strangers. It is
// skipped where this process may not.
func asStranger(t *testing.T, f func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can act as another user")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for ever: the thread ends with its rights
		for _, set := range []func(int) (int, error){unix.SetfsgidRetGid, unix.SetfsuidRetUid} {
			if _, err := set(strangers); err != nil {
				t.Error(err)
				return
			}
		}
		f()
	}()
	<-done
}

// openWhereOthersPass is open where users of no rights can pass.
func openWhereOthersPass(t *testing.T) *artifact.Files {
	t.Helper()
	store := open(t)
	if err := os.Chmod(filepath.Dir(store.Dir()), 0o711); err != nil { //nolint:gosec // of this test only
		t.Fatal(err)
	}
	return store
}

// read returns the content of an artifact.
func read(t *testing.T, store activities.Store, ref activities.Ref) (string, error) {
	t.Helper()
	content, err := activities.ReadAll(t.Context(), store, ref.Digest)
	return string(content), err
}

func TestASharedStoreIsReadAndFilledByItsGroup(t *testing.T) {
	t.Parallel()
	store := openWhereOthersPass(t)
	before := put(t, store, "before it was shared")
	if err := store.Share(strangers); err != nil {
		t.Fatal(err)
	}
	after := put(t, store, "after it was shared")
	var theirs activities.Ref
	asStranger(t, func() {
		opened, err := artifact.Open(store.Dir()) // as a stage does
		if err != nil {
			t.Error(err)
			return
		}
		for _, ref := range []activities.Ref{before, after} {
			if _, err := read(t, opened, ref); err != nil {
				t.Error(err)
			}
		}
		theirs = put(t, opened, "of a stage")
		if again := put(t, opened, "after it was shared"); again != after {
			t.Errorf("the same bytes again: got %v, want %v", again, after)
		}
	})
	if got, err := read(t, store, theirs); got != "of a stage" || err != nil {
		t.Errorf("what the group put: got %q, %v", got, err)
	}
	if err := store.Withdraw(); err != nil {
		t.Fatal(err)
	}
	asStranger(t, func() {
		if _, err := os.ReadFile(path(store, before.Digest)); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("read of a store that is shared no more: got %v, want a refusal", err)
		}
	})
}

func TestAttackTheGroupOfASharedStorePlantsNoLinks(t *testing.T) {
	t.Parallel()
	store := openWhereOthersPass(t)
	if err := store.Share(strangers); err != nil {
		t.Fatal(err)
	}
	secret, elsewhere := filepath.Join(t.TempDir(), "secret"), t.TempDir()
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	ref := put(t, store, "an artifact")
	folder := filepath.Dir(path(store, ref.Digest))
	asStranger(t, func() {
		if err := os.Rename(folder, folder+"-away"); err == nil {
			t.Error("a folder was put away, in whose place a link could stand")
		}
		if err := errors.Join(os.Remove(path(store, ref.Digest)), os.Symlink(secret, path(store, ref.Digest))); err != nil {
			t.Error(err)
		}
		_ = os.Symlink(elsewhere, filepath.Join(store.Dir(), "partial", "link"))
	})
	if got, err := read(t, store, ref); !errors.Is(err, activities.ErrCorrupt) {
		t.Errorf("an artifact that is a link to a file of the owner: got %q, %v, want ErrCorrupt", got, err)
	}
	if again := put(t, store, "an artifact"); again != ref {
		t.Errorf("put again: got %v, want %v", again, ref)
	}
	if got, err := read(t, store, ref); got != "an artifact" || err != nil {
		t.Errorf("after it was put again: got %q, %v", got, err)
	}
	if got, err := os.ReadFile(secret); string(got) != "secret" || err != nil {
		t.Errorf("the owner's file: got %q, %v", got, err)
	}
}

// TestAttackTheGroupOfASharedStorePlantsNoLinksAmongItsBoards has a link in place of a group's folder, through which
// the owner, who relays messages for stages, would read, write and remove files of its own.
func TestAttackTheGroupOfASharedStorePlantsNoLinksAmongItsBoards(t *testing.T) {
	t.Parallel()
	store := openWhereOthersPass(t)
	if err := store.Share(strangers); err != nil {
		t.Fatal(err)
	}
	elsewhere := t.TempDir()
	secret := filepath.Join(elsewhere, "secret")
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	asStranger(t, func() {
		if err := os.Symlink(elsewhere, filepath.Join(store.Dir(), artifact.Boards, "evil")); err != nil {
			t.Error(err)
		}
	})
	if got, err := store.Look(t.Context(), "evil", "secret"); err == nil {
		t.Errorf("a file of the owner is a message: %q", got)
	}
	if _, err := store.Post(t.Context(), "evil", "planted", nil); err == nil {
		t.Error("a message was posted outside of the store")
	}
	_ = store.Wipe(t.Context(), "evil", "secret")
	_ = store.Wipe(t.Context(), "evil")
	left, err := os.ReadDir(elsewhere)
	if err != nil || len(left) != 1 || left[0].Name() != "secret" {
		t.Errorf("the owner's folder has %v, %v; want its secret alone", left, err)
	}
}

// TestAGroupFromBeforeTheStoreWasSharedKeepsNobodyOut: its folder is the owner's alone.
func TestAGroupFromBeforeTheStoreWasSharedKeepsNobodyOut(t *testing.T) {
	t.Parallel()
	store := openWhereOthersPass(t)
	if _, err := store.Post(t.Context(), "group", "name", nil); err != nil {
		t.Fatal(err)
	}
	if err := store.Share(strangers); err != nil {
		t.Fatal(err)
	}
	asStranger(t, func() {
		opened, err := artifact.Open(store.Dir()) // as a stage does
		if err == nil {
			_, err = opened.Post(t.Context(), "group", "name", []byte("once more"))
		}
		if err != nil {
			t.Error(err)
		}
	})
	if got, err := store.Look(t.Context(), "group", "name"); err != nil || string(got) != "once more" {
		t.Errorf("what the group of the store has posted: %q, %v", got, err)
	}
}
