package host

import (
	"context"
	"crypto/tls"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/cmd/internal/join"
)

func TestTheServersThatAHostKnows(t *testing.T) {
	t.Parallel()
	r := newReach(join.Answer{Temporal: "a:1", Servers: []string{"a:1", "b:1"}})
	for _, step := range []struct {
		told []string
		news bool
		want []string
	}{
		{[]string{"b:1", "a:1"}, false, []string{"a:1", "b:1"}},
		{nil, false, []string{"a:1", "b:1"}},
		{[]string{"b:1", "c:1"}, true, []string{"b:1", "c:1", "a:1"}},
		{[]string{"a:1"}, false, []string{"a:1", "b:1", "c:1"}},
	} {
		news := r.know(step.told)
		if got := r.all(); news != step.news || !slices.Equal(got, step.want) {
			t.Errorf("told %v: news %v, then %v; want %v and %v", step.told, news, got, step.news, step.want)
		}
	}
	under := newReach(join.Answer{Temporal: "10.0.0.5:1", Servers: []string{"10.0.0.5:1", "b:1"}})
	under.open[&reachConnection{reach: under, address: "10.0.0.5:1"}] = true
	under.know([]string{"a:1", "b:1"}) // the first calls itself a
	if got := under.all(); got[0] != "10.0.0.5:1" {
		t.Errorf("a server that is connected to is tried behind others: %v", got)
	}
	for range 40 {
		r.know([]string{net.JoinHostPort("x", strings.Repeat("1", len(r.all())))})
	}
	if newReach(join.Answer{Temporal: "a:1"}).avoid("a:1") {
		t.Error("the only server is avoided")
	}
	if n := len(r.all()); n > 16 {
		t.Errorf("%d servers are remembered", n)
	}
	if got := newReach(join.Answer{Temporal: "a:1"}).all(); !slices.Equal(got, []string{"a:1"}) {
		t.Errorf("from a server that names none: %v", got)
	}
}

// TestTheNextServerIsTriedWhereOneIsGone has one listen of two, and then the other one of them.
func TestTheNextServerIsTriedWhereOneIsGone(t *testing.T) {
	t.Parallel()
	listen := func() net.Listener {
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		return l
	}
	one, other := listen(), listen()
	at, beside := one.Addr().String(), other.Addr().String()
	r := newReach(join.Answer{Temporal: at, Servers: []string{at, beside}})
	r.trust = func(string) (*tls.Config, error) { return nil, nil } //nolint:nilnil // no TLS is no failure
	dial := func() string {
		t.Helper()
		connection, err := r.dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = connection.Close() }()
		return connection.RemoteAddr().String()
	}
	if got := dial(); got != at {
		t.Errorf("both listen: connected to %s, want the first", got)
	}
	held, err := r.dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !r.demote(at) {
		t.Error("the first cannot be tried last")
	}
	if _, err := held.Write([]byte("x")); err != nil || r.all()[0] != beside {
		t.Errorf("the first is tried last: %v is tried first, and a connection to it ends with %v", r.all()[0], err)
	}
	if !r.avoid(at) {
		t.Error("the first cannot be avoided")
	}
	if _, err := held.Read(make([]byte, 1)); err == nil {
		t.Error("a connection to a server that is avoided goes on")
	}
	if got := dial(); got != beside {
		t.Errorf("the first is avoided: connected to %s, want the second", got)
	}
	r.prefer(at)
	if err := one.Close(); err != nil {
		t.Fatal(err)
	}
	if got := dial(); got != beside || r.all()[0] != beside {
		t.Errorf("the first is gone: connected to %s, and %s is tried first; want the second", got, r.all()[0])
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.dial(t.Context()); err == nil || !strings.Contains(err.Error(), at) ||
		!strings.Contains(err.Error(), beside) {
		t.Errorf("both are gone: %v, want both to be named", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.dial(ended); err == nil || strings.Contains(err.Error(), "\n") {
		t.Errorf("when it is told to end: %v, want one try", err)
	}
}
