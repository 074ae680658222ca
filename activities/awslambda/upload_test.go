package awslambda_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/spillway-ml/spillway/activities/awslambda"
	"github.com/spillway-ml/spillway/workers/function"
)

// bucket is S3 with one bucket, as far as uploads of zips ask of it.
type bucket struct {
	mu      sync.Mutex
	objects map[string][]byte
	puts    int
	refuse  string // the code of an error
}

func (b *bucket) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	object, there := b.objects[r.URL.Path]
	switch {
	case r.Method == http.MethodHead && strings.Count(r.URL.Path, "/") == 1 && b.refuse != "NoSuchBucket":
	case r.Method == http.MethodHead && !there, r.Method == http.MethodHead && b.refuse != "":
		w.WriteHeader(http.StatusNotFound)
	case r.Method == http.MethodHead:
		w.Header().Set("Content-Length", strconv.Itoa(len(object)))
	case b.refuse != "":
		w.WriteHeader(http.StatusBadRequest)
		_, _ = fmt.Fprintf(w, "<Error><Code>%s</Code><Message>a reason</Message></Error>", b.refuse)
	case r.Method == http.MethodPut:
		content, _ := io.ReadAll(r.Body)
		sum := sha256.Sum256(content)
		if r.Header.Get("X-Amz-Checksum-Sha256") != base64.StdEncoding.EncodeToString(sum[:]) {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = fmt.Fprint(w, "<Error><Code>BadDigest</Code></Error>")
			return
		}
		b.puts++
		b.objects[r.URL.Path] = content
	}
}

func (b *bucket) read(_ context.Context, name, key string) ([]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	object, there := b.objects["/"+name+"/"+key]
	if !there {
		return nil, errors.New("S3 Error Code: NoSuchKey")
	}
	return object, nil
}

func TestAZipIsUploadedOnceForAllClasses(t *testing.T) {
	t.Parallel()
	held := &bucket{objects: map[string][]byte{}}
	server := httptest.NewServer(held)
	defer server.Close()
	_, c := host(t, function.Options{S3: held.read})
	upload, err := awslambda.NewUpload(aws.Config{
		Region: "us-east-1", BaseEndpoint: &server.URL, HTTPClient: server.Client(),
		Credentials: credentials.NewStaticCredentialsProvider("key", "secret", ""),
	}, "code/some/prefix")
	if err != nil {
		t.Fatal(err)
	}
	b := build(t)
	iv := invoker(t, awslambda.Options{Client: c, Upload: upload})
	for _, memory := range []int{512, 1769} {
		if deployed := deploy(t, iv, b, memory, nil); deployed.Change != awslambda.Created {
			t.Errorf("got %+v", deployed)
		}
	}
	if a, _ := invoke(t, iv, ensure(t, iv, b, 512), order{}); a.FunctionError != "" {
		t.Errorf("its code: %s", a.Payload)
	}
	for name, object := range held.objects {
		sum := sha256.Sum256(object)
		if name != "/code/some/prefix/functions/"+hex.EncodeToString(sum[:])+".zip" {
			t.Errorf("got object %s", name)
		}
	}
	if held.puts != 1 {
		t.Errorf("got %d uploads, want 1", held.puts)
	}
	for code, wants := range map[string][2]string{
		"NoSuchBucket":                 {"the bucket code is not there", "--bucket"},
		"AuthorizationHeaderMalformed": {"the bucket is in another region", "--region"},
		"AccessDenied":                 {"these credentials may not do that", "deploy/aws/template.yaml"},
	} {
		held.refuse = code
		_, err := iv.Deploy(t.Context(), build(t, []byte(code)...), 512, nil)
		named(t, err, wants[0], wants[1])
	}
	for _, place := range []string{"", "Code", "a", "code_/x", "bucket/" + strings.Repeat("p", 501)} {
		if _, err := awslambda.NewUpload(aws.Config{}, place); err == nil {
			t.Errorf("bucket %q is taken", place)
		}
	}
}
