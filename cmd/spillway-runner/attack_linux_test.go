package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/spawn/spawntest"
)

// asRunner makes this test binary the runner.
const asRunner = "SPILLWAY_TEST_AS_RUNNER"

func TestMain(m *testing.M) {
	if os.Getenv(asRunner) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// serveInvoke hands out one invoke and takes its answer, as AWS Lambda does.
// Source: https://docs.aws.amazon.com/lambda/latest/dg/runtimes-api.html
func serveInvoke(t *testing.T, invoke wire.Invoke) (address string, answers <-chan []byte) {
	t.Helper()
	payload, err := json.Marshal(invoke)
	if err != nil {
		t.Fatal(err)
	}
	asked, took := make(chan struct{}, 1), make(chan []byte, 1)
	asked <- struct{}{}
	routes := http.NewServeMux()
	routes.HandleFunc("GET /2018-06-01/runtime/invocation/next", func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-asked:
		case <-r.Context().Done():
			return
		}
		w.Header().Set("Lambda-Runtime-Aws-Request-Id", "1")
		w.Header().Set("Lambda-Runtime-Deadline-Ms", strconv.FormatInt(time.Now().Add(time.Minute).UnixMilli(), 10))
		_, _ = w.Write(payload)
	})
	routes.HandleFunc("POST /2018-06-01/runtime/invocation/1/", func(w http.ResponseWriter, r *http.Request) {
		answer, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		took <- answer
		w.WriteHeader(http.StatusAccepted)
	})
	server := httptest.NewServer(routes)
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://"), took
}

// TestAttackACommandFindsNoSecretInItsFunction has a command look for the secrets of the runner through /proc, as the
// runner's own user, and in what it was given itself.
func TestAttackACommandFindsNoSecretInItsFunction(t *testing.T) {
	t.Parallel()
	path := spawntest.Program(t)
	users := map[string]*syscall.Credential{"this user": nil}
	if os.Getuid() == 0 {
		users["nobody"] = &syscall.Credential{Uid: 65534, Gid: 65534}
	}
	for name, user := range users {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			script, err := json.Marshal(wire.Command{Arguments: []string{
				"sh", "-c", "cat /proc/$PPID/environ; cat /proc/$PPID/maps; env; echo looked",
			}})
			if err != nil {
				t.Fatal(err)
			}
			api, answers := serveInvoke(t, wire.Invoke{Version: wire.Version, Start: wire.StartAttempt{
				Task:    wire.Task{Run: "r", Stage: predictor.StageID{App: "a", Build: "b", Name: "s"}, ID: "s-0", Command: true},
				Attempt: 1, Input: script, Grant: quantity.Size{CPU: 1000, Memory: 512 * quantity.MiB},
			}})
			ctx, cancel := context.WithCancel(t.Context())
			process := exec.CommandContext(ctx, path)
			process.Env = []string{
				asRunner + "=1", "PATH=" + os.Getenv("PATH"), "TMPDIR=" + spawntest.Everybodys(t), "LANG=C",
				runtimeAPI + "=" + api, "AWS_ACCESS_KEY_ID=canary-1", "AWS_SECRET_ACCESS_KEY=canary-2",
				"AWS_SESSION_TOKEN=canary-3", wire.ArtifactsEnvironment + "=http://relay:canary-4@127.0.0.1:9",
			}
			process.SysProcAttr, process.Stderr = &syscall.SysProcAttr{Credential: user}, t.Output()
			if err := process.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- process.Wait() }()
			var text string
			select {
			case answer := <-answers:
				text = printed(t, answer)
			case err := <-ended:
				t.Errorf("the runner has ended: %v", err)
				ended <- err
			}
			cancel()
			if err := <-ended; err == nil {
				t.Error("the runner has ended before it was killed")
			}
			if !strings.Contains(text, "looked\n") || !strings.Contains(text, "LANG=C") {
				t.Errorf("the command printed %q, and should have looked", text)
			}
			if strings.Contains(text, "canary") || strings.Contains(text, api) {
				t.Errorf("the command finds a secret: %q", strings.ReplaceAll(text, "\x00", " "))
			}
			if (user != nil || os.Getuid() != 0) && strings.Contains(text, "[stack]") {
				t.Error("the command may look into the runner's memory")
			}
		})
	}
}

// printed is what an answer has of both streams.
func printed(t *testing.T, answer []byte) string {
	t.Helper()
	var read wire.Answer
	if err := json.Unmarshal(answer, &read); err != nil {
		t.Fatal(errors.Join(err, errors.New(string(answer))))
	}
	if read.Error != nil {
		t.Errorf("the command failed: %+v", read.Error)
	}
	var text strings.Builder
	for _, part := range read.Printed {
		text.Write(part.Text)
	}
	return text.String()
}
