package oidccheck

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/signin"
	"github.com/spillway-ml/spillway/cmd/internal/web"

	"github.com/spillway-ml/spillway/cmd/oidccheck/provider"
)

// roles are those of all tests.
var roles = []signin.Rule{
	{Group: "ml-platform", Role: "admin"},
	{Group: "vision", Role: "operator", Team: "vision"},
	{Group: "readers", Role: "viewer"},
}

func TestSomebodySignsInAtOneServerAndIsKnownAtTheOther(t *testing.T) {
	t.Parallel()
	stack := startStack(t, 2, signin.Options{Roles: roles})
	stack.provider.Join("ada", "vision", "readers")
	first, second := stack.servers[0], stack.servers[1]
	b := newBrowser(t)
	callback := b.signIn(first.URL+"/sign-in?to=/costs", "ada")
	// The other server is the one that a load balancer sends it to.
	there := strings.Replace(callback, first.URL, second.URL, 1)
	back := b.get(there)
	if back.status != http.StatusSeeOther || back.to != second.URL+"/costs" {
		t.Fatalf("the callback is answered with %d and leads to %q, want 303 and /costs: %s", back.status, back.to, back.body)
	}
	for i, server := range stack.servers {
		who := b.who(server)
		if who.Name != "ada@example.com" || who.Role != "operator" || who.Team != "vision" || who.Subject != "ada" ||
			who.Issuer != stack.provider.Issuer {
			t.Errorf("server %d takes the browser for %+v", i, who)
		}
		if who.Until == nil || time.Until(*who.Until) > signin.UsualSession || time.Until(*who.Until) < 11*time.Hour {
			t.Errorf("server %d says that the session ends at %v, want in 12 h", i, who.Until)
		}
		if got := b.get(server.URL + "/api/v1/runs"); got.status != http.StatusOK {
			t.Errorf("server %d answers %d: %s", i, got.status, got.body)
		}
	}
	if !second.Log.has("signed in", "who=ada@example.com", "subject=ada", "role=operator", "team=vision") {
		t.Errorf("the log has no line about it:\n%s", second.Log)
	}
	// What has come back counts once, at whichever server.
	for _, address := range []string{callback, there} {
		if again := b.get(address); again.status != http.StatusBadRequest || !strings.Contains(again.body,
			"has been finished already") {
			t.Errorf("a callback that was replayed is answered with %d: %s", again.status, again.body)
		}
	}
	// Signing out ends the session at both.
	request, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, first.URL+"/api/v1/session", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	kept := newBrowser(t)
	at, err := url.Parse(first.URL)
	if err != nil {
		t.Fatal(err)
	}
	kept.client.Jar.SetCookies(at, b.client.Jar.Cookies(at))
	if got := b.do(request); got.status != http.StatusOK {
		t.Fatalf("signing out is answered with %d: %s", got.status, got.body)
	}
	for i, server := range stack.servers {
		if got := kept.get(server.URL + "/api/v1/runs"); got.status != http.StatusUnauthorized {
			t.Errorf("server %d answers %d to a session that was signed out, want 401: %s", i, got.status, got.body)
		}
	}
}

func TestAPublicClientSignsInWithPKCEAlone(t *testing.T) {
	t.Parallel()
	stack := startStack(t, 1, signin.Options{Roles: roles, ClientID: provider.PublicClient})
	stack.provider.Join("ada", "ml-platform")
	b := newBrowser(t)
	if back := b.get(b.signIn(stack.servers[0].URL+"/sign-in", "ada")); back.status != http.StatusSeeOther {
		t.Fatalf("status %d: %s", back.status, back.body)
	}
	if who := b.who(stack.servers[0]); who.Role != "admin" {
		t.Errorf("the browser is %+v, want an admin", who)
	}
}

