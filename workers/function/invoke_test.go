package function

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/workers/spawn/spawntest"
)

func TestAnInvocationIsColdAndTheNextOneIsWarmInTheSameProcess(t *testing.T) {
	t.Parallel()
	l := newLocal(t, Options{})
	l.deploy(t, "f", fields{"MemorySize": 256, "Timeout": 20})

	cold := l.invoke(t, "f", order{Op: "print", N: 2})
	want := regexp.MustCompile(`^START RequestId: (\S+) Version: \$LATEST\nline 0\nline 1\nEND RequestId: (\S+)\n` +
		`REPORT RequestId: (\S+)\tDuration: \d+\.\d\d ms\tBilled Duration: \d+ ms\tMemory Size: 256 MB\tMax Memory Used: ` +
		`[1-9]\d* MB\tInit Duration: \d+\.\d\d ms\t\n$`)
	if tail := cold.tail(t); !want.MatchString(tail) {
		t.Errorf("log tail of the cold invocation: got %q, want %s", tail, want)
	}
	first := l.run(t, "f", order{})
	if tail := l.invoke(t, "f", order{}).tail(t); strings.Contains(tail, "Init Duration") ||
		strings.Contains(tail, "line") {
		t.Errorf("log tail of a warm invocation: got %q, want neither an init nor earlier output", tail)
	}
	second := l.run(t, "f", order{})
	if first.PID != second.PID || first.LeftMS <= 15_000 || first.LeftMS > 20_000 {
		t.Errorf("got processes %d and %d with %d ms left, want one process with almost 20 s", first.PID, second.PID,
			first.LeftMS)
	}
	wantStats := []FunctionStats{{Function: "f", Live: 1, Idle: 1, Cold: 1, Warm: 3}}
	if diff := cmp.Diff(wantStats, l.Stats()); diff != "" {
		t.Errorf("stats (-want +got):\n%s", diff)
	}
}

func TestAFailingFunctionIsReportedAsAWSReportsIt(t *testing.T) {
	t.Parallel()
	l := newLocal(t, Options{})
	hasty := newLocal(t, Options{InitTimeout: 200 * time.Millisecond})
	l.deploy(t, "f", fields{"Timeout": 60, "MemorySize": 128})
	l.deploy(t, "brief", fields{"Timeout": 1})
	l.deploy(t, "large", fields{"Timeout": 60, "MemorySize": 2048})
	l.deploy(t, "init-exit", fields{"Environment": fields{"Variables": fields{"INIT": "exit"}}})
	hasty.deploy(t, "init-hang", fields{"Environment": fields{"Variables": fields{"INIT": "hang"}}})
	l.deploy(t, "no-bootstrap", fields{"Code": fields{"ZipFile": archive(t, 0o755, "other", "#!/bin/sh\n")}})
	l.deploy(t, "not-executable", fields{"Code": fields{"ZipFile": archive(t, 0o644, "bootstrap", "#!/bin/sh\n")}})
	for _, tt := range []struct {
		name     string
		function string
		in       order
		want     string // part of the payload
		report   string // part of the log tail
		reused   bool
	}{
		{
			"an error is returned and the environment lives on", "f",
			order{Op: "error"},
			`{"errorMessage":"bad input","errorType":"errorString"}`, "Max Memory Used", true,
		},
		{
			"a panic is returned with its stack", "f",
			order{Op: "panic"},
			`{"errorMessage":"boom","errorType":"string","stackTrace":`, "Status: error\tError Type: string", false,
		},
		{
			"an exit names its status", "f",
			order{Op: "exit"},
			`"errorType":"Runtime.ExitError","errorMessage":"RequestId: ID Error: Runtime exited with error: exit status 3"`,
			"Status: error\tError Type: Runtime.ExitError", false,
		},
		{
			"a timeout kills", "brief",
			order{Op: "sleep", N: 60_000},
			`"errorType":"Sandbox.Timedout","errorMessage":"RequestId: ID Error: Task timed out after 1.00 seconds"`,
			"Duration: 1000.00 ms\tBilled Duration: ", false,
		},
		{
			"too much memory kills", "f",
			order{Op: "alloc", N: 300},
			`"errorType":"Runtime.ExitError","errorMessage":"RequestId: ID Error: Runtime exited with error: signal: killed"`,
			"Status: error\tError Type: Runtime.OutOfMemory", false,
		},
		{
			"too much memory in a child process kills", "f",
			order{Op: "alloc in a child", N: 300},
			`"errorType":"Runtime.ExitError"`, "Status: error\tError Type: Runtime.OutOfMemory", false,
		},
		{
			"too large an answer is refused", "large",
			order{Op: "pad", N: 7 << 20},
			`"errorType":"Function.ResponseSizeTooLarge"`, "REPORT", false,
		},
		{"an exit during init names its status", "init-exit", order{}, `exit status 4`, "Init Duration", false},
		{
			"an init that takes too long is killed", "init-hang",
			order{},
			`Init timed out after 0.20 seconds`,
			"Status: timeout", false,
		},
		{
			"a zip without a bootstrap has no entrypoint", "no-bootstrap",
			order{},
			`"errorType":"Runtime.InvalidEntrypoint"`,
			"Status: error", false,
		},
		{
			"a bootstrap that is not executable is no entrypoint", "not-executable",
			order{},
			`"errorType":"Runtime.InvalidEntrypoint"`, "Status: error", false,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := l
			if tt.function == "init-hang" {
				l = hasty
			}
			got := l.invoke(t, tt.function, tt.in)
			if got.status != http.StatusOK || got.functionError() != "Unhandled" {
				t.Errorf("got %d %q, want 200 Unhandled", got.status, got.functionError())
			}
			body := strings.ReplaceAll(got.body, got.header.Get("X-Amzn-Requestid"), "ID")
			if !strings.Contains(body, tt.want) {
				t.Errorf("payload: got %s, want %s", body, tt.want)
			}
			if tail := got.tail(t); !strings.Contains(tail, tt.report) {
				t.Errorf("log tail: got %q, want %q", tail, tt.report)
			}
			wantLive := 0
			if tt.reused {
				wantLive = 1
			}
			eventually(t, "environment gone unless reused", func() bool { return l.stats(tt.function).Live == wantLive })
		})
	}
	if s := l.stats("f"); s.OOM != 2 || s.Timeouts != 0 {
		t.Errorf("stats: got %+v, want 2 OOM", s)
	}
	if s := l.stats("brief"); s.OOM != 0 || s.Timeouts != 1 {
		t.Errorf("stats: got %+v, want 1 timeout", s)
	}
}

