package signin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"
)

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
		p.noted(ctx, err)
		return "", begun, err
	}
	begun = Begun{oauth2.GenerateVerifier(), oauth2.GenerateVerifier(), oauth2.GenerateVerifier(), redirect}
	return config.AuthCodeURL(begun.State, oidc.Nonce(begun.Nonce), oauth2.S256ChallengeOption(begun.Verifier)), begun, nil
}

// Signed is a sign-in that the provider stands for.
type Signed struct {
	Person

	// Fresh is until when the provider stands for it: the expiry of the ID token, or of the access token where a renewal
	// brought no ID token, and zero where it says none. Where there is a Refresh it is an hour from now at most.
	Fresh time.Time
	// Refresh is what it is asked with to go on; empty where it gives none, or could not say then who it is.
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
	signed, err := p.finish(ctx, at, begun, code)
	p.noted(ctx, err)
	return signed, err
}

func (p *Provider) finish(ctx context.Context, at *known, begun Begun, code string) (Signed, error) {
	const what = "exchange the code of a sign-in"
	exchange := func(ctx context.Context, config *oauth2.Config) (*oauth2.Token, error) {
		return config.Exchange(ctx, code, oauth2.VerifierOption(begun.Verifier))
	}
	token, err := p.tokens(ctx, at, begun.Redirect, what, exchange)
	if err != nil {
		return Signed{}, err
	}
	return p.signed(ctx, at, token, begun.Nonce, "")
}

// Renew asks the provider to stand for a sign-in further. The subject is who it was. Where the provider gives another
// refresh token, rotated is called with that before anything else can fail: with many, the one before counts no more.
func (p *Provider) Renew(ctx context.Context, refresh, subject string, rotated func(refresh string)) (Signed, error) {
	at, err := p.reach(ctx)
	if err != nil {
		return Signed{}, err
	}
	signed, err := p.renew(ctx, at, refresh, subject, rotated)
	p.noted(ctx, err)
	return signed, err
}

func (p *Provider) renew(
	ctx context.Context, at *known, refresh, subject string, rotated func(refresh string),
) (Signed, error) {
	exchange := func(ctx context.Context, config *oauth2.Config) (*oauth2.Token, error) {
		return config.TokenSource(ctx, &oauth2.Token{RefreshToken: refresh}).Token()
	}
	// Once the provider has been shown it, its answer is waited for, whoever asked.
	token, err := p.tokens(context.WithoutCancel(ctx), at, "", "renew a sign-in", exchange)
	if err != nil {
		return Signed{}, err
	}
	if token.RefreshToken != refresh {
		rotated(token.RefreshToken)
	}
	if _, is := token.Extra("id_token").(string); !is {
		return p.asUserinfo(ctx, at, token, subject)
	}
	return p.signed(ctx, at, token, "", subject)
}

// asUserinfo reads a renewal that brought no ID token, as it need not (OpenID Connect Core 1.0, section 12.2): the
// userinfo endpoint says who it is, and in which groups.
func (p *Provider) asUserinfo(ctx context.Context, at *known, token *oauth2.Token, subject string) (Signed, error) {
	if !at.userinfo {
		return Signed{}, fmt.Errorf("%w: a renewal brought none, and there is no userinfo endpoint to ask", ErrToken)
	}
	claims := map[string]any{}
	if err := p.ask(ctx, at, token, subject, claims); err != nil {
		return Signed{}, err
	}
	person, err := p.options.person(subject, claims, false) // an ID token may say more
	if errors.Is(err, ErrNoRole) && !p.options.says(claims) {
		err = fmt.Errorf("%w: a renewal brought none, and the userinfo endpoint says no groups: %w", ErrToken, shortened(err))
	}
	return Signed{Person: person, Fresh: p.atMost(token.Expiry), Refresh: token.RefreshToken}, err
}

