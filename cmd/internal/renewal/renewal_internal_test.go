package renewal

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/cmd/internal/signin"
)

var now = time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)

func TestASessionIsRenewedWhenTheProviderStandsForItNoLonger(t *testing.T) {
	t.Parallel()
	session := func(refresh string, fresh, until time.Duration) access.Session {
		return access.Session{Refresh: refresh, Fresh: now.Add(fresh), Until: now.Add(until)}
	}
	for _, c := range []struct {
		name    string
		session access.Session
		trouble trouble
		want    bool
	}{
		{"it stands for it", session("x", time.Second, time.Hour), trouble{}, false},
		{"no longer", session("x", 0, time.Hour), trouble{}, true},
		{"it cannot be asked", session("", -time.Hour, time.Hour), trouble{}, false},
		{"it has ended", session("x", -time.Hour, 0), trouble{}, false},
		{"it is of a token", access.Session{Of: "digest", Until: now.Add(time.Hour)}, trouble{}, false},
		{"it has just failed", session("x", 0, time.Hour), trouble{1, now.Add(time.Second)}, false},
		{"it failed a while ago", session("x", 0, time.Hour), trouble{1, now}, true},
	} {
		if got := due(c.session, c.trouble, now); got != c.want {
			t.Errorf("%s: due %t, want %t", c.name, got, c.want)
		}
	}
}

func TestASessionThatCannotBeRenewedIsTriedLessAndLess(t *testing.T) {
	t.Parallel()
	var one trouble
	var pauses []time.Duration
	for range 8 {
		one = one.after(now)
		pauses = append(pauses, one.again.Sub(now))
	}
	want := []time.Duration{
		15 * time.Second, 30 * time.Second, time.Minute, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute,
		10 * time.Minute, 10 * time.Minute,
	}
	if diff := cmp.Diff(want, pauses); diff != "" {
		t.Errorf("pauses (-want +got):\n%s", diff)
	}
	one.failures = 1 << 40 // no overflow
	if got := one.after(now).again.Sub(now); got != longestPause {
		t.Errorf("after very many failures the pause is %v, want %v", got, longestPause)
	}
}

func TestRefreshTokensAreTakenBackOfWhoHasNoSessionLeft(t *testing.T) {
	t.Parallel()
	session := func(id, subject, refresh string) access.Session {
		return access.Session{ID: id, Issuer: "https://x.org", Subject: subject, Refresh: refresh}
	}
	page, line, bob := session("1", "ada", "a"), session("2", "ada", "b"), session("3", "bob", "c")
	token := session("4", "ada", "") // is not renewed
	all := newEnded()
	for i, c := range []struct {
		at   time.Duration
		all  []access.Session
		want []string
	}{
		{0, []access.Session{page, line, bob}, nil},
		{time.Minute, []access.Session{line, bob}, nil}, // signed out at the page, and not at the command line
		{2 * time.Minute, []access.Session{line}, []string{"3"}},
		{3 * time.Minute, []access.Session{token}, []string{"1", "2", "3"}},
		{3 * time.Minute, nil, []string{"1", "2", "3"}},
		{25 * time.Hour, []access.Session{bob}, nil},
	} {
		if diff := cmp.Diff(c.want, all.look(c.all, now.Add(c.at))); diff != "" {
			t.Errorf("look %d (-want +got):\n%s", i, diff)
		}
	}
	one := newEnded()
	one.look([]access.Session{line}, now)
	one.rotated("2", "another")
	one.rotated("5", "of a session that was not seen yet")
	one.look(nil, now)
	if got := one.gone["2"].refresh; got != "another" || len(one.gone) != 1 {
		t.Errorf("%q is taken back, want the last that was given", got)
	}
}

func TestARenewedSessionIsOfWhoItIsNow(t *testing.T) {
	t.Parallel()
	before := access.Session{
		Issuer: "https://x.org", Subject: "1", Name: "ada", Role: "admin", Way: access.WayPage, Refresh: "old",
		Made: now.Add(-time.Hour), Until: now.Add(time.Hour), Fresh: now,
	}
	signed := signin.Signed{
		Person: signin.Person{Subject: "1", Name: "ada l.", Role: "viewer", Team: "vision"}, Fresh: now.Add(time.Hour),
	}
	want := before
	want.Name, want.Role, want.Team, want.Fresh = "ada l.", "viewer", "vision", now.Add(time.Hour)
	if diff := cmp.Diff(want, renewed(before, signed, now)); diff != "" {
		t.Errorf("without another refresh token (-want +got):\n%s", diff)
	}
	// One whose ID tokens last a minute is not asked each minute.
	signed.Fresh, signed.Refresh = now.Add(time.Minute), "new"
	want.Fresh, want.Refresh = now.Add(least), "new"
	if diff := cmp.Diff(want, renewed(before, signed, now)); diff != "" {
		t.Errorf("with another refresh token (-want +got):\n%s", diff)
	}
	// A userinfo endpoint may say less than the ID token, and a token response not how long it is good.
	signed.Name, signed.Fresh = "1", time.Time{}
	want.Name = "ada"
	if diff := cmp.Diff(want, renewed(before, signed, now)); diff != "" {
		t.Errorf("without a name (-want +got):\n%s", diff)
	}
}
