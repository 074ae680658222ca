package awslambda

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"path"
	"regexp"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	s3types "github.com/aws/aws-sdk-go-v2/service/s3/types"
)

// bucketPattern is what S3 takes as the name of a bucket:
// https://docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html.
var bucketPattern = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$`)

// codeFolder is below the prefix of a bucket where zips are.
const codeFolder = "functions"

// NewUpload returns an [Options.Upload] that keeps zips in S3: place is a bucket, or BUCKET/PREFIX. An object is named by
// the digest of its zip, and one that is there is not sent again. S3 checks the digest on arrival. Its endpoint is
// what AWS_ENDPOINT_URL_S3 says, or AWS's.
func NewUpload(
	cfg aws.Config, place string,
) (upload func(ctx context.Context, archive []byte) (bucket, key string, err error), err error) {
	bucket, prefix, _ := strings.Cut(strings.TrimPrefix(place, "s3://"), "/")
	if !bucketPattern.MatchString(bucket) || len(prefix) > 500 {
		return nil, errors.New("it is no bucket of S3")
	}
	client := s3.NewFromConfig(cfg, func(o *s3.Options) { o.UsePathStyle = o.BaseEndpoint != nil })
	return func(ctx context.Context, archive []byte) (string, string, error) {
		sum := sha256.Sum256(archive)
		key := path.Join(prefix, codeFolder, hex.EncodeToString(sum[:])+".zip")
		if held, err := client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &bucket, Key: &key}); err == nil &&
			aws.ToInt64(held.ContentLength) == int64(len(archive)) {
			return bucket, key, nil
		}
		// An upload to a bucket that is not there may break before it is told why.
		_, err := client.HeadBucket(ctx, &s3.HeadBucketInput{Bucket: &bucket})
		if absent, ok := errors.AsType[*s3types.NotFound](err); ok {
			return "", "", &Problem{
				What: "the bucket " + bucket + " is not there", Err: absent,
				Hint: "make it (deploy/aws/template.yaml does), or name another with --bucket",
			}
		}
		_, err = client.PutObject(ctx, &s3.PutObjectInput{
			Bucket: &bucket, Key: &key, Body: bytes.NewReader(archive), ContentType: aws.String("application/zip"),
			ChecksumSHA256: aws.String(base64.StdEncoding.EncodeToString(sum[:])),
		})
		if err != nil {
			return "", "", fmt.Errorf("upload the zip: %w", Explain(err, fmt.Sprintf("s3://%s/%s", bucket, key)))
		}
		return bucket, key, nil
	}, nil
}
