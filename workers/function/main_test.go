package function

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/lambda"
	"github.com/aws/aws-lambda-go/lambdacontext"
	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"go.uber.org/goleak"

	"github.com/spillway-ml/spillway/workers/spawn"
	"github.com/spillway-ml/spillway/workers/spawn/spawntest"
)

// TestMain makes the test binary the bootstrap of its own functions: an unmodified aws-lambda-go program.
func TestMain(m *testing.M) {
	if os.Getenv("AWS_LAMBDA_RUNTIME_API") != "" {
		bootstrap()
		return
	}
	goleak.VerifyTestMain(m)
}

func bootstrap() {
	switch os.Getenv("INIT") {
	case "exit":
		os.Exit(4)
	case "hang":
		time.Sleep(time.Minute)
	}
	lambda.Start(handle)
}

// order is what a test asks its function to do.
type order struct {
	Op  string `json:"op"`
	N   int    `json:"n"`
	Dir string `json:"dir,omitempty"`
}

// reply is what the function answers.
type reply struct {
	PID    int               `json:"pid"`
	LeftMS int64             `json:"left_ms"`
	Env    []string          `json:"env,omitempty"`
	CPUs   int               `json:"cpus"`
	Custom map[string]string `json:"custom,omitempty"`
	Pad    string            `json:"pad,omitempty"`
}

func handle(ctx context.Context, in order) (any, error) {
	deadline, _ := ctx.Deadline()
	out := reply{PID: os.Getpid(), CPUs: runtime.NumCPU(), LeftMS: time.Until(deadline).Milliseconds()}
	switch in.Op {
	case "print":
		for i := range in.N {
			fmt.Println("line", i)
		}
	case "sleep":
		time.Sleep(time.Duration(in.N) * time.Millisecond)
	case "meet": // wait until n invocations, or the test, have left a file in the directory
		if err := spawntest.Meet(in.Dir, in.N); err != nil {
			return nil, err
		}
	case "error":
		return nil, errors.New("bad input")
	case "panic":
		panic("boom")
	case "exit":
		os.Exit(3)
	case "pad":
		out.Pad = strings.Repeat("x", in.N)
	case "env":
		out.Env = os.Environ()
	case "context":
		if lc, ok := lambdacontext.FromContext(ctx); ok {
			out.Custom = lc.ClientContext.Custom
		}
	case "alloc":
		b := bytes.Repeat([]byte{1}, in.N<<20)
		time.Sleep(2 * samplePeriod)
		runtime.KeepAlive(b)
	case "alloc for a moment": // and give it back at once
		runtime.KeepAlive(bytes.Repeat([]byte{1}, in.N<<20))
	case "alloc in a session of its own": // and return as if nothing had happened
		cmd := exec.CommandContext(ctx, "setsid", "--wait", "dd", "if=/dev/zero", "of=/dev/null", "count=1",
			"bs="+strconv.Itoa(in.N)+"M")
		_ = cmd.Run() // it is killed
	case "alloc in a child":
		cmd := exec.CommandContext(ctx, "dd", "if=/dev/zero", "of=/dev/null", "count=1", "bs="+strconv.Itoa(in.N)+"M")
		if err := cmd.Run(); err != nil {
			return nil, err
		}
		time.Sleep(time.Minute)
	}
	return out, nil
}

// testSecret signs the requests of tests.
const testSecret = "the secret of the tests"

// local is a host under test and its address.
type local struct {
	*Host
	url string
}

func newLocal(t *testing.T, opts Options) local {
	t.Helper()
	if opts.Dir == "" {
		opts.Dir = t.TempDir()
	}
	opts.Secret = testSecret
	h, err := New(opts)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	server := httptest.NewServer(h)
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		server.Close()
		server.Client().CloseIdleConnections()
	})
	return local{h, server.URL}
}

// script returns a zip whose bootstrap is this test binary, started by a shell so that the zip is small.
func script(t *testing.T, more ...string) []byte {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return archive(t, 0o755, "bootstrap", "#!/bin/sh\n"+strings.Join(more, "\n")+"\nexec '"+exe+"'\n")
}

// archive returns a zip with one file.
func archive(t *testing.T, mode os.FileMode, name, content string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	header := &zip.FileHeader{Name: name, Method: zip.Deflate}
	header.SetMode(mode)
	w, err := z.CreateHeader(header)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, content); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// answered is a response read to its end.
