package engine

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/cmd/internal/signin"
)

func TestASessionIsRenewedWhenTheProviderStandsForItNoLonger(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	session := func(refresh string, fresh, until time.Duration) access.Session {
		return access.Session{Refresh: refresh, Fresh: now.Add(fresh), Until: now.Add(until)}
	}
	for _, c := range []struct {
		name    string
		session access.Session
		want    bool
	}{
		{"it stands for it", session("x", time.Second, time.Hour), false},
		{"no longer", session("x", 0, time.Hour), true},
		{"it cannot be asked", session("", -time.Hour, time.Hour), false},
		{"it has ended", session("x", -time.Hour, 0), false},
		{"it is of a token", access.Session{Of: "digest", Until: now.Add(time.Hour)}, false},
	} {
		if got := dueForRenewal(c.session, now); got != c.want {
			t.Errorf("%s: due %t, want %t", c.name, got, c.want)
		}
	}
}

func TestARenewedSessionIsOfWhoItIsNow(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	before := access.Session{
		Issuer: "https://x.org", Subject: "1", Name: "ada", Role: "admin", Way: access.WayPage, Refresh: "old",
		Made: now.Add(-time.Hour), Until: now.Add(time.Hour), Fresh: now,
	}
	signed := signin.Signed{
		Person: signin.Person{Name: "ada l.", Role: "viewer", Team: "vision"}, Fresh: now.Add(time.Hour),
	}
	want := before
	want.Name, want.Role, want.Team, want.Fresh = "ada l.", "viewer", "vision", now.Add(time.Hour)
	if diff := cmp.Diff(want, renewed(before, signed, now)); diff != "" {
		t.Errorf("without another refresh token (-want +got):\n%s", diff)
	}
	// One whose ID tokens last a minute is not asked each minute.
	signed.Fresh, signed.Refresh = now.Add(time.Minute), "new"
	want.Fresh, want.Refresh = now.Add(renewLeast), "new"
	if diff := cmp.Diff(want, renewed(before, signed, now)); diff != "" {
		t.Errorf("with another refresh token (-want +got):\n%s", diff)
	}
}
