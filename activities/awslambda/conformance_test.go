package awslambda_test

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	awslambdago "github.com/aws/aws-lambda-go/lambda"
	"github.com/aws/aws-lambda-go/lambdacontext"
	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/lambda"
	"github.com/aws/aws-sdk-go-v2/service/lambda/types"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/spillway-ml/spillway/activities/awslambda"
	"github.com/spillway-ml/spillway/workers/function"
	"github.com/spillway-ml/spillway/workers/spawn/spawntest"
)

// hostVar makes the test binary a function host on the directory that it names, until its input ends.
const hostVar = "AWSLAMBDA_TEST_HOST"

// hostSecret is the secret key of the hosts in these tests.
const hostSecret = "a secret of 40 characters, or of any other"

// TestMain makes the test binary also the bootstrap of the functions, an unmodified aws-lambda-go program, and a
// function host that can be killed.
func TestMain(m *testing.M) {
	switch {
	case os.Getenv("AWS_LAMBDA_RUNTIME_API") != "":
		awslambdago.Start(handle)
	case os.Getenv(hostVar) != "":
		if err := serveHost(os.Getenv(hostVar)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	default:
		goleak.VerifyTestMain(m)
	}
}

// order is what a test asks its function to do; reply is its answer.
type (
	order struct {
		Op  string `json:"op"`
		N   int    `json:"n"`
		Dir string `json:"dir,omitempty"`
	}
	reply struct {
		PID     int    `json:"pid"`
		Var     string `json:"var,omitempty"`
		Pad     string `json:"pad,omitempty"`
		Request string `json:"request,omitempty"`
		ARN     string `json:"arn,omitempty"`
		LeftMS  int64  `json:"left_ms,omitempty"`
	}
)

func handle(ctx context.Context, in order) (reply, error) {
	out := reply{PID: os.Getpid(), Var: os.Getenv("TEST_VAR")}
	if name, ok := strings.CutPrefix(in.Op, "variable "); ok {
		out.Var = os.Getenv(name)
	}
	switch in.Op {
	case "sleep":
		time.Sleep(time.Duration(in.N) * time.Millisecond)
	case "meet": // wait until n invocations, or the test, have left a file in the directory
		if err := spawntest.Meet(in.Dir, in.N); err != nil {
			return out, err
		}
	case "error":
		return out, errors.New("bad input")
	case "panic":
		panic("boom")
	case "exit":
		os.Exit(3)
	case "alloc":
		b := make([]byte, in.N<<20)
		for i := range b {
			b[i] = 1
		}
		time.Sleep(time.Minute)
		out.Pad = string(b[:1])
	case "pad":
		out.Pad = strings.Repeat("x", in.N)
	case "arguments":
		out.Var = strings.Join(os.Args[1:], " ")
	case "print":
		fmt.Println("hello from the function")
	case "print much":
		fmt.Println(strings.Repeat("x", 100<<10))
	case "context":
		if known, ok := lambdacontext.FromContext(ctx); ok {
			out.Request, out.ARN = known.AwsRequestID, known.InvokedFunctionArn
		}
		if deadline, ok := ctx.Deadline(); ok {
			out.LeftMS = time.Until(deadline).Milliseconds()
		}
	}
	return out, nil
}

// serveHost runs a function host and prints its address.
func serveHost(dir string) error {
	h, err := function.New(function.Options{Dir: dir, Secret: hostSecret})
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println("http://" + listener.Addr().String())
	go func() { _ = http.Serve(listener, h) }() //nolint:gosec // a test without timeouts
	_, err = io.Copy(io.Discard, os.Stdin)
	return errors.Join(err, h.Close())
}

// host starts a function host, and returns it and a client that knows its address.
func host(tb testing.TB, opts function.Options) (*function.Host, *lambda.Client) {
	tb.Helper()
	if opts.Dir == "" {
		opts.Dir = tb.TempDir()
	}
	opts.Secret = hostSecret
	h, err := function.New(opts)
	if err != nil {
		tb.Fatal(err)
	}
	server := httptest.NewServer(h)
	tb.Cleanup(func() {
		if err := h.Close(); err != nil {
			tb.Error(err)
		}
		server.Close()
	})
	return h, client(server.URL, server.Client())
}

func client(endpoint string, hc *http.Client) *lambda.Client {
	return lambda.New(lambda.Options{
		Region: "us-east-1", BaseEndpoint: &endpoint, HTTPClient: hc,
		Credentials: credentials.NewStaticCredentialsProvider(function.AccessKeyID, hostSecret, ""),
	})
}

func invoker(tb testing.TB, opts awslambda.Options) *awslambda.Invoker {
	tb.Helper()
	iv, err := awslambda.New(tb.Context(), opts)
	if err != nil {
		tb.Fatal(err)
	}
	return iv
}

// build returns a build whose binary is a shell script that executes this test binary, followed by padding that is
// never read: as large as a test wants it.
func build(tb testing.TB, padding ...byte) awslambda.Build {
	tb.Helper()
	exe, err := os.Executable()
	if err != nil {
		tb.Fatal(err)
	}
	script := append([]byte("#!/bin/sh\nexec '"+exe+"' \"$@\"\n"), padding...)
	path := tb.TempDir() + "/binary"
	if err := os.WriteFile(path, script, 0o600); err != nil {
		tb.Fatal(err)
	}
	sum := sha256.Sum256(script)
	return awslambda.Build{App: "conformance", Digest: "sha256:" + hex.EncodeToString(sum[:]), Path: path}
}

func ensure(tb testing.TB, iv *awslambda.Invoker, b awslambda.Build, memory int) string {
	tb.Helper()
	name, err := iv.Ensure(tb.Context(), b, memory)
	if err != nil {
		tb.Fatalf("Ensure: %v", err)
	}
	return name
}

func invoke(t *testing.T, iv *awslambda.Invoker, name string, in order) (awslambda.Answer, reply) {
	t.Helper()
	payload, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	a, err := iv.Invoke(t.Context(), name, payload)
	if err != nil {
		t.Fatalf("Invoke %+v: %v", in, err)
	}
	var out reply
	if a.FunctionError == "" {
		if err := json.Unmarshal(a.Payload, &out); err != nil {
			t.Errorf("answer %s: %v", a.Payload, err)
		}
	}
	return a, out
}

func TestAStageIsDeployedAndInvokedColdAndThenWarm(t *testing.T) {
	t.Parallel()
	_, c := host(t, function.Options{ColdStart: 20 * time.Millisecond})
	iv := invoker(t, awslambda.Options{Client: c, Environment: map[string]string{"TEST_VAR": "set"}})
	b := build(t)
	name := ensure(t, iv, b, 512)
	if want := "spillway-conformance-" + strings.TrimPrefix(b.Digest, "sha256:")[:12] + "-512"; name != want {
		t.Errorf("name: got %q, want %q", name, want)
	}
	cold, first := invoke(t, iv, name, order{Op: "print"})
	warm, second := invoke(t, iv, name, order{})
	if first.PID != second.PID || first.Var != "set" {
		t.Errorf("got %+v, then %+v, want the same process with its environment", first, second)
	}
	if r := cold.Report; r.InitDuration < 20*time.Millisecond || r.MemorySizeMB != 512 || r.MaxMemoryMB < 1 ||
		r.BilledDuration < r.InitDuration+r.Duration-20*time.Microsecond ||
		r.BilledDuration > r.InitDuration+r.Duration+time.Millisecond {
		t.Errorf("cold report: got %+v, want a billed init", r)
	}
	if warm.Report.InitDuration != 0 || warm.Report.Duration <= 0 || warm.RequestID == "" ||
		warm.RequestID == cold.RequestID {
		t.Errorf("warm answer: got %+v, want no init and a request ID of its own", warm)
	}
	if !strings.Contains(cold.LogTail, "hello from the function\n") || !strings.Contains(cold.LogTail, cold.RequestID) {
		t.Errorf("log tail: got %q", cold.LogTail)
	}
}

func TestAFunctionThatFailsIsAnAnswer(t *testing.T) {
	t.Parallel()
	h, c := host(t, function.Options{})
	iv := invoker(t, awslambda.Options{Client: c})
	short := invoker(t, awslambda.Options{Client: c, Timeout: time.Second, Prefix: "short"})
	b := build(t)
	small, large, brief := ensure(t, iv, b, 128), ensure(t, iv, b, 1769), ensure(t, short, b, 128)
	for _, tt := range []struct {
		name      string
		in        order
		errorType string
		message   string
		report    awslambda.Report // status and error type
	}{
		{small, order{Op: "error"}, "errorString", "bad input", awslambda.Report{}},
		{small, order{Op: "panic"}, "string", "boom", awslambda.Report{Status: "error", ErrorType: "string"}},
		{
			small,
			order{Op: "exit"},
			"Runtime.ExitError", "exit status 3",
			awslambda.Report{Status: "error", ErrorType: "Runtime.ExitError"},
		},
		{
			brief,
			order{Op: "sleep", N: 60_000},
			"Sandbox.Timedout", "Task timed out after 1.00 seconds",
			awslambda.Report{Status: "timeout"},
		},
		{
			small,
			order{Op: "alloc", N: 300},
			"Runtime.ExitError", "signal: killed",
			awslambda.Report{Status: "error", ErrorType: "Runtime.OutOfMemory"},
		},
		{
			large,
			order{Op: "pad", N: awslambda.MaxPayloadBytes + 200},
			"Function.ResponseSizeTooLarge", "exceeded maximum",
			awslambda.Report{Status: "error", ErrorType: "Function.ResponseSizeTooLarge"},
		},
	} {
		t.Run(tt.in.Op, func(t *testing.T) {
			a, _ := invoke(t, iv, tt.name, tt.in)
			var e struct{ ErrorType, ErrorMessage string }
			if err := json.Unmarshal(a.Payload, &e); err != nil {
				t.Fatalf("payload %s: %v", a.Payload, err)
			}
			if a.FunctionError != "Unhandled" || e.ErrorType != tt.errorType || !strings.Contains(e.ErrorMessage, tt.message) {
				t.Errorf("got %s %+v, want %s %q", a.FunctionError, e, tt.errorType, tt.message)
			}
			if got := (awslambda.Report{Status: a.Report.Status, ErrorType: a.Report.ErrorType}); got != tt.report {
				t.Errorf("report: got %+v, want %+v", got, tt.report)
			}
		})
	}
	if s := stats(h, small); s.OOM != 1 || s.Timeouts != 0 {
		t.Errorf("stats: got %+v, want one OOM", s)
	}
	if s := stats(h, brief); s.OOM != 0 || s.Timeouts != 1 {
		t.Errorf("stats: got %+v, want one timeout", s)
	}
}

// stats returns the counts of one function.
func stats(h *function.Host, name string) function.FunctionStats {
	for _, s := range h.Stats() {
		if s.Function == name {
			return s
		}
	}
	return function.FunctionStats{}
}

func TestARefusalIsATypedErrorAndIsNotRetried(t *testing.T) {
	t.Parallel()
	h, c := host(t, function.Options{Concurrency: 1})
	iv := invoker(t, awslambda.Options{Client: c})
	name := ensure(t, iv, build(t), 512)
	release := occupy(t, h, iv, name)
	_, err := iv.Invoke(t.Context(), name, []byte("{}"))
	var throttled *types.TooManyRequestsException
	if !errors.Is(err, awslambda.ErrThrottled) || !errors.As(err, &throttled) ||
		throttled.Reason != types.ThrottleReasonConcurrentInvocationLimitExceeded {
		t.Errorf("throttled: got %v", err)
	}
	release()
	if got := h.Stats()[0].Throttled; got != 1 {
		t.Errorf("got %d refusals, want 1: the caller decides on a retry", got)
	}
	large := append(append([]byte{'"'}, make([]byte, awslambda.MaxPayloadBytes)...), '"')
	if _, err := iv.Invoke(t.Context(), name, large); !errors.Is(err, awslambda.ErrTooLarge) {
		t.Errorf("too large: got %v", err)
	}
	if _, err := c.Invoke(t.Context(), &lambda.InvokeInput{FunctionName: &name, Payload: large}); func() bool {
		var large *types.RequestTooLargeException
		return !errors.As(err, &large)
	}() {
		t.Errorf("too large for the host: got %v", err)
	}
	if _, err := iv.Invoke(t.Context(), "nobody", []byte("{}")); !errors.Is(err, awslambda.ErrNotFound) {
		t.Errorf("not found: got %v", err)
	}
}

// occupy invokes a function, and returns when that runs; the function that it returns lets it end.
func occupy(t *testing.T, h *function.Host, iv *awslambda.Invoker, name string) (release func()) {
	t.Helper()
	dir := t.TempDir()
	payload, err := json.Marshal(order{Op: "meet", N: 2, Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if a, err := iv.Invoke(t.Context(), name, payload); err != nil || a.FunctionError != "" {
			t.Errorf("what occupies the function: got %s, %v", a.Payload, err)
		}
	}()
	for stats(h, name).Busy == 0 {
		select {
		case <-ended:
			t.Fatal("the invocation ended before the test let it")
		case <-time.After(time.Millisecond):
		}
	}
	return func() {
		if err := spawntest.Meet(dir, 1); err != nil {
			t.Error(err)
		}
		<-ended
	}
}

func TestSixteenInvocationsRunAtATime(t *testing.T) {
	t.Parallel()
	h, c := host(t, function.Options{})
	iv := invoker(t, awslambda.Options{Client: c})
	b := build(t)
	var wg sync.WaitGroup
	var mu sync.Mutex
	payload, err := json.Marshal(order{Op: "meet", N: 16, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	pids := make(map[int]bool)
	for range 16 {
		wg.Go(func() {
			name, err := iv.Ensure(t.Context(), b, 1024)
			if err != nil {
				t.Error(err)
				return
			}
			a, err := iv.Invoke(t.Context(), name, payload)
			var out reply
			if err := errors.Join(err, json.Unmarshal(a.Payload, &out)); err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			pids[out.PID] = true
		})
	}
	wg.Wait()
	if s := h.Stats(); len(pids) != 16 || len(s) != 1 || s[0].Cold != 16 {
		t.Errorf("got %d processes, stats %+v, want one function with 16 environments", len(pids), s)
	}
}

func TestADeploymentSurvivesARestartAndTakesNewSettings(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := build(t)
	var name string
	for i, value := range []string{"one", "two", "two"} {
		h, err := function.New(function.Options{Dir: dir, Secret: hostSecret})
		if err != nil {
			t.Fatal(err)
		}
		if got := len(h.Stats()); got != min(i, 1) {
			t.Errorf("start %d: got %d functions", i, got)
		}
		server := httptest.NewServer(h)
		iv := invoker(t, awslambda.Options{
			Client:      client(server.URL, server.Client()),
			Environment: map[string]string{"TEST_VAR": value},
		})
		name = ensure(t, iv, b, 512)
		if _, out := invoke(t, iv, name, order{}); out.Var != value {
			t.Errorf("start %d: got variable %q, want %q", i, out.Var, value)
		}
		if err := h.Close(); err != nil {
			t.Error(err)
		}
		server.Close()
	}
}

func TestADeletedFunctionIsDeployedAgain(t *testing.T) {
	t.Parallel()
	_, c := host(t, function.Options{})
	iv := invoker(t, awslambda.Options{Client: c})
	b := build(t)
	name := ensure(t, iv, b, 512)
	if _, err := c.DeleteFunction(t.Context(), &lambda.DeleteFunctionInput{FunctionName: &name}); err != nil {
		t.Fatal(err)
	}
	if _, err := iv.Invoke(t.Context(), name, []byte("{}")); !errors.Is(err, awslambda.ErrNotFound) {
		t.Fatalf("got %v, want ErrNotFound", err)
	}
	invoke(t, iv, ensure(t, iv, b, 512), order{})
}

func TestTheSDKReadsWhatTheHostSaysOfAFunction(t *testing.T) {
	t.Parallel()
	_, c := host(t, function.Options{})
	iv := invoker(t, awslambda.Options{Client: c, Prefix: "p"})
	name := ensure(t, iv, build(t), 128)
	if err := lambda.NewFunctionActiveV2Waiter(c).
		Wait(t.Context(), &lambda.GetFunctionInput{FunctionName: &name}, time.Second); err != nil {
		t.Error(err)
	}
	list, err := c.ListFunctions(t.Context(), &lambda.ListFunctionsInput{})
	if err != nil || len(list.Functions) != 1 {
		t.Fatalf("list: got %+v, %v, want one function", list, err)
	}
	got, err := c.GetFunctionConfiguration(t.Context(),
		&lambda.GetFunctionConfigurationInput{FunctionName: list.Functions[0].FunctionArn})
	if err != nil {
		t.Fatal(err)
	}
	want := []any{name, int32(128), int32(900), types.RuntimeProvidedal2023, types.StateActive}
	if diff := cmp.Diff(want, []any{
		aws.ToString(got.FunctionName), *got.MemorySize, *got.Timeout, got.Runtime,
		got.State,
	}); diff != "" {
		t.Errorf("configuration (-want +got):\n%s", diff)
	}
	_, err = c.CreateFunction(t.Context(), &lambda.CreateFunctionInput{
		FunctionName: &name, Role: aws.String("r"), Runtime: types.RuntimeProvidedal2023, Handler: aws.String("bootstrap"),
		Code: &types.FunctionCode{ZipFile: []byte("x")},
	})
	if _, conflict := errors.AsType[*types.ResourceConflictException](err); !conflict {
		t.Errorf("create it again: got %v, want a conflict", err)
	}
	out, err := c.Invoke(t.Context(), &lambda.InvokeInput{FunctionName: &name, InvocationType: types.InvocationTypeDryRun})
	if err != nil || out.StatusCode != http.StatusNoContent {
		t.Errorf("dry run: got %+v, %v, want status 204", out, err)
	}
}

func TestAnyRequestOfTheSDKIsTakenAsItSignsIt(t *testing.T) {
	t.Parallel()
	_, c := host(t, function.Options{})
	claiming := lambda.New(c.Options(), lambda.WithAPIOptions(v4.AddContentSHA256HeaderMiddleware))
	name := ensure(t, invoker(t, awslambda.Options{Client: claiming}), build(t), 128) // an upload whose digest is a header
	for _, c := range []*lambda.Client{c, claiming} {
		got, err := c.GetFunction(t.Context(), &lambda.GetFunctionInput{FunctionName: &name})
		if err != nil {
			t.Fatal(err)
		}
		arn := got.Configuration.FunctionArn // its colons are escaped in the path, and the escapes in what is signed
		for _, payload := range []string{"", "{}", `{"op":"`} {
			out, err := c.Invoke(t.Context(), &lambda.InvokeInput{
				FunctionName: arn, Qualifier: aws.String("$LATEST"),
				Payload: []byte(payload), ClientContext: aws.String("e30="),
			})
			invalid, _ := errors.AsType[*types.InvalidRequestContentException](err)
			if wrong := payload == `{"op":"`; wrong != (invalid != nil) || !wrong && (err != nil || out.FunctionError != nil) {
				t.Errorf("invoke with payload %q: got %+v, %v", payload, out, err)
			}
		}
		if _, err := c.ListFunctions(t.Context(), &lambda.ListFunctionsInput{
			Marker:   aws.String("a b+c/d?e=é~*&"),
			MaxItems: aws.Int32(3),
		}); err != nil {
			t.Errorf("list: %v", err)
		}
		if _, err := c.UpdateFunctionConfiguration(t.Context(),
			&lambda.UpdateFunctionConfigurationInput{FunctionName: arn, Description: aws.String("é\n")}); err != nil {
			t.Errorf("update: %v", err)
		}
	}
}

func TestAStreamedBodyIsTakenOnceItsWholeIsAsSigned(t *testing.T) {
	t.Parallel()
	_, c := host(t, function.Options{})
	name := ensure(t, invoker(t, awslambda.Options{Client: c}), build(t), 128)
	for body, want := range map[string]int{`{"op":"print"}`: http.StatusOK, `{"op":"forged"}`: http.StatusForbidden} {
		streamed := io.MultiReader(strings.NewReader(body)) // of no known length: it goes in chunks
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
			*c.Options().BaseEndpoint+"/2015-03-31/functions/"+name+"/invocations", streamed)
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256([]byte(`{"op":"print"}`))
		key := aws.Credentials{AccessKeyID: function.AccessKeyID, SecretAccessKey: hostSecret}
		if err := v4.NewSigner().SignHTTP(t.Context(), key, req, hex.EncodeToString(sum[:]), "lambda", "us-east-1",
			time.Now()); err != nil {
			t.Fatal(err)
		}
		resp, err := c.Options().HTTPClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if err := resp.Body.Close(); err != nil || resp.StatusCode != want {
			t.Errorf("%s, signed as another: got %d, %v, want %d", body, resp.StatusCode, err, want)
		}
	}
}

func BenchmarkWarmInvoke(b *testing.B) {
	for _, size := range []int{100, 1 << 20} {
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			_, c := host(b, function.Options{})
			name := ensure(b, invoker(b, awslambda.Options{Client: c}), build(b), 1769)
			payload, err := json.Marshal(map[string]string{"pad": strings.Repeat("x", size)})
			if err != nil {
				b.Fatal(err)
			}
			iv := invoker(b, awslambda.Options{Client: c})
			for b.Loop() {
				if a, err := iv.Invoke(b.Context(), name, payload); err != nil || a.FunctionError != "" {
					b.Fatal(a, err)
				}
			}
		})
	}
}

func TestTheVariablesOfTheSDKAreAllTheConfigurationThatALocalHostNeeds(t *testing.T) {
	h, err := function.New(function.Options{Dir: t.TempDir(), Secret: hostSecret})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(h)
	defer server.Close()
	defer func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	}()
	for _, v := range os.Environ() {
		if k, _, _ := strings.Cut(v, "="); strings.HasPrefix(k, "AWS_") {
			t.Setenv(k, "")
		}
	}
	t.Setenv("HOME", t.TempDir())
	t.Setenv("AWS_ENDPOINT_URL_LAMBDA", server.URL)
	if _, err := invoker(t, awslambda.Options{}).Ensure(t.Context(), build(t), 512); err == nil ||
		!strings.Contains(err.Error(), `access key "local" is not the key of this function host`) {
		t.Errorf("without a key: got %v, want a refusal that says so", err)
	}
	t.Setenv("AWS_ACCESS_KEY_ID", function.AccessKeyID)
	t.Setenv("AWS_SECRET_ACCESS_KEY", hostSecret)
	iv := invoker(t, awslambda.Options{})
	if a, _ := invoke(t, iv, ensure(t, iv, build(t), 512), order{}); a.FunctionError != "" {
		t.Errorf("got %s", a.Payload)
	}
}

