package s3store_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/artifact/s3store/s3test"
)

// under is how many objects there are below a key.
func (s *server) under(prefix string) (n int) {
	for _, key := range s.Keys() {
		if strings.HasPrefix(key, prefix) {
			n++
		}
	}
	return n
}

// TestWhatIsPutAgainAndAgainIsNotKeptForEach has a deletion, or what comes before it, end in an error.
func TestWhatIsPutAgainAndAgainIsNotKeptForEach(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status int
		method string
		copies int // that are put, and that are left
		left   int
	}{
		"a deletion that is refused":                 {http.StatusForbidden, http.MethodDelete, 0, 0},
		"a deletion of which nobody knows":           {http.StatusInternalServerError, http.MethodDelete, 3, 1},
		"a look before the deletion that is refused": {http.StatusForbidden, http.MethodHead, 0, 0},
	} {
		server := newServer(t)
		store := server.store(t)
		ref, err := store.Put(t.Context(), strings.NewReader("text"))
		if err != nil {
			t.Fatal(err)
		}
		failing := func(r *http.Request) *s3test.Answer {
			if r.Method == c.method && strings.HasSuffix(r.URL.Path, digestKey(ref.Digest)) {
				return &s3test.Answer{Status: c.status, Code: "AccessDenied"}
			}
			return nil
		}
		if c.method == http.MethodHead {
			server.Fail(failing)
		}
		taken, err := store.Discard(t.Context(), ref.Digest, time.Now().Add(time.Minute))
		if taken != (c.method == http.MethodDelete) || (err == nil) != taken {
			t.Errorf("%s: Discard = %v, %v", name, taken, err)
		}
		server.Fail(failing)
		if taken {
			if gone, err := store.Delete(t.Context(), ref.Digest); gone || err == nil {
				t.Errorf("%s: Delete = %v, %v", name, gone, err)
			}
			if err := store.Restore(t.Context(), ref.Digest); err != nil { // as whoever collects does
				t.Error(err)
			}
		}
		server.Fail(nil)
		for range 3 {
			if _, err := store.Put(t.Context(), strings.NewReader("text")); err != nil {
				t.Fatal(err)
			}
		}
		again := "state/about/" + ref.Digest + "/again-"
		if n := server.under(again); n != c.copies {
			t.Errorf("%s: %d copies beside it, want %d", name, n, c.copies)
		}
		if info := listed(t, store); len(info) != 1 || !info[0].Again {
			t.Errorf("%s: listed %v", name, info)
		}
		if n := server.under(again); n != c.left {
			t.Errorf("%s: %d copies are left, want %d", name, n, c.left)
		}
		if c.left > 0 { // the deletion happens now
			server.Remove(digestKey(ref.Digest))
		}
		if got, err := activities.ReadAll(t.Context(), store, ref.Digest); err != nil || string(got) != "text" {
			t.Errorf("%s: what was put since is lost: %q, %v", name, got, err)
		}
	}
}
