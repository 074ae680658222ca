package awslambda

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/smithy-go"
)

// A Problem is what AWS refused, or did not answer, in words that say what to do.
type Problem struct { //nolint:errname // it is told to people, as what it is
	// What was wrong, in one line.
	What string
	// Hint is what to do next.
	Hint string
	// Err is the cause; nil where What says it all.
	Err error
}

// Error returns what was wrong.
func (p *Problem) Error() string { return p.What }

// Advice returns the hint.
func (p *Problem) Advice() string { return p.Hint }

// Unwrap returns the cause.
func (p *Problem) Unwrap() error { return p.Err }

func errNoRole() error {
	return &Problem{
		What: "AWS asks for an IAM role that the function runs with: set SPILLWAY_LAMBDA_ROLE to its ARN",
		Hint: "or give it with --role; deploy/aws/template.yaml makes one",
	}
}

// A refusal is an answer of AWS that has a meaning of its own.
type refusal struct {
	codes []string // of the exception; any where it is nil
	says  string   // part of the message; any where it is empty
	what  string
	hint  string
	quote bool // the message says more than what
}

// policyHint is what to do where rights lack.
const policyHint = "give them the policy of the engine in deploy/aws/template.yaml, or use others with --profile"

// refusals are the answers that people meet; the first that fits counts. The codes are those of
// https://docs.aws.amazon.com/lambda/latest/api/CommonErrors.html and of each operation, without their ending
// Exception.
var refusals = []refusal{
	{
		codes: []string{"ExpiredToken", "RequestExpired"}, what: "the AWS credentials have expired",
		hint: "sign in again (`aws sso login`), or renew the session token",
	},
	{
		codes: []string{"UnrecognizedClient", "InvalidClientTokenId", "InvalidAccessKeyId", "AuthFailure"},
		what:  "AWS does not know the access key", quote: true,
		hint: "look at AWS_ACCESS_KEY_ID, AWS_SESSION_TOKEN and --profile: is the key deleted, or of another partition?",
	},
	{
		codes: []string{"InvalidSignature", "SignatureDoesNotMatch", "RequestTimeTooSkewed"}, says: "not yet current",
		what: "this machine's clock is ahead of AWS's", hint: "set the clock, then try again", quote: true,
	},
	{
		codes: []string{"InvalidSignature", "SignatureDoesNotMatch", "RequestTimeTooSkewed"}, says: "expired",
		what: "this machine's clock is behind AWS's", hint: "set the clock, then try again", quote: true,
	},
	{
		codes: []string{"InvalidSignature", "SignatureDoesNotMatch"}, what: "the secret is not that of the access key",
		hint: "look at AWS_SECRET_ACCESS_KEY and --profile",
	},
	{
		codes: []string{"MissingAuthenticationToken", "IncompleteSignature"}, what: "the request was not signed",
		hint: "give AWS credentials: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or --profile", quote: true,
	},
	{
		codes: []string{"AccessDenied"}, says: "iam:PassRole", quote: true,
		what: "these credentials may not give functions the role", hint: policyHint,
	},
	{
		codes: []string{"AccessDenied", "UnauthorizedOperation"}, quote: true,
		what: "these credentials may not do that", hint: policyHint,
	},
	{
		codes: []string{"InvalidParameterValue"}, says: "cannot be assumed", quote: true,
		what: "the role is not there, or does not let Lambda assume it",
		hint: "look at its ARN and its trust policy (lambda.amazonaws.com); one that was just made takes up to a minute",
	},
	{
		codes: []string{"Validation"}, says: "'role'", quote: true, what: "the role is no ARN",
		hint: "write it as arn:aws:iam::123456789012:role/NAME",
	},
	{
		codes: []string{"InvalidParameterValue"}, says: "Unzipped size", quote: true,
		what: "the program is too large for a function", hint: "build with -ldflags='-s -w', or link less",
	},
	{
		codes: []string{"RequestEntityTooLarge", "RequestTooLarge"}, quote: true,
		what: "the zip is too large for a request", hint: "upload it by S3 with --bucket, or link less",
	},
	{
		codes: []string{"InvalidParameterValue"}, says: "UnreservedConcurrentExecution", quote: true,
		what: "the account has not so much concurrency to reserve",
		hint: "reserve less with --concurrency, or ask AWS for a larger quota (Service Quotas, Concurrent executions)",
	},
	{
		codes: []string{"CodeStorageExceeded"}, quote: true,
		what: "the account's room for the code of functions is used up",
		hint: "remove what no engine uses: spillway lambda remove --unused",
	},
	{
		codes: []string{"InvalidParameterValue"}, says: "GetObject", quote: true,
		what: "Lambda cannot read the zip in the bucket",
		hint: "the bucket has to be in the region of the function, and these credentials need s3:GetObject there",
	},
	{
		codes: []string{"NoSuchBucket"}, what: "the bucket is not there",
		hint: "make it (deploy/aws/template.yaml does), or name another with --bucket",
	},
	{
		codes: []string{
			"PermanentRedirect", "MovedPermanently", "AuthorizationHeaderMalformed", "IllegalLocationConstraint",
		},
		what: "the bucket is in another region", quote: true,
		hint: "name one in the region of the functions with --bucket, or give --region",
	},
	{
		codes: []string{"TooManyRequests", "Throttling", "RequestLimitExceeded", "SlowDown"}, quote: true,
		what: "AWS throttles these calls", hint: "wait a minute, then run it again: it goes on where it stopped",
	},
	{
		codes: []string{"ServiceUnavailable", "Service", "InternalFailure", "InternalServerError"}, quote: true,
		what: "AWS failed", hint: "run it again: it goes on where it stopped",
	},
}

