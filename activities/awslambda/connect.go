package awslambda

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/credentials/ec2rolecreds"
	"github.com/aws/aws-sdk-go-v2/service/lambda"
	"github.com/aws/smithy-go/logging"
)

// Where says which account and region commands mean, and for how long they wait. The zero value takes all of it from
// the environment and the shared files, as AWS's own tools do.
type Where struct {
	// Region is such as us-east-1; empty means the configured one, and us-east-1 where there is none.
	Region string
	// Profile is of ~/.aws/config; empty means the configured one.
	Profile string
	// Endpoint is the URL of another host of the API; empty means AWS, or what AWS_ENDPOINT_URL_LAMBDA and its like say.
	Endpoint string
	// Key and Secret sign where nothing else is configured and Endpoint is on this machine, and with OwnKey in any case.
	Key, Secret string
	OwnKey      bool
	// Patience is how long an answer may take to begin once a request is sent. Zero means 30 s.
	Patience time.Duration
	// Attempts is how often a call is tried that AWS throttles or fails. Zero means 6, which takes half a minute at most.
	Attempts int
}

var errNotConfigured = errors.New("none are configured, and this machine has no role of EC2")

var regionPattern = regexp.MustCompile(`^[a-z]{2,3}(-[a-z]+)+-[0-9]{1,2}$`)

// mostUpload bounds a call, with 50 MB that are sent on the way.
const mostUpload = 10 * time.Minute

// Load returns the SDK's configuration for where. It refuses, with a [Problem], a region and an endpoint that are none,
// a profile that there is not, and credentials that there are not; of the last it asks their provider, for 15 s at
// most.
func (w Where) Load(ctx context.Context) (aws.Config, error) {
	if err := w.check(); err != nil {
		return aws.Config{}, err
	}
	if w.Patience == 0 {
		w.Patience = 30 * time.Second
	}
	options := []func(*config.LoadOptions) error{
		config.WithDefaultRegion("us-east-1"),
		config.WithRegion(w.Region),
		config.WithSharedConfigProfile(w.Profile),
		config.WithLogger(logging.Nop{}), // what it tells is in the errors
		config.WithRetryer(func() aws.Retryer { return retryer(w.Attempts) }),
		config.WithHTTPClient(awshttp.NewBuildableClient().WithTimeout(mostUpload).
			WithDialerOptions(func(d *net.Dialer) { d.Timeout = w.Patience }).
			WithTransportOptions(func(t *http.Transport) { t.ResponseHeaderTimeout = w.Patience })),
	}
	cfg, err := config.LoadDefaultConfig(ctx, options...)
	if missing, ok := errors.AsType[config.SharedConfigProfileNotExistError](err); ok {
		return cfg, &Problem{
			What: fmt.Sprintf("there is no profile %q in the configuration of AWS", missing.Profile),
			Hint: "look at ~/.aws/config and ~/.aws/credentials, or make it with `aws configure --profile`", Err: err,
		}
	}
	if err != nil {
		return cfg, fmt.Errorf("load the AWS configuration: %w", err)
	}
	if w.Secret != "" && IsLoopback(w.Endpoint) &&
		(w.OwnKey || aws.IsCredentialsProvider(cfg.Credentials, (*ec2rolecreds.Provider)(nil))) {
		cfg.Credentials = aws.NewCredentialsCache(credentials.NewStaticCredentialsProvider(w.Key, w.Secret, ""))
	}
	asking, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	if _, err := cfg.Credentials.Retrieve(asking); err != nil && ctx.Err() == nil {
		if aws.IsCredentialsProvider(cfg.Credentials, (*ec2rolecreds.Provider)(nil)) { // the last resort
			err = errNotConfigured
		}
		return cfg, errNoCredentials(err)
	}
	return cfg, ctx.Err()
}

// check refuses what no client can use.
func (w Where) check() error {
	if w.Region != "" && !regionPattern.MatchString(w.Region) {
		return &Problem{
			What: fmt.Sprintf("%q is no region of AWS", w.Region),
			Hint: "write it as AWS does, such as us-east-1 or eu-central-1",
		}
	}
	if endpoint, err := url.Parse(w.Endpoint); w.Endpoint != "" &&
		(err != nil || endpoint.Host == "" || endpoint.Scheme != "http" && endpoint.Scheme != "https") {
		return &Problem{What: fmt.Sprintf("%q is no endpoint", w.Endpoint), Hint: "write a URL such as http://127.0.0.1:9001"}
	}
	return nil
}

// retryer tries throttled and failed calls again, after a random part of 1, 2, 4, 8 and 16 s, but not those that were
// not answered, which took their time already, and not where nobody listens.
func retryer(attempts int) aws.Retryer {
	if attempts == 0 {
		attempts = 6
	}
	return retry.NewStandard(func(o *retry.StandardOptions) {
		o.MaxAttempts, o.MaxBackoff = attempts, 16*time.Second
		o.Retryables = append([]retry.IsErrorRetryable{retry.IsErrorRetryableFunc(func(err error) aws.Ternary {
			if silent, ok := errors.AsType[net.Error](err); ok && silent.Timeout() {
				return aws.FalseTernary
			}
			if unreached, ok := errors.AsType[*net.OpError](err); ok && unreached.Op == "dial" {
				return aws.FalseTernary
			}
			return aws.UnknownTernary
		})}, o.Retryables...)
	})
}

// Lambda returns a client of the Lambda API with a configuration of [Where.Load]: at Endpoint, which wins over
// AWS_ENDPOINT_URL_LAMBDA.
func (w Where) Lambda(cfg aws.Config) *lambda.Client {
	return lambda.NewFromConfig(cfg, func(o *lambda.Options) {
		if w.Endpoint != "" {
			o.BaseEndpoint = &w.Endpoint
		}
	})
}

// Endpoint returns the URL that the Invoker calls, as far as it is known beforehand.
func (iv *Invoker) Endpoint() string { return EndpointOf(iv.client) }

// EndpointOf returns the URL that client calls, as far as it is known beforehand.
func EndpointOf(client *lambda.Client) string {
	if endpoint := aws.ToString(client.Options().BaseEndpoint); endpoint != "" {
		return endpoint
	}
	return "https://lambda." + client.Options().Region + ".amazonaws.com"
}
