package relay

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/activities/exchange"
)

// Client is a store behind a relay. Its methods are safe for concurrent use.
type Client struct {
	address string
	token   string // empty where the HTTP client shows a credential
	http    *http.Client
}

var (
	_ activities.Store = (*Client)(nil)
	_ activities.Board = (*Client)(nil)
)

const (
	dialPatience = 10 * time.Second
	// longest bounds an error that a relay answers with, in bytes.
	longest = 64 << 10
	// connections is how many are kept open.
	connections = 16
)

// Dial returns the store behind the relay at a URL that Server.URL has returned. It contacts nobody. Its errors do not
// repeat the URL, which holds a secret.
func Dial(location string) (*Client, error) {
	parsed, err := url.Parse(location)
	if err != nil || parsed.Scheme != "http" || parsed.User == nil || parsed.Host == "" {
		return nil, errors.New("the location is not that of a relay of artifacts")
	}
	if host := net.ParseIP(parsed.Hostname()); host == nil || !host.IsLoopback() {
		return nil, fmt.Errorf("the relay of artifacts at %s is not on this machine", parsed.Host)
	}
	token, _ := parsed.User.Password()
	dialer := &net.Dialer{Timeout: dialPatience}
	return &Client{
		address: "http://" + parsed.Host + "/", token: token,
		http: &http.Client{
			Transport: &http.Transport{ // no proxy: it is on this machine
				DialContext: dialer.DialContext, MaxIdleConnsPerHost: connections, IdleConnTimeout: time.Minute,
				DisableCompression: true,
			},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// Behind returns the store behind a Handler that is reached at address, a URL without a final slash, by an HTTP client
// that shows whatever is to be shown there. It contacts nobody.
func Behind(address string, client *http.Client) *Client {
	return &Client{address: address + "/", http: client}
}

// Put stores everything that r yields and returns its address once it is durable.
func (c *Client) Put(ctx context.Context, r io.Reader) (activities.Ref, error) {
	sum := sha256.New()
	answer, err := c.ask(ctx, http.MethodPut, "", io.TeeReader(r, sum))
	if err != nil {
		return activities.Ref{}, fmt.Errorf("put artifact: %w", err)
	}
	var ref activities.Ref
	err = json.NewDecoder(io.LimitReader(answer.Body, longest)).Decode(&ref)
	if err := errors.Join(err, answer.Body.Close()); err != nil {
		return activities.Ref{}, fmt.Errorf("put artifact: read the answer of the relay: %w", err)
	}
	if sent := hex.EncodeToString(sum.Sum(nil)); ref.Digest != sent {
		return activities.Ref{}, fmt.Errorf("put artifact: the relay stored %s instead of %s", ref.Digest, sent)
	}
	return ref, nil
}

// Open returns the bytes of digest; see activities.Store.
func (c *Client) Open(ctx context.Context, digest string) (io.ReadCloser, error) {
	if err := artifact.CheckDigest(digest); err != nil {
		return nil, fmt.Errorf("open artifact: %w", err)
	}
	answer, err := c.ask(ctx, http.MethodGet, digest, nil) //nolint:bodyclose // the reader closes it
	if err != nil {
		return nil, fmt.Errorf("open artifact %s: %w", digest, err)
	}
	return artifact.Verify(answer.Body, digest, "what the engine sent"), nil
}

// ask sends a request and returns the answer when it is one of success.
func (c *Client) ask(ctx context.Context, method, path string, body io.Reader) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, c.address+path, body)
	if err != nil {
		return nil, err
	}
	if c.token != "" {
		request.SetBasicAuth(user, c.token)
	}
	answer, err := c.http.Do(request)
	if err != nil {
		if failed, is := errors.AsType[*url.Error](err); is && errors.Is(failed.Err, ctx.Err()) && ctx.Err() != nil {
			err = failed.Err
		}
		return nil, err
	}
	if answer.StatusCode < http.StatusMultipleChoices {
		return answer, nil
	}
	text, err := io.ReadAll(io.LimitReader(answer.Body, longest))
	if err := errors.Join(err, answer.Body.Close()); err != nil {
		return nil, err
	}
	said := strings.TrimSpace(string(text))
	kinds := map[int]error{
		http.StatusNotFound: activities.ErrMissing, http.StatusInsufficientStorage: activities.ErrNoRoom,
		http.StatusConflict: activities.ErrCorrupt,
	}
	if kind := kinds[answer.StatusCode]; kind != nil {
		return nil, fmt.Errorf("%w (the engine says: %s)", kind, said)
	}
	return nil, fmt.Errorf("the engine answers %s: %s", answer.Status, said)
}

// Server returns the parameter server of the engine.
func (c *Client) Server() exchange.Averager { return c.below(serverPath) }

// Post leaves data under a name of a group; see activities.Board.
func (c *Client) Post(ctx context.Context, group, name string, data []byte) (first bool, err error) {
	return c.below(boardPath).Post(ctx, group, name, data)
}

// Look returns what is under a name; see activities.Board.
func (c *Client) Look(ctx context.Context, group, name string) ([]byte, error) {
	return c.below(boardPath).Look(ctx, group, name)
}

// Wipe removes messages; see activities.Board.
func (c *Client) Wipe(ctx context.Context, group string, names ...string) error {
	return c.below(boardPath).Wipe(ctx, group, names...)
}

func (c *Client) below(prefix string) exchange.Remote {
	return exchange.Remote{Ask: func(
		ctx context.Context, method, path string, body io.Reader,
	) (*http.Response, error) {
		return c.ask(ctx, method, prefix+path, body)
	}}
}
