package artifact_test

import (
	"os"
	"testing"
	"time"

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
