package oidccheck

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/activities/documents"
	"github.com/spillway-ml/spillway/activities/natstest"
	"github.com/spillway-ml/spillway/cmd/internal/signin"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/cmd/internal/web/webtest"

	"github.com/spillway-ml/spillway/cmd/oidccheck/provider"
)

// stack is one or more servers with the same keys on one NATS, each with its page and API, and a provider.
type stack struct {
	provider *provider.Provider
	keys     *access.Keys
	nats     *natstest.Server
	secret   string // the file with that of the client
	servers  []*server
}

// server is one of a stack.
type server struct {
	URL      string
	Sessions *access.Sessions
	Tokens   *access.Tokens
	SignIn   *signin.Provider
	Log      *lines
}

// startStack starts servers at which people sign in as the options say, which lack the issuer and the client.
func startStack(t *testing.T, servers int, options signin.Options) *stack {
	t.Helper()
	keys, err := access.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s := &stack{keys: keys}
	var listeners []net.Listener
	var redirects []string
	for range servers {
		var config net.ListenConfig
		listener, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listeners = append(listeners, listener)
		redirects = append(redirects, "http://"+listener.Addr().String()+web.CallbackPath)
	}
	s.provider = provider.Start(t, redirects...)
	if options.Issuer == "" {
		options.Issuer = s.provider.Issuer
	}
	if options.ClientID == "" {
		options.ClientID = provider.Client
		s.secret = secretFile(t, provider.Secret)
		options.ClientSecretFile = s.secret
	}
	s.nats = natstest.Start(t)
	for _, listener := range listeners {
		s.servers = append(s.servers, s.serve(t, listener, options))
	}
	return s
}

func secretFile(t *testing.T, secret string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte(secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func (s *stack) serve(t *testing.T, listener net.Listener, options signin.Options) *server {
	t.Helper()
	shared, err := documents.Open(t.Context(), s.nats.Connect(), s.keys, nil)
	if err != nil {
		t.Fatal(err)
	}
	var working sync.WaitGroup
	life, end := context.WithCancel(context.WithoutCancel(t.Context()))
	working.Go(func() { _ = shared.Run(life) })
	log := &lines{}
	logger := slog.New(slog.NewTextHandler(log, nil))
	options.Logger = logger
	signIn, err := signin.New(options)
	if err != nil {
		t.Fatal(err)
	}
	tokens := access.OpenTokens(shared)
	sessions := access.OpenSessions(shared, s.keys, tokens)
	engine := webtest.New(web.Stack{StateDir: "/var/spillway"})
	api := web.New(web.Options{
		Engine: engine, Keys: s.keys, Tokens: tokens, Sessions: sessions, SignIn: signIn, Feed: &engine.Feed,
		Page: web.NewPage(), Logger: logger,
	})
	working.Go(func() {
		if err := api.Serve(listener); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 5*time.Second)
		defer cancel()
		if err := api.Close(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		end()
		working.Wait()
	})
	return &server{"http://" + listener.Addr().String(), sessions, tokens, signIn, log}
}

// let signs a user in at a server, and returns the session.
func (s *stack) let(t *testing.T, server *server, user string) access.Session {
	t.Helper()
	b := newBrowser(t)
	if back := b.get(b.signIn(server.URL+"/sign-in", user)); back.status != http.StatusSeeOther {
		t.Fatalf("status %d: %s", back.status, back.body)
	}
	for _, session := range server.Sessions.All() {
		if session.Subject == user {
			return session
		}
	}
	t.Fatalf("%s is signed in, and there is no session", user)
	return access.Session{}
}

// lines are those of a log.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) has(parts ...string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		all := true
		for _, part := range parts {
			all = all && strings.Contains(line, part)
		}
		if all {
			return true
		}
	}
	return false
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// browser keeps cookies, and goes where it is sent only when it is told to.
type browser struct {
	t      *testing.T
	client *http.Client
}

func newBrowser(t *testing.T) *browser {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Jar: jar, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
	t.Cleanup(client.CloseIdleConnections)
	return &browser{t, client}
}

// answer is what came of a request.
type answer struct {
	status int
	to     string // where the browser is sent
	body   string
}

func (b *browser) do(request *http.Request) answer {
	b.t.Helper()
	response, err := b.client.Do(request)
	if err != nil {
		b.t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	to := response.Header.Get("Location")
	if at, err := response.Location(); err == nil {
		to = at.String()
	}
	return answer{response.StatusCode, to, string(body)}
}

func (b *browser) get(address string) answer {
	b.t.Helper()
	request, err := http.NewRequestWithContext(b.t.Context(), http.MethodGet, address, http.NoBody)
	if err != nil {
		b.t.Fatal(err)
	}
	return b.do(request)
}

func (b *browser) post(address string, form url.Values) answer {
	b.t.Helper()
	request, err := http.NewRequestWithContext(b.t.Context(), http.MethodPost, address, strings.NewReader(form.Encode()))
	if err != nil {
		b.t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return b.do(request)
}

// signIn begins at an address of a server, signs in as the user at the provider, and returns the address to which that
// sends the browser back.
func (b *browser) signIn(begin, user string) (callback string) {
	b.t.Helper()
	begun := b.get(begin)
	if begun.status != http.StatusSeeOther {
		b.t.Fatalf("GET %s: status %d, want to be sent to the provider: %s", begin, begun.status, begun.body)
	}
	login := b.get(begun.to) // the provider sends on to its form
	at, err := url.Parse(login.to)
	if err != nil || at.Query().Get("authRequestID") == "" {
		b.t.Fatalf("GET %s: status %d, sent to %q: %s", begun.to, login.status, login.to, login.body)
	}
	sent := b.post(strings.TrimSuffix(login.to, "?"+at.RawQuery), url.Values{
		"id": {at.Query().Get("authRequestID")}, "username": {user}, "password": {provider.Password},
	})
	back := b.get(sent.to)
	if back.status != http.StatusFound || !strings.Contains(back.to, web.CallbackPath) {
		b.t.Fatalf("GET %s: status %d, sent to %q: %s", sent.to, back.status, back.to, back.body)
	}
	return back.to
}

// who asks a server who it takes the browser for.
func (b *browser) who(server *server) (who web.SessionAnswer) {
	b.t.Helper()
	got := b.get(server.URL + "/api/v1/session")
	if err := json.Unmarshal([]byte(got.body), &who); err != nil {
		b.t.Fatalf("%v: %s", err, got.body)
	}
	return who
}

// bearer asks with a token, and no cookie.
func bearer(t *testing.T, method, address, token string, body any) (status int, said string) {
	t.Helper()
	var text []byte
	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			t.Fatal(err)
		}
	}
	request, err := http.NewRequestWithContext(t.Context(), method, address, bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	got := newBrowser(t).do(request)
	return got.status, got.body
}

func decode(t *testing.T, text string, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), into); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
}
