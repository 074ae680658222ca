package s3check_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
)

// The gateway knows one user.
const (
	accessKey = "spillway-test"
	secretKey = "not a secret: the gateway of a test"
)

// patience is how long a test waits for what must happen. It decides nothing.
const patience = 8 * time.Minute

// gateway is the server that all tests share.
var gateway struct {
	endpoint string
	dir      string // of what it stores
	buckets  atomic.Int64
}

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "spillway-s3-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code, err := serve(m, dir)
	if err = errors.Join(err, os.RemoveAll(dir)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// serve runs the tests beside a gateway.
func serve(m *testing.M, dir string) (code int, err error) {
	program := filepath.Join(dir, "gateway")
	if output, err := exec.Command("go", "build", "-o", program, "./gateway").CombinedOutput(); err != nil {
		return 1, fmt.Errorf("build the gateway: %w\n%s", err, output)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 1, err
	}
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	if err := listener.Close(); err != nil {
		return 1, err
	}
	server := exec.Command(program, filepath.Join(dir, "stored"), "127.0.0.1:"+port)
	server.Env = []string{"ROOT_ACCESS_KEY=" + accessKey, "ROOT_SECRET_KEY=" + secretKey, "HOME=" + dir}
	server.Stderr = os.Stderr
	stop, err := server.StdinPipe() // its end is that of the gateway, also when this process is killed
	if err != nil {
		return 1, err
	}
	if err := server.Start(); err != nil {
		return 1, err
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Wait() }()
	defer func() { err = errors.Join(err, stop.Close(), <-ended) }()
	for {
		connection, err := net.Dial("tcp", "127.0.0.1:"+port)
		if err == nil {
			_ = connection.Close()
			break
		}
		select {
		case err := <-ended:
			ended <- nil
			return 1, fmt.Errorf("the gateway ended: %w", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
	gateway.endpoint, gateway.dir = "http://127.0.0.1:"+port, filepath.Join(dir, "stored")
	return m.Run(), nil
}

// identity signs as the user of the gateway.
func identity() aws.CredentialsProvider {
	return credentials.NewStaticCredentialsProvider(accessKey, secretKey, "")
}

// plain is a client of the gateway that knows nothing of Spillway.
func plain() *s3.Client {
	return s3.New(s3.Options{
		Region: "us-east-1", BaseEndpoint: &gateway.endpoint, UsePathStyle: true, Credentials: identity(),
	})
}

// newBucket makes a bucket and returns its name.
func newBucket(tb testing.TB) string {
	tb.Helper()
	name := fmt.Sprintf("bucket-%d", gateway.buckets.Add(1))
	if _, err := plain().CreateBucket(tb.Context(), &s3.CreateBucketInput{Bucket: &name}); err != nil {
		tb.Fatal(err)
	}
	return name
}

// objects are the keys in a bucket.
func objects(tb testing.TB, bucket, prefix string) (keys []string) {
	tb.Helper()
	pages := s3.NewListObjectsV2Paginator(plain(), &s3.ListObjectsV2Input{Bucket: &bucket, Prefix: &prefix})
	for pages.HasMorePages() {
		page, err := pages.NextPage(tb.Context())
		if err != nil {
			tb.Fatal(err)
		}
		for _, object := range page.Contents {
			keys = append(keys, aws.ToString(object.Key))
		}
	}
	return keys
}

// spoil changes the object with a digest.
func spoil(tb testing.TB, bucket, key string) {
	tb.Helper()
	got, err := plain().GetObject(tb.Context(), &s3.GetObjectInput{Bucket: &bucket, Key: &key})
	if err != nil {
		tb.Fatal(err)
	}
	data, err := io.ReadAll(got.Body)
	if err := errors.Join(err, got.Body.Close()); err != nil {
		tb.Fatal(err)
	}
	data[2] = '#'
	_, err = plain().PutObject(context.WithoutCancel(tb.Context()), &s3.PutObjectInput{
		Bucket: &bucket, Key: &key, Body: strings.NewReader(string(data)),
	})
	if err != nil {
		tb.Fatal(err)
	}
}

// signer has credentials, or none.
type signer struct{ key, secret string }

// Retrieve implements aws.CredentialsProvider.
func (s signer) Retrieve(context.Context) (aws.Credentials, error) {
	if s.key == "" {
		return aws.Credentials{}, errors.New("there are none")
	}
	return aws.Credentials{AccessKeyID: s.key, SecretAccessKey: s.secret}, nil
}
