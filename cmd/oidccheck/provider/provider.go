// Package provider runs an OpenID Connect provider for tests.
package provider

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/go-jose/go-jose/v4"
	"github.com/zitadel/oidc/v3/example/server/exampleop"
	"github.com/zitadel/oidc/v3/example/server/storage"
	"github.com/zitadel/oidc/v3/pkg/oidc"
	"github.com/zitadel/oidc/v3/pkg/op"
	"golang.org/x/text/language"
)

// The clients that a provider knows.
const (
	Client       = "spillway"
	Secret       = "a secret of the client" //nolint:gosec // of tests
	PublicClient = "spillway-public"
)

// Password is that of all users.
const Password = "verysecure"

// Provider is a running identity provider. Its methods may be called concurrently.
type Provider struct {
	// Issuer is its URL.
	Issuer string

	server *httptest.Server
	users  *users
	store  *store

	mu       sync.Mutex
	instead  map[string]func(w http.ResponseWriter, r *http.Request) bool // by path; guarded by mu
	rewrites map[string]func(answer map[string]any)                       // likewise
	asked    map[string]int                                               // likewise
	away     bool                                                         // likewise
}

// Where a provider is asked.
const (
	DiscoveryPath = "/.well-known/openid-configuration"
	TokenPath     = "/oauth/token" //nolint:gosec // no credential
	UserinfoPath  = "/userinfo"
	KeysPath      = "/keys"
	RevokePath    = "/revoke"
)

// Start starts a provider whose clients may redirect to these addresses. It ends with the test.
func Start(t *testing.T, redirects ...string) *Provider {
	t.Helper()
	p := &Provider{
		users: &users{groups: map[string][]string{}}, instead: map[string]func(http.ResponseWriter, *http.Request) bool{},
		rewrites: map[string]func(map[string]any){}, asked: map[string]int{},
	}
	p.store = &store{users: p.users, Storage: storage.NewStorageWithClients(p.users, map[string]*storage.Client{
		Client:       storage.WebClient(Client, Secret, redirects...),
		PublicClient: storage.NativeClient(PublicClient, redirects...),
	})}
	p.RotateKey(t)
	var mux http.Handler
	p.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { p.answer(w, r, mux) }))
	p.Issuer = p.server.URL
	mux = exampleop.SetupServer(p.Issuer, p.store, nil, false)
	t.Cleanup(p.server.Close)
	return p
}

// answer answers a request as it was told to, else as the provider does.
func (p *Provider) answer(w http.ResponseWriter, r *http.Request, as http.Handler) {
	p.mu.Lock()
	p.asked[r.URL.Path]++
	instead, rewrite, away := p.instead[r.URL.Path], p.rewrites[r.URL.Path], p.away
	p.mu.Unlock()
	if away {
		panic(http.ErrAbortHandler) // the connection is cut
	}
	if instead != nil && instead(w, r) {
		return
	}
	if rewrite == nil {
		as.ServeHTTP(w, r)
		return
	}
	first := httptest.NewRecorder()
	as.ServeHTTP(first, r)
	answer := map[string]any{}
	if err := json.Unmarshal(first.Body.Bytes(), &answer); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	rewrite(answer)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(first.Code)
	_ = json.NewEncoder(w).Encode(answer)
}

// Leave has it cut all connections without an answer, until it comes back.
func (p *Provider) Leave(away bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.away = away
}

// Instead has instead answer at a path from now on; false leaves a request to the provider. Nil leaves all.
func (p *Provider) Instead(path string, instead func(w http.ResponseWriter, r *http.Request) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.instead[path] = instead
}

// Refuse has a path answer with a status and a text, which may be JSON.
func (p *Provider) Refuse(path string, status int, text string) {
	p.Instead(path, func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text)
		return true
	})
}

// Rewrite has the JSON that is answered at a path changed from now on; nil leaves it as it is.
func (p *Provider) Rewrite(path string, change func(answer map[string]any)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rewrites[path] = change
}