// Verify says whose ID token it is, which somebody shows.
func (p *Provider) Verify(ctx context.Context, idToken string) (Signed, error) {
	at, err := p.reach(ctx)
	if err != nil {
		return Signed{}, err
	}
	verified, claims, err := p.verify(ctx, at, idToken)
	if err != nil {
		p.noted(ctx, err)
		return Signed{}, err
	}
	person, err := p.options.person(verified.Subject, claims, !at.userinfo) // which has no access token to be asked with
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
		return Signed{}, errElse
	}
	if _, there := groupsOf(claims, p.options.GroupsClaim); !there && at.userinfo {
		if err := p.ask(ctx, at, token, verified.Subject, claims); err != nil {
			return Signed{}, err
		}
	}
	person, err := p.options.person(verified.Subject, claims, true)
	signed := Signed{Person: person, Fresh: verified.Expiry}
	if at.userinfo && token.RefreshToken != "" { // else a renewal without an ID token would say nothing
		signed.Fresh, signed.Refresh = p.atMost(signed.Fresh), token.RefreshToken
	}
	return signed, err
}

// atMost is when the provider is asked again at the latest.
func (p *Provider) atMost(fresh time.Time) time.Time {
	if latest := p.options.Now().Add(looked); latest.Before(fresh) {
		return latest
	}
	return fresh
}

// ask adds what the provider says of who it is at its userinfo endpoint: some put no groups into ID tokens.
func (p *Provider) ask(
	ctx context.Context, at *known, token *oauth2.Token, subject string, claims map[string]any,
) error {
	info, err := at.provider.UserInfo(oidc.ClientContext(ctx, at.client), oauth2.StaticTokenSource(token))
	if err != nil {
		return unanswered("ask for groups", err)
	}
	if info.Subject != subject {
		return fmt.Errorf("%w (by the userinfo endpoint)", errElse)
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
	keys := &fetched{from: at.keys}
	token, err := oidc.NewVerifier(p.options.Issuer, keys, &oidc.Config{
		ClientID: p.options.ClientID, SupportedSigningAlgs: at.algorithms, Now: p.options.Now,
		SkipExpiryCheck: true, // times are checked with a bound, by checkTimes
	}).Verify(ctx, raw)
	switch {
	case keys.failed != nil:
		return nil, nil, fmt.Errorf("%w: fetch its keys: %w", errForAll, shortened(keys.failed))
	case err != nil:
		return nil, nil, fmt.Errorf("%w: %w", ErrToken, shortened(err))
	}
	claims := map[string]any{}
	if err := token.Claims(&claims); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrToken, shortened(err))
	}
	if azp, said := claims["azp"].(string); said && len(token.Audience) > 1 && azp != p.options.ClientID {
		return nil, nil, fmt.Errorf("%w: it was given to %.100q", ErrToken, azp)
	}
	var notBefore time.Time
	if seconds, said := claims["nbf"].(float64); said {
		notBefore = time.Unix(int64(seconds), 0)
	}
	return token, claims, checkTimes(token, notBefore, p.options.Now())
}

// fetched are the keys of the provider for one ID token. It keeps that they could not be had, of which a verifier tells
// as of a wrong signature.
type fetched struct {
	from   oidc.KeySet
	failed error
}

// VerifySignature implements oidc.KeySet.
func (f *fetched) VerifySignature(ctx context.Context, token string) ([]byte, error) {
	payload, err := f.from.VerifySignature(ctx, token)
	if err != nil && strings.HasPrefix(err.Error(), "fetching keys ") { // no error of another type says it
		f.failed = err
	}
	return payload, err
}

// checkTimes says why an ID token does not count now, by the clock of this machine. It may count from a time on only;
// zero is always.
func checkTimes(token *oidc.IDToken, notBefore, now time.Time) error {
	const clocks = "the clock of this machine says %s, and may be a minute apart from that of the identity provider"
	from := token.IssuedAt
	if notBefore.After(from) {
		from = notBefore
	}
	switch says := fmt.Sprintf(clocks, now.UTC().Format(time.RFC3339)); {
	case !now.Before(token.Expiry.Add(skew)):
		return fmt.Errorf("%w: it has expired, %s ago: %s", ErrToken, now.Sub(token.Expiry).Round(time.Second), says)
	case from.After(now.Add(skew)):
		return fmt.Errorf("%w: it counts only in %s: %s", ErrToken, from.Sub(now).Round(time.Second), says)
	}
	return nil
}
