package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/spillway-ml/spillway/cmd/internal/web"
)

// Hosts lists the hosts that have joined or have a lease, by name.
func (c *Client) Hosts(ctx context.Context) ([]web.Host, error) {
	var answer struct {
		Hosts []web.Host `json:"hosts"`
	}
	return answer.Hosts, c.call(ctx, http.MethodGet, "/api/v1/hosts", nil, &answer)
}

// JoinToken returns what a host joins with, or another server; renewed, another one from now on.
func (c *Client) JoinToken(ctx context.Context, server, renew bool) (string, error) {
	var answer web.JoinToken
	body := map[string]bool{"renew": renew}
	if server { // which a server of before 2026-11-27 does not know
		body["server"] = true
	}
	err := c.call(ctx, http.MethodPost, "/api/v1/hosts/token", body, &answer)
	return answer.Token, err
}

// DrainHost has a host take no new work, or take some again.
func (c *Client) DrainHost(ctx context.Context, host string, drained bool) error {
	what := "/drain"
	if !drained {
		what = "/undrain"
	}
	var answer struct{}
	return c.call(ctx, http.MethodPost, "/api/v1/hosts/"+url.PathEscape(host)+what, struct{}{}, &answer)
}

// RemoveHost forgets a host that has joined.
func (c *Client) RemoveHost(ctx context.Context, host string) error {
	var answer struct{}
	return c.call(ctx, http.MethodDelete, "/api/v1/hosts/"+url.PathEscape(host), nil, &answer)
}
