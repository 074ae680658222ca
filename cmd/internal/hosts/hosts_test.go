package hosts_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/activities/documents"
	"github.com/spillway-ml/spillway/cmd/internal/hosts"
	"github.com/spillway-ml/spillway/cmd/internal/join"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// stand is an engine of which there is no more than what a registry needs.
type stand struct {
	t      *testing.T
	dir    string
	shared *documents.Documents
	keys   *access.Keys
	secret *access.JoinSecret
	now    time.Time
	living []predictor.Host
	inside map[string]bool // hosts that were let into NATS
	proves map[string]bool // whether each shows what it was given
	left   map[string]int  // how often each was sent away
	*hosts.Registry
}

func newStand(t *testing.T) *stand {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "state")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	keys, err := access.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	shared := documents.Local()
	secret, err := access.OpenJoinSecret(t.Context(), shared, access.HostsJoin)
	if err != nil {
		t.Fatal(err)
	}
	s := &stand{t: t, shared: shared, dir: dir, keys: keys, secret: secret, now: time.Unix(1e9, 0)}
	s.restart()
	return s
}

// restart has the engine start anew.
func (s *stand) restart() {
	s.t.Helper()
	s.inside, s.proves, s.left = map[string]bool{}, map[string]bool{}, map[string]int{}
	s.Registry = hosts.Open(hosts.Options{
		Shared: s.shared, Keys: s.keys, Secret: s.secret, Own: "server", Version: "v0.5.0",
		Living: func(context.Context) ([]predictor.Host, error) { return slices.Clone(s.living), nil },
		Admit: func(host string, proves bool) (func(), error) {
			s.inside[host], s.proves[host] = true, proves
			return func() { delete(s.inside, host); s.left[host]++ }, nil
		},
		Now: func() time.Time { return s.now }, Logger: slog.New(slog.DiscardHandler),
	})
}

func (s *stand) request(host, instance string) join.Request {
	return join.Request{Host: host, Instance: instance, Version: "v0.5.1", Platform: "linux/arm64", At: s.now}
}

func (s *stand) join(bearer string, request join.Request) (string, error) {
	return s.Join(s.t.Context(), bearer, "10.0.0.7", request)
}

// follows is the request of an instance that knows that the former one has ended.
func (s *stand) follows(host, former, instance string) join.Request {
	request := s.request(host, instance)
	request.Former = former
	return request
}

// must joins as it must be possible.
func (s *stand) must(bearer string, request join.Request) string {
	s.t.Helper()
	token, err := s.join(bearer, request)
	if err != nil {
		s.t.Fatalf("%s joins: %v", request.Host, err)
	}
	return token
}

// is checks whether a token is one of the host.
func (s *stand) is(token, host string) bool {
	of, known := s.Of(token)
	return known && of == host && s.IsHost(host, token)
}

func statusOf(err error) int {
	if refused, is := errors.AsType[*web.Error](err); is {
		return refused.Status
	}
	return 0
}

func TestATokenOfAHostCountsUntilItIsRemoved(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	token := s.must(s.secret.Text(), s.request("gpu-1", "a"))
	if !s.is(token, "gpu-1") || s.is(token, "gpu-2") || s.is(token+"x", "gpu-1") || !s.inside["gpu-1"] {
		t.Errorf("the token does not count for its host alone, or it is not let into NATS: %v", s.inside)
	}
	s.restart()
	if !s.is(token, "gpu-1") || !s.inside["gpu-1"] {
		t.Error("the token does not count after a start of the engine")
	}
	if again := s.must(token, s.follows("gpu-1", "a", "b")); again != token {
		t.Error("a host that joins again with its own token has another one")
	}
	if err := s.secret.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	if again := s.must(token, s.follows("gpu-1", "b", "c")); again != token {
		t.Error("its token has changed with the secret to join with")
	}
	if _, err := s.join(token, s.request("gpu-2", "a")); statusOf(err) != http.StatusUnauthorized {
		t.Errorf("a host joins as another: %v", err)
	}
	anew := s.must(s.secret.Text(), s.request("gpu-1", "d"))
	if anew == token || s.is(token, "gpu-1") || !s.is(anew, "gpu-1") {
		t.Error("a host that joins anew does not leave its former token behind")
	}
	if err := s.Remove(t.Context(), "gpu-1"); err != nil {
		t.Fatal(err)
	}
	if s.is(anew, "gpu-1") || s.inside["gpu-1"] {
		t.Error("a host that was removed is let in")
	}
	s.restart()
	if s.is(anew, "gpu-1") || s.inside["gpu-1"] {
		t.Error("a host that was removed is let in after a start of the engine")
	}
	if err := s.Remove(t.Context(), "gpu-1"); statusOf(err) != http.StatusNotFound {
		t.Errorf("it is removed twice: %v", err)
	}
	if last := s.must(s.secret.Text(), s.request("gpu-1", "e")); last == anew {
		t.Error("a host that was removed has its token again")
	}
}

