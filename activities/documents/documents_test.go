package documents_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/access/accesstest"
	"github.com/spillway-ml/spillway/activities/documents"
	"github.com/spillway-ml/spillway/activities/natstest"
	"github.com/spillway-ml/spillway/activities/wire"
)

// note is a document.
type note struct {
	Count int    `json:"count"`
	Text  string `json:"text,omitempty"`
}

// server is one of several that share documents.
type server struct {
	*documents.Documents
	*documents.Set[note]

	mu   sync.Mutex
	told []string // guarded by mu
}

// join has another server share the documents of the NATS, until the test ends.
func join(t *testing.T, nats *natstest.Server) *server {
	t.Helper()
	d, err := documents.Open(t.Context(), nats.Connect(), accesstest.Keys(), nil)
	if err != nil {
		t.Fatal(err)
	}
	s := &server{Documents: d}
	s.Set = documents.Of(d, "note", func(name string, before, now *note) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.told = append(s.told, fmt.Sprintf("%s: %v to %v", name, text(before), text(now)))
	})
	run(t, s)
	return s
}

// run has a server hear of changes, until the test ends.
func run(t *testing.T, s *server) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = s.Run(ctx) }()
	t.Cleanup(func() { stop(); <-ended })
}

func text(n *note) string {
	if n == nil {
		return "none"
	}
	return n.Text
}

// await waits until a server knows that a document has a text, "none" that there is none.
func (s *server) await(t *testing.T, name, want string) {
	t.Helper()
	for deadline := time.Now().Add(natstest.Patience); ; time.Sleep(2 * time.Millisecond) {
		now, known := s.Get(name)
		if known && now.Text == want || !known && want == "none" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: it knows %+v (%t), want %q", name, now, known, want)
		}
	}
}

// write has a document say a text.
func (s *server) write(t *testing.T, name, text string) {
	t.Helper()
	err := s.Change(t.Context(), name, func(n note, _ bool) (note, error) { n.Text = text; return n, nil })
	if err != nil {
		t.Fatal(err)
	}
}