func TestARequestThatCannotRunIsRefusedAsAWSRefusesIt(t *testing.T) {
	t.Parallel()
	l := newLocal(t, Options{})
	l.deploy(t, "f", nil)
	const prefix = "/2015-03-31/functions/"
	for _, tt := range []struct {
		name   string
		path   string
		body   any
		header []string
		status int
		code   string
	}{
		{"an unknown function", "g/invocations", order{}, nil, 404, "ResourceNotFoundException"},
		{"an unknown version", "f/invocations?Qualifier=7", order{}, nil, 404, "ResourceNotFoundException"},
		{"an unknown version in the name", "f%3A7/invocations", order{}, nil, 404, "ResourceNotFoundException"},
		{"a payload that is not JSON", "f/invocations", []byte("{"), nil, 400, "InvalidRequestContentException"},
		{"a payload over 6 MB", "f/invocations", strings.Repeat("x", 6<<20), nil, 413, "RequestTooLargeException"},
		{
			"an event", "f/invocations",
			order{},
			[]string{"X-Amz-Invocation-Type", "Event"},
			400,
			"InvalidParameterValueException",
		},
		{
			"a client context that is not base64", "f/invocations",
			order{},
			[]string{"X-Amz-Client-Context", "{}"},
			400,
			"InvalidRequestContentException",
		},
		{
			"a client context that is not JSON", "f/invocations",
			order{},
			[]string{"X-Amz-Client-Context", "AAAA"},
			400,
			"InvalidRequestContentException",
		},
		{
			"an unknown invocation type", "f/invocations",
			order{},
			[]string{"X-Amz-Invocation-Type", "Later"},
			400,
			"InvalidParameterValueException",
		},
		{"an operation that this host does not have", "f/versions", order{}, nil, 404, "UnknownOperationException"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := l.call(t, http.MethodPost, prefix+tt.path, tt.body, tt.header...)
			if got.status != tt.status || got.code() != tt.code || !strings.HasPrefix(got.body, `{"Type":"User","message":"`) {
				t.Errorf("got %d %s %s, want %d %s", got.status, got.code(), got.body, tt.status, tt.code)
			}
		})
	}
}