// TestAHostThatJoinsAnewDisconnectsWhoCameAsItBefore: a token that does not count any more holds no connection open.
func TestAHostThatJoinsAnewDisconnectsWhoCameAsItBefore(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	before := s.must(s.secret.Text(), s.request("gpu-1", "a"))
	own := s.must(before, s.follows("gpu-1", "a", "b"))
	if s.left["gpu-1"] != 0 {
		t.Error("it was disconnected when it joined with its own token")
	}
	after := s.must(s.secret.Text(), s.request("gpu-1", "c"))
	if own != before || after == before || s.left["gpu-1"] != 1 || !s.inside["gpu-1"] {
		t.Errorf("it was disconnected %d times, and is inside: %v; want once, and that it is", s.left["gpu-1"],
			s.inside["gpu-1"])
	}
}

// TestAHostThatFollowsItselfIsLetInAtOnce: who shows that the instance before it has ended does not wait until its
// lease has; who shows another's, or the secret to join with, does.
func TestAHostThatFollowsItselfIsLetInAtOnce(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	token := s.must(s.secret.Text(), s.request("gpu-1", "a"))
	s.living = []predictor.Host{{ID: "gpu-1"}}
	for name, refused := range map[string]struct {
		bearer string
		asks   join.Request
	}{
		"of nothing that it knows":       {token, s.request("gpu-1", "b")},
		"of an instance that was before": {token, s.follows("gpu-1", "z", "b")},
		"with the secret to join with":   {s.secret.Text(), s.follows("gpu-1", "a", "b")},
	} {
		if _, err := s.join(refused.bearer, refused.asks); statusOf(err) != http.StatusConflict {
			t.Errorf("%s: got %v, want that it waits", name, err)
		}
	}
	if again := s.must(token, s.follows("gpu-1", "a", "b")); again != token {
		t.Error("it has another token")
	}
}

// TestAttackTwoMachinesHaveOneDirectory: of a copy of a host's directory and the original, the one that joined last
// works on, and the other is cut off.
func TestAttackTwoMachinesHaveOneDirectory(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	original := s.must(s.secret.Text(), s.request("gpu-1", "a"))
	copied := s.must(original, s.request("gpu-1", "b")) // while the original has no lease
	if copied == original || s.is(original, "gpu-1") || !s.is(copied, "gpu-1") || s.left["gpu-1"] != 1 {
		t.Errorf("both tokens count: %v, %v; it was disconnected %d times, want once", s.is(original, "gpu-1"),
			s.is(copied, "gpu-1"), s.left["gpu-1"])
	}
	if _, err := s.join(original, s.follows("gpu-1", "a", "c")); statusOf(err) != http.StatusUnauthorized ||
		!strings.Contains(err.Error(), "copy of its state directory") {
		t.Errorf("the original joins again: %v", err)
	}
}