type answered struct {
	status int
	header http.Header
	body   string
}

// call sends one request in the form of an AWS client. Header is a list of names and values.
func (l local) call(t *testing.T, method, path string, body any, header ...string) answered {
	t.Helper()
	b, ok := body.([]byte)
	if !ok && body != nil {
		var err error
		if b, err = json.Marshal(body); err != nil {
			t.Fatal(err)
		}
	}
	req, err := http.NewRequestWithContext(t.Context(), method, l.url+path, bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	sign(t, req, b, AccessKeyID, testSecret, time.Now())
	return l.send(t, req)
}

// sign signs a request as an AWS SDK does.
func sign(t *testing.T, req *http.Request, body []byte, id, secret string, at time.Time) {
	t.Helper()
	sum := sha256.Sum256(body)
	key := aws.Credentials{AccessKeyID: id, SecretAccessKey: secret}
	if err := v4.NewSigner().SignHTTP(t.Context(), key, req, hex.EncodeToString(sum[:]), "lambda", "us-east-1", at); err !=
		nil {
		t.Fatal(err)
	}
}

// send sends a request as it is.
func (l local) send(t *testing.T, req *http.Request) answered {
	t.Helper()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Errorf("%s %s: %v", req.Method, req.URL, err)
		return answered{}
	}
	defer func() { _ = resp.Body.Close() }()
	defer http.DefaultClient.CloseIdleConnections()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Errorf("%s %s: %v", req.Method, req.URL, err)
	}
	return answered{resp.StatusCode, resp.Header, string(got)}
}

// fields are the JSON fields of a request, to be changed before it is sent.
type fields = map[string]any

// create makes a function from script with some fields changed.
func (l local) create(t *testing.T, name string, changes fields) answered {
	t.Helper()
	in := fields{
		"FunctionName": name, "Role": "arn:aws:iam::000000000000:role/test", "Runtime": "provided.al2023",
		"Handler": "bootstrap",
	}
	if _, ok := changes["Code"]; !ok {
		in["Code"] = fields{"ZipFile": script(t)}
	}
	maps.Copy(in, changes)
	return l.call(t, http.MethodPost, "/2015-03-31/functions", in)
}

// deploy creates a function that must be accepted.
func (l local) deploy(t *testing.T, name string, changes fields) {
	t.Helper()
	if got := l.create(t, name, changes); got.status != http.StatusCreated {
		t.Fatalf("create %s: got %d %s", name, got.status, got.body)
	}
}

// invoke runs a function with the log tail.
func (l local) invoke(t *testing.T, name string, in any, header ...string) answered {
	t.Helper()
	return l.call(t, http.MethodPost, "/2015-03-31/functions/"+name+"/invocations", in,
		append(header, "X-Amz-Log-Type", "Tail")...)
}

// run runs a function that must succeed.
func (l local) run(t *testing.T, name string, in order) reply {
	t.Helper()
	got := l.invoke(t, name, in)
	var out reply
	if err := json.Unmarshal([]byte(got.body), &out); err != nil || got.status != http.StatusOK ||
		got.functionError() != "" {
		t.Errorf("invoke %s %+v: got %d %q %s", name, in, got.status, got.functionError(), got.body)
	}
	return out
}

func (a answered) functionError() string { return a.header.Get("X-Amz-Function-Error") }
func (a answered) code() string          { return a.header.Get("X-Amzn-Errortype") }

func (a answered) tail(t *testing.T) string {
	t.Helper()
	b, err := base64.StdEncoding.DecodeString(a.header.Get("X-Amz-Log-Result"))
	if err != nil {
		t.Errorf("log tail: %v", err)
	}
	return string(b)
}

// stats returns the counts of one function.
func (l local) stats(name string) FunctionStats {
	for _, s := range l.Stats() {
		if s.Function == name {
			return s
		}
	}
	return FunctionStats{}
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Minute); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		if holds() {
			return
		}
	}
	t.Errorf("did not happen in time: %s", what)
}

// firstCPU returns one CPU that this process may use.
func firstCPU(t *testing.T) []int {
	t.Helper()
	cpus, err := spawn.AllowedCPUs()
	if err != nil {
		t.Fatal(err)
	}
	return cpus[:1]
}
