package access

import (
	"errors"
	"net/http"
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
	for range mostOfOne + 3 {
		if _, err := sessions.Make(t.Context(), ada, now); err != nil {
			t.Fatal(err)
		}
	}
	if all := sessions.All(); len(all) != mostOfOne {
		t.Errorf("one person has %d sessions, want %d at most", len(all), mostOfOne)
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
		if _, _, err := sessions.Collect(t.Context(), code, at); !errors.Is(err, want) {
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
	token, _, err := sessions.Collect(t.Context(), device.Code, now)
	if err != nil {
		t.Fatal(err)
	}
	if who, known := sessions.of(t.Context(), token, now); !known || who.name != "ada" {
		t.Errorf("the session is of %+v, %t", who, known)
	}
	collect(device.Code, now, ErrDevicePending) // and for ever: nobody can confirm it again
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
