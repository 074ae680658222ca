package access

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func openTokens(t *testing.T, dir string) *Tokens {
	t.Helper()
	tokens, err := OpenTokens(dir)
	if err != nil {
		t.Fatal(err)
	}
	return tokens
}

// TestARequestEndsWithTheTokenThatItWasMadeWith follows a stream by tokens of two: that of whose token is revoked ends,
// and the other goes on.
func TestARequestEndsWithTheTokenThatItWasMadeWith(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	tokens := openTokens(t, dir)
	guard := &Guard{
		Keys: open(t, dir), Tokens: tokens, Rule: func(*http.Request) Rule { return Rule{Needs: Viewer} },
	}
	begun, ended, enough := make(chan string), make(chan string, 2), make(chan struct{})
	server := httptest.NewServer(guard.Wrap(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		who := NameOfCaller(r.Context())
		begun <- who
		select {
		case <-r.Context().Done():
		case <-enough:
			who = "still " + who
		}
		ended <- who
	})))
	defer server.Close()
	for _, name := range []string{"a", "b"} {
		token, err := tokens.Make(name, "viewer", "", time.Unix(1e9, 0))
		if err != nil {
			t.Fatal(err)
		}
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer "+token)
		go func() {
			if answer, err := server.Client().Do(request); err == nil {
				_ = answer.Body.Close()
			}
		}()
		if who := <-begun; who != name {
			t.Fatalf("%q asks, want %q", who, name)
		}
	}
	if err := tokens.Revoke("a"); err != nil {
		t.Fatal(err)
	}
	if who := <-ended; who != "a" {
		t.Errorf("the request of %q ended, want that of a", who)
	}
	close(enough)
	if who := <-ended; who != "still b" {
		t.Errorf("%q ended, want b's that went on", who)
	}
}

// TestATokenSaysItsTeam also reads a token that was made before there were teams: it is of the default team.
func TestATokenSaysItsTeam(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	keys, tokens := open(t, dir), openTokens(t, dir)
	made := map[string]string{}
	for name, team := range map[string]string{"a": "vision", "b": ""} {
		token, err := tokens.Make(name, "viewer", team, time.Unix(1e9, 0))
		if err != nil {
			t.Fatal(err)
		}
		made[token] = team
	}
	text, err := os.ReadFile(filepath.Join(dir, TokensFile))
	if err != nil || strings.Count(string(text), `"team"`) != 1 {
		t.Fatalf("the file has %s, %v; want a team once", text, err)
	}
	tokens = openTokens(t, dir) // as after a start
	for token, want := range made {
		guard := &Guard{Keys: keys, Tokens: tokens, Rule: func(*http.Request) Rule { return Rule{Needs: Viewer} }}
		got := "nobody asked"
		server := guard.Wrap(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = TeamOf(r.Context()) }))
		asked := request(t, http.MethodGet, "/", "", http.Header{"Authorization": {"Bearer " + token}})
		server.ServeHTTP(httptest.NewRecorder(), asked)
		if got != want {
			t.Errorf("the team is %q, want %q", got, want)
		}
	}
	if got := TeamOf(t.Context()); got != "" {
		t.Errorf("where nobody asks the team is %q", got)
	}
}

func TestTokensOfOthersCountUntilTheyAreRevoked(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	keys := open(t, dir)
	tokens := openTokens(t, dir)
	made := map[string]string{}
	for _, role := range Roles() {
		token, err := tokens.Make("of-"+role, role, "of-"+role, time.Unix(1e9, 0))
		if err != nil {
			t.Fatal(err)
		}
		made[role] = token
	}
	text, err := os.ReadFile(filepath.Join(dir, TokensFile))
	if err != nil {
		t.Fatal(err)
	}
	for _, token := range made {
		if strings.Contains(string(text), token) || strings.Contains(string(text), strings.TrimPrefix(token, tokenPrefix)) {
			t.Error("a token is kept as it is")
		}
	}
	if info, err := os.Stat(filepath.Join(dir, TokensFile)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file: mode %v, error %v", info.Mode(), err)
	}
	tokens = openTokens(t, dir) // as after a start
	ask := func(token, needs string) int {
		guard := &Guard{Keys: keys, Tokens: tokens, Rule: func(r *http.Request) Rule {
			return Rule{Needs: map[string]Caller{
				"/owner": Owner, "/operator": Operator, "/viewer": Viewer, "/metrics": Scraper, "/open": Anyone,
			}[r.URL.Path]}
		}}
		return answer(guard, request(t, http.MethodGet, needs, "", http.Header{"Authorization": {"Bearer " + token}})).Code
	}
	for role, allowed := range map[string]string{
		"viewer": "/viewer /metrics /open", "operator": "/operator /viewer /metrics /open",
		"admin": "/owner /operator /viewer /metrics /open",
	} {
		for _, path := range []string{"/owner", "/operator", "/viewer", "/metrics", "/open"} {
			want := http.StatusForbidden
			if strings.Contains(" "+allowed+" ", " "+path+" ") {
				want = http.StatusOK
			}
			if got := ask(made[role], path); got != want {
				t.Errorf("the token of a %s asks %s: got %d, want %d", role, path, got, want)
			}
		}
	}
	for refused, want := range map[*Refusal]string{
		tooLittle(Viewer, Operator): "an operator's", tooLittle(Viewer, Owner): "an admin's",
		tooLittle(Operator, Owner): "an admin's", tooLittle(Scraper, Viewer): TokenFile,
	} {
		if !strings.Contains(refused.Hint, want) {
			t.Errorf("%s: the hint is %q, want that it names %q", refused.Message, refused.Hint, want)
		}
	}
	if got := ask(made["viewer"]+"x", "/viewer"); got != http.StatusUnauthorized {
		t.Errorf("another token: got %d", got)
	}
	if got := ask(keys.MetricsToken(), "/viewer"); got != http.StatusForbidden {
		t.Errorf("Prometheus reads what a viewer may: got %d", got)
	}
	if err := tokens.Revoke("of-admin"); err != nil {
		t.Fatal(err)
	}
	if got := ask(made["admin"], "/viewer"); got != http.StatusUnauthorized {
		t.Errorf("a token that was revoked: got %d", got)
	}
	for what, c := range map[string]struct {
		name, role, team string
		want             error
	}{
		"a name that is taken": {"of-viewer", "viewer", "", ErrTokenTaken}, "no name": {"", "viewer", "", ErrTokenName},
		"a name of two lines": {"a\nb", "viewer", "", ErrTokenName}, "no such role": {"a", "root", "", ErrRole},
		"a team in capitals": {"a", "viewer", "A", ErrTeamName},
		"a long team":        {"a", "viewer", strings.Repeat("a", 41), ErrTeamName},
	} {
		if _, err := tokens.Make(c.name, c.role, c.team, time.Unix(1e9, 0)); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", what, err, c.want)
		}
	}
	if err := tokens.Revoke("nobody"); !errors.Is(err, ErrNoToken) {
		t.Errorf("to revoke what there is not: got %v", err)
	}
}
