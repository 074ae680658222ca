package signin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"
)

// oauth is this server as a client of the provider.
func (p *Provider) oauth(at *known, redirect string) (*oauth2.Config, error) {
	secret, err := p.options.secret()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrServer, err)
	}
	return &oauth2.Config{
		ClientID: p.options.ClientID, ClientSecret: secret, Endpoint: at.provider.Endpoint(), RedirectURL: redirect,
		Scopes: at.scopes,
	}, nil
}

// tokens asks the token endpoint, and says in our words what it answered. It looks at a code or a refresh token once:
// another way to show the secret is tried only where it has refused this server itself, and so looked at neither.
func (p *Provider) tokens(
	ctx context.Context, at *known, redirect, what string,
	ask func(context.Context, *oauth2.Config) (*oauth2.Token, error),
) (*oauth2.Token, error) {
	config, err := p.oauth(at, redirect)
	if err != nil {
		return nil, err
	}
	var refused error
	for i, style := range styles(config.ClientSecret, at.methods, at.inForm.Load()) {
		config.Endpoint.AuthStyle = style
		token, err := ask(oidc.ClientContext(ctx, at.client), config)
		if err != nil {
			err = p.options.answered(what, err)
		}
		if !errors.Is(err, ErrServer) {
			at.inForm.Store(at.inForm.Load() || i > 0)
			return token, err
		}
		if refused == nil { // by the way that comes first in what the provider says
			refused = err
		}
	}
	return nil, refused
}

// styles are the ways to show who this server is, in the order in which they are tried: those that the provider says
// that its token endpoint takes (OpenID Connect Discovery 1.0, token_endpoint_auth_methods_supported), the header where
// it says nothing. One that takes both may have been told that this client uses the form, as is known once inForm.
func styles(secret string, methods []string, inForm bool) []oauth2.AuthStyle {
	form := slices.Contains(methods, "client_secret_post")
	header := slices.Contains(methods, "client_secret_basic")
	switch {
	case secret == "", inForm, form && !header:
		return []oauth2.AuthStyle{oauth2.AuthStyleInParams}
	case form:
		return []oauth2.AuthStyle{oauth2.AuthStyleInHeader, oauth2.AuthStyleInParams}
	}
	return []oauth2.AuthStyle{oauth2.AuthStyleInHeader}
}

// Revoke tells the provider that a refresh token counts no more (RFC 7009). Some take back with it all that they have
// given since who it is of has signed in there. Nothing is done where it has no place for that.
func (p *Provider) Revoke(ctx context.Context, refresh string) error {
	const what = "take back a refresh token"
	at, err := p.reach(ctx)
	if err != nil || at.revocation == "" {
		return err
	}
	config, err := p.oauth(at, "")
	if err != nil {
		return err
	}
	form := url.Values{"token": {refresh}, "token_type_hint": {"refresh_token"}}
	inForm := styles(config.ClientSecret, at.methods, at.inForm.Load())[0] == oauth2.AuthStyleInParams
	if inForm {
		form.Set("client_id", config.ClientID)
		if config.ClientSecret != "" {
			form.Set("client_secret", config.ClientSecret)
		}
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, at.revocation, strings.NewReader(form.Encode()))
	if err != nil {
		return unanswered(what, err)
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if !inForm {
		request.SetBasicAuth(url.QueryEscape(config.ClientID), url.QueryEscape(config.ClientSecret))
	}
	answer, err := at.client.Do(request)
	if err != nil {
		return unanswered(what, err)
	}
	defer func() { _ = answer.Body.Close() }()
	const most = 1 << 10
	text, err := io.ReadAll(io.LimitReader(answer.Body, most))
	switch {
	case err != nil:
		return unanswered(what, err)
	case busy(answer.StatusCode):
		return fmt.Errorf("%w: %s: status %s", errForAll, what, answer.Status)
	case answer.StatusCode != http.StatusOK:
		return fmt.Errorf("%w to %s: status %s: %w", ErrRefused, what, answer.Status, shortened(errors.New(string(text))))
	}
	return nil
}
