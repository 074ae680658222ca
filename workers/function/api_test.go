package function

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAFunctionThatCannotBeIsRefusedWithTheReason(t *testing.T) {
	t.Parallel()
	l := newLocal(t, Options{})
	l.deploy(t, "exists", nil)
	many := fields{"VV": strings.Repeat("v", maxVariableBytes)}
	for _, tt := range []struct {
		name    string
		changes fields
		status  int
		message string
	}{
		{"exists", nil, 409, "already exist"},
		{"a b", nil, 400, "not a function name"},
		{strings.Repeat("f", 65), nil, 400, "not a function name"},
		{"f", fields{"Runtime": "nodejs22.x"}, 400, "provided.al2023"},
		{"f", fields{"PackageType": "Image"}, 400, "deploy a zip"},
		{"f", fields{"MemorySize": 127}, 400, "between 128 and 10240"},
		{"f", fields{"MemorySize": 10_241}, 400, "between 128 and 10240"},
		{"f", fields{"Timeout": 0}, 400, "between 1 and 900"},
		{"f", fields{"Timeout": 901}, 400, "between 1 and 900"},
		{"f", fields{"Architectures": []string{"sparc"}}, 400, "build for"},
		{"f", fields{"Layers": []string{"l"}}, 400, "layers"},
		{"f", fields{"Environment": fields{"Variables": fields{"AWS_REGION": "x"}}}, 400, "AWS_REGION"},
		{"f", fields{"Environment": fields{"Variables": fields{"A=B": "x"}}}, 400, "A=B"},
		{"f", fields{"Environment": fields{"Variables": many}}, 400, "4KB"},
		{"f", fields{"Code": fields{"S3Bucket": "b"}}, 400, "ZipFile"},
		{"f", fields{"Code": fields{}}, 400, "ZipFile"},
		{"f", fields{"Code": fields{"ZipFile": []byte("not a zip")}}, 400, "unzip"},
		{"f", fields{"Code": fields{"ZipFile": "%"}}, 400, "base64"},
	} {
		got := l.create(t, tt.name, tt.changes)
		if got.status != tt.status || !strings.Contains(got.body, tt.message) {
			t.Errorf("create %s with %.80q: got %d %s, want %d %q", tt.name, fmt.Sprint(tt.changes), got.status, got.body,
				tt.status, tt.message)
		}
	}
	if got := len(l.Stats()); got != 1 {
		t.Errorf("got %d functions, want 1", got)
	}
	l.leavesNothing(t)
}

// leavesNothing checks that no upload is left.
func (l local) leavesNothing(t *testing.T) {
	t.Helper()
	entries, err := os.ReadDir(l.store.temp())
	if err != nil || len(entries) != 0 {
		t.Errorf("temporary files: got %v, %v, want none", entries, err)
	}
}

