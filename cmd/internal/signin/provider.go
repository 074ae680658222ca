package signin

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"
)

const (
	// askFor bounds one question to the provider.
	askFor = 10 * time.Second
	// firstPause is how long a provider that could not be reached is not asked again; each time in a row it doubles, up to
	// longestPause. Whoever wants to sign in meanwhile is told what was wrong.
	firstPause   = time.Second
	longestPause = time.Minute
	// skew is how far the clocks of the provider and of this machine may be apart.
	skew = time.Minute
)

// Errors of a sign-in, each with its one sentence.
var (
	// ErrUnreachable says that the provider does not answer, or answers as none does.
	ErrUnreachable = errors.New("the identity provider cannot be asked")
	// ErrRefused says that the provider refuses what it was shown: a code, a refresh token, or this client.
	ErrRefused = errors.New("the identity provider refuses")
	// ErrToken says that what the provider gave, or somebody has shown, is no ID token for this server.
	ErrToken = errors.New("the ID token does not count")
)

// Provider is an identity provider. Its methods may be called concurrently. Use New.
type Provider struct {
	options Options

	mu     sync.Mutex
	known  *known        // nil until the provider has answered; guarded by mu, as all below
	failed error         // why it has not
	again  time.Time     // when it may be asked again
	pause  time.Duration // the last one
	asking chan struct{} // closed when the question that goes on is answered; nil where none does
}

// known is what the provider says of itself.
type known struct {
	provider *oidc.Provider
	verifier *oidc.IDTokenVerifier
	client   *http.Client
	scopes   []string
	userinfo bool
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
	if p.known != nil || p.failed == nil {
		return ""
	}
	return p.failed.Error()
}

// Reach asks the provider for what it says of itself, unless that is known, or it has just failed to answer.
func (p *Provider) Reach(ctx context.Context) error {
	_, err := p.reach(ctx)
	return err
}

func (p *Provider) reach(ctx context.Context) (*known, error) {
	for {
		p.mu.Lock()
		switch {
		case p.known != nil, p.failed != nil && p.options.Now().Before(p.again):
			defer p.mu.Unlock()
			return p.known, p.failed
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
		}
		p.known, p.failed = answer, nil
		return
	}
	p.pause = min(max(firstPause, 2*p.pause), longestPause)
	p.again = p.options.Now().Add(p.pause)
	if p.failed == nil || p.failed.Error() != err.Error() {
		p.options.Logger.Warn("nobody can sign in; it is tried again when somebody wants to", "issuer", p.options.Issuer,
			"error", err)
	}
	p.failed = err
}

// discover asks the provider what it says of itself (OpenID Connect Discovery 1.0, section 4).
func (o *Options) discover(ctx context.Context) (*known, error) {
	client, err := o.client()
	if err != nil {
		return nil, err
	}
	provider, err := oidc.NewProvider(oidc.ClientContext(ctx, client), o.Issuer)
	if err != nil {
		return nil, o.unreachable(err)
	}
	var says struct {
		Scopes   []string `json:"scopes_supported"`
		Methods  []string `json:"code_challenge_methods_supported"`
		Userinfo string   `json:"userinfo_endpoint"`
	}
	if err := provider.Claims(&says); err != nil {
		return nil, o.unreachable(err)
	}
	if len(says.Methods) > 0 && !slices.Contains(says.Methods, "S256") {
		return nil, fmt.Errorf("%w: %s has no PKCE with S256, only %s", ErrUnreachable, o.Issuer,
			strings.Join(says.Methods, ", "))
	}
	if at := provider.Endpoint(); at.AuthURL == "" || at.TokenURL == "" {
		return nil, fmt.Errorf("%w: %s says no place to sign in at, or to exchange codes at", ErrUnreachable, o.Issuer)
	}
	// Keys are fetched with a client of their own, whose context does not end with this question.
	keys := oidc.ClientContext(context.WithoutCancel(ctx), client)
	return &known{
		provider: provider, client: client, scopes: o.scopes(says.Scopes), userinfo: says.Userinfo != "",
		verifier: provider.VerifierContext(keys, &oidc.Config{
			ClientID: o.ClientID, Now: o.Now, SkipExpiryCheck: true, // they are checked with a bound, by checkTimes
		}),
	}, nil
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

// unreachable says in our words what is wrong with the way to the provider.
func (o *Options) unreachable(err error) error {
	var unknown x509.UnknownAuthorityError
	var verify *tls.CertificateVerificationError
	hint := "look whether it runs, and whether this machine reaches it"
	switch text := err.Error(); {
	case errors.As(err, &unknown), errors.As(err, &verify):
		hint = "name with --oidc-ca the file of who has signed its certificate"
	case strings.Contains(text, "did not match the issuer"), strings.Contains(text, "issuer URL provided"):
		hint = "write --oidc-issuer exactly as the provider does, up to the slash at its end"
	case strings.Contains(text, "404"), strings.Contains(text, "unmarshal"), strings.Contains(text, "Content-Type"):
		hint = "--oidc-issuer is what stands before /.well-known/openid-configuration"
	}
	return fmt.Errorf("%w: %s: %w; %s", ErrUnreachable, o.Issuer, shortened(err), hint)
}

// shortened is an error whose text, which may be a page of the provider, has one line of bounded length.
func shortened(err error) error {
	const most = 300
	text := strings.Join(strings.Fields(err.Error()), " ")
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "..."
	}
	return errors.New(printable(text))
}

