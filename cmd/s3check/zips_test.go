package s3check_test

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/spillway-ml/spillway/activities/awslambda"
	"github.com/spillway-ml/spillway/workers/function"
)

// TestAZipTooLargeForARequestIsDeployedByS3 has a program of 55 MB, the function host of this machine, and the gateway,
// from which the host reads the zip as Lambda does.
func TestAZipTooLargeForARequestIsDeployedByS3(t *testing.T) {
	t.Parallel()
	host, err := function.New(function.Options{Dir: t.TempDir(), Secret: secretKey, S3: func(
		ctx context.Context, bucket, key string,
	) ([]byte, error) {
		got, err := plain().GetObject(ctx, &s3.GetObjectInput{Bucket: &bucket, Key: &key})
		if err != nil {
			return nil, err
		}
		archive, err := io.ReadAll(got.Body)
		return archive, errors.Join(err, got.Body.Close())
	}})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(host)
	defer server.Close()
	defer func() {
		if err := host.Close(); err != nil {
			t.Error(err)
		}
	}()
	build := awslambda.Build{App: "large", Digest: "0123456789ab", Path: filepath.Join(t.TempDir(), "program")}
	noise := make([]byte, 55<<20)
	_, _ = rand.Read(noise) // never fails
	if err := os.WriteFile(build.Path, append([]byte("#!/bin/sh\n"), noise...), 0o600); err != nil {
		t.Fatal(err)
	}
	invoker := func(place string) *awslambda.Invoker {
		upload, err := awslambda.NewUpload(aws.Config{
			Region: "us-east-1", BaseEndpoint: &gateway.endpoint, Credentials: identity(),
		}, place)
		if err != nil {
			t.Fatal(err)
		}
		client := awslambda.Where{}.Lambda(aws.Config{
			Region: "us-east-1", BaseEndpoint: &server.URL,
			Credentials: credentials.NewStaticCredentialsProvider(function.AccessKeyID, secretKey, ""),
		})
		iv, err := awslambda.New(t.Context(), awslambda.Options{Client: client, Upload: upload})
		if err != nil {
			t.Fatal(err)
		}
		return iv
	}
	if _, err := invoker("no-such-bucket").Deploy(t.Context(), build, 512, nil); err == nil ||
		!strings.Contains(err.Error(), "the bucket no-such-bucket is not there") {
		t.Errorf("a bucket that is not there: got %v", err)
	}
	bucket := newBucket(t)
	iv := invoker(bucket + "/some/prefix")
	for _, want := range []awslambda.Change{awslambda.Created, awslambda.Unchanged} {
		for _, memory := range []int{512, 1024} {
			deployed, err := iv.Deploy(t.Context(), build, memory, nil)
			if err != nil {
				t.Fatal(err)
			}
			if deployed.Change != want || deployed.CodeBytes < 55<<20 {
				t.Errorf("got %+v, want it %s", deployed, want)
			}
		}
	}
	if keys := objects(t, bucket, ""); len(keys) != 1 || !strings.HasPrefix(keys[0], "some/prefix/functions/") {
		t.Errorf("got objects %q, want one zip", keys)
	}
}