func TestWhoIsNotLetInIsToldWhy(t *testing.T) {
	t.Parallel()
	stack := startStack(t, 1, signin.Options{Roles: roles})
	server := stack.servers[0]
	stack.provider.Join("eve", "sales", "cooks")
	stack.provider.Join("bob", []string{}...)
	stack.provider.Join("nil")
	for _, c := range []struct {
		name   string
		change func(callback string) string
		user   string
		status int
		want   string
	}{
		{"no group with a role", nil, "eve", 403, `eve@example.com is in &#34;sales&#34;, &#34;cooks&#34;`},
		{"no groups", nil, "nil", 403, "the identity provider says no groups of nil@example.com"},
		{"another state", func(callback string) string {
			return callback + "&state=another"
		}, "eve", 400, "was not begun in this browser"},
		{"another issuer", func(callback string) string {
			return callback + "&iss=https://elsewhere.example.com"
		}, "eve", 400, "another identity provider"},
		{"another code", func(callback string) string {
			at, _ := url.Parse(callback)
			query := at.Query()
			query.Set("code", "another")
			at.RawQuery = query.Encode()
			return at.String()
		}, "eve", 401, "The identity provider refuses this sign-in"},
		{"the provider refuses", func(callback string) string {
			at, _ := url.Parse(callback)
			return at.Scheme + "://" + at.Host + at.Path + "?error=access_denied&error_description=not+today&state=" +
				url.QueryEscape(at.Query().Get("state"))
		}, "eve", 403, "access_denied: not today"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newBrowser(t)
			callback := b.signIn(server.URL+"/sign-in", c.user)
			if c.change != nil {
				if strings.HasSuffix(c.change(callback), "&state=another") {
					callback = strings.Replace(callback, "state=", "state=another", 1)
				} else {
					callback = c.change(callback)
				}
			}
			got := b.get(callback)
			if got.status != c.status || !strings.Contains(got.body, c.want) {
				t.Errorf("status %d, want %d and %q: %s", got.status, c.status, c.want, got.body)
			}
			if who := b.who(server); who.Role != "" {
				t.Errorf("the browser is let in as %+v", who)
			}
		})
	}
}

func TestAWrongSecretIsSaidToBeOne(t *testing.T) {
	t.Parallel()
	stack := startStack(t, 1, signin.Options{
		Roles: roles, ClientID: provider.Client, ClientSecretFile: secretFile(t, "another secret"),
	})
	stack.provider.Join("ada", "ml-platform")
	b := newBrowser(t)
	got := b.get(b.signIn(stack.servers[0].URL+"/sign-in", "ada"))
	if got.status != http.StatusBadGateway || !strings.Contains(got.body, "the log of the server says") {
		t.Errorf("status %d: %s", got.status, got.body)
	}
	if log := stack.servers[0].Log; !log.has("does not know the client", "--oidc-client-secret-file") {
		t.Errorf("the log does not say it:\n%s", log)
	}
}

// TestStrangersAreToldNothingOfTheInside has all that a stranger may ask fail, with texts that are for the log alone.
func TestStrangersAreToldNothingOfTheInside(t *testing.T) {
	t.Parallel()
	const inside = "an inner page of the provider"
	for _, c := range []struct {
		name, log string
		breaks    func(stack *stack)
	}{
		{"nobody answers", "EOF", func(stack *stack) { stack.provider.Leave(true) }},
		{"a page for what it says of itself", inside, func(stack *stack) {
			stack.provider.Refuse(provider.DiscoveryPath, http.StatusInternalServerError, inside)
		}},
		{"no secret", "holds no secret", func(stack *stack) { stack.write(t, "") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			stack := startStack(t, 1, signin.Options{Roles: roles})
			server := stack.servers[0]
			c.breaks(stack)
			got := newBrowser(t).get(server.URL + "/sign-in")
			tells(t, stack, got.status, got.body)
			if !server.Log.has(c.log) {
				t.Errorf("the log does not say %q:\n%s", c.log, server.Log)
			}
			if c.name == "no secret" { // by which the provider can still be reached
				return
			}
			status, said := bearer(t, http.MethodPost, server.URL+"/api/v1/session/device", "", struct{}{})
			tells(t, stack, status, said)
		})
	}
	t.Run("a page for a token", func(t *testing.T) {
		t.Parallel()
		stack := startStack(t, 1, signin.Options{Roles: roles})
		stack.provider.Join("ada", "vision")
		b := newBrowser(t)
		callback := b.signIn(stack.servers[0].URL+"/sign-in", "ada")
		stack.provider.Refuse(provider.TokenPath, http.StatusInternalServerError, inside)
		got := b.get(callback)
		tells(t, stack, got.status, got.body)
		if !stack.servers[0].Log.has(inside) {
			t.Errorf("the log does not say it:\n%s", stack.servers[0].Log)
		}
	})
}

