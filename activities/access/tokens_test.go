package access

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities/documents"
)

// TestARequestEndsWithTheTokenThatItWasMadeWith follows a stream by tokens of two: that of whose token is revoked ends,
// and the other goes on.
func TestARequestEndsWithTheTokenThatItWasMadeWith(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	tokens := OpenTokens(documents.Local())
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
		token, err := tokens.Make(t.Context(), name, "viewer", "", time.Unix(1e9, 0))
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
	if err := tokens.Revoke(t.Context(), "a"); err != nil {
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

// TestADownloadEndsWithTheTokenThatItWasMadeWith revokes the token of who downloads something that has no end, by a
// handler that knows nothing of it.
func TestADownloadEndsWithTheTokenThatItWasMadeWith(t *testing.T) {
	t.Parallel()
	for name, copied := range map[string]func(w io.Writer) error{
		"written": func(w io.Writer) (err error) {
			for piece := make([]byte, 1<<10); err == nil; {
				_, err = w.Write(piece)
			}
			return err
		},
		"copied": func(w io.Writer) error {
			_, err := io.Copy(w, endless{})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tokens := OpenTokens(documents.Local())
			guard := &Guard{
				Keys: open(t, newDir(t)), Tokens: tokens, Rule: func(*http.Request) Rule { return Rule{Needs: Viewer} },
			}
			ended := make(chan error, 1)
			server := httptest.NewServer(guard.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				ended <- copied(w)
			})))
			defer server.Close()
			token, err := tokens.Make(t.Context(), "a", "viewer", "", time.Unix(1e9, 0))
			if err != nil {
				t.Fatal(err)
			}
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set("Authorization", "Bearer "+token)
			answer, err := server.Client().Do(request)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = answer.Body.Close() }()
			if _, err := io.CopyN(io.Discard, answer.Body, 1<<20); err != nil {
				t.Fatal(err)
			}
			if err := tokens.Revoke(t.Context(), "a"); err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, answer.Body); err == nil {
				t.Error("who downloads takes what there is for all of it")
			}
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Errorf("the handler ended with %v, want %v", err, context.Canceled)
			}
		})
	}
}

// endless is what has no end.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// TestATokenSaysItsTeam also reads a token that was made before there were teams: it is of the default team.
func TestATokenSaysItsTeam(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	keys, shared := open(t, dir), documents.Local()
	tokens := OpenTokens(shared)
	made := map[string]string{}
	for name, team := range map[string]string{"a": "vision", "b": ""} {
		token, err := tokens.Make(t.Context(), name, "viewer", team, time.Unix(1e9, 0))
		if err != nil {
			t.Fatal(err)
		}
		made[token] = team
	}
	tokens = OpenTokens(shared) // as another server does
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
	shared := documents.Local()
	tokens := OpenTokens(shared)
	made := map[string]string{}
	for _, role := range Roles() {
		token, err := tokens.Make(t.Context(), "of-"+role, role, "of-"+role, time.Unix(1e9, 0))
		if err != nil {
			t.Fatal(err)
		}
		made[role] = token
	}
	text, err := json.Marshal(tokens.Issued())
	if err != nil {
		t.Fatal(err)
	}
	for _, token := range made {
		if strings.Contains(string(text), strings.TrimPrefix(token, tokenPrefix)) {
			t.Error("a token is kept as it is")
		}
	}
	tokens = OpenTokens(shared) // as another server does
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
	if err := tokens.Revoke(t.Context(), "of-admin"); err != nil {
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
		if _, err := tokens.Make(t.Context(), c.name, c.role, c.team, time.Unix(1e9, 0)); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", what, err, c.want)
		}
	}
	if err := tokens.Revoke(t.Context(), "nobody"); !errors.Is(err, ErrNoToken) {
		t.Errorf("to revoke what there is not: got %v", err)
	}
}