func TestAFunctionIsDescribedAsAWSDescribesIt(t *testing.T) {
	t.Parallel()
	l := newLocal(t, Options{})
	code := script(t)
	l.deploy(t, "f", fields{
		"Code": fields{"ZipFile": code}, "MemorySize": 300, "Description": "d",
		"Environment": fields{"Variables": fields{"AA": "b"}},
	})
	sum := sha256.Sum256(code)
	want := configuration{
		FunctionName: "f", FunctionArn: "arn:aws:lambda:us-east-1:000000000000:function:f", Description: "d",
		Role: "arn:aws:iam::000000000000:role/test", Runtime: "provided.al2023", Handler: "bootstrap", MemorySize: 300,
		Timeout:    3,
		CodeSha256: base64.StdEncoding.EncodeToString(sum[:]), CodeSize: int64(len(code)), Version: "$LATEST",
		PackageType:   "Zip",
		Architectures: []string{architecture()}, State: "Active", LastUpdateStatus: "Successful",
		Environment: &variables{map[string]string{"AA": "b"}},
	}
	var list struct{ Functions []configuration }
	var get struct{ Configuration configuration }
	var one configuration
	for path, into := range map[string]any{"": &list, "/f": &get, "/f/configuration": &one} {
		got := l.call(t, http.MethodGet, "/2015-03-31/functions"+path, nil)
		if err := json.Unmarshal([]byte(got.body), into); err != nil || got.status != http.StatusOK {
			t.Errorf("get %q: %d %v", path, got.status, err)
		}
	}
	for name, got := range map[string]configuration{
		"list": list.Functions[0], "get": get.Configuration,
		"configuration": one,
	} {
		if got.LastModified == "" {
			t.Errorf("%s: got no time of the last change", name)
		}
		got.LastModified = ""
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestNewCodeAndNewSettingsReachTheNextInvocationAndOldCodeGoes(t *testing.T) {
	t.Parallel()
	l := newLocal(t, Options{})
	l.deploy(t, "f", fields{"Timeout": 60})
	old := l.stored("f").CodeSHA256
	first := l.run(t, "f", order{}).PID

	running := make(chan reply)
	go func() { running <- l.run(t, "f", order{Op: "sleep", N: 300}) }()
	eventually(t, "busy", func() bool { return l.stats("f").Busy == 1 })
	code := fields{"ZipFile": script(t, "# new")}
	if got := l.call(t, http.MethodPut, "/2015-03-31/functions/f/code",
		fields{"ZipFile": code["ZipFile"], "DryRun": true}); got.status != http.StatusOK || l.stored("f").CodeSHA256 != old {
		t.Errorf("dry run: got %d %s", got.status, got.body)
	}
	if got := l.call(t, http.MethodPut, "/2015-03-31/functions/f/code", code); got.status != http.StatusOK {
		t.Fatalf("update code: got %d %s", got.status, got.body)
	}
	second := l.run(t, "f", order{}).PID
	if finished := <-running; finished.PID != first || second == first {
		t.Errorf("got process %d for what ran and %d after, want %d and another", finished.PID, second, first)
	}
	eventually(t, "old code removed", func() bool {
		_, err := os.Stat(l.store.codeDir("f", old))
		return os.IsNotExist(err)
	})

	if got := l.call(t, http.MethodPut, "/2015-03-31/functions/f/configuration",
		fields{"MemorySize": 129, "Environment": fields{"Variables": fields{"MINE": "new"}}}); got.status != http.StatusOK ||
		!strings.Contains(got.body, `"MemorySize":129`) {
		t.Fatalf("update settings: got %d %s", got.status, got.body)
	}
	if got := l.run(t, "f", order{Op: "env"}); got.PID == second ||
		!strings.Contains(strings.Join(got.Env, "\n"), "MINE=new") {
		t.Errorf("after new settings: got %+v, want a new environment with them", got)
	}
	if got := l.call(t, http.MethodPut, "/2015-03-31/functions/f/configuration", fields{"MemorySize": 1}); got.status !=
		http.StatusBadRequest {
		t.Errorf("settings out of range: got %d %s", got.status, got.body)
	}
}

// stored returns the settings of a function.
func (l local) stored(name string) config {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.functions[name].config
}

func TestADeletedFunctionIsGoneAndItsNameIsFree(t *testing.T) {
	t.Parallel()
	l := newLocal(t, Options{})
	l.deploy(t, "f", fields{"Timeout": 60})
	running := make(chan reply)
	go func() { running <- l.run(t, "f", order{Op: "sleep", N: 300}) }()
	eventually(t, "busy", func() bool { return l.stats("f").Busy == 1 })
	if got := l.call(t, http.MethodDelete, "/2015-03-31/functions/f", nil); got.status != http.StatusNoContent {
		t.Fatalf("delete: got %d %s", got.status, got.body)
	}
	if got := l.invoke(t, "f", order{}); got.status != http.StatusNotFound {
		t.Errorf("invoke: got %d %s, want 404", got.status, got.body)
	}
	l.deploy(t, "f", nil) // while the environment of the old one still uses the same code
	<-running
	l.run(t, "f", order{})
	if got := l.call(t, http.MethodDelete, "/2015-03-31/functions/f", nil); got.status != http.StatusNoContent {
		t.Fatalf("delete again: got %d %s", got.status, got.body)
	}
	eventually(t, "files removed", func() bool {
		_, err := os.Stat(filepath.Join(l.store.dir, "f"))
		return os.IsNotExist(err)
	})
}

func TestARestartKeepsFunctionsAndSweepsWhatACrashLeft(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := newLocal(t, Options{Dir: dir})
	first.deploy(t, "f", fields{"MemorySize": 200, "Environment": fields{"Variables": fields{"AA": "b"}}})
	if _, err := New(Options{Dir: dir, Secret: testSecret}); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a second host on the directory: got %v, want a refusal", err)
	}
	want := first.stored("f")
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	sum := hex.EncodeToString(make([]byte, sha256.Size))
	for _, path := range []string{
		".tmp/env-1/file", "f/" + sum + "/bootstrap", "half/" + sum + "/bootstrap",
		"torn/function.json",
	} {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	second := newLocal(t, Options{Dir: dir})
	second.leavesNothing(t)
	if diff := cmp.Diff(want, second.stored("f")); diff != "" {
		t.Errorf("function after the restart (-want +got):\n%s", diff)
	}
	second.run(t, "f", order{})
	for path, n := range map[string]int{".": 4, "f": 2} { // f, .tmp, .lock, cgroups.lock; settings and code
		if entries, err := os.ReadDir(filepath.Join(dir, path)); err != nil || len(entries) != n {
			t.Errorf("%s: got %v, %v, want %d entries", path, entries, err, n)
		}
	}
}

func TestCloseEndsWhatRuns(t *testing.T) {
	t.Parallel()
	l := newLocal(t, Options{})
	l.deploy(t, "f", fields{"Timeout": 60})
	got := make(chan answered)
	go func() { got <- l.invoke(t, "f", order{Op: "sleep", N: 60_000}) }()
	eventually(t, "running", func() bool { return l.stats("f").Live == 1 })
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if a := <-got; a.status != http.StatusServiceUnavailable || a.code() != "ServiceException" {
		t.Errorf("what ran: got %d %s, want 503", a.status, a.body)
	}
	if a := l.invoke(t, "f", order{}); a.status != http.StatusServiceUnavailable {
		t.Errorf("after Close: got %d %s, want 503", a.status, a.body)
	}
	if err := l.Close(); err != nil {
		t.Errorf("Close again: %v", err)
	}
}

func TestOptionsThatCannotWorkAreRefused(t *testing.T) {
	t.Parallel()
	for _, opts := range []Options{
		{},
		{Dir: "d"},
		{Dir: "d", Secret: "s", KeepAlive: -1},
		{Dir: "d", Secret: "s", Concurrency: -1},
		{Dir: "d", Secret: "s", ColdStart: -1},
		{Dir: t.TempDir(), Secret: "s", CPUs: []int{-1}},
	} {
		if h, err := New(opts); err == nil {
			t.Errorf("New(%+v): got no error", opts)
			_ = h.Close()
		}
	}
}

func TestWhatAFunctionPrintsIsLoggedLineByLineAndItsVariablesAreNot(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	l := newLocal(t, Options{Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	l.deploy(t, "f", fields{"Environment": fields{"Variables": fields{"TOKEN": "s3cret"}}})
	l.run(t, "f", order{Op: "print", N: 2})
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`msg="function output" function=f line="line 0"`, `line="line 1"`,
		`msg="invocation ended"`,
	} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("log: got\n%s\nwant %s", log.String(), want)
		}
	}
	if strings.Contains(log.String(), "s3cret") {
		t.Error("the log holds a variable's value")
	}
}