// Asked is how often something was asked at a path.
func (p *Provider) Asked(path string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asked[path]
}

// TakeBack has no refresh token of a user count any more.
func (p *Provider) TakeBack(t *testing.T, user, client string) {
	t.Helper()
	if err := p.store.TerminateSession(t.Context(), user, client); err != nil {
		t.Fatal(err)
	}
}

// Counts says whether a refresh token counts.
func (p *Provider) Counts(t *testing.T, refresh string) bool {
	t.Helper()
	_, err := p.store.TokenRequestByRefreshToken(t.Context(), refresh)
	return err == nil
}

// Join makes a user, or puts one into other groups.
func (p *Provider) Join(user string, groups ...string) {
	p.users.mu.Lock()
	defer p.users.mu.Unlock()
	p.users.groups[user] = groups
}

// RotateKey has ID tokens signed by another key from now on; the one before is forgotten.
func (p *Provider) RotateKey(t *testing.T) {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	p.store.mu.Lock()
	defer p.store.mu.Unlock()
	p.store.key = &signing{id: rand.Text(), key: key}
}

// Stop has it answer nobody any more.
func (p *Provider) Stop() {
	p.server.CloseClientConnections()
	p.server.Close()
}

// users are those of a provider, with the groups that they are in.
type users struct {
	mu     sync.Mutex
	groups map[string][]string // by name; guarded by mu
}

func (u *users) of(name string) ([]string, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	groups, known := u.groups[name]
	return groups, known
}

// GetUserByID implements storage.UserStore.
func (u *users) GetUserByID(id string) *storage.User { return u.GetUserByUsername(id) }

// GetUserByUsername implements storage.UserStore.
func (u *users) GetUserByUsername(name string) *storage.User {
	if _, known := u.of(name); !known {
		return nil
	}
	return &storage.User{
		ID: name, Username: name, Password: Password, FirstName: name, LastName: "Example",
		Email: name + "@example.com", EmailVerified: true, PreferredLanguage: language.English,
	}
}

// ExampleClientID implements storage.UserStore.
func (*users) ExampleClientID() string { return "service" }

// store is the storage of the example with groups, and with keys that change.
type store struct {
	*storage.Storage

	users *users
	mu    sync.Mutex
	key   *signing // guarded by mu
}

// SetUserinfoFromToken implements op.Storage: the userinfo endpoint says groups.
func (s *store) SetUserinfoFromToken(ctx context.Context, info *oidc.UserInfo, token, subject, origin string) error {
	if err := s.Storage.SetUserinfoFromToken(ctx, info, token, subject, origin); err != nil {
		return err
	}
	if groups, known := s.users.of(subject); known && groups != nil {
		info.AppendClaims("groups", groups)
	}
	return nil
}

func (s *store) signing() *signing {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.key
}

// SigningKey implements op.Storage.
func (s *store) SigningKey(context.Context) (op.SigningKey, error) { return s.signing(), nil }

// KeySet implements op.Storage.
func (s *store) KeySet(context.Context) ([]op.Key, error) { return []op.Key{&public{s.signing()}}, nil }

// signing is a key, and public its other half.
type (
	signing struct {
		id  string
		key *rsa.PrivateKey
	}
	public struct{ of *signing }
)

// SignatureAlgorithm implements op.SigningKey.
func (*signing) SignatureAlgorithm() jose.SignatureAlgorithm { return jose.RS256 }

// Key implements op.SigningKey.
func (s *signing) Key() any { return s.key }

// ID implements op.SigningKey.
func (s *signing) ID() string { return s.id }

// ID implements op.Key.
func (p *public) ID() string { return p.of.id }

// Algorithm implements op.Key.
func (*public) Algorithm() jose.SignatureAlgorithm { return jose.RS256 }

// Use implements op.Key.
func (*public) Use() string { return "sig" }

// Key implements op.Key.
func (p *public) Key() any { return &p.of.key.PublicKey }
