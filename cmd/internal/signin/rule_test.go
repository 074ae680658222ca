package signin

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
)

func TestARuleReadsAsItIsWritten(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Rule{
		"ml-platform=admin":              {"ml-platform", "admin", ""},
		"vision=operator:vision":         {"vision", "operator", "vision"},
		"/ml/vision=viewer":              {"/ml/vision", "viewer", ""},
		"cn=ml,dc=example=operator:nlp":  {"cn=ml,dc=example", "operator", "nlp"},
		"*=viewer":                       {Everybody, "viewer", ""},
		"a group with spaces: one=admin": {"a group with spaces: one", "admin", ""},
	} {
		got, err := ParseRule(text)
		if err != nil || got != want || got.String() != text {
			t.Errorf("%q is read as %+v, %v; want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{
		"", "=", "=admin", "ml", "ml=", "ml=root", "ml=admin:", "ml=admin:Vision", "ml=viewer:default", "ml=admin :x",
	} {
		if text == "ml=admin:" {
			continue // a team without a name is the default one
		}
		if got, err := ParseRule(text); err == nil {
			t.Errorf("%q is read as %+v, want it refused", text, got)
		}
	}
}

func TestTheFirstRuleCountsThatSomebodyIsIn(t *testing.T) {
	t.Parallel()
	rules := []Rule{{"ml", "admin", ""}, {"vision", "operator", "vision"}, {"readers", "viewer", ""}}
	for _, c := range []struct {
		name, claims, groupsClaim, nameClaim string
		rules                                []Rule
		want                                 Person
		refused                              string
	}{
		{
			name: "a list", claims: `{"email":"ada@x.org","groups":["readers","vision"]}`,
			want: Person{Name: "ada@x.org", Role: "operator", Team: "vision"},
		},
		{name: "one text", claims: `{"preferred_username":"ada","groups":"ml"}`, want: Person{Name: "ada", Role: "admin"}},
		{
			name: "a path", claims: `{"realm_access":{"roles":["ml"]}}`, groupsClaim: "realm_access.roles",
			want: Person{Name: "subject", Role: "admin"},
		},
		{
			name: "a name with dots", claims: `{"https://x.org/groups":["ml"]}`, groupsClaim: "https://x.org/groups",
			want: Person{Name: "subject", Role: "admin"},
		},
		{
			name: "an address that is not verified", claims: `{"email":"boss@x.org","email_verified":false,"groups":["ml"]}`,
			want: Person{Name: "subject", Role: "admin"},
		},
		{
			name: "a claim for the name", claims: `{"email":"ada@x.org","nick":"A\u0007da\n","groups":["ml"]}`,
			nameClaim: "nick",
			want:      Person{Name: "Ada", Role: "admin"},
		},
		{
			name: "everybody", claims: `{}`, rules: []Rule{{Everybody, "viewer", ""}},
			want: Person{Name: "subject", Role: "viewer"},
		},
		{
			name: "a verified address", claims: `{"email":"ml","email_verified":true}`, groupsClaim: "email",
			want: Person{Name: "ml", Role: "admin"},
		},
		{name: "an address that may be anybody's", claims: `{"email":"ml"}`, groupsClaim: "email", refused: "verified"},
		{name: "no group", claims: `{"groups":[]}`, refused: "is in no group"},
		{name: "other groups", claims: `{"groups":["cooks",7]}`, refused: `is in "cooks"`},
		{name: "no claim", claims: `{"roles":["ml"]}`, refused: `there is no claim "groups"`},
		{name: "a claim that is no list", claims: `{"groups":{"ml":true}}`, refused: `there is no claim "groups"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			options := Options{Issuer: "https://x.org", Roles: rules, GroupsClaim: UsualGroupsClaim, NameClaim: c.nameClaim}
			if c.rules != nil {
				options.Roles = c.rules
			}
			if c.groupsClaim != "" {
				options.GroupsClaim = c.groupsClaim
			}
			claims := map[string]any{}
			if err := json.Unmarshal([]byte(c.claims), &claims); err != nil {
				t.Fatal(err)
			}
			got, err := options.person("subject", claims, true)
			if c.refused != "" {
				if !errors.Is(err, ErrNoRole) || !strings.Contains(err.Error(), c.refused) || got.Role != "" {
					t.Errorf("got %+v, %v; want it refused: %s", got, err, c.refused)
				}
				return
			}
			c.want.Issuer, c.want.Subject = "https://x.org", "subject"
			if err != nil || got != c.want {
				t.Errorf("got %+v, %v; want %+v", got, err, c.want)
			}
		})
	}
}

// TestWhoNoGroupsAreSaidOfHasNotMoreThanInOne is about the rule for everybody.
func TestWhoNoGroupsAreSaidOfHasNotMoreThanInOne(t *testing.T) {
	t.Parallel()
	const nothing, none = `{}`, `{"groups":[]}`
	const far = `{"_claim_names":{"groups":"src1"},"_claim_sources":{"src1":{"endpoint":"https://x.org/groups"}}}`
	for _, c := range []struct {
		rules, claims string
		whole         bool
		want          string // the role; empty is refused
	}{
		{"*=operator", nothing, true, "operator"},
		{"*=operator", nothing, false, "operator"},
		{"*=operator", far, false, "operator"},
		{"ml=admin *=viewer", nothing, true, "viewer"},
		{"ml=admin *=viewer", none, true, "viewer"},
		{"ml=admin *=viewer", none, false, "viewer"},
		{"ml=admin *=viewer", nothing, false, ""},
		{"ml=admin *=viewer", far, true, ""},
		{"ml=admin vision=operator:vision *=viewer", nothing, true, "viewer"},
		{"contractors=viewer *=operator", nothing, true, ""},
		{"contractors=viewer *=operator", nothing, false, ""},
		{"contractors=viewer *=operator", none, true, "operator"},
		{"contractors=viewer *=operator", `{"groups":["contractors"]}`, false, "viewer"},
		{"vision=operator:vision *=operator", nothing, true, ""},
		{"ml=operator *=operator", nothing, true, "operator"},
		{"*=viewer ml=admin", nothing, false, "viewer"},
	} {
		options := Options{GroupsClaim: UsualGroupsClaim}
		for text := range strings.FieldsSeq(c.rules) {
			rule, err := ParseRule(text)
			if err != nil {
				t.Fatal(err)
			}
			options.Roles = append(options.Roles, rule)
		}
		claims := map[string]any{}
		if err := json.Unmarshal([]byte(c.claims), &claims); err != nil {
			t.Fatal(err)
		}
		got, err := options.person("subject", claims, c.whole)
		if got.Role != c.want || (c.want == "") != errors.Is(err, ErrNoRole) {
			t.Errorf("by %q with %s, which is all: %t: %q, %v; want %q", c.rules, c.claims, c.whole, got.Role, err, c.want)
		}
	}
}

func TestTheClocksMayBeAMinuteApart(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		issued, notBefore, expiry time.Duration
		want                      string
	}{
		{-time.Minute, 0, time.Minute, ""},
		{59 * time.Second, 0, time.Hour, ""},
		{-time.Hour, 59 * time.Second, time.Hour, ""},
		{-time.Hour, 0, -59 * time.Second, ""},
		{-time.Hour, 0, -time.Minute, "it has expired, 1m0s ago: the clock of this machine says 2026-11-28T12:00:00Z"},
		{90 * time.Second, 0, time.Hour, "it counts only in 1m30s: the clock of this machine says 2026-11-28T12:00:00Z"},
		{-time.Hour, 2 * time.Minute, time.Hour, "it counts only in 2m0s: the clock of this machine says"},
	} {
		var notBefore time.Time
		if c.notBefore != 0 {
			notBefore = now.Add(c.notBefore)
		}
		err := checkTimes(&oidc.IDToken{IssuedAt: now.Add(c.issued), Expiry: now.Add(c.expiry)}, notBefore, now)
		if (c.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("made at %v, good from %v until %v: %v, want %q", c.issued, c.notBefore, c.expiry, err, c.want)
		}
	}
}

func TestASessionEndsWithWhatTheProviderStandsFor(t *testing.T) {
	t.Parallel()
	p := &Provider{options: Options{Session: time.Hour}}
	now := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		fresh   time.Duration
		refresh string
		want    time.Duration
	}{
		{5 * time.Minute, "", 5 * time.Minute}, {5 * time.Minute, "x", time.Hour}, {2 * time.Hour, "", time.Hour},
	} {
		if got := p.Until(Signed{Fresh: now.Add(c.fresh), Refresh: c.refresh}, now).Sub(now); got != c.want {
			t.Errorf("stood for %v, with refresh token %q: it lasts %v, want %v", c.fresh, c.refresh, got, c.want)
		}
	}
}

func TestWhereGroupsAreLookedAtAgain(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	p := &Provider{options: Options{Now: func() time.Time { return now }}}
	for life, want := range map[time.Duration]time.Duration{
		5 * time.Minute: 5 * time.Minute, time.Hour: time.Hour, 24 * time.Hour: time.Hour,
	} {
		if got := p.atMost(now.Add(life)).Sub(now); got != want {
			t.Errorf("ID tokens that last %v: they are looked at again after %v, want %v", life, got, want)
		}
	}
}

func TestNoRedirectIsFollowedWithoutTLS(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"https://x.org/keys": "", "http://127.0.0.1:5556/keys": "", "http://x.org/keys": "is not reached over TLS",
		"ftp://x.org/keys": "is not reached over TLS",
	} {
		request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, address, http.NoBody)
		err := follow(request, nil)
		if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("to %s: %v, want %q", address, err, want)
		}
		if err := follow(request, make([]*http.Request, 10)); err == nil {
			t.Errorf("an eleventh redirect to %s is followed", address)
		}
	}
}

func TestAnIssuerIsReachedOverTLSOrOnThisMachine(t *testing.T) {
	t.Parallel()
	for issuer, good := range map[string]bool{
		"https://accounts.google.com": true, "https://x.org/realms/ml": true, "http://127.0.0.1:5556/dex": true,
		"http://x.org": false, "x.org": false, "": false, "https://x.org?a=b": false, "https://ada:b@x.org": false,
	} {
		if err := CheckIssuer(issuer); (err == nil) != good {
			t.Errorf("%q: %v, want good to be %t", issuer, err, good)
		}
	}
}

func TestWhatIsNotSaidEndsNoSignIn(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		claims, groupsClaim string
		want                bool
	}{
		{`{"groups":[]}`, "groups", true}, // which says that there are none
		{`{"groups":["ml"]}`, "groups", true},
		{`{"email":"ada@x.org"}`, "groups", false},
		{`{"email":"ada@x.org"}`, "email", false},
		{`{"email":"ada@x.org","email_verified":false}`, "email", true},
	} {
		var claims map[string]any
		if err := json.Unmarshal([]byte(c.claims), &claims); err != nil {
			t.Fatal(err)
		}
		options := Options{GroupsClaim: c.groupsClaim}
		if got := options.says(claims); got != c.want {
			t.Errorf("%s: says all that rules go by in %s: %t, want %t", c.claims, c.groupsClaim, got, c.want)
		}
	}
}