func TestWhoMayNotJoinIsToldWhy(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	s.must(s.secret.Text(), s.request("gpu-1", "a"))
	s.living = []predictor.Host{{ID: "gpu-1"}}
	change := func(do func(*join.Request)) join.Request {
		r := s.request("gpu-9", "a")
		do(&r)
		return r
	}
	for name, c := range map[string]struct {
		request join.Request
		status  int
		said    string
	}{
		"two of one name":    {s.request("gpu-1", "b"), http.StatusConflict, "gpu-1 is at work"},
		"the server's name":  {s.request("server", "a"), http.StatusConflict, "the server's own"},
		"no name":            {s.request("", "a"), http.StatusBadRequest, "cannot be called"},
		"a name of subjects": {s.request("a.>", "a"), http.StatusBadRequest, "cannot be called"},
		"no instance":        {s.request("gpu-9", ""), http.StatusBadRequest, "which start"},
		"too old": {
			change(func(r *join.Request) { r.Version = "v0.3.0" }), http.StatusConflict, "install v0.5.0 on the host",
		},
		"too new": {
			change(func(r *join.Request) { r.Version = "v0.7.0" }), http.StatusConflict, "install v0.5.0 on the host",
		},
		"a clock that is ahead": {
			change(func(r *join.Request) { r.At = s.now.Add(5 * time.Minute) }), http.StatusConflict, "5m0s ahead",
		},
	} {
		_, err := s.join(s.secret.Text(), c.request)
		if statusOf(err) != c.status || !strings.Contains(err.Error(), c.said) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v, want status %d and one line with %q", name, err, c.status, c.said)
		}
	}
	s.must(s.secret.Text(), s.request("gpu-1", "a")) // the answer was lost on its way
	s.living = nil
	s.must(s.secret.Text(), s.request("gpu-1", "b")) // the former one's lease has ended
}

func TestWrongTokensAreNotTriedForEver(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	for try := range 5 {
		if _, err := s.join("wrong", s.request("gpu-1", "a")); statusOf(err) != http.StatusUnauthorized {
			t.Fatalf("try %d: %v", try, err)
		}
	}
	if _, err := s.join(s.secret.Text(), s.request("gpu-1", "a")); statusOf(err) != http.StatusTooManyRequests {
		t.Errorf("after five wrong ones: %v", err)
	}
	if _, err := s.Join(t.Context(), s.secret.Text(), "10.0.0.8", s.request("gpu-1", "a")); err != nil {
		t.Errorf("from another address: %v", err)
	}
	s.now = s.now.Add(time.Minute)
	s.must(s.secret.Text(), s.request("gpu-1", "a"))
}

// TestAHostThatShowsWhatItWasGivenHasToFromThenOn: an agent of a version before is let in, and the one after it has
// other rights; who has stolen its token cannot go back to those of before.
func TestAHostThatShowsWhatItWasGivenHasToFromThenOn(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	old, upgraded := s.request("gpu-1", "a"), s.follows("gpu-1", "a", "b")
	upgraded.Proves = true
	token := s.must(s.secret.Text(), old)
	if s.proves["gpu-1"] || s.Proves("gpu-1") || !s.Unproven("gpu-1") || s.Unproven("own") {
		t.Error("an agent of a version before is taken for one that shows what it was given")
	}
	if again := s.must(token, upgraded); again != token {
		t.Error("the upgraded agent has another token")
	}
	if !s.proves["gpu-1"] || !s.Proves("gpu-1") || s.Unproven("gpu-1") || s.left["gpu-1"] != 1 {
		t.Errorf("after the upgrade it shows what it was given: %v, %v; and it was disconnected %d times, want once",
			s.proves, s.Proves("gpu-1"), s.left["gpu-1"])
	}
	if _, err := s.join(token, old); statusOf(err) != http.StatusUnauthorized ||
		!strings.Contains(err.Error(), "which does not show") {
		t.Errorf("with its token, as of a version before: %v", err)
	}
	s.restart()
	if !s.proves["gpu-1"] || !s.Proves("gpu-1") {
		t.Error("a start of the engine has forgotten it")
	}
	s.must(s.secret.Text(), old) // its owner goes back a version
	if s.proves["gpu-1"] {
		t.Error("with the token to join, it cannot go back")
	}
}

