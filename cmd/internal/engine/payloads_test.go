package engine_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
)

// writeKeys writes a file of payload keys, of each of these IDs one that is made of it.
func writeKeys(t *testing.T, file string, ids ...string) string {
	t.Helper()
	var text strings.Builder
	for _, id := range ids {
		fmt.Fprintf(&text, "%s %s\n", id, base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "%032s", id)))
	}
	if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// temporalHolds reports whether a text lies in the database of the engine's Temporal, which has histories as they were
// sent.
func (e *testEngine) temporalHolds(text string) (found bool) {
	e.t.Helper()
	for _, name := range []string{"temporal.db", "temporal.db-wal"} {
		stored, err := os.ReadFile(filepath.Join(e.state, name))
		if err != nil && name == "temporal.db" {
			e.t.Fatal(err)
		}
		found = found || bytes.Contains(stored, []byte(text))
	}
	return found
}

// refusesToStart returns what an engine says that does not start.
func refusesToStart(t *testing.T, state string, flags ...string) string {
	t.Helper()
	arguments := append([]string{"dev", "--state", state, "--no-ui"}, flags...)
	command := exec.CommandContext(t.Context(), os.Args[0], arguments...)
	command.Env = append(os.Environ(), asEngine+"=1")
	said, err := command.CombinedOutput()
	if err == nil {
		t.Fatalf("the engine ended in good order: %s", said)
	}
	return string(said)
}

