package host

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/join"
	"github.com/spillway-ml/spillway/workers/slot"
)

// TestAHostLearnsOfServersFromEachAnswer has a host join one of two servers, whose list lacks the other. What it is
// told of next names that, and is kept; then the first one is gone, and the other answers.
func TestAHostLearnsOfServersFromEachAnswer(t *testing.T) {
	t.Parallel()
	var servers atomic.Value
	serve := func(answered *atomic.Int32) *httptest.Server {
		serving := Serving{
			Declared: func(context.Context, slot.Order) error { answered.Add(1); return nil },
			Servers:  func(context.Context) []string { return servers.Load().([]string) }, //nolint:forcetypeassert // it is
			Logger:   slog.New(slog.DiscardHandler), Artifacts: http.NotFoundHandler(),
		}
		server := httptest.NewServer(serving.Handler())
		t.Cleanup(server.Close)
		return server
	}
	var first, second atomic.Int32
	one, other := serve(&first), serve(&second)
	at, beside := strings.TrimPrefix(one.URL, "http://"), strings.TrimPrefix(other.URL, "http://")
	servers.Store([]string{at})
	dir, answer := t.TempDir(), join.Answer{Host: "gpu-1", Token: "t", API: one.URL, Temporal: at, Servers: []string{at}}
	membership := Membership{Server: one.URL, Answer: answer}
	j := &Joined{reach: newReach(answer), told: func(all []string) {
		if err := membership.Told(dir, all); err != nil {
			t.Error(err)
		}
	}}
	ask, err := j.asker(t.Context(), JoinedOptions{Answer: answer, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.closers[0](t.Context()) })
	if err := ask.Declared(t.Context(), slot.Order{}); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadMembership(dir); err == nil {
		t.Error("servers are kept that are no news")
	}
	servers.Store([]string{at, beside})
	if err := ask.Declared(t.Context(), slot.Order{}); err != nil {
		t.Fatal(err)
	}
	kept, err := ReadMembership(dir)
	if err != nil || !slices.Equal(kept.Answer.Servers, []string{at, beside}) {
		t.Fatalf("servers %v are kept in %s (%v), want both", kept.Answer.Servers, filepath.Join(dir, joinedFile), err)
	}
	one.CloseClientConnections()
	one.Close()
	again := &Joined{reach: newReach(kept.Answer)} // as an agent that begins anew knows them
	if ask, err = again.asker(t.Context(), JoinedOptions{Answer: kept.Answer, Logger: slog.Default()}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = again.closers[0](t.Context()) })
	if err := ask.Declared(t.Context(), slot.Order{}); err != nil || second.Load() != 1 {
		t.Errorf("the first server is gone: %v; the second has answered %d times", err, second.Load())
	}
}

// TestASlowNATSIsNoServerThatIsGone: whether the server is there decides whether its other connections end.
func TestASlowNATSIsNoServerThatIsGone(t *testing.T) {
	t.Parallel()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	gone, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	there, away := listener.Addr().String(), gone.Addr().String()
	r := newReach(join.Answer{Temporal: there, Servers: []string{there, away}})
	r.trust = func(string) (*tls.Config, error) { return nil, nil } //nolint:nilnil // no TLS is no failure
	late := func(err error) func() error {
		return func() error { time.Sleep(suspectAfter + 100*time.Millisecond); return err }
	}
	silent := errors.New("nats: timeout")
	for _, c := range []struct {
		name    string
		flush   func() error
		address string
		want    answer
	}{
		{"NATS answers", func() error { return nil }, away, answers},
		{"NATS answers late", late(nil), away, answers},
		{"NATS does not answer, the server does", late(silent), there, natsSlow},
		{"NATS has hung up, the server is there", func() error { return silent }, there, natsSlow},
		{"neither answers", late(silent), away, goneQuiet},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if got := r.listen(t.Context(), c.flush, c.address); got != c.want {
				t.Errorf("got %d, want %d", got, c.want)
			}
		})
	}
}
