package awslambda_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/lambda"

	"github.com/spillway-ml/spillway/activities/awslambda"
)

// transport answers requests without a network.
type transport func(*http.Request) (*http.Response, error)

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }

// answering is AWS where it refuses everything in the same way.
func answering(status int, exception, message string) *http.Client {
	return &http.Client{Transport: transport(func(r *http.Request) (*http.Response, error) {
		if r.Body != nil {
			_, _ = io.Copy(io.Discard, r.Body)
		}
		return refused(r, status, exception, message), nil
	})}
}

// refused is an answer of AWS in the form of
// https://docs.aws.amazon.com/lambda/latest/api/CommonErrors.html.
func refused(r *http.Request, status int, exception, message string) *http.Response {
	body, err := json.Marshal(map[string]string{"Type": "User", "message": message})
	if err != nil {
		panic(err)
	}
	return &http.Response{
		StatusCode: status, Request: r, Body: io.NopCloser(bytes.NewReader(body)),
		Header: http.Header{"X-Amzn-Errortype": {exception}, "Content-Type": {"application/json"}},
	}
}

// TestWhatAWSRefusesIsNamedWithWhatToDo has the exceptions as AWS documents and words them.
func TestWhatAWSRefusesIsNamedWithWhatToDo(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		status             int
		exception, message string
		says, hint         string
	}{
		"expired credentials": {
			403, "ExpiredTokenException", "The security token included in the request is expired",
			"the AWS credentials have expired", "aws sso login",
		},
		"an unknown key": {
			403, "UnrecognizedClientException", "The security token included in the request is invalid.",
			"does not know the access key", "AWS_ACCESS_KEY_ID",
		},
		"a wrong secret": {
			403, "InvalidSignatureException", "The request signature we calculated does not match the signature you provided.",
			"the secret is not that of the access key", "AWS_SECRET_ACCESS_KEY",
		},
		"a clock that is behind": {
			403, "InvalidSignatureException", "Signature expired: 20261127T030000Z is now earlier than 20261127T033000Z",
			"clock is behind", "set the clock",
		},
		"a clock that is ahead": {
			403, "InvalidSignatureException", "Signature not yet current: 20261127T040000Z is still later than 20261127T033000Z",
			"clock is ahead", "set the clock",
		},
		"no rights": {
			403, "AccessDeniedException", "User: arn:aws:iam::1:user/a is not authorized to perform: " +
				"lambda:CreateFunction on resource: arn:aws:lambda:us-east-1:1:function:x",
			"may not do that: User: arn:aws:iam::1:user/a is not authorized to perform: lambda:CreateFunction",
			"deploy/aws/template.yaml",
		},
		"no right to pass the role": {
			403, "AccessDeniedException", "User: a is not authorized to perform: iam:PassRole on resource: arn:aws:iam::1:role/r",
			"may not give functions the role", "deploy/aws/template.yaml",
		},
		"a role that there is not": {
			400, "InvalidParameterValueException", "The role defined for the function cannot be assumed by Lambda.",
			"the role is not there, or does not let Lambda assume it", "trust policy",
		},
		"a role that is no ARN": {
			400, "ValidationException", "1 validation error detected: Value 'x' at 'role' failed to satisfy constraint",
			"the role is no ARN", "arn:aws:iam::",
		},
		"too large": {
			400, "InvalidParameterValueException", "Unzipped size must be smaller than 262144000 bytes",
			"too large for a function", "-ldflags",
		},
		"too large a request": {
			413, "RequestEntityTooLargeException", "Request must be smaller than 70167211 bytes",
			"the zip is too large for a request", "--bucket",
		},
		"the account's code": {
			400, "CodeStorageExceededException", "Code storage limit exceeded.", "room for the code of functions is used up",
			"lambda remove --unused",
		},
		"the account's concurrency": {
			400, "InvalidParameterValueException", "Specified ReservedConcurrentExecutions for function decreases account's " +
				"UnreservedConcurrentExecution below its minimum value of [100].",
			"not so much concurrency to reserve", "Service Quotas",
		},
		"a bucket of another region": {
			400, "InvalidParameterValueException", "Error occurred while GetObject. S3 Error Code: PermanentRedirect.",
			"Lambda cannot read the zip in the bucket", "in the region of the function",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			iv := invoker(t, awslambda.Options{
				Client: client("https://lambda.example.com", answering(tt.status, tt.exception, tt.message)),
				Role:   "arn:aws:iam::000000000000:role/test",
			})
			_, err := iv.Deploy(t.Context(), build(t), 512, nil)
			named(t, err, tt.says, tt.hint)
			_, err = iv.List(t.Context())
			named(t, err, tt.says, tt.hint)
		})
	}
}

