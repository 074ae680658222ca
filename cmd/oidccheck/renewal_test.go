package oidccheck

import (
	"io"
	"log/slog"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/activities/natstest"
	"github.com/spillway-ml/spillway/cmd/internal/renewal"
	"github.com/spillway-ml/spillway/cmd/internal/signin"

	"github.com/spillway-ml/spillway/cmd/oidccheck/provider"
)

// renewing is a server whose sessions are renewed, by a clock that goes on when it is told to.
type renewing struct {
	*stack
	*server

	t       *testing.T
	renewer *renewal.Renewer
	ahead   time.Duration
}

func startRenewing(t *testing.T, rules []signin.Rule) *renewing {
	t.Helper()
	r := &renewing{stack: startStack(t, 1, signin.Options{Roles: rules}), t: t}
	r.server = r.servers[0]
	r.renewer = r.by(r.SignIn)
	return r
}

func (r *renewing) by(signIn *signin.Provider) *renewal.Renewer {
	return renewal.New(renewal.Options{
		Sessions: r.Sessions, SignIn: signIn, Now: func() time.Time { return time.Now().Add(r.ahead) },
		Logger: slog.New(slog.NewTextHandler(r.Log, nil)),
	})
}

// pass looks after the sessions two hours later.
func (r *renewing) pass() {
	r.ahead += 2 * time.Hour
	r.renewer.Pass(r.t.Context())
}

// only is the session that there is.
func (r *renewing) only() access.Session {
	r.t.Helper()
	all := r.Sessions.All()
	if len(all) != 1 {
		r.t.Fatalf("there are %d sessions, want 1; the log:\n%s", len(all), r.Log)
	}
	return all[0]
}

// TestTroubleSignsNobodyOut has each thing go wrong that says nothing of who is signed in, and go right again. Most of
// it happens after the provider has given another refresh token, with which it goes on.
func TestTroubleSignsNobodyOut(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, log     string
		breaks, mends func(r *renewing)
	}{
		{
			name: "an error of the provider", log: "a session is not renewed, and goes on",
			breaks: func(r *renewing) { r.provider.Refuse(provider.TokenPath, 500, `{"error":"server_error"}`) },
		},
		{
			name: "a status of a proxy before it", log: "no session is renewed, and all go on",
			breaks: func(r *renewing) { r.provider.Refuse(provider.TokenPath, 503, "<h1>No server is available</h1>") },
		},
		{
			name: "a page for an answer", log: "a session is not renewed, and goes on",
			breaks: func(r *renewing) { r.provider.Refuse(provider.TokenPath, 400, "<h1>Bad</h1>") },
		},
		{
			name: "keys that cannot be fetched", log: "fetch its keys",
			breaks: func(r *renewing) {
				r.provider.RotateKey(r.t)
				r.provider.Refuse(provider.KeysPath, 500, "")
			},
		},
		{
			name: "groups that cannot be asked for", log: "ask for groups",
			breaks: func(r *renewing) { r.provider.Refuse(provider.UserinfoPath, 500, "") },
		},
		{
			name: "another secret", log: "does not know the client",
			breaks: func(r *renewing) { r.write(r.t, "another secret") },
			mends:  func(r *renewing) { r.write(r.t, provider.Secret) },
		},
		{
			name: "no secret", log: "holds no secret",
			breaks: func(r *renewing) { r.write(r.t, "") },
			mends:  func(r *renewing) { r.write(r.t, provider.Secret) },
		},
		{
			name: "a server at which nobody signs in", log: "people do not sign in with",
			breaks: func(r *renewing) { r.renewer = r.by(nil) },
			mends:  func(r *renewing) { r.renewer = r.by(r.SignIn) },
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := startRenewing(t, roles)
			r.provider.Join("ada", "vision")
			r.let(t, r.server, "ada")
			r.provider.Join("ada", "readers")
			c.breaks(r)
			r.pass()
			if role := r.only().Role; role != "operator" {
				t.Errorf("meanwhile the role is %s, want it as it was", role)
			}
			if !r.Log.has("level=WARN", c.log) {
				t.Errorf("the log does not say %q:\n%s", c.log, r.Log)
			}
			r.provider.Instead(provider.TokenPath, nil)
			r.provider.Instead(provider.KeysPath, nil)
			r.provider.Instead(provider.UserinfoPath, nil)
			if c.mends != nil {
				c.mends(r)
			}
			r.pass()
			if role := r.only().Role; role != "viewer" {
				t.Errorf("when all is well again the role is %s, want viewer; the log:\n%s", role, r.Log)
			}
			if c.mends == nil && !r.Log.has("renewed again") {
				t.Errorf("the log does not say that it goes on:\n%s", r.Log)
			}
		})
	}
}