// TestWhatAnEngineOfBeforeKeptIsTakenInOnce has files as engines of before wrote them, and documents of before the
// stack was taken back to one of those.
func TestWhatAnEngineOfBeforeKeptIsTakenInOnce(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	open(t, dir)
	const secret = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8"
	files := map[string]string{
		tokensFile: `[{"name":"ann","role":"viewer","made":"2026-11-20T10:00:00Z","sha256":"` + digestOfToken("spillway_x") +
			`"},{"name":"ben","role":"admin","made":"2026-11-21T10:00:00Z","sha256":"00"}]`,
		joinFile: secret + "\n",
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	shared := documents.Local()
	tokens := OpenTokens(shared)
	for _, name := range []string{"ben", "revoked-since"} {
		if _, err := tokens.Make(t.Context(), name, "viewer", "", time.Unix(1e9, 0)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := OpenJoinSecret(t.Context(), shared, HostsJoin); err != nil { // which is renewed since
		t.Fatal(err)
	}
	for range 2 {
		if err := TakeIn(t.Context(), dir, shared); err != nil {
			t.Fatal(err)
		}
		join, err := OpenJoinSecret(t.Context(), shared, HostsJoin)
		if err != nil || !join.Is(secret) || join.Is("") {
			t.Errorf("the secret to join with is another one, or none: %v", err)
		}
		if who, known := tokens.of("spillway_x"); !known || who.name != "ann" || who.caller != Viewer {
			t.Errorf("the token of ann is %+v (%t)", who, known)
		}
		var listed []string
		for _, one := range tokens.Issued() {
			listed = append(listed, one.Name+" "+one.Role)
		}
		if slices.Sort(listed); strings.Join(listed, ", ") != "ann viewer, ben admin" {
			t.Errorf("the tokens are those of %v, and not those of the file", listed)
		}
	}
	if err := tokens.Revoke(t.Context(), "ann"); err != nil {
		t.Fatal(err)
	}
	if err := TakeIn(t.Context(), dir, shared); err != nil {
		t.Fatal(err)
	}
	if _, known := tokens.of("spillway_x"); known {
		t.Error("a token that was revoked counts again")
	}
	for name := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		err := TakeIn(t.Context(), dir, shared)
		if err == nil || !strings.Contains(err.Error(), filepath.Join(dir, name)) ||
			!strings.Contains(err.Error(), "remove it") {
			t.Errorf("a damaged %s: got %v, want its name and what to do", name, err)
		}
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAJoinSecretIsOneOfItsKind(t *testing.T) {
	t.Parallel()
	shared := documents.Local()
	open := func(name string) *JoinSecret {
		secret, err := OpenJoinSecret(t.Context(), shared, name)
		if err != nil {
			t.Fatal(err)
		}
		return secret
	}
	hosts, again, servers := open(HostsJoin), open(HostsJoin), open(ServersJoin)
	if before := hosts.Text(); again.Text() != before || servers.Is(before) || len(before) < 43 {
		t.Errorf("the secrets are %q, %q and %q", before, again.Text(), servers.Text())
	} else if err := again.Renew(t.Context()); err != nil || hosts.Is(before) || !hosts.Is(again.Text()) {
		t.Errorf("once it was made anew it is %q, error %v", hosts.Text(), err)
	}
}

func TestATokenSaysWhoHasMadeIt(t *testing.T) {
	t.Parallel()
	ada := asking{caller: Owner, name: "ada", role: "admin", issuer: "https://x.org", subject: "1"}
	for name, c := range map[string]struct {
		who  asking
		want Maker
	}{
		"the owner":           {asking{caller: Owner}, Maker{Name: "owner"}},
		"an admin's token":    {asking{caller: Owner, name: "ci", role: "admin"}, Maker{Name: "ci"}},
		"who has signed in":   {ada, Maker{"ada", "https://x.org", "1"}},
		"nobody, as in tests": {nobody, Maker{Name: "anyone"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tokens := OpenTokens(documents.Local())
			ctx := context.WithValue(t.Context(), callerKey{}, c.who)
			if _, err := tokens.Make(ctx, "x", "viewer", "", time.Unix(1e9, 0)); err != nil {
				t.Fatal(err)
			}
			if got := tokens.Issued()[0].By; got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}
