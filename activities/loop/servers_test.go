package loop_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/activities/loop"
)

func TestServersAreThoseThatSayThatTheyAreThere(t *testing.T) {
	t.Parallel()
	js := stream(t)
	ensure(t, js)
	servers, err := loop.NewServers(t.Context(), js)
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	first := loop.Server{ID: "b-1", Name: "b", Address: "b:7475", Version: "dev", StartedAt: at}
	second := loop.Server{
		ID: "a-1", Name: "a", Version: "dev", StartedAt: at.Add(time.Second), Term: 3, LeadsSince: at.Add(time.Minute),
	}
	expect := func(when string, want ...loop.Server) {
		t.Helper()
		got, err := servers.List(t.Context())
		for i := range got {
			if seen := got[i].Seen; time.Since(seen) > time.Minute || seen.After(time.Now().Add(time.Minute)) {
				t.Errorf("%s: %s was seen at %v", when, got[i].Name, seen)
			}
			got[i].Seen = time.Time{}
		}
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: error %v, -want +got:\n%s", when, err, diff)
		}
	}
	expect("before the first")
	for _, server := range []loop.Server{second, first, second} {
		if err := servers.Put(t.Context(), server); err != nil {
			t.Fatal(err)
		}
	}
	expect("two", first, second)
	if err := servers.Drop(t.Context(), "b-1"); err != nil {
		t.Fatal(err)
	}
	if err := servers.Drop(t.Context(), "nobody"); err != nil {
		t.Error(err)
	}
	expect("when the first has gone", second)
}
