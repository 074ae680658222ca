package s3store

import (
	"context"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/s3"
)

const (
	// dialPatience and usualPatience bound how long it takes to reach an endpoint, and how long it may go without a byte
	// in either direction.
	dialPatience  = 5 * time.Second
	usualPatience = 30 * time.Second
	// attempts is how often a request is tried, and mostBackoff how long is waited between two tries at most: an endpoint
	// that hangs is told after a minute and a half.
	attempts    = 3
	mostBackoff = 5 * time.Second
	// connections is how many are kept open: with fewer, many small requests open and leave one each.
	connections = 64
)

// folderRace is what versitygw, which keeps objects as files, answers while it makes a folder for one object that it
// removes, since it is empty, for another.
var folderRace = map[string]struct{}{"ExistingObjectIsDirectory": {}}

// newClient returns a client for a location whose connections are given up when nothing moves for o.Patience.
func newClient(l Location, o Options) *s3.Client {
	patience, base := o.Patience, o.Client
	if base == nil {
		base = awshttp.NewBuildableClient()
	}
	transport := base.WithTransportOptions(func(t *http.Transport) {
		dialer := &net.Dialer{Timeout: min(dialPatience, patience), KeepAlive: 30 * time.Second}
		t.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			connection, err := dialer.DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return &impatient{Conn: connection, patience: patience}, nil
		}
		t.TLSHandshakeTimeout = patience
		t.ResponseHeaderTimeout = patience
		t.MaxIdleConns, t.MaxIdleConnsPerHost = connections, connections
		t.DisableCompression = true // the bytes are compared with their digest as they are
	})
	options := s3.Options{
		Region: l.Region, Credentials: o.Credentials, HTTPClient: transport,
		Retryer: retry.NewStandard(func(o *retry.StandardOptions) {
			o.MaxAttempts, o.MaxBackoff = attempts, mostBackoff
			o.Retryables = append(slices.Clone(o.Retryables), retry.RetryableErrorCode{Codes: folderRace})
		}),
		// What is read is compared with its digest; a second checksum of it would only cost.
		ResponseChecksumValidation: aws.ResponseChecksumValidationWhenRequired,
		RequestChecksumCalculation: aws.RequestChecksumCalculationWhenRequired,
	}
	if l.Endpoint != "" {
		options.BaseEndpoint, options.UsePathStyle = &l.Endpoint, true // it has no name for each bucket
	}
	return s3.New(options)
}

// impatient is a connection that is given up when nothing moves for a while, whichever side does not move.
type impatient struct {
	net.Conn

	patience time.Duration
}

// Read gives the next byte that long to come.
func (c *impatient) Read(p []byte) (int, error) {
	if err := c.SetReadDeadline(time.Now().Add(c.patience)); err != nil {
		return 0, err
	}
	return c.Conn.Read(p)
}

// Write gives the bytes that long to go, and the answer, for which somebody waits already, as long from now on.
func (c *impatient) Write(p []byte) (int, error) {
	if err := c.SetDeadline(time.Now().Add(c.patience)); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}