func TestAHostStaysDrainedUntilItIsNot(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	token := s.must(s.secret.Text(), s.request("gpu-1", "a"))
	room := quantity.Size{CPU: 2 * quantity.Core, Memory: quantity.GiB}
	s.living = []predictor.Host{
		{ID: "gpu-1", Capacity: room, Free: quantity.Size{CPU: quantity.Core, Memory: quantity.GiB}}, {ID: "server"},
	}
	drained := func() string {
		var names []string
		for _, host := range s.Mark(slices.Clone(s.living)) {
			if host.Drained {
				names = append(names, host.ID)
			}
		}
		return strings.Join(names, " ")
	}
	for _, name := range []string{"gpu-1", "server"} {
		if err := s.Drain(t.Context(), name, true); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Drain(t.Context(), "gpu-7", true); statusOf(err) != http.StatusNotFound {
		t.Errorf("a host that there is not: %v", err)
	}
	s.restart()
	if got := drained(); got != "gpu-1 server" {
		t.Errorf("after a start, %q are drained, want both", got)
	}
	s.must(token, s.request("gpu-1", "a"))
	if got := drained(); got != "gpu-1 server" {
		t.Errorf("after it has come again, %q are drained, want both", got)
	}
	s.now = s.now.Add(time.Second)
	plan := predictor.Plan{Placements: []predictor.Placement{
		{Stage: predictor.StageID{App: "digits", Build: "1", Name: "score"}, Host: "server", Slots: 2},
	}}
	all, err := s.List(t.Context(), plan)
	if err != nil || len(all) != 2 || all[0].Name != "gpu-1" || all[0].Used.CPU != quantity.Core ||
		all[0].State != web.HostUp || !all[0].Drained || !all[1].Own || strings.Join(all[1].Stages, " ") != "digits/score" {
		t.Errorf("listed: %+v, error %v", all, err)
	}
	for _, name := range []string{"gpu-1", "server"} {
		if err := s.Drain(t.Context(), name, false); err != nil {
			t.Fatal(err)
		}
	}
	if got := drained(); got != "" {
		t.Errorf("%q are drained, want none", got)
	}
	s.living = nil
	s.now = s.now.Add(time.Minute)
	if all, err = s.List(t.Context(), plan); err != nil || len(all) != 1 || all[0].State != web.HostLost ||
		all[0].Capacity != room {
		t.Errorf("once it is gone: %+v, error %v; want that it is lost, and what it had last", all, err)
	}
}

func TestADamagedListOfHostsIsTold(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	path := filepath.Join(s.dir, "hosts.json")
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := hosts.TakeIn(t.Context(), s.dir, s.shared)
	if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "has to join again") {
		t.Errorf("got %v", err)
	}
}

func TestWhoHasJoinedAnEngineOfBeforeIsTakenInOnce(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	const membership = "ABCDEF"
	path := filepath.Join(s.dir, "hosts.json")
	text := `{"hosts":[{"name":"gpu-1","membership":"` + membership + `","instance":"a","drained":true},{"name":"own",` +
		`"drained":true}]}`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := hosts.TakeIn(t.Context(), s.dir, s.shared); err != nil {
		t.Fatal(err)
	}
	token := s.keys.HostToken("gpu-1", membership)
	living := s.Mark([]predictor.Host{{ID: "gpu-1"}, {ID: "own"}})
	if !s.is(token, "gpu-1") || !s.inside["gpu-1"] || !living[0].Drained || !living[1].Drained {
		t.Errorf("its token does not count, or it is not as it was: %v, %v", s.inside, living)
	}
	if err := s.Remove(t.Context(), "gpu-1"); err != nil {
		t.Fatal(err)
	}
	if err := hosts.TakeIn(t.Context(), s.dir, s.shared); err != nil || s.is(token, "gpu-1") || s.inside["gpu-1"] {
		t.Errorf("a host that was removed is back: %v, error %v", s.inside, err)
	}
}

