package client

import (
	"context"
	"net/http"

	"github.com/spillway-ml/spillway/cmd/internal/web"
)

// Teams says how the teams that were declared stand.
func (c *Client) Teams(ctx context.Context) ([]web.TeamStatus, error) {
	var answer struct {
		Teams []web.TeamStatus `json:"teams"`
	}
	return answer.Teams, c.call(ctx, http.MethodGet, "/api/v1/teams", nil, &answer)
}
