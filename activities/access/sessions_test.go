package access

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities/documents"
)

// newSessions returns sessions that nobody shares, with tokens beside them, and a guard that asks them.
func newSessions(t *testing.T) (*Sessions, *Tokens, *Guard) {
	t.Helper()
	keys, shared := open(t, newDir(t)), documents.Local()
	tokens := OpenTokens(shared)
	sessions := OpenSessions(shared, keys, tokens)
	return sessions, tokens, &Guard{
		Keys: keys, Tokens: tokens, Sessions: sessions,
		Rule: func(*http.Request) Rule { return Rule{Needs: Viewer} },
	}
}

func shows(token string) http.Header { return http.Header{"Authorization": {"Bearer " + token}} }

func TestASessionEndsWithTheTokenThatItIsOf(t *testing.T) {
	t.Parallel()
	sessions, tokens, guard := newSessions(t)
	now := time.Now()
	token, err := tokens.Make(t.Context(), "ada", "admin", "vision", now)
	if err != nil {
		t.Fatal(err)
	}
	digest, counts := tokens.Digest(token)
	if !counts {
		t.Fatal("the token does not count")
	}
	shown, err := sessions.Make(t.Context(), Session{Of: digest, Way: WayPage, Until: now.Add(TokenSession)}, now)
	if err != nil {
		t.Fatal(err)
	}
	who, known := sessions.of(t.Context(), shown, now)
	if !known || who.name != "ada" || who.caller != Owner || who.team != "vision" || who.credential != digest {
		t.Fatalf("the session is of %+v, %t", who, known)
	}
	if got := answer(guard, request(t, http.MethodGet, "/", "", shows(shown))); got.Code != http.StatusOK {
		t.Fatalf("status %d: %s", got.Code, got.Body)
	}
	if err := tokens.Revoke(t.Context(), "ada"); err != nil {
		t.Fatal(err)
	}
	<-who.counts.Done() // what was asked for with it has ended
	if got := answer(guard, request(t, http.MethodGet, "/", "", shows(shown))); got.Code != http.StatusUnauthorized ||
		!strings.Contains(got.Body.String(), "the session has ended") {
		t.Errorf("after the token was revoked: status %d: %s", got.Code, got.Body)
	}
	// A token of the same name that is made later is another one.
	if _, err := tokens.Make(t.Context(), "ada", "admin", "vision", now); err != nil {
		t.Fatal(err)
	}
	if _, known := sessions.of(t.Context(), shown, now.Add(time.Hour)); known {
		t.Error("the session is of another token of the same name now")
	}
	if err := sessions.Prune(t.Context(), now); err != nil || len(sessions.All()) > 0 {
		t.Errorf("%d sessions are kept that let nobody in, %v", len(sessions.All()), err)
	}
}

func TestASessionEndsInTime(t *testing.T) {
	t.Parallel()
	sessions, _, guard := newSessions(t)
	now := time.Now()
	ada := Session{
		Issuer: "https://x.org", Subject: "1", Name: "ada", Role: "operator", Way: WayPage, Until: now.Add(time.Hour),
	}
	shown, err := sessions.Make(t.Context(), ada, now)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		after time.Duration
		want  bool
	}{{0, true}, {59 * time.Minute, true}, {time.Hour, false}, {48 * time.Hour, false}} {
		if _, known := sessions.of(t.Context(), shown, now.Add(c.after)); known != c.want {
			t.Errorf("after %v the session lets in: %t, want %t", c.after, known, c.want)
		}
	}
	for _, forged := range []string{
		shown[:len(shown)-1], shown + "A", sessionPrefix, sessionPrefix + strings.Repeat("A", 64), "spillway_" + shown,
	} {
		if _, known := sessions.of(t.Context(), forged, now); known {
			t.Errorf("%q lets in", forged)
		}
	}
	ended, err := sessions.EndOf(t.Context(), "ada")
	if ended != 1 || err != nil {
		t.Errorf("%d sessions ended, %v", ended, err)
	}
	if _, err := sessions.EndOf(t.Context(), "ada"); !errors.Is(err, ErrNoSession) {
		t.Errorf("ended again: %v", err)
	}
	if got := answer(guard, request(t, http.MethodGet, "/", "", shows(shown))); got.Code != http.StatusUnauthorized {
		t.Errorf("status %d: %s", got.Code, got.Body)
	}
	var displaced []string
	sessions.Displaced = func(_ context.Context, session Session) { displaced = append(displaced, session.Way) }
	page, line := ada, ada
	line.Way = WayCommandLine
	for range mostOfOne - 1 {
		if _, err := sessions.Make(t.Context(), page, now); err != nil {
			t.Fatal(err)
		}
	}
	for range mostOfOne + 3 {
		if _, err := sessions.Make(t.Context(), line, now); err != nil {
			t.Fatal(err)
		}
	}
	if all := sessions.All(); len(all) != 2*mostOfOne-1 {
		t.Errorf("one person has %d sessions, want %d at most of one way, and all of the other", len(all), mostOfOne)
	}
	if want := []string{WayCommandLine, WayCommandLine, WayCommandLine}; !slices.Equal(displaced, want) {
		t.Errorf("told of the end of %q, want %q", displaced, want)
	}
}

