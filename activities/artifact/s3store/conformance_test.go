package s3store_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/activities/artifact/storetest"
)

// TestAStrictServerKeepsToTheContractOfStores is the contract on a server that answers each request at one moment,
// as S3 does; package s3check has it on one of another maker.
func TestAStrictServerKeepsToTheContractOfStores(t *testing.T) {
	t.Parallel()
	var servers sync.Map
	storetest.Run(t, storetest.Options{
		Open: func(t *testing.T) artifact.Store {
			t.Helper()
			server := newServer(t)
			store := server.store(t)
			if _, err := store.Claim(t.Context(), "me"); err != nil {
				t.Fatal(err)
			}
			servers.Store(store, server)
			return store
		},
		Damage: func(t *testing.T, store artifact.Store, digest string) {
			t.Helper()
			of, _ := servers.Load(store)
			server, _ := of.(*server)
			server.Change(digestKey(digest), func(data []byte) []byte { data[2] = '#'; return data })
		},
		Later: 2100 * time.Millisecond, Large: 32 << 20, Races: 400,
	})
}

func TestAStrictServerKeepsToTheContractOfBoards(t *testing.T) {
	t.Parallel()
	storetest.RunBoard(t, func(t *testing.T) activities.Board {
		t.Helper()
		return newServer(t).store(t)
	})
}

func TestBoardsThatNobodyUsesAreRemovedAtTheStart(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	store := server.store(t)
	if _, err := store.Post(t.Context(), "old", "name", []byte("message")); err != nil {
		t.Fatal(err)
	}
	server.Age("state/boards/old/name", 25*time.Hour)
	if _, err := store.Post(t.Context(), "new", "name", []byte("message")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"first", "newest"} {
		if _, err := store.Post(t.Context(), "long", name, []byte("message")); err != nil {
			t.Fatal(err)
		}
	}
	server.Age("state/boards/long/first", 25*time.Hour)
	if err := store.RestoreAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Look(t.Context(), "long", "first"); err != nil {
		t.Errorf("the first message of a group in which something happens is gone: %v", err)
	}
	if _, err := store.Look(t.Context(), "old", "name"); !errors.Is(err, activities.ErrMissing) {
		t.Errorf("what is a day old is there: %v", err)
	}
	if _, err := store.Look(t.Context(), "new", "name"); err != nil {
		t.Errorf("what is new is gone: %v", err)
	}
}
