package session_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/cmd/internal/cli"
	"github.com/spillway-ml/spillway/cmd/internal/cli/clitest"
	"github.com/spillway-ml/spillway/cmd/internal/web"
)

// TestAttackOnWhereTheTokenGoes puts a listener of somebody else where an engine was, and spoils the credentials: the
// token is not sent, and one line says what to do.
func TestAttackOnWhereTheTokenGoes(t *testing.T) {
	t.Parallel()
	must := func(t *testing.T, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, test := range map[string]struct {
		dead  bool // no engine holds the lock
		spoil func(t *testing.T, state string)
		want  []string
	}{
		"the engine was killed": {true, func(*testing.T, string) {}, []string{"no stack runs on the state directory"}},
		"others read the token": {false, func(t *testing.T, state string) {
			t.Helper()
			must(t, os.Chmod(filepath.Join(state, access.TokenFile), 0o644))
		}, []string{"others have rights", "chmod go-rwx"}},
		"others write the state": {false, func(t *testing.T, state string) {
			t.Helper()
			must(t, os.Chmod(state, 0o777))
		}, []string{"others have rights", "chmod go-w"}},
		"the token is a link to elsewhere": {false, func(t *testing.T, state string) {
			t.Helper()
			path := filepath.Join(state, access.TokenFile)
			elsewhere := filepath.Join(t.TempDir(), "token")
			must(t, os.Rename(path, elsewhere))
			must(t, os.Symlink(elsewhere, path))
		}, []string{access.TokenFile, "remove it"}},
		"no token": {false, func(t *testing.T, state string) {
			t.Helper()
			must(t, os.Remove(filepath.Join(state, access.TokenFile)))
		}, []string{"has no credentials", "hint: stop it, and start it again"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int64
			stranger := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
			defer stranger.Close()
			state := t.TempDir()
			_, err := access.Open(state)
			must(t, err)
			must(t, web.StackFile{HTTP: stranger.URL, PID: 1, Version: "v0.0.1"}.Write(state))
			if !test.dead {
				lock := clitest.LockState(t, state)
				defer func() { _ = lock.Close() }()
			}
			test.spoil(t, state)
			code, stdout, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, "runs", "--state", state)
			if code != cli.ExitFailure || stdout != "" || asked.Load() != 0 {
				t.Errorf("got exit %d, %q, and %d requests to somebody else; want 1, nothing and none", code, stdout, asked.Load())
			}
			clitest.Contains(t, "standard error", stderr, test.want...)
			if lines := strings.Count(stderr, "\n"); lines > 2 {
				t.Errorf("%d lines, want one and a hint:\n%s", lines, stderr)
			}
		})
	}
}

func TestAnEngineThatTakesAnotherTokenIsSaidSo(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	clitest.StartStack(t, state)
	for _, name := range []string{"secret", "token", "header", "metrics"} {
		if err := os.Remove(filepath.Join(state, "keys", name)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := access.Open(state); err != nil { // new ones
		t.Fatal(err)
	}
	code, _, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, "runs", "--state", state)
	if code != cli.ExitFailure {
		t.Errorf("got exit %d, want 1", code)
	}
	clitest.Contains(t, "standard error", stderr, "does not take the token in "+filepath.Join(state, access.TokenFile),
		"hint: the credentials were changed")
}

func TestAStackThatDoesNotAnswerIsNoStackThatIsNotThere(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	clitest.StartStack(t, state)
	silent, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0") // connections wait in its queue
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	if err := (web.StackFile{HTTP: "http://" + silent.Addr().String(), PID: os.Getpid()}).Write(state); err != nil {
		t.Fatal(err)
	}
	code, _, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, "runs", "--state", state)
	if code != cli.ExitFailure {
		t.Errorf("got exit %d, want 1", code)
	}
	clitest.Contains(t, "standard error", stderr, "has not answered for 3s", "hint: wait, or look at its log")
}

func TestOpenPrintsALinkThatLogsIn(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	stack := clitest.StartStack(t, state, clitest.ServedDigits)
	clitest.Finish(stack, "digits-1", "digits", clitest.ServedDigits.Build, "succeeded", "{}", clitest.Begin)
	var shown string
	deps := cli.Deps{OpenBrowser: func(_ context.Context, file string) (bool, error) {
		text, err := os.ReadFile(file)
		if info, failed := os.Stat(file); failed != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("the file of the browser: %v, %v; want one that only its owner reads", info, failed)
		}
		shown = string(text)
		return true, err
	}}
	for path, arguments := range map[string][]string{"/": {"open"}, "/runs/digits-1": {"open", "digits-1"}} {
		code, stdout, stderr := clitest.Execute(t, t.Context(), deps, append(arguments, "--state", state)...)
		link := regexp.MustCompile("^" + regexp.QuoteMeta(stack.Server.URL+path) + "#login=[A-Z0-9]+\n$")
		if code != cli.ExitOK || !strings.Contains(stderr, "open the link yourself") || !link.MatchString(stdout) {
			t.Errorf("%v: got exit %d, %q, %q; want a link to %s", arguments, code, stdout, stderr, path)
		}
		if !strings.Contains(shown, strings.TrimSpace(stdout)) {
			t.Errorf("%v: the browser is shown %q, want what leads to %s", arguments, shown, stdout)
		}
		shown = ""
	}
	if code, stdout, _ := clitest.Execute(t, t.Context(), deps, "open", "--no-browser", "--state", state); code !=
		cli.ExitOK || stdout == "" || shown != "" {
		t.Errorf("--no-browser: got exit %d, %q, and the browser is shown %q", code, stdout, shown)
	}
	code, _, stderr := clitest.Execute(t, t.Context(), deps, "open", "digits-2", "--state", state)
	if code != cli.ExitUsage {
		t.Errorf("a run that is not there: got exit %d, want 2", code)
	}
	clitest.Contains(t, "standard error", stderr, "digits-2")
}
