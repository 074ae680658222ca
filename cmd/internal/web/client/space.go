package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/spillway-ml/spillway/activities/retention"
)

// Collect has the engine remove the artifacts that nothing needs any more, or say which would go. It may take minutes,
// and is given up when ctx ends: what is not removed by then stays.
func (c *Client) Collect(ctx context.Context, dry bool) (collection retention.Collection, err error) {
	response, err := c.send(ctx, http.MethodPost, "/api/v1/collections", map[string]bool{"dry_run": dry})
	if err != nil {
		return collection, err
	}
	err = json.NewDecoder(response.Body).Decode(&collection)
	if err := errors.Join(err, response.Body.Close()); err != nil {
		return collection, fmt.Errorf("read what was collected: %w", err)
	}
	return collection, nil
}