// TestARenewalWithoutAnIDTokenAsksTheUserinfoEndpoint has the provider give none, as it may.
func TestARenewalWithoutAnIDTokenAsksTheUserinfoEndpoint(t *testing.T) {
	t.Parallel()
	r := startRenewing(t, roles)
	r.provider.Join("ada", "vision")
	before := r.let(t, r.server, "ada")
	r.provider.Join("ada", "readers")
	r.provider.Rewrite(provider.TokenPath, func(answer map[string]any) { delete(answer, "id_token") })
	r.pass()
	after := r.only()
	if after.Role != "viewer" || after.Name != before.Name || after.Refresh == before.Refresh ||
		!after.Fresh.After(before.Fresh) {
		t.Errorf("the session is %+v, want it renewed as a viewer's; the log:\n%s", after, r.Log)
	}
	r.provider.Rewrite(provider.UserinfoPath, func(answer map[string]any) { answer["sub"] = "eve" })
	r.pass()
	if left := r.Sessions.All(); len(left) > 0 {
		t.Errorf("the session of ada goes on when the provider speaks of eve: %+v", left)
	}
}

func TestWithoutAUserinfoEndpointASessionEndsWithTheIDToken(t *testing.T) {
	t.Parallel()
	r := startRenewing(t, []signin.Rule{{Group: signin.Everybody, Role: "viewer"}})
	r.provider.Rewrite(provider.DiscoveryPath, func(answer map[string]any) { delete(answer, "userinfo_endpoint") })
	r.provider.Join("ada")
	session := r.let(t, r.server, "ada")
	if session.Refresh != "" || time.Until(session.Until) > time.Hour {
		t.Errorf("the session lasts until %v, want that of the ID token, %v", session.Until, session.Fresh)
	}
}

// TestWhatTheProviderHasGivenIsTakenBack has somebody sign in twice, and out.
func TestWhatTheProviderHasGivenIsTakenBack(t *testing.T) {
	t.Parallel()
	r := startRenewing(t, roles)
	r.provider.Join("ada", "vision")
	r.let(t, r.server, "ada")
	r.let(t, r.server, "ada")
	r.pass() // both have other refresh tokens now
	both := r.Sessions.All()
	if len(both) != 2 {
		t.Fatalf("there are %d sessions, want 2; the log:\n%s", len(both), r.Log)
	}
	end := func(session access.Session) {
		t.Helper()
		if err := r.Sessions.End(t.Context(), session.ID); err != nil {
			t.Fatal(err)
		}
		r.renewer.Pass(t.Context())
	}
	end(both[0])
	if asked := r.provider.Asked(provider.RevokePath); asked != 0 || !r.provider.Counts(t, both[0].Refresh) {
		t.Errorf("while ada is signed in elsewhere %d refresh tokens were taken back", asked)
	}
	r.provider.Refuse(provider.RevokePath, http.StatusServiceUnavailable, "")
	end(both[1])
	r.provider.Instead(provider.RevokePath, nil)
	r.renewer.Pass(t.Context())
	for i, session := range both {
		if r.provider.Counts(t, session.Refresh) {
			t.Errorf("the refresh token of session %d counts; the log:\n%s", i, r.Log)
		}
	}
	asked := r.provider.Asked(provider.RevokePath)
	r.renewer.Pass(t.Context())
	if more := r.provider.Asked(provider.RevokePath) - asked; more > 0 {
		t.Errorf("they are taken back again, %d times", more)
	}
}

// TestTheTokenEndpointIsAskedOnce has a code and a refresh token shown once, whatever comes of it.
func TestTheTokenEndpointIsAskedOnce(t *testing.T) {
	t.Parallel()
	r := startRenewing(t, roles)
	r.provider.Join("ada", "vision")
	asked := func(what string, want int, do func()) {
		t.Helper()
		before := r.provider.Asked(provider.TokenPath)
		do()
		if got := r.provider.Asked(provider.TokenPath) - before; got != want {
			t.Errorf("%s: the token endpoint was asked %d times, want %d", what, got, want)
		}
	}
	asked("a code", 1, func() { r.let(t, r.server, "ada") })
	asked("a refresh token", 1, r.pass)
	r.provider.Refuse(provider.TokenPath, 500, "")
	asked("an error", 1, r.pass)
	r.provider.Instead(provider.TokenPath, nil)
	// A client of which the provider wants the secret in the form is found out once.
	r.provider.Instead(provider.TokenPath, func(w http.ResponseWriter, request *http.Request) bool {
		_, _, header := request.BasicAuth()
		if header {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = io.WriteString(w, `{"error":"invalid_client"}`)
		}
		return header
	})
	asked("the header, and then the form", 2, r.pass)
	asked("the form", 1, r.pass)
	r.provider.TakeBack(t, "ada", provider.Client)
	asked("what was taken back", 1, r.pass)
	if left := r.Sessions.All(); len(left) > 0 {
		t.Errorf("the session goes on; the log:\n%s", r.Log)
	}
}

