package ledgerstore_test

import (
	"maps"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/activities/streams"
)

func TestHowFarStreamsWereIsRemembered(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ledger.db")
	store := open(t, path, nil)
	if marks, err := store.Marks(t.Context()); err != nil || len(marks) != 0 {
		t.Errorf("a new ledger knows %v, %v", marks, err)
	}
	at := time.Date(2026, 11, 23, 9, 0, 0, 17, time.UTC)
	first := map[string]streams.Mark{
		"LOOP": {
			First: 3, Last: 1 << 40, Missing: 7, Bytes: 1 << 31, FirstStored: at, LastStored: at.Add(time.Hour),
		},
		"EMPTY": {},
	}
	second := map[string]streams.Mark{"EMPTY": {First: 1, Last: 1, FirstStored: at, LastStored: at}}
	for _, marks := range []map[string]streams.Mark{first, second} {
		if err := store.Remember(t.Context(), marks); err != nil {
			t.Fatal(err)
		}
	}
	shut(t, store)
	store = open(t, path, nil)
	defer shut(t, store)
	want := maps.Clone(first)
	maps.Copy(want, second)
	marks, err := store.Marks(t.Context())
	if diff := cmp.Diff(want, marks); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}