// TestWhoseSessionEndsWhileItIsLookedUpIsAnsweredNoFurther has a session end, or change, between the look at it and
// what its request is told of its end.
func TestWhoseSessionEndsWhileItIsLookedUpIsAnsweredNoFurther(t *testing.T) {
	t.Parallel()
	now := time.Now()
	ada := Session{
		Issuer: "https://x.org", Subject: "1", Name: "ada", Role: "admin", Way: WayPage, Until: now.Add(time.Hour),
	}
	for name, c := range map[string]struct {
		change func(Session) (Session, error)
		lives  bool
	}{
		"it stays":       {func(s Session) (Session, error) { s.Fresh = now; return s, nil }, true},
		"it ends":        {func(s Session) (Session, error) { return s, documents.Remove }, false},
		"another role":   {func(s Session) (Session, error) { s.Role = "viewer"; return s, nil }, false},
		"another team":   {func(s Session) (Session, error) { s.Team = "vision"; return s, nil }, false},
		"an earlier end": {func(s Session) (Session, error) { s.Until = now.Add(time.Minute); return s, nil }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sessions, _, _ := newSessions(t)
			shown, err := sessions.Make(t.Context(), ada, now)
			if err != nil {
				t.Fatal(err)
			}
			looked, _ := sessions.await(t.Context(), digestOfToken(shown), false)
			if err := sessions.Change(t.Context(), looked.ID, c.change); err != nil {
				t.Fatal(err)
			}
			who, stands := sessions.who(looked, now)
			if !stands || (who.counts.Err() == nil) != c.lives {
				t.Errorf("it stands: %t, and its life: %v; want that to go on: %t", stands, who.counts.Err(), c.lives)
			}
		})
	}
}

func TestACommandLineIsLetInOnce(t *testing.T) {
	t.Parallel()
	sessions, _, _ := newSessions(t)
	now := time.Now()
	ada := Session{
		Issuer: "https://x.org", Subject: "1", Name: "ada", Role: "viewer", Way: WayCommandLine, Until: now.Add(time.Hour),
	}
	device := sessions.keys.NewDevice(now)
	collect := func(code string, at time.Time, want error) {
		t.Helper()
		if _, _, err := sessions.Collect(t.Context(), code, "192.0.2.1:7", at); !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
	}
	collect(device.Code, now, ErrDevicePending)
	collect("x", now, ErrDevice)
	collect(device.Code, now.Add(DeviceLife), ErrDevice)
	secret, err := sessions.Propose(t.Context(), strings.ToLower(device.UserCode), ada, now)
	if err != nil {
		t.Fatal(err)
	}
	other := ada
	other.Subject = "2"
	if _, err := sessions.Propose(t.Context(), device.UserCode, other, now); !errors.Is(err, ErrDeviceTaken) {
		t.Errorf("another person signs in for the same code: %v", err)
	}
	collect(device.Code, now, ErrDevicePending)
	if _, err := sessions.Decide(t.Context(), device.UserCode, secret+"x", true, now); !errors.Is(err, ErrUserCode) {
		t.Errorf("another secret confirms it: %v", err)
	}
	if _, err := sessions.Decide(t.Context(), device.UserCode, secret, true, now); err != nil {
		t.Fatal(err)
	}
	token, made, err := sessions.Collect(t.Context(), device.Code, "192.0.2.1:7", now)
	if err != nil {
		t.Fatal(err)
	}
	if who, known := sessions.of(t.Context(), token, now); !known || who.name != "ada" || made.From != "192.0.2.1:7" {
		t.Errorf("the session is of %+v, %t, from %q", who, known, made.From)
	}
	// An answer that was lost is given again, and no second session is made.
	again, _, err := sessions.Collect(t.Context(), device.Code, "192.0.2.2:7", now.Add(time.Minute))
	if all := sessions.All(); again != token || err != nil || len(all) != 1 || all[0].From != "192.0.2.1:7" {
		t.Errorf("asked again: another token (%t), %v; the sessions are %+v", again != token, err, all)
	}
	if err := sessions.End(t.Context(), digestOfToken(token)); err != nil {
		t.Fatal(err)
	}
	collect(device.Code, now.Add(time.Minute), ErrNoSession) // what has ended comes not back
	if all := sessions.All(); len(all) != 0 {
		t.Errorf("the sessions are %+v, want none", all)
	}
	if _, err := sessions.Decide(t.Context(), device.UserCode, secret, true, now); !errors.Is(err, ErrUserCode) {
		t.Errorf("it is confirmed twice: %v", err)
	}
	refused := sessions.keys.NewDevice(now)
	if secret, err = sessions.Propose(t.Context(), refused.UserCode, ada, now); err != nil {
		t.Fatal(err)
	}
	if _, err := sessions.Decide(t.Context(), refused.UserCode, secret, false, now); err != nil {
		t.Fatal(err)
	}
	collect(refused.Code, now, ErrDeviceDenied)
}