// tells looks that an answer is one of a fixed sentence.
func tells(t *testing.T, stack *stack, status int, body string) {
	t.Helper()
	if status != http.StatusBadGateway || !strings.Contains(body, "he log of the server says what is wrong") {
		t.Errorf("status %d: %s", status, body)
	}
	for _, inner := range []string{stack.provider.Issuer, stack.secret, "127.0.0.1", "--oidc", "inner page"} {
		if strings.Contains(body, inner) {
			t.Errorf("a stranger is told %q: %s", inner, body)
		}
	}
}

func TestAServerServesWithoutItsProvider(t *testing.T) {
	t.Parallel()
	stack := startStack(t, 1, signin.Options{Roles: roles})
	server := stack.servers[0]
	stack.provider.Stop()
	b := newBrowser(t)
	if got := b.get(server.URL + "/sign-in"); got.status != http.StatusBadGateway ||
		!strings.Contains(got.body, "The identity provider cannot be asked") {
		t.Errorf("status %d: %s", got.status, got.body)
	}
	if who := b.who(server); who.SignIn == nil || who.SignIn.Problem == "" {
		t.Errorf("the page is not told that nobody can sign in: %+v", who)
	}
	status, said := bearer(t, http.MethodGet, server.URL+"/api/v1/runs", stack.keys.Token(), nil)
	if status != http.StatusOK {
		t.Errorf("the owner is answered with %d: %s", status, said)
	}
}

func TestASessionGoesOnAsTheProviderSays(t *testing.T) {
	t.Parallel()
	stack := startStack(t, 1, signin.Options{Roles: roles})
	server := stack.servers[0]
	stack.provider.Join("ada", "vision")
	b := newBrowser(t)
	if back := b.get(b.signIn(server.URL+"/sign-in", "ada")); back.status != http.StatusSeeOther {
		t.Fatalf("status %d: %s", back.status, back.body)
	}
	session := server.Sessions.All()[0]
	if session.Refresh == "" {
		t.Fatal("the provider has given no refresh token")
	}
	stack.provider.RotateKey(t) // of which the server learns by the ID token that it does not know the key of
	stack.provider.Join("ada", "readers")
	var given string
	renew := func(refresh string) (signin.Signed, error) {
		return server.SignIn.Renew(t.Context(), refresh, session.Subject, func(refresh string) { given = refresh })
	}
	signed, err := renew(session.Refresh)
	if err != nil || signed.Role != "viewer" || signed.Refresh == session.Refresh {
		t.Fatalf("renewed to %+v, %v; want a viewer with another refresh token", signed.Person, err)
	}
	if given != signed.Refresh {
		t.Errorf("the refresh token that is told of is %q, want %q", given, signed.Refresh)
	}
	if _, err := renew(session.Refresh); err == nil ||
		!strings.Contains(err.Error(), "the identity provider refuses to renew a sign-in") {
		t.Errorf("a refresh token that was used is answered with %v", err)
	}
	stack.provider.Join("ada", "cooks")
	if _, err := renew(signed.Refresh); err == nil ||
		!strings.Contains(err.Error(), "--oidc-role names none of that") {
		t.Errorf("who is in no group any more is answered with %v", err)
	}
}

// TestAnIDTokenThatIsShownCountsByWhatItSays has groups that the userinfo endpoint alone says, as the ID token of a
// program does not.
func TestAnIDTokenThatIsShownCountsByWhatItSays(t *testing.T) {
	t.Parallel()
	stack := startStack(t, 1, signin.Options{Roles: []signin.Rule{
		{Group: "contractors", Role: "viewer"}, {Group: signin.Everybody, Role: "operator"},
	}})
	server := stack.servers[0]
	stack.provider.Join("eve", "contractors")
	stack.provider.Join("bob")
	tokens := make(chan string, 10)
	stack.provider.Rewrite(provider.TokenPath, func(answer map[string]any) {
		if token, is := answer["id_token"].(string); is {
			tokens <- token
		}
	})
	if role := stack.let(t, server, "eve").Role; role != "viewer" {
		t.Errorf("at the page eve is %s, want viewer", role)
	}
	b := newBrowser(t)
	if back := b.get(b.signIn(server.URL+"/sign-in", "bob")); back.status != http.StatusForbidden {
		t.Errorf("at the page bob, of whom no groups are said, is answered with %d: %s", back.status, back.body)
	}
	for _, user := range []string{"eve", "bob"} {
		status, said := bearer(t, http.MethodPost, server.URL+"/api/v1/session/token", "",
			web.ShownIDToken{IDToken: <-tokens})
		if status != http.StatusForbidden || !strings.Contains(said, "says no groups of") {
			t.Errorf("an ID token of %s is answered with %d: %s", user, status, said)
		}
	}
	if status, said := bearer(t, http.MethodPost, server.URL+"/api/v1/session/token", "",
		web.ShownIDToken{IDToken: "x.y.z"}); status != http.StatusUnauthorized {
		t.Errorf("what is no ID token is answered with %d: %s", status, said)
	}
}

