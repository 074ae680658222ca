package ledgerstore

import (
	"testing"
	"time"
)

// TestNobodyWaitsForTheBookButABill holds the connection that the book is read with.
func TestNobodyWaitsForTheBookButABill(t *testing.T) {
	t.Parallel()
	OfFiles(t)
	store, err := Open(t.Context(), "", nil) // with one connection
	if err != nil {
		t.Fatal(err)
	}
	held, err := store.db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	reading := make(chan error, 1)
	go func() { reading <- store.prepare(t.Context()) }()
	for store.db.Stats().WaitCount == 0 {
		time.Sleep(time.Millisecond)
	}
	looked := make(chan struct{})
	go func() {
		store.Cursor()
		close(looked)
	}()
	select {
	case <-looked:
	case <-time.After(time.Minute): // decides only how long a failure takes
		t.Error("nobody can look at the ledger while the book is read")
	}
	if err := held.Close(); err != nil {
		t.Error(err)
	}
	if err := <-reading; err != nil {
		t.Error(err)
	}
	if store.book == nil {
		t.Error("the book was not read")
	}
	if err := store.Close(); err != nil {
		t.Error(err)
	}
}