func TestWhatOneServerChangesAllSee(t *testing.T) {
	t.Parallel()
	nats := natstest.Start(t)
	a := join(t, nats)
	a.write(t, "x", "one")
	b := join(t, nats)
	if now, known := b.Get("x"); !known || now.Text != "one" {
		t.Errorf("who comes later knows %+v (%t) at once", now, known)
	}
	names := []string{"x", "host.example.com", "somebody@example.com", "a..b", "=", "ä/ö", "-"}
	for _, name := range names {
		b.write(t, name, "two")
		if now, _ := b.Get(name); now.Text != "two" {
			t.Errorf("%s: who has changed it knows %+v", name, now)
		}
		a.await(t, name, "two")
	}
	if a.Len() != len(names) || len(b.All()) != len(names) {
		t.Errorf("there are %d and %d documents, want %d", a.Len(), len(b.All()), len(names))
	}
	remove := func(note, bool) (note, error) { return note{}, documents.Remove }
	for range 2 { // what is gone may be removed again
		if err := a.Change(t.Context(), "x", remove); err != nil {
			t.Fatal(err)
		}
	}
	if _, known := a.Get("x"); known {
		t.Error("who has removed it knows it still")
	}
	b.await(t, "x", "none")
	b.write(t, "x", "three")
	a.await(t, "x", "three")
	refused := errors.New("no")
	if err := a.Change(t.Context(), "x", func(note, bool) (note, error) { return note{}, refused }); !errors.Is(
		err, refused) {
		t.Errorf("a change that is refused: got %v", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	told := slices.DeleteFunc(slices.Clone(a.told), func(line string) bool { return line[:2] != "x:" })
	want := []string{"x: none to one", "x: one to two", "x: two to none", "x: none to three"}
	if !slices.Equal(told, want) {
		t.Errorf("told of x: %q, want %q", told, want)
	}
}

// TestNoChangeIsLostWhereSeveralServersChangeOneDocument counts in one document from all sides.
func TestNoChangeIsLostWhereSeveralServersChangeOneDocument(t *testing.T) {
	t.Parallel()
	nats := natstest.Start(t)
	servers := []*server{join(t, nats), join(t, nats), join(t, nats)}
	const each = 20
	var counting sync.WaitGroup
	for _, s := range servers {
		counting.Go(func() {
			for range each {
				err := s.Change(t.Context(), "n", func(n note, _ bool) (note, error) { n.Count++; return n, nil })
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	counting.Wait()
	servers[0].write(t, "n", "end")
	for _, s := range servers {
		s.await(t, "n", "end")
		if now, _ := s.Get("n"); now.Count != each*len(servers) {
			t.Errorf("got %d, want %d", now.Count, each*len(servers))
		}
	}
}

func TestOnlyWhatAServerHasMadeCounts(t *testing.T) {
	t.Parallel()
	nats := natstest.Start(t)
	a := join(t, nats)
	a.write(t, "admin", "real")
	js := nats.Connect()
	bucket, err := js.KeyValue(t.Context(), wire.SharedBucket)
	if err != nil {
		t.Fatal(err)
	}
	genuine, err := bucket.Get(t.Context(), "note.admin")
	if err != nil {
		t.Fatal(err)
	}
	if string(genuine.Value()) == `{"count":0,"text":"real"}` {
		t.Error("everybody can read it")
	}
	for key, forged := range map[string][]byte{
		"note.forged": []byte(`{"count":1,"text":"forged"}`), "note.copied": genuine.Value(), "note.empty": nil,
	} {
		if _, err := bucket.Put(t.Context(), key, forged); err != nil {
			t.Fatal(err)
		}
	}
	a.write(t, "last", "seen")
	b := join(t, nats)
	for name, s := range map[string]*server{"who was there": a, "who comes later": b} {
		s.await(t, "last", "seen")
		if all := s.All(); len(all) != 2 {
			t.Errorf("%s believes in %v", name, all)
		}
	}
	b.write(t, "forged", "ours") // what is none of ours is replaced
	a.await(t, "forged", "ours")
}

// other seals with other keys.
type other struct{ documents.Sealer }

func (o other) Seal(name string, text []byte) []byte { return o.Sealer.Seal("other "+name, text) }
func (o other) Unseal(name string, sealed []byte) ([]byte, bool) {
	return o.Sealer.Unseal("other "+name, sealed)
}

func TestAServerWithOtherKeysIsRefused(t *testing.T) {
	t.Parallel()
	nats := natstest.Start(t)
	join(t, nats).write(t, "x", "one")
	_, err := documents.Open(t.Context(), nats.Connect(), other{accesstest.Keys()}, nil)
	if !errors.Is(err, documents.ErrOthers) {
		t.Errorf("got %v, want %v", err, documents.ErrOthers)
	}
}

func TestDocumentsOutliveNATSAndTheirBucket(t *testing.T) {
	t.Parallel()
	nats := natstest.Start(t)
	a, b := join(t, nats), join(t, nats)
	a.write(t, "x", "one")
	b.await(t, "x", "one")
	nats.Stop()
	nats.Restart()
	b.write(t, "x", "two")
	a.await(t, "x", "two")
	js := nats.Connect()
	if err := js.DeleteKeyValue(t.Context(), wire.SharedBucket); err != nil {
		t.Fatal(err)
	}
	if err := documents.EnsureBucket(t.Context(), js); err != nil { // as the engine does
		t.Fatal(err)
	}
	bucket := func() (keys []string) {
		kv, err := js.KeyValue(t.Context(), wire.SharedBucket)
		if err != nil {
			t.Fatal(err)
		}
		keys, err = kv.Keys(t.Context())
		if err != nil && !errors.Is(err, jetstream.ErrNoKeysFound) {
			t.Fatal(err)
		}
		return keys
	}
	for deadline := time.Now().Add(natstest.Patience); len(bucket()) == 0; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("nobody has put back what was in the bucket")
		}
	}
	b.write(t, "y", "three")
	a.await(t, "y", "three")
	a.await(t, "x", "two")
	b.await(t, "x", "two")
}