// TestAHostIsKnownAtEveryServer has two servers that share documents.
func TestAHostIsKnownAtEveryServer(t *testing.T) {
	t.Parallel()
	a := newStand(t)
	b := &stand{t: t, dir: a.dir, shared: a.shared, keys: a.keys, secret: a.secret, now: a.now}
	b.restart()
	token := a.must(a.secret.Text(), a.request("gpu-1", "a"))
	if !b.is(token, "gpu-1") || !b.inside["gpu-1"] {
		t.Error("a host that has joined at one is not known at the other")
	}
	anew := b.must(b.secret.Text(), b.request("gpu-1", "b"))
	if a.is(token, "gpu-1") || a.left["gpu-1"] != 1 || !a.inside["gpu-1"] || !a.is(anew, "gpu-1") {
		t.Errorf("who came with the token of before is not sent away at the other: %v", a.left)
	}
	if err := a.Drain(t.Context(), "gpu-1", true); err != nil || !b.Mark([]predictor.Host{{ID: "gpu-1"}})[0].Drained {
		t.Errorf("it is not drained at the other, error %v", err)
	}
	if err := b.Remove(t.Context(), "gpu-1"); err != nil || a.is(anew, "gpu-1") || a.inside["gpu-1"] {
		t.Errorf("it was removed at one and counts at the other, error %v", err)
	}
}

// TestAHostThatJoinedAnEngineOfBeforeSinceIsTakenInAnew goes back to an engine of before and forward again: what that
// has said of a host since counts, also that it is none any more.
func TestAHostThatJoinedAnEngineOfBeforeSinceIsTakenInAnew(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	path := filepath.Join(s.dir, "hosts.json")
	write := func(membership string, seen time.Time, drained bool) {
		t.Helper()
		text := fmt.Sprintf(`{"hosts":[{"name":"gpu-1","membership":%q,"instance":"a","seen":%q,"drained":%t}]}`,
			membership, seen.Format(time.RFC3339), drained)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := hosts.TakeIn(t.Context(), s.dir, s.shared); err != nil {
			t.Fatal(err)
		}
	}
	write("BEFORE", s.now.Add(-time.Hour), false)
	proving := s.follows("gpu-1", "a", "b")
	proving.Proves = true
	token := s.must(s.keys.HostToken("gpu-1", "BEFORE"), proving)
	removed := s.must(s.secret.Text(), s.request("gpu-2", "c"))
	if err := os.Rename(path+access.TakenIn, path); err != nil {
		t.Fatal(err)
	}
	write("BEFORE", s.now.Add(-time.Hour), true) // it has not joined since, and was drained
	if !s.is(token, "gpu-1") || !s.Proves("gpu-1") || !s.Mark([]predictor.Host{{ID: "gpu-1"}})[0].Drained {
		t.Error("a host that did not join the engine of before is not as it was, or not drained")
	}
	if s.is(removed, "gpu-2") || s.inside["gpu-2"] {
		t.Error("a host that was removed from the engine of before counts again")
	}
	write("SINCE", s.now.Add(time.Hour), false)
	if s.is(token, "gpu-1") || !s.is(s.keys.HostToken("gpu-1", "SINCE"), "gpu-1") || s.Proves("gpu-1") {
		t.Error("a host that has joined the engine of before is not as that says")
	}
}

