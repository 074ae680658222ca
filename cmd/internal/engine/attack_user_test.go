package engine_test

import (
	"bytes"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/cmd/internal/cli"
	"github.com/spillway-ml/spillway/cmd/internal/web"
)

// nobody is the user that owns nothing.
const nobody = 65534

// TestAttackInThePlaceOfAKilledEngine listens where a killed engine was, while commands are given and another engine
// starts: nobody shows a token there.
func TestAttackInThePlaceOfAKilledEngine(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	stranger := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	defer stranger.Close()
	state := t.TempDir()
	if _, err := access.Open(state); err != nil {
		t.Fatal(err)
	}
	if err := (web.StackFile{HTTP: stranger.URL, PID: 1, Version: "test"}).Write(state); err != nil {
		t.Fatal(err)
	}
	started, ended := make(chan struct{}), make(chan struct{})
	commands := 0
	go func() {
		defer close(ended)
		for {
			select {
			case <-started:
				return
			case <-time.After(time.Millisecond):
				var out bytes.Buffer
				cli.Execute(t.Context(), []string{"runs", "--state", state}, &out, &out, cli.Deps{Version: "test"})
				commands++
			}
		}
	}()
	e := startEngine(t, state, "")
	close(started)
	<-ended
	if n := asked.Load(); n != 0 || commands == 0 {
		t.Errorf("of %d commands %d asked somebody else, want none", commands, n)
	}
	e.stop()
}

// TestAttackByAnotherUser looks, as a user that owns nothing, for anything of a state directory that it can read or
// write, and asks the API.
func TestAttackByAnotherUser(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	for _, dir := range []string{filepath.Dir(home), home} { // which everybody may look into
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	state := filepath.Join(home, "state")
	e := startEngine(t, state, "")
	e.series() // the owner is answered
	info, err := os.Stat(state)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the state directory: %v, %v; want that it is its owner's alone", info.Mode(), err)
	}
	token := e.token
	for name, shown := range map[string]string{"nothing": "", "a guess": strings.Repeat("A", len(token))} {
		e.token = shown
		for _, path := range []string{"/api/v1/stack", "/api/v1/runs", "/api/v1/stream", "/metrics"} {
			answer := e.get(t.Context(), path)
			if err := answer.Body.Close(); err != nil || answer.StatusCode != http.StatusUnauthorized {
				t.Errorf("%s with %s: got %s, %v; want 401", path, name, answer.Status, err)
			}
		}
	}
	e.token = token
	if os.Geteuid() != 0 {
		t.Skip("looks at files as another user only where it is root's to become one")
	}
	planted := filepath.Join(home, "open", "file")
	if err := errors.Join(os.Mkdir(filepath.Dir(planted), 0o755), os.WriteFile(planted, nil, 0o644),
		os.Chmod(planted, 0o644)); err != nil { //nolint:gosec // it is to be found
		t.Fatal(err)
	}
	found, err := usableBy(t, nobody, filepath.Dir(planted))
	if _, refused := errors.AsType[*exec.ExitError](err); refused {
		t.Skipf("another user may not look below %s at all, because of a directory above it: set TMPDIR", home)
	}
	if err != nil || !strings.Contains(found, planted) {
		t.Fatalf("another user finds %q, %v; want the file that everybody may read", found, err)
	}
	found, err = usableBy(t, nobody, state)
	if _, refused := errors.AsType[*exec.ExitError](err); !refused || found != "" {
		t.Errorf("another user looks through the state directory (%v) and can use:\n%s", err, found)
	}
}

// usableBy looks for what the user can read, write or execute below a directory. The error is an exec.ExitError where
// it may not look.
func usableBy(t *testing.T, user uint32, dir string) (found string, err error) {
	t.Helper()
	find := exec.CommandContext(t.Context(), "find", dir, "-readable", "-o", "-writable", "-o", "-executable")
	find.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
	output, err := find.Output()
	return string(output), err
}
