package client

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"net/url"

	"github.com/spillway-ml/spillway/activities"
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
	return &verifier{body: response.Body, digest: digest, sum: sha256.New()}, nil
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

// verifier turns the end of a body into an error when it does not match the digest.
type verifier struct {
	body   io.ReadCloser
	digest string
	sum    hash.Hash
	end    error // what every Read after the last one returns
}

// Read reads from the body, and checks the sum at its end.
func (v *verifier) Read(p []byte) (int, error) {
	if v.end != nil {
		return 0, v.end
	}
	n, err := v.body.Read(p)
	v.sum.Write(p[:n]) // a hash never returns an error
	switch {
	case errors.Is(err, io.EOF):
		v.end = io.EOF
		if got := hex.EncodeToString(v.sum.Sum(nil)); got != v.digest {
			v.end = fmt.Errorf("fetch artifact %s: %w: what came hashes to %s", v.digest, activities.ErrCorrupt, got)
		}
		err = v.end
	case err != nil:
		v.end = fmt.Errorf("fetch artifact %s: %w", v.digest, err)
		err = v.end
	}
	return n, err
}

// Close closes the body.
func (v *verifier) Close() error { return v.body.Close() }