// TestAHostThatIsStoppedIsNotLost gives a lease back, lets one run out, and comes back after either.
func TestAHostThatIsStoppedIsNotLost(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	token := s.must(s.secret.Text(), s.request("gpu-1", "a"))
	stands := func(what string, want web.HostState, seen time.Time) {
		t.Helper()
		all, err := s.List(t.Context(), predictor.Plan{})
		if err != nil || len(all) != 1 || all[0].State != want || !all[0].Seen.Equal(seen) {
			t.Errorf("%s it stands as %+v, %v; want that it is %s, and was heard of at %s", what, all, err, want, seen)
		}
	}
	leased := func(after time.Duration) time.Time {
		t.Helper()
		s.now = s.now.Add(after)
		s.living = []predictor.Host{{ID: "gpu-1", At: s.now.Add(-time.Second)}} // its lease was taken a second ago
		s.Mark(s.living)
		return s.now.Add(-time.Second)
	}
	heard := leased(time.Minute)
	stands("with a lease", web.HostUp, heard)
	s.living, s.now = nil, s.now.Add(20*time.Second)
	stands("without one", web.HostLost, heard)
	heard = leased(time.Minute)
	stands("with one again", web.HostUp, heard)
	s.living, s.now = nil, s.now.Add(time.Second)
	left := map[string]time.Time{"gpu-1": s.now, "nobody": s.now}
	s.Left(t.Context(), left)
	stands("after it has given it back", web.HostStopped, heard)
	s.now = s.now.Add(time.Second)
	token = s.must(token, s.follows("gpu-1", "a", "b"))
	s.Left(t.Context(), left) // what a look shows is as old as a lease at most
	stands("when it has joined again", web.HostJoined, s.now)
	heard = leased(time.Second)
	s.living, s.now = nil, s.now.Add(20*time.Second)
	stands("when it is lost after that", web.HostLost, heard)

	stopped := s.now
	s.Left(t.Context(), map[string]time.Time{"gpu-1": stopped})
	s.now = stopped.Add(29 * 24 * time.Hour)
	s.Left(t.Context(), nil)
	if !s.is(token, "gpu-1") {
		t.Error("it is forgotten within the month")
	}
	if err := s.Drain(t.Context(), "gpu-1", true); err != nil {
		t.Fatal(err)
	}
	s.now = stopped.Add(31 * 24 * time.Hour)
	s.Left(t.Context(), nil)
	if !s.is(token, "gpu-1") {
		t.Error("what somebody has said of it is forgotten")
	}
	if err := s.Drain(t.Context(), "gpu-1", false); err != nil {
		t.Fatal(err)
	}
	s.now = s.now.Add(2 * time.Hour)
	s.Left(t.Context(), nil)
	if all, err := s.List(t.Context(), predictor.Plan{}); err != nil || len(all) > 0 || s.is(token, "gpu-1") {
		t.Errorf("after a month it is not forgotten: %+v, %v", all, err)
	}
}

// TestWhatStoppedIsIsOfNATSsClock has a server whose clock is ten seconds ahead of NATS's, and that starts anew.
func TestWhatStoppedIsIsOfNATSsClock(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	const ahead = 10 * time.Second
	token := s.must(s.secret.Text(), s.request("gpu-1", "a"))
	leased := func(after time.Duration) {
		t.Helper()
		s.now = s.now.Add(after)
		s.Mark([]predictor.Host{{ID: "gpu-1", At: s.now.Add(-ahead)}})
	}
	stands := func(what string, want web.HostState) {
		t.Helper()
		all, err := s.List(t.Context(), predictor.Plan{})
		if err != nil || len(all) != 1 || all[0].State != want {
			t.Errorf("%s it stands as %+v, %v; want that it is %s", what, all, err, want)
		}
	}
	leased(time.Second)
	s.now = s.now.Add(time.Second)
	s.Left(t.Context(), map[string]time.Time{"gpu-1": s.now.Add(-ahead)})
	stands("after it has given its lease back soon", web.HostStopped)

	s.now = s.now.Add(31 * 24 * time.Hour)
	s.restart()
	s.Left(t.Context(), nil)
	if !s.is(token, "gpu-1") {
		t.Error("it is forgotten by a server that has just begun, and knows of no lease yet")
	}
	leased(time.Second)
	s.Left(t.Context(), nil)
	s.restart()
	stands("with a lease after that", web.HostJoined)
	s.now = s.now.Add(2 * time.Hour)
	if s.Left(t.Context(), nil); !s.is(token, "gpu-1") {
		t.Error("one that had a lease after it had stopped is forgotten")
	}
}
