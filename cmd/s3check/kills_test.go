package s3check_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/google/go-cmp/cmp"
)

// spillway is the engine and the sample app, built as `make build` does, with a state directory.
type spillway struct {
	t       *testing.T
	bin     string
	state   string
	home    string
	command *exec.Cmd
	output  *output
	ended   chan error
}

// output is what a process has printed so far.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

func (o *output) Write(text []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(text)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

func build(t *testing.T) *spillway {
	t.Helper()
	s := &spillway{t: t, bin: t.TempDir(), state: t.TempDir(), home: t.TempDir()}
	building := exec.CommandContext(t.Context(), "go", "build", "-o", s.bin+"/", "./cmd/spillway", "./cmd/digits")
	building.Dir = "../.."
	if text, err := building.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, text)
	}
	return s
}

// environment is that of somebody who has credentials of S3, or none.
func (s *spillway) environment(secret string) []string {
	all := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + s.home, "AWS_EC2_METADATA_DISABLED=true"}
	if secret != "" {
		all = append(all, "AWS_ACCESS_KEY_ID="+accessKey, "AWS_SECRET_ACCESS_KEY="+secret)
	}
	return all
}

// tell runs a command to its end and returns what it printed; it has no credentials of S3.
func (s *spillway) tell(arguments ...string) (text string, code int) {
	s.t.Helper()
	command := exec.CommandContext(context.WithoutCancel(s.t.Context()), filepath.Join(s.bin, "spillway"),
		append(arguments, "--state", s.state)...)
	command.Env = s.environment("")
	all, err := command.CombinedOutput()
	if exit, is := errors.AsType[*exec.ExitError](err); err != nil && !is {
		s.t.Fatalf("%s: %v", arguments, err)
	} else if is {
		code = exit.ExitCode()
	}
	return string(all), code
}

// start starts the engine and returns once it is ready, or has ended with an error.
func (s *spillway) start(secret string, flags ...string) (err error) {
	s.t.Helper()
	s.output, s.ended = &output{}, make(chan error, 1)
	arguments := append([]string{
		"dev", "--state", s.state, "--no-ui", "--app", filepath.Join(s.bin, "digits"),
		"--function-cold-start", "0s",
	}, flags...)
	s.command = exec.Command(filepath.Join(s.bin, "spillway"), arguments...)
	s.command.Env = s.environment(secret)
	s.command.Stdout, s.command.Stderr = s.output, s.output
	if err := s.command.Start(); err != nil {
		s.t.Fatal(err)
	}
	go func(command *exec.Cmd, ended chan error) { ended <- command.Wait() }(s.command, s.ended)
	for {
		select {
		case err := <-s.ended:
			s.command = nil
			return fmt.Errorf("%w: %s", err, s.output)
		case <-time.After(20 * time.Millisecond):
		}
		if strings.Contains(s.output.String(), " is ready\n") {
			return nil
		}
	}
}

// end sends a signal and waits for the end.
func (s *spillway) end(signal syscall.Signal) error {
	if s.command == nil {
		return nil
	}
	_ = s.command.Process.Signal(signal)
	err := <-s.ended
	s.command = nil
	return err
}

// view is what this test looks at of a run.
type view struct {
	State  string          `json:"state"`
	Error  string          `json:"error"`
	Result json.RawMessage `json:"result"`
}

func (s *spillway) show(run string) (v view) {
	s.t.Helper()
	text, _ := s.tell("show", run, "--json")
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		s.t.Fatalf("show %s: %v: %s", run, err, text)
	}
	return v
}

func (s *spillway) trigger(id, input string) (run string) {
	s.t.Helper()
	text, code := s.tell("trigger", "digits", "--id", id, "--input", input, "--json")
	var published struct {
		Run string `json:"run"`
	}
	if err := json.Unmarshal([]byte(text), &published); err != nil || code != 0 {
		s.t.Fatalf("trigger: exit code %d, %v: %s", code, err, text)
	}
	return published.Run
}

func (s *spillway) until(what string, is func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(patience); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("not within %s: %s\n%s", patience, what, s.output)
		}
	}
}

// succeed waits for a run and returns its result.
func (s *spillway) succeed(run string) json.RawMessage {
	s.t.Helper()
	var v view
	s.until(run+" ends", func() bool { v = s.show(run); return v.State != "running" })
	if v.State != "succeeded" {
		s.t.Fatalf("run %s %s: %s\n%s", run, v.State, v.Error, s.output)
	}
	return v.Result
}

