package artifact_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/activities/artifact/storetest"
)

func TestFilesKeepToTheContractOfStores(t *testing.T) {
	t.Parallel()
	storetest.Run(t, storetest.Options{
		Open: func(t *testing.T) artifact.Store { t.Helper(); return open(t) },
		Damage: func(t *testing.T, store artifact.Store, digest string) {
			t.Helper()
			files, _ := store.(*artifact.Files)
			file, err := os.OpenFile(path(files, digest), os.O_WRONLY, 0)
			if err == nil {
				_, err = file.WriteAt([]byte("#"), 2)
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := file.Close(); err != nil {
				t.Fatal(err)
			}
		},
		Later: 5 * time.Millisecond, Large: 64 << 20, Memory: 16 << 20, Races: 300,
	})
}

func TestBoardsThatNobodyUsesAreRemovedWhenTheStoreIsOpened(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	open := func() *artifact.Files {
		files, err := artifact.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		return files
	}
	files := open()
	for _, group := range []string{"old", "new"} {
		if _, err := files.Post(t.Context(), group, "name", []byte("message")); err != nil {
			t.Fatal(err)
		}
	}
	past := time.Now().Add(-25 * time.Hour)
	if err := os.Chtimes(filepath.Join(dir, artifact.Boards, "old"), past, past); err != nil {
		t.Fatal(err)
	}
	files = open()
	if _, err := files.Look(t.Context(), "old", "name"); !errors.Is(err, activities.ErrMissing) {
		t.Errorf("what is a day old is there: %v", err)
	}
	if _, err := files.Look(t.Context(), "new", "name"); err != nil {
		t.Errorf("what is new is gone: %v", err)
	}
}

func TestFilesKeepToTheContractOfBoards(t *testing.T) {
	t.Parallel()
	storetest.RunBoard(t, func(t *testing.T) activities.Board {
		t.Helper()
		files, err := artifact.Open(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		return files
	})
}