// Explain returns err as a [Problem] where it is one that people meet, and as it is otherwise; nil for nil. Endpoint is
// whom the call was for.
func Explain(err error, endpoint string) error {
	if _, told := errors.AsType[*Problem](err); err == nil || told || errors.Is(err, context.Canceled) {
		return err
	}
	if api, ok := errors.AsType[smithy.APIError](err); ok {
		return explainRefusal(api, err)
	}
	if problem := explainSilence(err, endpoint); problem != nil {
		return problem
	}
	if text := err.Error(); strings.Contains(text, "get credentials") || strings.Contains(text, "retrieve credentials") ||
		strings.Contains(text, "refresh cached credentials") {
		return errNoCredentials(err)
	}
	return err
}

func explainRefusal(api smithy.APIError, err error) error {
	code, message := strings.TrimSuffix(api.ErrorCode(), "Exception"), api.ErrorMessage()
	for _, one := range refusals {
		if !hasCode(one.codes, code) || !strings.Contains(message, one.says) {
			continue
		}
		problem := &Problem{What: one.what, Hint: one.hint, Err: err}
		if one.quote && message != "" {
			problem.What += ": " + message
		}
		if tried, ok := errors.AsType[*retry.MaxAttemptsError](err); ok {
			problem.What = fmt.Sprintf("%s (tried %d times)", problem.What, tried.Attempt)
		}
		return problem
	}
	return &Problem{What: fmt.Sprintf("AWS refuses it: %s (%s)", message, api.ErrorCode()), Err: err}
}

func hasCode(codes []string, code string) bool {
	for _, one := range codes {
		if one == code || one+"ed" == code {
			return true
		}
	}
	return false
}

// explainSilence tells why there was no answer; nil where that is not it.
func explainSilence(err error, endpoint string) error {
	if name, ok := errors.AsType[*net.DNSError](err); ok && name.IsNotFound {
		return &Problem{
			What: fmt.Sprintf("there is no %s", name.Name),
			Hint: "look at --region (such as us-east-1) and --endpoint, and at this machine's network", Err: err,
		}
	}
	if silent, ok := errors.AsType[net.Error](err); ok && silent.Timeout() || errors.Is(err, context.DeadlineExceeded) {
		return &Problem{
			What: fmt.Sprintf("no answer from %s in time", endpoint),
			Hint: "look at --endpoint and at this machine's network, then run it again: it goes on where it stopped", Err: err,
		}
	}
	if _, ok := errors.AsType[*net.OpError](err); ok {
		return &Problem{
			What: fmt.Sprintf("%s does not answer: %v", endpoint, rootOf(err)),
			Hint: "look at --endpoint and at this machine's network", Err: err,
		}
	}
	return nil
}

// rootOf is the cause of causes, which the layers above it only repeat.
func rootOf(err error) error {
	for {
		below := errors.Unwrap(err)
		if below == nil {
			return err
		}
		err = below
	}
}

func errNoCredentials(err error) error {
	return &Problem{
		What: fmt.Sprintf("there are no AWS credentials that work: %v", rootOf(err)),
		Hint: "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or choose a profile of ~/.aws/config with --profile",
		Err:  err,
	}
}
