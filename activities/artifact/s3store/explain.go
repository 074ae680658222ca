package s3store

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/smithy-go"
)

// code is S3's own name of an error; empty where it has given none.
func code(err error) string {
	if known, is := errors.AsType[smithy.APIError](err); is {
		return known.ErrorCode()
	}
	return ""
}

// Errors that a store tells apart for its callers.
var (
	// ErrCredentials says that nobody is known by the credentials, or that there are none.
	ErrCredentials = errors.New("the credentials for S3 are missing or wrong")
	// ErrForbidden says that the credentials do not allow what was attempted.
	ErrForbidden = errors.New("S3 does not allow it")
	// ErrNoBucket says that there is no such bucket.
	ErrNoBucket = errors.New("there is no such bucket")
	// ErrRegion says that the bucket is in another region.
	ErrRegion = errors.New("the bucket is in another region")
	// ErrClock says that the clock of this machine is too far off.
	ErrClock = errors.New("the clock of this machine is wrong")
	// ErrUnreachable says that the endpoint does not answer.
	ErrUnreachable = errors.New("S3 does not answer")
)

// rights are what the credentials of an engine must allow.
const rights = "s3:GetObject, s3:PutObject, s3:DeleteObject, s3:AbortMultipartUpload on the prefix and s3:ListBucket " +
	"on the bucket"

// explain says of an error what was wrong and what to do. What it does not know it returns as it is.
func (s *Store) explain(err error) error {
	l := s.location
	switch code(err) {
	case "NoSuchBucket":
		return fmt.Errorf("%w: %s; create it, or correct the location: %w", ErrNoBucket, l.Bucket, err)
	case "InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "ExpiredToken", "TokenRefreshRequired",
		"InvalidSecurity", "UnrecognizedClientException", "XAdminUserNotFound":
		return fmt.Errorf("%w: give valid ones by AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile or a role: %w",
			ErrCredentials, err)
	case "RequestTimeTooSkewed":
		return fmt.Errorf("%w: S3 refuses requests whose time is more than 15 minutes off; set the clock (NTP): %w",
			ErrClock, err)
	case "PermanentRedirect", "MovedPermanently", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException",
		"IncorrectEndpoint", "TemporaryRedirect":
		where := "the region that the console shows"
		if region := regionOf(err); region != "" {
			where = "region=" + region
		}
		return fmt.Errorf("%w than %s: write %s in the location: %w", ErrRegion, l.Region, where, err)
	case "AccessDenied", "Forbidden", "AllAccessDisabled", "KMS.AccessDeniedException", "AccessDeniedException":
		return fmt.Errorf("%w: the credentials need %s of %s, and with a KMS key kms:GenerateDataKey and kms:Decrypt: %w",
			ErrForbidden, rights, l.Place(), err)
	}
	// Where there was no answer at all, the SDK says so with the status 0.
	if response, known := errors.AsType[*awshttp.ResponseError](err); known && response.HTTPStatusCode() != 0 {
		switch response.HTTPStatusCode() {
		case 301, 307:
			return fmt.Errorf("%w than %s: %w", ErrRegion, l.Region, err)
		case 403: // HEAD has no body that says more
			return fmt.Errorf("%w: the credentials need %s of %s: %w", ErrForbidden, rights, l.Place(), err)
		}
		return err
	}
	if errors.Is(err, context.Canceled) {
		return err
	}
	if failed, is := errors.AsType[*smithy.OperationError](err); is {
		var network net.Error
		if errors.As(failed.Err, &network) || errors.Is(err, context.DeadlineExceeded) {
			where := "AWS in " + l.Region
			if l.Endpoint != "" {
				where = l.Endpoint
			}
			do := "look whether it is the right endpoint and can be reached from here"
			if _, unknown := errors.AsType[x509.UnknownAuthorityError](err); unknown {
				do = "who has signed its certificate is not known here: name the file of the authority's, as PEM, in AWS_CA_BUNDLE"
			}
			return fmt.Errorf("%w: %s; %s: %w", ErrUnreachable, where, do, err)
		}
	}
	return err
}

// named are credentials whose absence is told as such.
type named struct{ aws.CredentialsProvider }

// Retrieve implements aws.CredentialsProvider.
func (n named) Retrieve(ctx context.Context) (aws.Credentials, error) {
	found, err := n.CredentialsProvider.Retrieve(ctx)
	if err != nil {
		return found, fmt.Errorf("%w: give them by AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile (AWS_PROFILE) or "+
			"a role: %w", ErrCredentials, err)
	}
	return found, nil
}

// regionOf returns the region that S3 names in its answer.
func regionOf(err error) string {
	if response, known := errors.AsType[*awshttp.ResponseError](err); known && response.HTTPStatusCode() != 0 {
		return response.Response.Header.Get("X-Amz-Bucket-Region")
	}
	return ""
}