func TestADryRunAndAClientContextAreUnderstood(t *testing.T) {
	t.Parallel()
	l := newLocal(t, Options{})
	l.deploy(t, "f", nil)
	if got := l.invoke(t, "f", order{}, "X-Amz-Invocation-Type", "DryRun"); got.status != http.StatusNoContent {
		t.Errorf("dry run: got %d, want 204", got.status)
	}
	if s := l.stats("f"); s.Cold != 0 {
		t.Errorf("a dry run ran: %+v", s)
	}
	context := base64.StdEncoding.EncodeToString([]byte("{\n\"custom\": {\"a\": \"b\"}}"))
	if got := l.invoke(t, "arn:aws:lambda:us-east-1:000000000000:function:f:$LATEST", order{Op: "context"},
		"X-Amz-Client-Context", context); !strings.Contains(got.body, `"custom":{"a":"b"}`) {
		t.Errorf("client context: got %s, want it in the answer", got.body)
	}
}

func TestSixteenInvocationsAtATimeHaveSixteenEnvironmentsOfWhichTheLastUsedServesNext(t *testing.T) {
	t.Parallel()
	l := newLocal(t, Options{})
	l.deploy(t, "f", fields{"Timeout": 60})
	pids, dir := make([]int, 16), t.TempDir()
	var wg sync.WaitGroup
	for i := range pids {
		wg.Go(func() { pids[i] = l.run(t, "f", order{Op: "meet", N: 16, Dir: dir}).PID })
	}
	wg.Wait()
	slices.Sort(pids)
	if got := len(slices.Compact(pids)); got != 16 {
		t.Errorf("got %d environments, want 16", got)
	}
	if s := l.stats("f"); s.Live != 16 || s.Idle != 16 || s.Busy != 0 {
		t.Errorf("stats: got %+v, want 16 live and idle", s)
	}
	last := l.run(t, "f", order{}).PID
	if again := l.run(t, "f", order{}).PID; again != last {
		t.Errorf("got environment %d, want the one used last, %d", again, last)
	}
}

func TestConcurrencyOverTheLimitOfTheAccountIsThrottled(t *testing.T) {
	t.Parallel()
	l := newLocal(t, Options{Concurrency: 2})
	l.deploy(t, "one", fields{"Timeout": 60})
	l.deploy(t, "other", fields{"Timeout": 60})
	var wg sync.WaitGroup
	dir := t.TempDir()
	for range 2 {
		wg.Go(func() { l.run(t, "one", order{Op: "meet", N: 3, Dir: dir}) })
	}
	eventually(t, "all busy", func() bool { return l.stats("one").Busy == 2 })
	for _, name := range []string{"one", "other"} {
		l.isThrottled(t, name, reasonAccount)
	}
	if err := spawntest.Meet(dir, 1); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	l.run(t, "other", order{})
}

// isThrottled invokes a function, which must be refused.
func (l local) isThrottled(t *testing.T, name, reason string) {
	t.Helper()
	before := l.stats(name).Throttled
	got := l.invoke(t, name, order{})
	want := fmt.Sprintf(`{"Type":"User","message":"Rate Exceeded.","Reason":%q}`, reason)
	if got.status != http.StatusTooManyRequests || got.code() != "TooManyRequestsException" || got.body != want ||
		got.header.Get("Retry-After") == "" {
		t.Errorf("%s: got %d %s %s, want 429 %s", name, got.status, got.code(), got.body, want)
	}
	if after := l.stats(name).Throttled; after != before+1 {
		t.Errorf("%s: got %d throttled, want %d", name, after, before+1)
	}
}

func TestAFunctionThatScalesOutTooFastIsThrottledAndOthersAreNot(t *testing.T) {
	t.Parallel()
	l := newLocal(t, Options{ScaleOut: 1})
	for _, name := range []string{"fast", "other"} {
		l.deploy(t, name, fields{"Timeout": 60})
	}
	var wg sync.WaitGroup
	dir := t.TempDir()
	wg.Go(func() { l.run(t, "fast", order{Op: "meet", N: 2, Dir: dir}) })
	eventually(t, "busy", func() bool { return l.stats("fast").Busy == 1 })
	l.isThrottled(t, "fast", reasonRate)
	l.run(t, "other", order{})
	if err := spawntest.Meet(dir, 1); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	for range 2 {
		l.run(t, "fast", order{}) // an environment that there is needs no other
	}
}

