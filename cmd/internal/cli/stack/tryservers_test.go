package stack_test

import (
	"net"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/cmd/internal/cli"
	"github.com/spillway-ml/spillway/cmd/internal/cli/clitest"
)

// nowhere is an address where nobody listens.
func nowhere(t *testing.T) string {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }() // nobody has connected
	return listener.Addr().String()
}

// check runs `config check` on a configuration.
func check(t *testing.T, lines ...string) (code int, stdout string) {
	t.Helper()
	code, stdout, _ = clitest.Execute(t, t.Context(), cli.Deps{}, "config", "check", "--state", t.TempDir(), "--config",
		configuration(t, lines...))
	return code, stdout
}

func TestTheCheckLooksWhetherAServerAnswersWhereAnAgentJoins(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(nil)
	t.Cleanup(server.Close)
	code, stdout := check(t, "join: "+server.URL)
	if code != cli.ExitOK {
		t.Errorf("one that answers: got exit %d: %s", code, stdout)
	}
	clitest.Contains(t, "one that answers", stdout, "ok       join", "answers; which server it is the agent checks")
	code, stdout = check(t, "join: https://"+nowhere(t))
	if code != cli.ExitFailure {
		t.Errorf("nobody: got exit %d", code)
	}
	clitest.Contains(t, "nobody", stdout, "failed   join", "connection refused")
	_, stdout = check(t, "token: s3cret", "join: http://127.0.0.1")
	clitest.Contains(t, "a token in clear", stdout, "token is a secret in clear", "name that file as token-file",
		"failed   join", "it is no URL such as https://")
}

func TestATokenOfTheEnvironmentIsNotShown(t *testing.T) {
	t.Parallel()
	code, stdout, stderr := clitest.Execute(t, t.Context(), cli.Deps{
		Environment: in("HOME", t.TempDir(), "SPILLWAY_JOIN_TOKEN", "s3cret"),
	}, "config", "show", "--said")
	if code != cli.ExitOK || strings.Contains(stdout, "s3cret") {
		t.Errorf("got exit %d, %s%s", code, stdout, stderr)
	}
	clitest.Contains(t, "standard output", stdout, "token", "(secret)", "SPILLWAY_JOIN_TOKEN")
}
