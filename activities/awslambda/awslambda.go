// Package awslambda invokes stages as AWS Lambda functions.
//
// An [Invoker] deploys a build (one binary) as one function for each memory class that is needed, and invokes it. It
// speaks to AWS, or to any host of the same API that AWS_ENDPOINT_URL_LAMBDA names, such as package
// workers/function; nothing else differs.
package awslambda

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/credentials/ec2rolecreds"
	"github.com/aws/aws-sdk-go-v2/service/lambda"

	"github.com/spillway-ml/spillway/activities/wire"
)

// Errors that callers tell apart with errors.Is. The invocation did not run.
var (
	// ErrThrottled says that concurrency is used up. The invocation can be tried again later or elsewhere.
	ErrThrottled = errors.New("lambda: throttled")
	// ErrTooLarge says that the payload exceeds [MaxPayloadBytes]. No retry helps.
	ErrTooLarge = errors.New("lambda: payload too large")
	// ErrNotFound says that there is no such function; [Invoker.Ensure] deploys it.
	ErrNotFound = errors.New("lambda: function not found")
)

// Limits of AWS Lambda: https://docs.aws.amazon.com/lambda/latest/dg/gettingstarted-limits.html.
const (
	// MaxPayloadBytes is the limit on the payload of an invocation, and on its answer.
	MaxPayloadBytes = 6 << 20
	// MaxTimeout is the longest time that an invocation can run.
	MaxTimeout = wire.FunctionTime
	// maxUploadBytes is the limit on a zip that is part of the request that creates a function.
	maxUploadBytes = 50 << 20
)

// localRole stands for the IAM role where a local host asks for one and no one checks it.
const localRole = "arn:aws:iam::000000000000:role/local"

// Options configures an [Invoker]. The zero value takes everything from the environment.
type Options struct {
	// Client is the client to use. Nil means one from the SDK's default configuration (environment, shared files,
	// instance role), with region us-east-1 where none is set. When its endpoint is on this machine and no
	// credentials are configured, it signs with dummy credentials.
	Client *lambda.Client
	// Role is the ARN of the IAM role that functions run with. Empty leaves functions that there are the role that they
	// have; to create one AWS requires it, a host on this machine does not.
	Role string
	// Timeout is how long an invocation may run, in whole seconds up to [MaxTimeout]. Zero leaves functions that there are
	// what they have, and means MaxTimeout for new ones.
	Timeout time.Duration
	// Environment holds environment variables that every function has, at most 4 KB with those that it has besides.
	Environment map[string]string
	// Upload keeps the zip of a build in S3 and returns where. Nil means that it is part of the request, which takes
	// 50 MB.
	Upload func(ctx context.Context, archive []byte) (bucket, key string, err error)
	// Place says which artifacts the functions read and write, where others in the same account have others: a hash of it
	// becomes part of the names, so that no one gives a function of another place its own Environment. Empty means names
	// without it.
	Place string
	// Prefix begins the name of every function. Empty means "spillway".
	Prefix string
	// Logger receives one line for each deployment. Nil means no log.
	Logger *slog.Logger
}

// An Invoker deploys and invokes functions. All its methods may be called concurrently.
type Invoker struct {
	opts        Options
	client      *lambda.Client
	log         *slog.Logger
	deployments flight[string]
	zips        zipCache
}

// New returns an Invoker. It reads configuration but contacts no one.
func New(ctx context.Context, opts Options) (*Invoker, error) {
	opts.Prefix = cmp.Or(opts.Prefix, "spillway")
	opts.Logger = cmp.Or(opts.Logger, slog.New(slog.DiscardHandler))
	if opts.Timeout < 0 || opts.Timeout > MaxTimeout || opts.Timeout%time.Second != 0 {
		return nil, fmt.Errorf("function timeout %v: choose whole seconds from 1s to %v", opts.Timeout, MaxTimeout)
	}
	if clean(opts.Prefix) != opts.Prefix || len(opts.Prefix) > 20 {
		return nil, fmt.Errorf("function prefix %q: use at most 20 letters, digits, - and _", opts.Prefix)
	}
	client := opts.Client
	if client == nil {
		var err error
		if client, err = newClient(ctx, cmp.Or(opts.Timeout, MaxTimeout)); err != nil {
			return nil, err
		}
	}
	return &Invoker{opts: opts, client: client, log: opts.Logger}, nil
}

// newClient returns a client from the default configuration.
func newClient(ctx context.Context, timeout time.Duration) (*lambda.Client, error) {
	cfg, err := config.LoadDefaultConfig(ctx,
		config.WithDefaultRegion("us-east-1"),
		config.WithHTTPClient(awshttp.NewBuildableClient().
			// An answer can take as long as the function may run, the start of its environment included.
			WithTimeout(timeout+time.Minute).
			// The default keeps 10 connections; above it each invocation would open, and leave behind, its own.
			WithTransportOptions(func(t *http.Transport) { t.MaxIdleConns, t.MaxIdleConnsPerHost = 256, 256 })))
	if err != nil {
		return nil, fmt.Errorf("load the AWS configuration: %w", err)
	}
	client := lambda.NewFromConfig(cfg)
	// The instance role is the SDK's last resort: when it stands there, nothing else is configured, and asking for
	// it takes seconds where there is none.
	if isLocal(client) && aws.IsCredentialsProvider(cfg.Credentials, (*ec2rolecreds.Provider)(nil)) {
		cfg.Credentials = credentials.NewStaticCredentialsProvider("local", "local", "")
		client = lambda.NewFromConfig(cfg)
	}
	return client, nil
}

// isLocal reports whether the endpoint of client is on this machine.
func isLocal(client *lambda.Client) bool {
	return IsLoopback(aws.ToString(client.Options().BaseEndpoint))
}

// IsLoopback reports whether the URL of a host of the API is of this machine.
func IsLoopback(address string) bool {
	endpoint, err := url.Parse(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(endpoint.Hostname())
	return endpoint.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}

// flight lets concurrent callers with the same key share one call, and remembers its success. The zero
// value is ready to use.
type flight[V any] struct {
	mu    sync.Mutex
	calls map[string]*call[V]
}

// call is one call of a flight. Its result is valid once done is closed.
type call[V any] struct {
	done  chan struct{}
	value V
	err   error
}

// do returns the result of work for key, from the caller who is first. When that caller gives up, another one takes
// over.
func (f *flight[V]) do(ctx context.Context, key string, work func() (V, error)) (V, error) {
	for {
		c, mine := f.join(key)
		if mine {
			c.value, c.err = work()
			if c.err != nil {
				f.forget(key)
			}
			close(c.done)
			return c.value, c.err
		}
		select {
		case <-c.done:
		case <-ctx.Done():
			var zero V
			return zero, context.Cause(ctx)
		}
		abandoned := errors.Is(c.err, context.Canceled) || errors.Is(c.err, context.DeadlineExceeded)
		if !abandoned {
			return c.value, c.err
		}
	}
}

// join returns the call for key, and whether the caller is to do it.
func (f *flight[V]) join(key string) (c *call[V], mine bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c, ok := f.calls[key]; ok {
		return c, false
	}
	if f.calls == nil {
		f.calls = make(map[string]*call[V])
	}
	c = &call[V]{done: make(chan struct{})}
	f.calls[key] = c
	return c, true
}

// forget makes the next caller for key work again.
func (f *flight[V]) forget(key string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.calls, key)
}
