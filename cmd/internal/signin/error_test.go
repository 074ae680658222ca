package signin

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"testing"

	"golang.org/x/oauth2"
)

func TestASessionEndsOnlyByWhatTheProviderSaysOfWhoItIs(t *testing.T) {
	t.Parallel()
	options := Options{ClientID: "spillway"}
	said := func(status int, code string) error {
		return &oauth2.RetrieveError{
			Response:  &http.Response{StatusCode: status, Status: http.StatusText(status)},
			ErrorCode: code, Body: []byte("a page"),
		}
	}
	for _, c := range []struct {
		name         string
		err          error
		ends, forAll bool
		is           error
	}{
		{"the refresh token was taken back", said(400, "invalid_grant"), true, false, ErrRefused},
		{"another step is asked of them", said(400, "interaction_required"), true, false, ErrRefused},
		{"the provider is broken", said(500, "server_error"), false, false, ErrUnreachable},
		{"it is broken for one grant", said(500, "invalid_grant"), false, false, ErrUnreachable},
		{"it says so with another status", said(400, "server_error"), false, false, ErrUnreachable},
		{"it serves nobody now", said(503, ""), false, true, ErrUnreachable},
		{"it serves nobody now, in words", said(400, "temporarily_unavailable"), false, true, ErrUnreachable},
		{"it has been asked too often", said(429, "invalid_grant"), false, true, ErrUnreachable},
		{"the secret is another one", said(401, "invalid_client"), false, true, ErrServer},
		{"the secret is another one, without words", said(401, ""), false, true, ErrServer},
		{"the secret is another one, at Keycloak", said(400, "unauthorized_client"), false, true, ErrServer},
		{"a page for an answer", said(400, ""), false, false, ErrRefused},
		{"nothing is there", said(404, ""), false, true, ErrUnreachable},
		{"a scope", said(400, "invalid_scope"), false, false, ErrRefused},
		{
			"no connection", &url.Error{Op: "Post", URL: "https://x.org", Err: errors.New("connection refused")}, false, true,
			ErrUnreachable,
		},
		{
			"too late", &url.Error{Op: "Post", URL: "https://x.org", Err: context.DeadlineExceeded}, false, true,
			ErrUnreachable,
		},
		{"no JSON", errors.New("oauth2: cannot parse json: x"), false, false, ErrUnreachable},
	} {
		err := options.answered("renew a sign-in", c.err)
		if Ends(err) != c.ends || ForAll(err) != c.forAll || !errors.Is(err, c.is) {
			t.Errorf("%s: ends %t, for all %t; want %t, %t and %v: %v", c.name, Ends(err), ForAll(err), c.ends, c.forAll, c.is,
				err)
		}
	}
	for name, err := range map[string]error{"no rule": ErrNoRole, "somebody else": errElse} {
		if !Ends(err) || ForAll(err) {
			t.Errorf("%s: ends %t, for all %t", name, Ends(err), ForAll(err))
		}
	}
}
