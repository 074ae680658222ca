package signin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/coreos/go-oidc/v3/oidc"
)

const (
	// askFor bounds one question to the provider.
	askFor = 10 * time.Second
	// firstPause is how long a provider that could not be reached is not asked again; each time in a row it doubles, up to
	// longestPause. Whoever wants to sign in meanwhile is told what was wrong.
	firstPause   = time.Second
	longestPause = time.Minute
	// believed is how long what a provider says of itself counts: it moves, and the file of --oidc-ca is replaced.
	believed = time.Hour
	// troubled is how long after a sign-in failed as each would it is said that nobody can sign in. Where a sign-in
	// succeeds, or the provider answers after it did not, that is said no longer at once.
	troubled = 10 * time.Minute
	// looked is how long at most the groups of somebody count, whatever the life of ID tokens, which is a day at some
	// providers: then the provider is asked again, where it can be.
	looked = time.Hour
	// skew is how far the clocks of the provider and of this machine may be apart.
	skew = time.Minute
)

// Provider is an identity provider. Its methods may be called concurrently. Use New.
type Provider struct {
	options Options

	mu     sync.Mutex
	known  *known        // nil until the provider has answered; guarded by mu, as all below
	until  time.Time     // when it is asked again what it says of itself
	failed error         // why it has not answered the last time; nil where it has
	again  time.Time     // when it may be asked again, after it has not
	pause  time.Duration // the last one
	asking chan struct{} // closed when the question that goes on is answered; nil where none does

	trouble error     // why the last sign-in, or renewal, failed that failed as each would; nil where one went well since
	since   time.Time // when that was
}

// known is what the provider says of itself.
type known struct {
	provider   *oidc.Provider
	client     *http.Client
	keys       oidc.KeySet
	algorithms []string // by which it signs
	methods    []string // by which its token endpoint knows clients
	scopes     []string
	userinfo   bool
	revocation string      // where refresh tokens are taken back; empty for nowhere
	inForm     atomic.Bool // whether it has refused this server by the header, and taken it by the form
}

// New returns a provider that is asked for the first time when it is needed. It refuses options that cannot be.
func New(options Options) (*Provider, error) {
	options.GroupsClaim = cmp.Or(options.GroupsClaim, UsualGroupsClaim)
	options.Session = cmp.Or(options.Session, UsualSession)
	options.Logger = cmp.Or(options.Logger, slog.New(slog.DiscardHandler))
	if options.Now == nil {
		options.Now = time.Now
	}
	if err := options.Validate(); err != nil {
		return nil, err
	}
	return &Provider{options: options}, nil
}

// Title is what the provider is called.
func (p *Provider) Title() string { return p.options.title() }

// Issuer is the URL of the provider.
func (p *Provider) Issuer() string { return p.options.Issuer }

// Teams are those that a rule names.
func (p *Provider) Teams() []string {
	var teams []string
	for _, rule := range p.options.Roles {
		if rule.Team != "" && !slices.Contains(teams, rule.Team) {
			teams = append(teams, rule.Team)
		}
	}
	return teams
}

// Problem says why nobody can sign in now, as far as that is known; empty where nothing is wrong.
func (p *Provider) Problem() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.failed != nil:
		return p.failed.Error()
	case p.inTrouble():
		return p.trouble.Error()
	}
	return ""
}

// inTrouble says whether there is one that counts; mu is held.
func (p *Provider) inTrouble() bool {
	return p.trouble != nil && p.options.Now().Before(p.since.Add(troubled))
}

// Reach asks the provider for what it says of itself, unless that is known, or it has just failed to answer.
func (p *Provider) Reach(ctx context.Context) error {
	_, err := p.reach(ctx)
	return err
}

func (p *Provider) reach(ctx context.Context) (*known, error) {
	for {
		p.mu.Lock()
		switch now := p.options.Now(); {
		case p.failed != nil && now.Before(p.again):
			defer p.mu.Unlock()
			return nil, p.failed
		case p.failed == nil && p.known != nil && now.Before(p.until):
			defer p.mu.Unlock()
			return p.known, nil
		case p.asking == nil:
			asked := make(chan struct{})
			p.asking = asked
			p.mu.Unlock()
			// The answer is for all who wait, so it does not end with who has asked first.
			ask, cancel := context.WithTimeout(context.WithoutCancel(ctx), askFor)
			answer, err := p.options.discover(ask)
			cancel()
			p.took(answer, err)
			close(asked)
			return answer, err
		}
		wait := p.asking
		p.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", ErrUnreachable, ctx.Err())
		}
	}
}

// took keeps what the provider answered.
func (p *Provider) took(answer *known, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asking = nil
	if err == nil {
		if p.failed != nil {
			p.options.Logger.Info("the identity provider answers again", "issuer", p.options.Issuer)
			p.trouble = nil
		}
		if p.known != nil {
			p.known.client.CloseIdleConnections()
		}
		p.known, p.failed, p.pause, p.until = answer, nil, 0, p.options.Now().Add(believed)
		return
	}
	p.pause = min(max(firstPause, 2*p.pause), longestPause)
	p.again = p.options.Now().Add(p.pause)
	if p.failed == nil || !alike(p.failed, err) {
		p.tell(err)
	}
	p.failed = err
}

// noted takes in what came of a sign-in, or of a renewal, after the provider was reached: whether others would go the
// same way. One that its own user has broken off says nothing.
func (p *Provider) noted(ctx context.Context, err error) {
	if ctx.Err() != nil || err != nil && !ForAll(err) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil {
		if p.trouble != nil {
			p.options.Logger.InfoContext(ctx, "people can sign in again", "issuer", p.options.Issuer)
		}
		p.trouble = nil
		return
	}
	if !p.inTrouble() || !alike(p.trouble, err) {
		p.tell(err)
	}
	p.trouble, p.since = err, p.options.Now()
	if errors.Is(err, errForAll) {
		p.until = time.Time{} // whoever signs in next is not sent to where nobody answers
	}
}