// Begun is what a sign-in has begun with: what the browser keeps until it comes back.
type Begun struct {
	State    string `json:"state"`
	Nonce    string `json:"nonce"`
	Verifier string `json:"verifier"`
	Redirect string `json:"redirect"`
}

// Begin returns where a browser signs in, and with what it comes back to redirect.
func (p *Provider) Begin(ctx context.Context, redirect string) (address string, begun Begun, err error) {
	at, err := p.reach(ctx)
	if err != nil {
		return "", begun, err
	}
	config, err := p.oauth(at, redirect)
	if err != nil {
		return "", begun, err
	}
	begun = Begun{oauth2.GenerateVerifier(), oauth2.GenerateVerifier(), oauth2.GenerateVerifier(), redirect}
	return config.AuthCodeURL(begun.State, oidc.Nonce(begun.Nonce), oauth2.S256ChallengeOption(begun.Verifier)), begun, nil
}

func (p *Provider) oauth(at *known, redirect string) (*oauth2.Config, error) {
	secret, err := p.options.secret()
	return &oauth2.Config{
		ClientID: p.options.ClientID, ClientSecret: secret, Endpoint: at.provider.Endpoint(), RedirectURL: redirect,
		Scopes: at.scopes,
	}, err
}

// Signed is a sign-in that the provider stands for.
type Signed struct {
	Person

	// Fresh is until when the provider stands for it: the expiry of the ID token.
	Fresh time.Time
	// Refresh is what it is asked with to go on; empty where it gives none.
	Refresh string
}

// Until is when a sign-in that was made at a time ends at the latest: after Options.Session, and where the provider can
// not be asked to go on, when it stands for it no longer.
func (p *Provider) Until(signed Signed, made time.Time) time.Time {
	until := made.Add(p.options.Session)
	if signed.Refresh == "" && signed.Fresh.Before(until) {
		return signed.Fresh
	}
	return until
}

// Finish exchanges the code that a browser has come back with.
func (p *Provider) Finish(ctx context.Context, begun Begun, code string) (Signed, error) {
	at, err := p.reach(ctx)
	if err != nil {
		return Signed{}, err
	}
	config, err := p.oauth(at, begun.Redirect)
	if err != nil {
		return Signed{}, err
	}
	token, err := config.Exchange(oidc.ClientContext(ctx, at.client), code, oauth2.VerifierOption(begun.Verifier))
	if err != nil {
		return Signed{}, p.answered("exchange the code of a sign-in", err)
	}
	return p.signed(ctx, at, token, begun.Nonce, "")
}

// Renew asks the provider to stand for a sign-in further. The subject is who it was.
func (p *Provider) Renew(ctx context.Context, refresh, subject string) (Signed, error) {
	at, err := p.reach(ctx)
	if err != nil {
		return Signed{}, err
	}
	config, err := p.oauth(at, "")
	if err != nil {
		return Signed{}, err
	}
	asking := oidc.ClientContext(ctx, at.client)
	token, err := config.TokenSource(asking, &oauth2.Token{RefreshToken: refresh}).Token()
	if err != nil {
		return Signed{}, p.answered("renew a sign-in", err)
	}
	return p.signed(ctx, at, token, "", subject)
}

// Verify says whose ID token it is, which somebody shows.
func (p *Provider) Verify(ctx context.Context, idToken string) (Signed, error) {
	at, err := p.reach(ctx)
	if err != nil {
		return Signed{}, err
	}
	verified, claims, err := p.verify(ctx, at, idToken)
	if err != nil {
		return Signed{}, err
	}
	person, err := p.options.person(verified.Issuer, verified.Subject, claims)
	return Signed{Person: person, Fresh: verified.Expiry}, err
}