// named fails the test unless err says what was wrong, and what to do.
func named(t *testing.T, err error, says, hint string) {
	t.Helper()
	problem, ok := errors.AsType[*awslambda.Problem](err)
	if !ok || !strings.Contains(err.Error(), says) || !strings.Contains(problem.Advice(), hint) {
		t.Errorf("got %v (%+v), want %q with the hint %q", err, problem, says, hint)
	}
}

func TestCallsThatAreThrottledAreTriedAFewTimes(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	throttled := &http.Client{Transport: transport(func(r *http.Request) (*http.Response, error) {
		calls.Add(1)
		return refused(r, http.StatusTooManyRequests, "TooManyRequestsException", "Rate exceeded"), nil
	})}
	retried := lambda.New(client("https://lambda.example.com", throttled).Options(), func(o *lambda.Options) {
		o.Retryer = retry.NewStandard(func(s *retry.StandardOptions) {
			s.MaxAttempts = 4
			s.Backoff = retry.BackoffDelayerFunc(func(int, error) (time.Duration, error) { return 0, nil })
		})
	})
	_, err := invoker(t, awslambda.Options{Client: retried}).List(t.Context())
	named(t, err, "AWS throttles these calls: Rate exceeded (tried 4 times)", "goes on where it stopped")
	if calls.Load() != 4 {
		t.Errorf("got %d calls, want 4", calls.Load())
	}
}

// isolated keeps what is configured on this machine from a test.
func isolated(t *testing.T) {
	t.Helper()
	for _, variable := range os.Environ() {
		if name, _, _ := strings.Cut(variable, "="); strings.HasPrefix(name, "AWS_") {
			t.Setenv(name, "")
		}
	}
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("AWS_CONFIG_FILE", filepath.Join(home, "config"))
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", filepath.Join(home, "credentials"))
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
}

func TestWhereThatNoClientCanUseIsRefused(t *testing.T) {
	isolated(t)
	for name, tt := range map[string]struct {
		where      awslambda.Where
		says, hint string
	}{
		"no credentials": {awslambda.Where{}, "there are no AWS credentials that work", "AWS_ACCESS_KEY_ID"},
		"no profile":     {awslambda.Where{Profile: "nobody"}, `there is no profile "nobody"`, "~/.aws/config"},
		"no region":      {awslambda.Where{Region: "Frankfurt"}, `"Frankfurt" is no region`, "eu-central-1"},
		"no endpoint":    {awslambda.Where{Endpoint: "localhost:80"}, `"localhost:80" is no endpoint`, "http://"},
	} {
		_, err := tt.where.Load(t.Context())
		t.Run(name, func(t *testing.T) { named(t, err, tt.says, tt.hint) })
	}
}

func TestAnEndpointThatHangsIsNotWaitedForEver(t *testing.T) {
	isolated(t)
	release := make(chan struct{})
	var calls atomic.Int32
	silent := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		calls.Add(1)
		<-release
	}))
	defer silent.Close()
	defer close(release)
	where := awslambda.Where{Endpoint: silent.URL, Key: "k", Secret: "s", Patience: 50 * time.Millisecond}
	cfg, err := where.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	client := where.Lambda(cfg)
	_, err = invoker(t, awslambda.Options{Client: client}).List(t.Context())
	named(t, err, "no answer from "+silent.URL, "goes on where it stopped")
	if calls.Load() != 1 {
		t.Errorf("got %d calls, want 1: each takes its whole time", calls.Load())
	}
}

func TestARegionThatThereIsNotIsNamed(t *testing.T) {
	isolated(t)
	nowhere := &http.Client{Transport: transport(func(r *http.Request) (*http.Response, error) {
		return nil, &net.DNSError{Err: "no such host", Name: r.URL.Hostname(), IsNotFound: true}
	})}
	client := lambda.New(client("", nowhere).Options(), func(o *lambda.Options) {
		o.BaseEndpoint, o.Region, o.Retryer = nil, "xx-nowhere-9", aws.NopRetryer{}
	})
	_, err := invoker(t, awslambda.Options{Client: client}).List(t.Context())
	named(t, err, "there is no lambda.xx-nowhere-9.amazonaws.com", "--region")
}

func TestAnInterruptIsNoProblemOfAWS(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := invoker(t, awslambda.Options{Client: client("https://lambda.example.com", http.DefaultClient)}).List(ctx)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want that it was interrupted", err)
	}
}