// tell tells the log that nobody can sign in.
func (p *Provider) tell(err error) {
	p.options.Logger.Warn("nobody can sign in; it is tried again when somebody wants to", "issuer", p.options.Issuer,
		"error", err)
}

// alike says whether two errors say the same, other than by ports and times, which change each time.
func alike(a, b error) bool {
	letters := func(err error) string {
		return strings.Map(func(r rune) rune {
			if unicode.IsDigit(r) {
				return -1
			}
			return r
		}, err.Error())
	}
	return letters(a) == letters(b)
}

// discover asks the provider what it says of itself (OpenID Connect Discovery 1.0, section 4).
func (o *Options) discover(ctx context.Context) (*known, error) {
	client, err := o.client()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrServer, err)
	}
	provider, err := oidc.NewProvider(oidc.ClientContext(ctx, client), o.Issuer)
	if err != nil {
		return nil, o.unreachable(err)
	}
	var says struct {
		Scopes     []string `json:"scopes_supported"`
		Methods    []string `json:"code_challenge_methods_supported"`
		Algorithms []string `json:"id_token_signing_alg_values_supported"`
		Clients    []string `json:"token_endpoint_auth_methods_supported"`
		Keys       string   `json:"jwks_uri"`
		Userinfo   string   `json:"userinfo_endpoint"`
		Revocation string   `json:"revocation_endpoint"`
	}
	if err := provider.Claims(&says); err != nil {
		return nil, o.unreachable(err)
	}
	if len(says.Methods) > 0 && !slices.Contains(says.Methods, "S256") {
		return nil, fmt.Errorf("%w: %s has no PKCE with S256, only %s", errForAll, o.Issuer,
			strings.Join(says.Methods, ", "))
	}
	if at := provider.Endpoint(); at.AuthURL == "" || at.TokenURL == "" || says.Keys == "" {
		return nil, fmt.Errorf("%w: %s does not say where to sign in, to exchange codes, or to find its keys", errForAll,
			o.Issuer)
	}
	for _, place := range []struct{ name, at string }{
		{"authorization_endpoint", provider.Endpoint().AuthURL},
		{"token_endpoint", provider.Endpoint().TokenURL},
		{"jwks_uri", says.Keys},
		{"userinfo_endpoint", says.Userinfo},
		{"revocation_endpoint", says.Revocation},
	} {
		if at, err := url.Parse(place.at); place.at != "" && (err != nil || !private(at)) {
			return nil, fmt.Errorf("%w: %s says that its %s is %.200q, which is not reached over TLS", errForAll, o.Issuer,
				place.name, place.at)
		}
	}
	return &known{
		provider: provider, client: client, scopes: o.scopes(says.Scopes), methods: says.Clients,
		userinfo: says.Userinfo != "", revocation: says.Revocation,
		keys:       oidc.NewRemoteKeySet(oidc.ClientContext(ctx, client), says.Keys), // which outlives this question
		algorithms: slices.DeleteFunc(says.Algorithms, func(one string) bool { return !slices.Contains(algorithms, one) }),
	}, nil
}

// algorithms are those of ID tokens that are believed: with keys that the provider alone has.
var algorithms = []string{
	oidc.RS256, oidc.RS384, oidc.RS512, oidc.ES256, oidc.ES384, oidc.ES512, oidc.PS256, oidc.PS384, oidc.PS512, oidc.EdDSA,
}

// scopes are what is asked for, of what the provider says that it has.
func (o *Options) scopes(supported []string) []string {
	if len(o.Scopes) > 0 {
		return o.Scopes
	}
	scopes := []string{oidc.ScopeOpenID, "profile", "email"}
	for _, scope := range []string{"groups", oidc.ScopeOfflineAccess} {
		if slices.Contains(supported, scope) {
			scopes = append(scopes, scope)
		}
	}
	return scopes
}

// Says is what a provider says of itself, for who configures it.
type Says struct {
	// Scopes are what is asked for.
	Scopes []string
	// Endpoint is where people sign in.
	Endpoint string
}

// Check asks a provider what it says of itself, and for its keys.
func Check(ctx context.Context, options Options) (Says, error) {
	p, err := New(options)
	if err != nil {
		return Says{}, err
	}
	at, err := p.reach(ctx)
	if err != nil {
		return Says{}, err
	}
	return Says{Scopes: at.scopes, Endpoint: at.provider.Endpoint().AuthURL}, p.hasKeys(ctx, at)
}

// hasKeys says why the keys of the provider cannot be had.
func (p *Provider) hasKeys(ctx context.Context, at *known) error {
	var says struct {
		Keys string `json:"jwks_uri"`
	}
	if err := at.provider.Claims(&says); err != nil {
		return p.options.unreachable(err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, says.Keys, http.NoBody)
	if err != nil {
		return p.options.unreachable(err)
	}
	answer, err := at.client.Do(request)
	if err != nil {
		return p.options.unreachable(err)
	}
	defer func() { _ = answer.Body.Close() }()
	const most = 1 << 20
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	err = json.NewDecoder(io.LimitReader(answer.Body, most)).Decode(&set)
	if err != nil || answer.StatusCode != http.StatusOK || len(set.Keys) == 0 {
		return fmt.Errorf("%w: %s says that its keys are at %s, and there are none (status %d)", errForAll,
			p.options.Issuer, says.Keys, answer.StatusCode)
	}
	return nil
}