func TestACommandLineIsLetInByABrowser(t *testing.T) {
	t.Parallel()
	stack := startStack(t, 2, signin.Options{Roles: roles})
	stack.provider.Join("ada", "ml-platform")
	first, second := stack.servers[0], stack.servers[1]
	begin := func() (device web.DeviceCode) {
		t.Helper()
		ask(t, first.URL+"/api/v1/session/device", struct{}{}, &device)
		return device
	}
	device := begin()
	collect := func(server *server, device web.DeviceCode) (made web.MadeSession) {
		t.Helper()
		ask(t, server.URL+"/api/v1/session/device/token", web.WaitingDevice{DeviceCode: device.DeviceCode}, &made)
		return made
	}
	if made := collect(first, device); !made.Pending || made.Token != "" {
		t.Fatalf("before anybody has signed in it is given %+v", made)
	}
	b := newBrowser(t)
	confirm := b.get(b.signIn(device.VerificationURIComplete, "ada"))
	if confirm.status != http.StatusOK || !strings.Contains(confirm.body, device.UserCode) ||
		!strings.Contains(confirm.body, "ada@example.com") ||
		!strings.Contains(confirm.body, "It has asked from the address <strong>127.0.0.1</strong>") {
		t.Fatalf("status %d: %s", confirm.status, confirm.body)
	}
	if who := b.who(first); who.Role != "" {
		t.Errorf("the browser itself is let in as %+v", who)
	}
	if made := collect(second, device); !made.Pending {
		t.Fatalf("before anybody has confirmed it is given %+v", made)
	}
	_, secret, _ := strings.Cut(confirm.body, `name="secret" value="`)
	secret, _, _ = strings.Cut(secret, `"`)
	form := url.Values{"code": {device.UserCode}, "secret": {secret + "x"}, "answer": {"let"}}
	if got := b.post(second.URL+"/sign-in/device", form); got.status != http.StatusBadRequest {
		t.Errorf("another secret is answered with %d", got.status)
	}
	form.Set("secret", secret)
	if got := b.post(second.URL+"/sign-in/device", form); got.status != http.StatusOK ||
		!strings.Contains(got.body, "The command line is let in") {
		t.Fatalf("status %d: %s", got.status, got.body)
	}
	var made web.MadeSession
	for range 100 { // the other server hears of it in a moment
		if made = collect(first, device); !made.Pending {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if made.Name != "ada@example.com" || made.Role != "admin" {
		t.Fatalf("the command line is given %+v", made)
	}
	for i, server := range stack.servers {
		if status, said := bearer(t, http.MethodGet, server.URL+"/api/v1/tokens", made.Token, nil); status != http.StatusOK {
			t.Errorf("server %d answers %d: %s", i, status, said)
		}
	}
	// An answer that was lost is given again, at any server, and no second session is made.
	if again := collect(second, device); again.Token != made.Token {
		t.Errorf("it is given %+v, and then %+v", made, again)
	}
	if all := first.Sessions.All(); len(all) != 1 || !strings.HasPrefix(all[0].From, "127.0.0.1:") {
		t.Errorf("the sessions are %+v, want one", all)
	}
	// An admin ends all that she has.
	if status, said := bearer(t, http.MethodDelete, second.URL+"/api/v1/sessions/ada@example.com", stack.keys.Token(),
		nil); status != http.StatusOK || !strings.Contains(said, `"ended":1`) {
		t.Errorf("status %d: %s", status, said)
	}
	if status, said := bearer(t, http.MethodGet, second.URL+"/api/v1/tokens", made.Token, nil); status !=
		http.StatusUnauthorized || !strings.Contains(said, "the session has ended") {
		t.Errorf("a session that was ended is answered with %d: %s", status, said)
	}
}

func ask(t *testing.T, address string, body, into any) {
	t.Helper()
	status, said := bearer(t, http.MethodPost, address, "", body)
	if status != http.StatusOK {
		t.Fatalf("POST %s: status %d: %s", address, status, said)
	}
	decode(t, said, into)
}
