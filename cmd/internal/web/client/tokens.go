package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/spillway-ml/spillway/cmd/internal/web"
)

// Tokens lists for whom tokens were made.
func (c *Client) Tokens(ctx context.Context) ([]web.IssuedToken, error) {
	var answer struct {
		Tokens []web.IssuedToken `json:"tokens"`
	}
	return answer.Tokens, c.call(ctx, http.MethodGet, "/api/v1/tokens", nil, &answer)
}

// MakeToken makes a token for somebody, and returns it.
func (c *Client) MakeToken(ctx context.Context, wanted web.NewToken) (string, error) {
	var answer web.MadeToken
	err := c.call(ctx, http.MethodPost, "/api/v1/tokens", wanted, &answer)
	return answer.Token, err
}

// RevokeToken has a token count no more.
func (c *Client) RevokeToken(ctx context.Context, name string) error {
	var answer struct{}
	return c.call(ctx, http.MethodDelete, "/api/v1/tokens/"+url.PathEscape(name), nil, &answer)
}