func TestWhoHasLeftIsOut(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		change func(r *renewing)
		log    string
	}{
		{"the provider takes back", func(r *renewing) {
			r.provider.TakeBack(r.t, "ada", provider.Client)
		}, "was taken back"},
		{"no rule lets them in", func(r *renewing) { r.provider.Join("ada", "cooks") }, "no rule lets them in"},
		{"the provider speaks of somebody else", func(r *renewing) {
			r.provider.Rewrite(provider.UserinfoPath, func(answer map[string]any) { answer["sub"] = "eve" })
		}, "somebody else"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := startRenewing(t, roles)
			r.provider.Join("ada", "vision")
			r.let(t, r.server, "ada")
			c.change(r)
			r.pass()
			if left := r.Sessions.All(); len(left) > 0 || !r.Log.has("a session has ended", "who=ada@example.com", c.log) {
				t.Errorf("%d sessions are left; the log:\n%s", len(left), r.Log)
			}
		})
	}
}

func TestASessionThatCannotBeRenewedDelaysNoOther(t *testing.T) {
	t.Parallel()
	r := startRenewing(t, roles)
	r.provider.Join("ada", "vision")
	r.provider.Join("bob", "vision")
	stuck := r.let(t, r.server, "ada").Refresh
	r.let(t, r.server, "bob")
	r.provider.Join("ada", "readers")
	r.provider.Join("bob", "readers")
	tries := 0
	r.provider.Instead(provider.TokenPath, func(w http.ResponseWriter, request *http.Request) bool {
		if request.FormValue("refresh_token") != stuck {
			return false
		}
		tries++
		http.Error(w, "a bug that her account alone meets", http.StatusInternalServerError)
		return true
	})
	r.pass()
	tried := tries
	r.renewer.Pass(t.Context())
	got := map[string]string{}
	for _, session := range r.Sessions.All() {
		got[session.Subject] = session.Role
	}
	if got["ada"] != "operator" || got["bob"] != "viewer" {
		t.Errorf("the roles are %v, want that of bob alone renewed; the log:\n%s", got, r.Log)
	}
	if tried == 0 || tries != tried {
		t.Errorf("at once after %d tries there were %d more, want a pause", tried, tries-tried)
	}
}

// TestARefreshTokenIsStoredWhenNATSIsBack has NATS gone when the provider gives another refresh token, and the rest of
// the renewal fail as well.
func TestARefreshTokenIsStoredWhenNATSIsBack(t *testing.T) {
	t.Parallel()
	r := startRenewing(t, roles)
	r.provider.Join("ada", "vision")
	before := r.let(t, r.server, "ada").Refresh
	asked, goOn := make(chan struct{}, 1), make(chan struct{})
	r.provider.Instead(provider.UserinfoPath, func(w http.ResponseWriter, request *http.Request) bool {
		asked <- struct{}{}
		select {
		case <-goOn:
		case <-request.Context().Done():
		}
		http.Error(w, "broken", http.StatusInternalServerError)
		return true
	})
	r.nats.Stop()
	var working sync.WaitGroup
	working.Go(r.pass)
	natstest.Receive(t, asked, "the question for groups")
	r.nats.Restart()
	close(goOn)
	working.Wait()
	if !r.renewer.Keep(t.Context()) {
		t.Fatalf("it is not stored; the log:\n%s", r.Log)
	}
	after := r.only().Refresh
	if after == before || r.provider.Counts(t, before) || !r.provider.Counts(t, after) {
		t.Errorf("the refresh token that is stored does not count; the log:\n%s", r.Log)
	}
	if !r.Log.has("what sessions are renewed with is not stored") {
		t.Errorf("the log does not say that NATS did not answer:\n%s", r.Log)
	}
	r.provider.Instead(provider.UserinfoPath, nil)
	r.provider.Join("ada", "readers")
	r.pass()
	if role := r.only().Role; role != "viewer" {
		t.Errorf("the role is %s, want viewer; the log:\n%s", role, r.Log)
	}
}
