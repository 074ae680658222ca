package documents_test

import (
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/access/accesstest"
	"github.com/spillway-ml/spillway/activities/documents"
	"github.com/spillway-ml/spillway/activities/natstest"
	"github.com/spillway-ml/spillway/activities/streams"
	"github.com/spillway-ml/spillway/activities/wire"
)

// remove removes a document.
func (s *server) remove(t *testing.T, name string) {
	t.Helper()
	err := s.Change(t.Context(), name, func(note, bool) (note, error) { return note{}, documents.Remove })
	if err != nil {
		t.Fatal(err)
	}
}

// forget has a server forget all that is gone, however long.
func (s *server) forget(t *testing.T) {
	t.Helper()
	if err := s.ForgetRemoved(t.Context(), time.Now()); err != nil {
		t.Fatal(err)
	}
}

// stored is what NATS keeps in the bucket.
func stored(t *testing.T, nats *natstest.Server) jetstream.StreamState {
	t.Helper()
	stream, err := nats.Connect().Stream(t.Context(), streams.BucketStream(wire.SharedBucket))
	if err != nil {
		t.Fatal(err)
	}
	return stream.CachedInfo().State
}

func TestWhatWasRemovedLongAgoLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	nats := natstest.Start(t)
	a, b := join(t, nats), join(t, nats)
	a.write(t, "stays", "one")
	names := []string{"x", "somebody@example.com", "y"}
	for _, name := range names {
		a.write(t, name, "one")
		b.await(t, name, "one")
		a.remove(t, name)
		b.await(t, name, "none")
	}
	// One that an earlier version has removed, and one that is made again.
	bucket, err := nats.Connect().KeyValue(t.Context(), wire.SharedBucket)
	if err != nil {
		t.Fatal(err)
	}
	if err := bucket.Delete(t.Context(), "note.earlier"); err != nil {
		t.Fatal(err)
	}
	a.write(t, "again", "one")
	a.remove(t, "again")
	b.write(t, "again", "two")
	a.await(t, "again", "two") // and so all before
	a.write(t, "z", "one")
	b.await(t, "z", "one")
	a.remove(t, "z") // the last message of all
	b.await(t, "z", "none")
	if err := a.ForgetRemoved(t.Context(), time.Now().Add(-time.Minute)); err != nil {
		t.Fatal(err)
	}
	before := stored(t, nats)
	if want := uint64(len(names) + 5); before.Msgs != want { // with the mark of the stack
		t.Fatalf("NATS keeps %d messages, want %d: those that were removed just now stay", before.Msgs, want)
	}
	a.forget(t)
	b.forget(t)
	after := stored(t, nats)
	if after.Msgs != 3 || after.LastSeq != before.LastSeq {
		t.Errorf("NATS keeps %d messages, up to %d, want 3 up to %d", after.Msgs, after.LastSeq, before.LastSeq)
	}
	for name, s := range map[string]*server{"a": a, "b": b, "who comes later": join(t, nats)} {
		if s.Remembered() != 3 || s.Len() != 2 {
			t.Errorf("%s remembers %d documents and knows %v, want 3 and 2", name, s.Remembered(), s.All())
		}
	}
	nats.Stop()
	nats.Restart()
	if again := stored(t, nats); again.LastSeq != before.LastSeq {
		t.Errorf("after a start NATS goes on behind %d, want %d", again.LastSeq, before.LastSeq)
	}
	a.write(t, "x", "two")
	b.await(t, "x", "two")
}

func TestWhoWasAwayWhileThereWasAMarkKnowsThatADocumentIsGone(t *testing.T) {
	t.Parallel()
	nats := natstest.Start(t)
	a := join(t, nats)
	a.write(t, "x", "one")
	d, err := documents.Open(t.Context(), nats.Connect(), accesstest.Keys(), nil)
	if err != nil {
		t.Fatal(err)
	}
	away := &server{Documents: d, Set: documents.Of[note](d, "note", nil)}
	a.remove(t, "x")
	a.forget(t)
	a.write(t, "y", "two")
	if _, known := away.Get("x"); !known {
		t.Fatal("it has heard of a change while it was away")
	}
	run(t, away)
	away.await(t, "y", "two")
	away.await(t, "x", "none")
}

func TestADocumentThatIsMadeAgainIsNotForgotten(t *testing.T) {
	t.Parallel()
	nats := natstest.Start(t)
	a := join(t, nats)
	a.write(t, "x", "one")
	a.remove(t, "x")
	late, err := documents.Open(t.Context(), nats.Connect(), accesstest.Keys(), nil) // it knows the mark
	if err != nil {
		t.Fatal(err)
	}
	a.write(t, "x", "two")
	if err := late.ForgetRemoved(t.Context(), time.Now()); err != nil {
		t.Fatal(err)
	}
	b := join(t, nats)
	if now, known := b.Get("x"); !known || now.Text != "two" {
		t.Errorf("who comes later knows %+v (%t), want what was made again", now, known)
	}
	a.remove(t, "x")
	b.await(t, "x", "none")
	b.forget(t)
	b.write(t, "x", "three")
	a.await(t, "x", "three")
	a.mu.Lock()
	defer a.mu.Unlock()
	want := []string{"x: none to one", "x: one to none", "x: none to two", "x: two to none", "x: none to three"}
	if !slices.Equal(a.told, want) {
		t.Errorf("told %q, want %q", a.told, want)
	}
}
