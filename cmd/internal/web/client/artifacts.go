package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/cmd/internal/web"
)

var _ activities.Store = (*Client)(nil)

// Put stores what r yields with the engine and returns its address once it is durable. With Open it makes Client an
// activities.Store.
func (c *Client) Put(ctx context.Context, r io.Reader) (ref activities.Ref, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPut, c.at.Load().Base+"/api/v1/artifacts", io.NopCloser(r))
	if err != nil {
		return ref, fmt.Errorf("send an artifact: %w", err)
	}
	request.Header.Set("Content-Type", "application/octet-stream")
	response, err := c.do(request)
	if err != nil {
		return ref, fmt.Errorf("send an artifact: %w", err)
	}
	err = json.NewDecoder(response.Body).Decode(&ref)
	if err := errors.Join(err, response.Body.Close()); err != nil {
		return activities.Ref{}, fmt.Errorf("the answer to an artifact does not decode: %w", err)
	}
	return ref, nil
}

// Open returns the bytes of an artifact. It wraps activities.ErrMissing when the engine does not have it; the last Read
// wraps activities.ErrCorrupt when what came does not match the digest.
func (c *Client) Open(ctx context.Context, digest string) (io.ReadCloser, error) {
	response, err := c.artifact(ctx, http.MethodGet, digest) //nolint:bodyclose // the caller closes it with the verifier
	if err != nil {
		return nil, err
	}
	return artifact.Verify(response.Body, digest, "what the engine sent"), nil
}

// Has reports whether the engine has an artifact.
func (c *Client) Has(ctx context.Context, digest string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	response, err := c.artifact(ctx, http.MethodHead, digest)
	if errors.Is(err, activities.ErrMissing) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, response.Body.Close()
}

func (c *Client) artifact(ctx context.Context, method, digest string) (*http.Response, error) {
	address := c.at.Load().Base + "/api/v1/artifacts/" + url.PathEscape(digest)
	request, err := http.NewRequestWithContext(ctx, method, address, nil)
	if err != nil {
		return nil, fmt.Errorf("fetch artifact %s: %w", digest, err)
	}
	response, err := c.do(request)
	if refused, ok := errors.AsType[*web.Error](err); ok && refused.Status == http.StatusNotFound {
		return nil, fmt.Errorf("fetch artifact %s: %w", digest, activities.ErrMissing)
	}
	if err != nil {
		return nil, fmt.Errorf("fetch artifact %s: %w", digest, err)
	}
	return response, nil
}