// TestDigitsRunsOnS3ThroughKills runs the sample pipeline with no files store, and kills the engine while it goes on.
func TestDigitsRunsOnS3ThroughKills(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the engine and kills it again and again: takes minutes")
	}
	t.Parallel()
	s, bucket := build(t), newBucket(t)
	t.Cleanup(func() { _ = s.end(syscall.SIGKILL) })
	location := "s3://" + bucket + "/states/one?region=us-east-1&endpoint=" + gateway.endpoint
	if err := s.start(secretKey, "--artifacts", location); err != nil {
		t.Fatal(err)
	}
	const input = `{"max_epochs": 12, "shards": 12, "seed": 3, "learning_rate": 0.002}`
	run := s.trigger("killed", input)
	for kill, artifacts := range []int{1, 4} { // when there are as many: behind load, and while it trains or scores
		s.until("there are artifacts", func() bool { return len(objects(t, bucket, "states/one/")) > artifacts })
		if kill == 1 {
			s.wantNoSecrets()
		}
		if v := s.show(run); v.State != "running" {
			t.Fatalf("kill %d: the run has %s already: %s", kill, v.State, v.Error)
		}
		if err := s.end(syscall.SIGKILL); err == nil {
			t.Fatal("the engine ended by itself")
		}
		if err := s.start(secretKey); err != nil { // the state directory knows where its artifacts are
			t.Fatal(err)
		}
	}
	killed := s.succeed(run)
	undisturbed := s.succeed(s.trigger("undisturbed", input))
	var got, want map[string]any
	if err := errors.Join(json.Unmarshal(killed, &got), json.Unmarshal(undisturbed, &want)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" || len(want) == 0 {
		t.Errorf("kills change the result (-undisturbed +killed):\n%s", diff)
	}
	s.wantWhole(bucket)
	if _, err := os.Stat(filepath.Join(s.state, "artifacts")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("there are files of artifacts: %v", err)
	}
	if text, code := s.tell("gc"); code != 0 || !strings.Contains(text, "is kept") {
		t.Errorf("gc: exit code %d: %s", code, text)
	}
	if err := s.end(syscall.SIGINT); err != nil {
		t.Errorf("the engine ended with %v:\n%s", err, s.output)
	}
	s.wantRefusals(bucket)
	err := filepath.WalkDir(s.state, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		if bytes.Contains(text, []byte(secretKey)) {
			t.Errorf("%s has the secret", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// wantNoSecrets wants that no process of users' code was told of the credentials, and that there is one.
func (s *spillway) wantNoSecrets() {
	s.t.Helper()
	seen := 0
	processes, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil || len(processes) == 0 {
		return // not on Linux
	}
	for _, process := range processes {
		text, err := os.ReadFile(process)
		program, _ := os.Readlink(filepath.Join(filepath.Dir(process), "exe"))
		if err != nil || !strings.HasPrefix(program, s.state) {
			continue // it has ended, or is none of this engine
		}
		seen++
		for variable := range strings.SplitSeq(string(text), "\x00") {
			name, value, _ := strings.Cut(variable, "=")
			if strings.HasPrefix(name, "AWS_") && strings.Contains(name, "ACCESS") || strings.Contains(value, secretKey) ||
				name == "SPILLWAY_ARTIFACTS" && !strings.HasPrefix(value, "http://artifacts:") {
				s.t.Errorf("%s is told %s", program, name)
			}
		}
	}
	if seen == 0 {
		s.t.Error("there is no process of the app")
	}
}

// wantWhole wants that each artifact has the digest that it is named by.
func (s *spillway) wantWhole(bucket string) {
	s.t.Helper()
	whole := 0
	for _, key := range objects(s.t, bucket, "states/one/") {
		name := strings.TrimPrefix(key, "states/one/")
		if len(name) != 65 || name[2] != '/' {
			continue
		}
		got, err := plain().GetObject(s.t.Context(), &s3.GetObjectInput{Bucket: &bucket, Key: &key})
		if err != nil {
			s.t.Fatal(err)
		}
		sum := sha256.New()
		_, err = io.Copy(sum, got.Body)
		if err := errors.Join(err, got.Body.Close()); err != nil {
			s.t.Fatal(err)
		}
		if digest := hex.EncodeToString(sum.Sum(nil)); digest != name[:2]+name[3:] {
			s.t.Errorf("%s hashes to %s", key, digest)
		}
		whole++
	}
	if whole < 5 {
		s.t.Errorf("%d artifacts, want more", whole)
	}
}

// wantRefusals starts the engine where its artifacts are not, or cannot be reached.
func (s *spillway) wantRefusals(bucket string) {
	s.t.Helper()
	for name, c := range map[string]struct {
		secret string
		flags  []string
		want   string
	}{
		"with files": {secretKey, []string{"--artifacts", "files"}, "would be missing in"},
		"with another prefix": {
			secretKey,
			[]string{"--artifacts", "s3://" + bucket + "/states/two?endpoint=" + gateway.endpoint},
			"would be missing in",
		},
		"without credentials":      {"", nil, "the credentials for S3 are missing or wrong"},
		"with another's secret":    {"wrong", nil, "the credentials for S3 are missing or wrong"},
		"with a mistake in a flag": {secretKey, []string{"--artifacts", "s3://a:hidden@b/c"}, "credentials do not belong"},
	} {
		err := s.start(c.secret, c.flags...)
		if err == nil {
			s.t.Fatalf("%s: it started:\n%s", name, s.output)
		}
		if !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hidden") {
			s.t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}
