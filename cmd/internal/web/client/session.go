package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"net/url"

	"github.com/spillway-ml/spillway/cmd/internal/web"
)

// NewElsewhere is New for an engine of another machine, whose certificate these, as PEM, have signed; empty are those
// that this machine trusts. An empty token shows nothing that counts.
func NewElsewhere(base, token, authorities string) (*Client, error) {
	c := New(base, token)
	if authorities == "" {
		return c, nil
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(authorities)) {
		return nil, errors.New("there is no certificate in PEM")
	}
	if transport, is := c.http.Transport.(*http.Transport); is { // New has made it
		transport.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
		transport.ForceAttemptHTTP2 = true
	}
	return c, nil
}

// Session says who asks, and how to sign in.
func (c *Client) Session(ctx context.Context) (answer web.SessionAnswer, err error) {
	return answer, c.call(ctx, http.MethodGet, "/api/v1/session", nil, &answer)
}

// SignOut ends the session that is shown.
func (c *Client) SignOut(ctx context.Context) error {
	return c.call(ctx, http.MethodDelete, "/api/v1/session", nil, nil)
}

// NewDevice returns the codes with which this command line is let in.
func (c *Client) NewDevice(ctx context.Context) (device web.DeviceCode, err error) {
	return device, c.call(ctx, http.MethodPost, "/api/v1/session/device", struct{}{}, &device)
}

// AwaitDevice returns the session that was confirmed for a device code, or one that is pending.
func (c *Client) AwaitDevice(ctx context.Context, code string) (made web.MadeSession, err error) {
	return made, c.call(ctx, http.MethodPost, "/api/v1/session/device/token", web.WaitingDevice{DeviceCode: code}, &made)
}

// Sessions lists who is signed in.
func (c *Client) Sessions(ctx context.Context) ([]web.SignedIn, error) {
	var answer struct{ Sessions []web.SignedIn }
	err := c.call(ctx, http.MethodGet, "/api/v1/sessions", nil, &answer)
	return answer.Sessions, err
}

// EndSessions ends all sessions of a name or subject, and says how many those were.
func (c *Client) EndSessions(ctx context.Context, name string) (int, error) {
	var answer web.EndedSessions
	err := c.call(ctx, http.MethodDelete, "/api/v1/sessions/"+url.PathEscape(name), nil, &answer)
	return answer.Ended, err
}