func TestAnIdleEnvironmentThatDiesIsReplacedWithoutAnError(t *testing.T) {
	t.Parallel()
	l := newLocal(t, Options{})
	l.deploy(t, "f", nil)
	first := l.run(t, "f", order{}).PID
	eventually(t, "idle", func() bool { return l.stats("f").Idle == 1 })
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "gone", func() bool { return l.stats("f").Live == 0 })
	l.run(t, "f", order{})
	if s := l.stats("f"); s.Cold != 2 || s.Idle != 1 {
		t.Errorf("stats: got %+v, want a second cold start", s)
	}
}

func TestAnInvocationThatItsEnvironmentDidNotTakeRunsOnAnother(t *testing.T) {
	t.Parallel()
	l := newLocal(t, Options{})
	l.deploy(t, "f", nil)
	first := l.run(t, "f", order{}).PID
	l.mu.Lock()
	env := l.functions["f"].idle[0]
	l.mu.Unlock()
	// The environment dies after it was taken from the idle ones: put it back there as if it were alive.
	env.kill()
	<-env.exited
	eventually(t, "gone", func() bool { return l.stats("f").Live == 0 })
	l.mu.Lock()
	f := l.functions["f"]
	f.idle = append(f.idle, env)
	l.mu.Unlock()
	if second := l.run(t, "f", order{}).PID; second == first {
		t.Errorf("got process %d, want another", second)
	}
}

func TestIdleEnvironmentsAreReaped(t *testing.T) {
	t.Parallel()
	l := newLocal(t, Options{KeepAlive: 50 * time.Millisecond})
	l.deploy(t, "f", nil)
	l.run(t, "f", order{})
	eventually(t, "reaped", func() bool { return l.stats("f").Live == 0 })
	l.run(t, "f", order{})
	if s := l.stats("f"); s.Cold != 2 {
		t.Errorf("got %d cold starts, want 2", s.Cold)
	}
}

func TestAModelledColdStartIsReportedAsInit(t *testing.T) {
	t.Parallel()
	l := newLocal(t, Options{ColdStart: 300 * time.Millisecond})
	l.deploy(t, "f", nil)
	started := time.Now()
	tail := l.invoke(t, "f", order{}).tail(t)
	var ms float64
	if _, after, ok := strings.Cut(tail, "Init Duration: "); !ok {
		t.Errorf("log tail: got %q, want an init", tail)
	} else if _, err := fmt.Sscan(after, &ms); err != nil || ms < 300 || ms > float64(time.Since(started).Milliseconds()) {
		t.Errorf("init: got %v ms (%v), want at least 300", ms, err)
	}
}

func TestAFunctionSeesItsOwnEnvironmentOnly(t *testing.T) {
	t.Setenv("SECRET_OF_THE_HOST", "secret")
	l := newLocal(t, Options{CPUs: firstCPU(t)})
	l.deploy(t, "f", fields{"MemorySize": 200, "Environment": fields{"Variables": fields{"MINE": "yes", "LANG": "C"}}})
	got := l.run(t, "f", order{Op: "env"})
	if got.CPUs != 1 {
		t.Errorf("got %d cpus, want 1", got.CPUs)
	}
	env := make(map[string]string)
	for _, kv := range got.Env {
		k, v, _ := strings.Cut(kv, "=")
		env[k] = v
	}
	for k, want := range map[string]string{
		"SECRET_OF_THE_HOST": "", "HOME": "", "MINE": "yes", "LANG": "C", "GOMEMLIMIT": "184320KiB", "_HANDLER": "bootstrap",
		"AWS_LAMBDA_FUNCTION_NAME": "f", "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "200", "AWS_REGION": "us-east-1",
	} {
		if env[k] != want {
			t.Errorf("%s: got %q, want %q", k, env[k], want)
		}
	}
	known := []string{
		"AWS_LAMBDA_RUNTIME_API", "LAMBDA_TASK_ROOT", "TMPDIR", "PATH", "TZ", "MINE", "LANG", "GOMEMLIMIT",
		"_HANDLER", "_X_AMZN_TRACE_ID",
	}
	for name, value := range env {
		if strings.HasPrefix(name, "AWS_LAMBDA_") || strings.HasSuffix(name, "_REGION") ||
			slices.Contains([]string{"PWD", "OLDPWD", "SHLVL", "_"}, name) {
			continue // named by AWS, or of the shell that is the bootstrap
		}
		if !slices.Contains(known, name) || strings.Contains(value, testSecret) {
			t.Errorf("got %s=%s, which no function needs", name, value)
		}
	}
	if !strings.HasPrefix(env["TMPDIR"], l.store.temp()) {
		t.Errorf("TMPDIR: got %q, want one below %s", env["TMPDIR"], l.store.temp())
	}
}
