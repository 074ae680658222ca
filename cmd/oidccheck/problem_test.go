package oidccheck

import (
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/signin"

	"github.com/spillway-ml/spillway/cmd/oidccheck/provider"
)

// clock is one that goes on when it is told to.
type clock struct{ ahead atomic.Int64 }

func (c *clock) now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

func (c *clock) pass(d time.Duration) { c.ahead.Add(int64(d)) }

// TestThatNobodyCanSignInIsSaid has the provider leave after it was known, while somebody signs in.
func TestThatNobodyCanSignInIsSaid(t *testing.T) {
	t.Parallel()
	var clock clock
	stack := startStack(t, 1, signin.Options{Roles: roles, Now: clock.now})
	server := stack.servers[0]
	stack.provider.Join("ada", "vision")
	b := newBrowser(t)
	callback := b.signIn(server.URL+"/sign-in", "ada")
	stack.provider.Leave(true)
	if got := b.get(callback); got.status != http.StatusBadGateway {
		t.Errorf("the callback is answered with %d: %s", got.status, got.body)
	}
	if who := b.who(server); who.SignIn.Problem == "" || !server.Log.has("level=WARN", "nobody can sign in") {
		t.Errorf("the page is told %+v; the log:\n%s", who.SignIn, server.Log)
	}
	if got := b.get(server.URL + "/sign-in"); got.status != http.StatusBadGateway {
		t.Errorf("the browser is answered with %d, and sent to %q, where nobody is", got.status, got.to)
	}
	stack.provider.Leave(false)
	clock.pass(2 * time.Second)
	if got := b.get(server.URL + "/sign-in"); got.status != http.StatusSeeOther {
		t.Errorf("when it is back the browser is answered with %d: %s", got.status, got.body)
	}
	if who := b.who(server); who.SignIn.Problem != "" || !server.Log.has("level=INFO", "answers again") {
		t.Errorf("the page is told %+v; the log:\n%s", who.SignIn, server.Log)
	}
}

// TestWhatIsWrongForAllIsSaidUntilOneSignsIn has the token endpoint, the keys and the secret fail, each in turn.
func TestWhatIsWrongForAllIsSaidUntilOneSignsIn(t *testing.T) {
	t.Parallel()
	stack := startStack(t, 1, signin.Options{Roles: roles})
	server := stack.servers[0]
	stack.provider.Join("ada", "vision")
	for _, c := range []struct {
		name, log     string
		breaks, mends func()
	}{
		{"the token endpoint", "exchange the code", func() {
			stack.provider.Refuse(provider.TokenPath, http.StatusServiceUnavailable, "")
		}, func() { stack.provider.Instead(provider.TokenPath, nil) }},
		{"the keys", "fetch its keys", func() {
			stack.provider.RotateKey(t)
			stack.provider.Refuse(provider.KeysPath, http.StatusServiceUnavailable, "")
		}, func() { stack.provider.Instead(provider.KeysPath, nil) }},
		{"the secret", "does not know the client", func() { stack.write(t, "another") }, func() {
			stack.write(t, provider.Secret)
		}},
	} {
		callback := newBrowser(t)
		at := callback.signIn(server.URL+"/sign-in", "ada")
		c.breaks()
		if got := callback.get(at); got.status != http.StatusBadGateway {
			t.Errorf("%s: status %d: %s", c.name, got.status, got.body)
		}
		if problem := server.SignIn.Problem(); !strings.Contains(problem, c.log) || !server.Log.has("nobody can sign in",
			c.log) {
			t.Errorf("%s: the problem is %q; the log:\n%s", c.name, problem, server.Log)
		}
		c.mends()
		stack.let(t, server, "ada")
		if problem := server.SignIn.Problem(); problem != "" {
			t.Errorf("%s: after somebody has signed in the problem is %q", c.name, problem)
		}
	}
}

// TestAWrongCodeIsNoProblemOfAll has what a stranger can cause said of nobody else.
func TestAWrongCodeIsNoProblemOfAll(t *testing.T) {
	t.Parallel()
	stack := startStack(t, 1, signin.Options{Roles: roles})
	server := stack.servers[0]
	stack.provider.Join("ada", "vision")
	b := newBrowser(t)
	callback := b.signIn(server.URL+"/sign-in", "ada")
	if got := b.get(strings.Replace(callback, "code=", "code=x", 1)); got.status != http.StatusUnauthorized {
		t.Errorf("status %d: %s", got.status, got.body)
	}
	if problem := server.SignIn.Problem(); problem != "" {
		t.Errorf("the problem is %q", problem)
	}
}

// TestWhatAProviderSaysOfItselfIsAskedForEachHour has it move where people sign in.
func TestWhatAProviderSaysOfItselfIsAskedForEachHour(t *testing.T) {
	t.Parallel()
	var clock clock
	stack := startStack(t, 1, signin.Options{Roles: roles, Now: clock.now})
	lead := func() string { return newBrowser(t).get(stack.servers[0].URL + "/sign-in").to }
	before := lead()
	moved := stack.provider.Issuer + "/moved"
	stack.provider.Rewrite(provider.DiscoveryPath, func(answer map[string]any) {
		answer["authorization_endpoint"] = moved
	})
	clock.pass(59 * time.Minute)
	if to := lead(); strings.HasPrefix(to, moved) || before == "" {
		t.Errorf("within an hour the browser is sent to %q", to)
	}
	clock.pass(2 * time.Minute)
	if to := lead(); !strings.HasPrefix(to, moved) {
		t.Errorf("after an hour the browser is sent to %q, want %s", to, moved)
	}
}

// TestNothingIsSentWhereOthersRead has the provider name places, and lead to them, that are not reached over TLS.
func TestNothingIsSentWhereOthersRead(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"authorization_endpoint", "token_endpoint", "jwks_uri", "userinfo_endpoint",
		"revocation_endpoint",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stack := startStack(t, 1, signin.Options{Roles: roles})
			stack.provider.Rewrite(provider.DiscoveryPath, func(answer map[string]any) {
				answer[name] = "http://sso.example.com/" + name
			})
			if err := stack.servers[0].SignIn.Reach(t.Context()); err == nil || !strings.Contains(err.Error(),
				name+` is "http://sso.example.com/`) || !strings.Contains(err.Error(), "not reached over TLS") {
				t.Errorf("it is answered with %v", err)
			}
		})
	}
	t.Run("a redirect", func(t *testing.T) {
		t.Parallel()
		stack := startStack(t, 1, signin.Options{Roles: roles})
		stack.provider.Join("ada", "vision")
		b := newBrowser(t)
		callback := b.signIn(stack.servers[0].URL+"/sign-in", "ada")
		stack.provider.Instead(provider.TokenPath, func(w http.ResponseWriter, r *http.Request) bool {
			http.Redirect(w, r, "http://sso.example.com/token", http.StatusTemporaryRedirect)
			return true
		})
		if got := b.get(callback); got.status != http.StatusBadGateway || !stack.servers[0].Log.has("it leads to "+
			"http://sso.example.com/token, which is not reached over TLS") {
			t.Errorf("status %d: %s; the log:\n%s", got.status, got.body, stack.servers[0].Log)
		}
	})
}

// write replaces the secret of the client.
func (s *stack) write(t *testing.T, secret string) {
	t.Helper()
	if err := os.WriteFile(s.secret, []byte(secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}
