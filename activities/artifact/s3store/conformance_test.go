package s3store_test

import (
	"sync"
	"testing"
	"time"

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
			server.change(digestKey(digest), func(data []byte) []byte { data[2] = '#'; return data })
		},
		Later: 2100 * time.Millisecond, Large: 32 << 20, Races: 400,
	})
}