func TestWithoutARoleNothingIsDeployedToAWS(t *testing.T) {
	t.Parallel()
	service := answering(http.StatusNotFound, "ResourceNotFoundException", "Function not found")
	iv := invoker(t, awslambda.Options{Client: client("https://lambda.example.com", service)})
	if _, err := iv.Ensure(t.Context(), build(t), 512); err == nil ||
		!strings.Contains(err.Error(), "SPILLWAY_LAMBDA_ROLE") {
		t.Errorf("got %v, want an error that names the variable to set", err)
	}
}

func TestALargeBinaryIsDeployedAndAKilledHostLeavesNoEnvironment(t *testing.T) {
	t.Parallel()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	endpoint, kill, _ := startHost(t, exe, dir)
	hc := &http.Client{Transport: &http.Transport{}}
	defer hc.CloseIdleConnections()
	padding := make([]byte, 3<<20)
	_, _ = rand.Read(padding) // never fails
	b := build(t, padding...)
	iv := invoker(t, awslambda.Options{Client: client(endpoint, hc)})
	name := ensure(t, iv, b, 512)
	_, out := invoke(t, iv, name, order{})
	busy := make(chan error, 1)
	go func() {
		_, err := iv.Invoke(context.WithoutCancel(t.Context()), name, []byte(`{"op":"sleep","n":60000}`))
		busy <- err
	}()
	time.Sleep(50 * time.Millisecond)
	kill()
	if err := <-busy; err == nil {
		t.Error("the invocation of a killed host: got no error")
	}
	gone(t, out.PID)

	endpoint, _, stop := startHost(t, exe, dir)
	defer stop() // which removes what the killed one left, too
	again := invoker(t, awslambda.Options{Client: client(endpoint, hc)})
	if _, out := invoke(t, again, ensure(t, again, b, 512), order{}); out.PID == 0 {
		t.Error("the restarted host does not run the function")
	}
}

// startHost starts a function host in a process of its own and returns its address, a function that kills it and one
// that ends it in good order.
func startHost(t *testing.T, exe, dir string) (endpoint string, kill, stop func()) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), exe)
	cmd.Env = append(os.Environ(), hostVar+"="+dir)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fscanln(out, &endpoint); err != nil {
		t.Fatalf("address of the host: %v", err)
	}
	kill = func() {
		if err := cmd.Process.Kill(); err != nil {
			t.Error(err)
		}
		_ = cmd.Wait() // it was killed
		_ = in.Close()
	}
	stop = func() {
		if err := errors.Join(in.Close(), cmd.Wait()); err != nil {
			t.Errorf("end the host: %v", err)
		}
	}
	return endpoint, kill, stop
}

// gone waits until a process has ended.
func gone(t *testing.T, pid int) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
	}
	t.Errorf("process %d still runs", pid)
}