// signed reads what the provider has given. A nonce that is given must be in the ID token, and a subject its own.
func (p *Provider) signed(ctx context.Context, at *known, token *oauth2.Token, nonce, subject string) (Signed, error) {
	raw, is := token.Extra("id_token").(string)
	if !is {
		return Signed{}, fmt.Errorf("%w: the identity provider gave none; is openid among the scopes?", ErrToken)
	}
	verified, claims, err := p.verify(ctx, at, raw)
	switch {
	case err != nil:
		return Signed{}, err
	case nonce != "" && verified.Nonce != nonce:
		return Signed{}, fmt.Errorf("%w: it is of another sign-in (its nonce is another one)", ErrToken)
	case subject != "" && verified.Subject != subject:
		return Signed{}, fmt.Errorf("%w: it is somebody else's", ErrToken)
	}
	if _, there := groupsOf(claims, p.options.GroupsClaim); !there && at.userinfo {
		if err := p.ask(ctx, at, token, verified.Subject, claims); err != nil {
			return Signed{}, err
		}
	}
	person, err := p.options.person(verified.Issuer, verified.Subject, claims)
	return Signed{Person: person, Fresh: verified.Expiry, Refresh: token.RefreshToken}, err
}

// ask adds what the provider says of who it is at its userinfo endpoint: some put no groups into ID tokens.
func (p *Provider) ask(
	ctx context.Context, at *known, token *oauth2.Token, subject string, claims map[string]any,
) error {
	info, err := at.provider.UserInfo(oidc.ClientContext(ctx, at.client), oauth2.StaticTokenSource(token))
	if err != nil {
		return fmt.Errorf("%w: ask for groups: %w", ErrUnreachable, shortened(err))
	}
	if info.Subject != subject {
		return fmt.Errorf("%w: its userinfo endpoint tells of somebody else", ErrToken)
	}
	more := map[string]any{}
	if err := info.Claims(&more); err != nil {
		return fmt.Errorf("%w: read what its userinfo endpoint says: %w", ErrUnreachable, shortened(err))
	}
	for name, value := range more {
		if _, there := claims[name]; !there {
			claims[name] = value
		}
	}
	return nil
}

// verify checks an ID token.
func (p *Provider) verify(ctx context.Context, at *known, raw string) (*oidc.IDToken, map[string]any, error) {
	token, err := at.verifier.Verify(oidc.ClientContext(ctx, at.client), raw)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrToken, shortened(err))
	}
	claims := map[string]any{}
	if err := token.Claims(&claims); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrToken, shortened(err))
	}
	if azp, said := claims["azp"].(string); said && len(token.Audience) > 1 && azp != p.options.ClientID {
		return nil, nil, fmt.Errorf("%w: it was given to %.100q", ErrToken, azp)
	}
	return token, claims, checkTimes(token, p.options.Now())
}

// checkTimes says why an ID token does not count now.
func checkTimes(token *oidc.IDToken, now time.Time) error {
	switch {
	case !now.Before(token.Expiry.Add(skew)):
		return fmt.Errorf("%w: it has expired, %s ago", ErrToken, now.Sub(token.Expiry).Round(time.Second))
	case token.IssuedAt.After(now.Add(skew)):
		return fmt.Errorf("%w: it will be made in %s: set the clock of this machine or of the identity provider, which may "+
			"be a minute apart", ErrToken, token.IssuedAt.Sub(now).Round(time.Second))
	}
	return nil
}

// answered says in our words what the provider's answer was.
func (p *Provider) answered(what string, err error) error {
	refused, is := errors.AsType[*oauth2.RetrieveError](err)
	if !is {
		return fmt.Errorf("%w: %s: %w", ErrUnreachable, what, shortened(err))
	}
	switch refused.ErrorCode {
	case "invalid_client", "unauthorized_client":
		return fmt.Errorf("%w this server: it does not know the client %q, or not by its secret (%s): compare "+
			"--oidc-client-id and --oidc-client-secret-file with what it has", ErrRefused, p.options.ClientID,
			said(refused))
	case "invalid_grant":
		return fmt.Errorf("%w to %s: what it gave for that has been used, has expired or was taken back (%s)", ErrRefused,
			what, said(refused))
	case "":
		if refused.Response != nil && refused.Response.StatusCode == http.StatusUnauthorized {
			return fmt.Errorf("%w this server: it does not know the client %q, or not by its secret", ErrRefused,
				p.options.ClientID)
		}
		return fmt.Errorf("%w: %s: %w", ErrUnreachable, what, shortened(err))
	}
	return fmt.Errorf("%w to %s: %s", ErrRefused, what, said(refused))
}

func said(refused *oauth2.RetrieveError) string {
	text := refused.ErrorCode
	if refused.ErrorDescription != "" {
		text += ": " + refused.ErrorDescription
	}
	return shortened(errors.New(text)).Error()
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
		return fmt.Errorf("%w: %s says that its keys are at %s, and there are none (status %d)", ErrUnreachable,
			p.options.Issuer, says.Keys, answer.StatusCode)
	}
	return nil
}