func TestWhatTemporalIsGivenIsEncryptedAndKeysAreRotatedUnderRuns(t *testing.T) {
	t.Parallel()
	app, state, dir := buildApp(t, 0), t.TempDir(), t.TempDir()
	file := filepath.Join(dir, "keys")
	keys := []string{"--no-burst", "--payload-keys-file", file}
	const before, with, rotated = 73918462055, 84029573166, 95130684277

	// Before there are keys, what runs are given and return lies in the histories, and one run goes on.
	e := startEngine(t, state, app, "--no-burst")
	first := e.publish("echo", "a", map[string]int{"index": before})
	if got := succeed[struct{ Index int }](e, first, patience); got.Index != before {
		t.Errorf("echo returned %+v", got)
	}
	if !e.temporalHolds(strconv.Itoa(before)) {
		t.Error("the database of Temporal lacks what a run without keys was given: it is looked for in vain")
	}
	went := e.publish("count", "b", map[string]int{"steps": 40, "milliseconds": 50})
	e.scheduled(went)
	e.kill()

	// With a key, that run goes on, and of another nothing is to be seen at Temporal, also of how it failed.
	writeKeys(t, file, "one")
	e = startEngine(t, state, app, keys...)
	succeed[int](e, went, patience)
	encrypted := e.publish("echo", "c", map[string]int{"index": with})
	failed := e.publish("fail", "d", map[string]int{"index": with})
	panicked := e.publish("boom", "e", map[string]int{"index": with})
	if got := succeed[struct{ Index int }](e, encrypted, patience); got.Index != with {
		t.Errorf("echo returned %+v", got)
	}
	for run, said := range map[string]string{failed: "it never works", panicked: "boom"} {
		if view := e.wait(run, patience); view.State != predictor.RunFailed || !strings.Contains(view.Error, said) {
			t.Errorf("run %s: %s, %q; want it failed with %q", run, view.State, view.Error, said)
		}
	}
	waits := e.publish("count", "f", map[string]int{"steps": 80, "milliseconds": 50})
	cancelled := e.publish("count", "i", map[string]int{"steps": 8000, "milliseconds": 50})
	e.scheduled(waits)
	e.scheduled(cancelled)
	for _, text := range []string{strconv.Itoa(with), "it never works", "testapp/main.go", "goroutine "} {
		if e.temporalHolds(text) {
			t.Errorf("the database of Temporal has %q in it", text)
		}
	}
	e.wantEncrypted(encrypted, "one", with)
	e.kill()

	// Without the key that Temporal's histories need nothing starts, and what is said names it.
	if said := refusesToStart(t, state, "--no-burst"); !strings.Contains(said, `"one" is missing`) ||
		strings.Contains(said, "goroutine ") {
		t.Errorf("an engine without the key says %s", said)
	}
	writeKeys(t, file, "two")
	if said := refusesToStart(t, state, keys...); !strings.Contains(said, `"one" is missing`) {
		t.Errorf("an engine with another key says %s", said)
	}

	// Who gives the key up all the same starts: runs that need it wait, and say for what; others go on.
	given, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(file, append(given, "\none lost\n"...), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	e = startEngine(t, state, app, keys...)
	if err := e.client.Cancel(t.Context(), cancelled); err != nil { // so that there is a task of its workflow
		t.Fatal(err)
	}
	e.noticed(t, cancelled, func(notice string) bool { return strings.Contains(notice, `"one"`) })
	temporal := e.temporal()
	e.until("a task of a stage is given back that cannot be read", func() bool {
		tasks, err := temporal.DescribeWorkflowExecution(t.Context(), waits, "")
		return err == nil && len(tasks.GetPendingActivities()) == 1 &&
			tasks.GetPendingActivities()[0].GetLastFailure().GetApplicationFailureInfo().GetType() == wire.LostError
	})
	succeed[struct{ Index int }](e, e.publish("echo", "g", map[string]int{"index": rotated}), patience)
	if _, err := e.client.History(t.Context(), encrypted); err == nil || !strings.Contains(err.Error(), `"one"`) {
		t.Errorf("a history that cannot be read: %v", err)
	}
	e.stop()

	// With both, everything goes on.
	writeKeys(t, file, "two", "one")
	e = startEngine(t, state, app, keys...)
	succeed[int](e, waits, patience)
	if view := e.wait(cancelled, patience); view.State != predictor.RunCancelled {
		t.Errorf("the run that was cancelled without its key is %s: %s", view.State, view.Error)
	}
	if got := succeed[struct{ Index int }](e, encrypted, patience); got.Index != with {
		t.Errorf("echo returned %+v", got)
	}
	after := e.publish("echo", "h", map[string]int{"index": rotated})
	succeed[struct{ Index int }](e, after, patience)
	e.wantEncrypted(after, "two", rotated)
	e.stop()
}

// wantEncrypted looks at a run as who has no key does, and as the engine tells of it, and has its codec decrypt it.
func (e *testEngine) wantEncrypted(run, key string, plain int) {
	e.t.Helper()
	history := &historypb.History{}
	events := e.temporal().GetWorkflowHistory(e.t.Context(), run, "", false, enums.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
	for events.HasNext() {
		event, err := events.Next()
		if err != nil {
			e.t.Fatal(err)
		}
		history.Events = append(history.Events, event)
	}
	started := history.GetEvents()[0].GetWorkflowExecutionStartedEventAttributes()
	input := started.GetInput()
	if of := input.GetPayloads()[0].GetMetadata()["encryption-key-id"]; string(of) != key {
		e.t.Errorf("the input is encrypted with key %q, want %q", of, key)
	}
	for name, payload := range started.GetMemo().GetFields() {
		if of := payload.GetMetadata()["encryption-key-id"]; string(of) != key {
			e.t.Errorf("the memo %s is encrypted with key %q, want %q", name, of, key)
		}
	}
	told, err := e.client.History(e.t.Context(), run)
	if err != nil || !bytes.Contains(told, []byte(base64.StdEncoding.EncodeToString([]byte("json/plain")))) ||
		bytes.Contains(told, []byte("encryption-key-id")) {
		e.t.Errorf("the engine does not tell the history in clear: %v\n%.2000s", err, told)
	}
	body, err := protojson.Marshal(input)
	if err != nil {
		e.t.Fatal(err)
	}
	status, answer := e.post("/api/v1/codec/decode", e.token, string(body))
	if status != http.StatusOK || !strings.Contains(fromBase64(answer), strconv.Itoa(plain)) {
		e.t.Errorf("the codec answers %d, %s", status, answer)
	}
	viewer, err := e.client.MakeToken(e.t.Context(), web.NewToken{Name: "viewer-" + key, Role: "viewer"})
	if err != nil {
		e.t.Fatal(err)
	}
	if status, answer := e.post("/api/v1/codec/decode", viewer, string(body)); status != http.StatusForbidden {
		e.t.Errorf("the codec answers a viewer %d, %s", status, answer)
	}
}

// post asks the API as who has a token.
func (e *testEngine) post(path, token, body string) (status int, answer string) {
	e.t.Helper()
	request, err := http.NewRequestWithContext(e.t.Context(), http.MethodPost, e.address+path, strings.NewReader(body))
	if err != nil {
		e.t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	request.Header.Set("Content-Type", "application/json")
	answered, err := http.DefaultClient.Do(request)
	if err != nil {
		e.t.Fatal(err)
	}
	text, err := io.ReadAll(answered.Body)
	if err := errors.Join(err, answered.Body.Close()); err != nil {
		e.t.Fatal(err)
	}
	return answered.StatusCode, string(text)
}

// fromBase64 is text with all that is base64 in quotes decoded.
func fromBase64(text string) string {
	parts := strings.Split(text, `"`)
	for i, part := range parts {
		if decoded, err := base64.StdEncoding.DecodeString(part); err == nil {
			parts[i] = string(decoded)
		}
	}
	return strings.Join(parts, `"`)
}