func TestWhoIsEndedCollectsNothing(t *testing.T) {
	t.Parallel()
	now := time.Now()
	ada := Session{
		Issuer: "https://x.org", Subject: "1", Name: "ada", Role: "viewer", Way: WayCommandLine, Until: now.Add(time.Hour),
	}
	for name, c := range map[string]struct {
		confirmed, claimed, taken bool
		want                      error // of who asks then
	}{
		"before it is confirmed":                 {false, false, false, ErrDevicePending},
		"before it is collected":                 {true, false, false, ErrDevicePending},
		"while it is collected":                  {true, true, false, ErrDevicePending},
		"after it was collected, as any other's": {true, true, true, ErrDevicePending},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sessions, _, _ := newSessions(t)
			device := sessions.keys.NewDevice(now)
			secret, err := sessions.Propose(t.Context(), device.UserCode, ada, now)
			if err != nil {
				t.Fatal(err)
			}
			if c.confirmed {
				if _, err := sessions.Decide(t.Context(), device.UserCode, secret, true, now); err != nil {
					t.Fatal(err)
				}
			}
			request := digestOfToken(device.UserCode)
			var claimed proposed
			if c.claimed {
				if claimed, err = sessions.claim(t.Context(), request, "192.0.2.1:7", now); err != nil {
					t.Fatal(err)
				}
				if err := sessions.makeAs(t.Context(), sessions.keys.commandLineToken(request, claimed), ada, now); err != nil {
					t.Fatal(err)
				}
			}
			if c.taken {
				if err := sessions.conclude(t.Context(), request, claimed); err != nil {
					t.Fatal(err)
				}
			}
			if ended, err := sessions.EndOf(t.Context(), "ada"); ended != 1 || err != nil {
				t.Errorf("%d sessions ended, %v; want 1", ended, err)
			}
			if _, _, err := sessions.Collect(t.Context(), device.Code, "192.0.2.1:7", now); !errors.Is(err, c.want) {
				t.Errorf("the command line is answered %v, want %v", err, c.want)
			}
			if _, err := sessions.Decide(t.Context(), device.UserCode, secret, true, now); !errors.Is(err, ErrUserCode) {
				t.Errorf("it is confirmed: %v", err)
			}
			if c.claimed && !c.taken {
				if err := sessions.conclude(t.Context(), request, claimed); !errors.Is(err, ErrNoSession) {
					t.Errorf("who was collecting it goes on: %v", err)
				}
			}
			if all := sessions.All(); len(all) != 0 {
				t.Errorf("the sessions are %+v, want none", all)
			}
		})
	}
}

func TestAMistypedUserCodeIsKnown(t *testing.T) {
	t.Parallel()
	keys := open(t, newDir(t))
	now := time.Now()
	code := keys.NewDevice(now).UserCode
	for _, typed := range []string{code, strings.ToLower(code), strings.ReplaceAll(code, "-", ""), " " + code + "\n"} {
		if got, err := keys.CheckUserCode(typed, now); got != code || err != nil {
			t.Errorf("%q is taken as %q, %v; want %q", typed, got, err, code)
		}
	}
	for _, at := range []time.Time{now.Add(2 * DeviceLife), now.Add(-2 * DeviceLife)} {
		if _, err := keys.CheckUserCode(code, at); !errors.Is(err, ErrUserCode) {
			t.Errorf("at %v it is taken: %v", at.Sub(now), err)
		}
	}
	wrong := 0
	for i, letter := range code {
		for _, other := range userAlphabet {
			if letter == '-' || other == letter {
				continue
			}
			typed := code[:i] + string(other) + code[i+1:]
			if _, err := keys.CheckUserCode(typed, now); err == nil {
				wrong++ // of 152 in the random part, each by chance in one of 80,000 codes
			}
		}
	}
	if wrong > 3 {
		t.Errorf("%d mistyped codes are taken", wrong)
	}
}
