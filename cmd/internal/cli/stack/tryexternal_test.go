package stack_test

import (
	"net"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/activities/natstest"
	"github.com/spillway-ml/spillway/cmd/internal/cli"
	"github.com/spillway-ml/spillway/cmd/internal/cli/clitest"
)

func TestTheCheckAsksTheServersThatAreNamed(t *testing.T) {
	t.Parallel()
	nats := natstest.Start(t)
	nobody, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nowhere := nobody.Addr().String()
	if err := nobody.Close(); err != nil {
		t.Fatal(err)
	}
	ask := func(lines ...string) (code int, stdout string) {
		code, stdout, _ = clitest.Execute(t, t.Context(), cli.Deps{}, "config", "check", "--state", t.TempDir(), "--config",
			configuration(t, lines...))
		return code, stdout
	}
	code, stdout := ask("nats-url: " + nats.Embedded().ClientURL())
	if code != cli.ExitOK {
		t.Errorf("a NATS that suits: got exit %d: %s", code, stdout)
	}
	clitest.Contains(t, "a NATS that suits", stdout, "ok       nats-url", "version ", "ok       nats-replicas",
		"a stream of 1 replica was made and removed")
	if names := streams(t, nats); len(names) > 0 {
		t.Errorf("it leaves the streams %q", names)
	}
	code, stdout = ask("nats-url: "+nats.Embedded().ClientURL(), "nats-replicas: 3")
	if code != cli.ExitFailure {
		t.Errorf("more replicas than servers: got exit %d", code)
	}
	clitest.Contains(t, "more replicas than servers", stdout, "failed   nats-replicas",
		"a stream of 3 replicas cannot be made")
	code, stdout = ask("nats-url: nats://"+nowhere, "temporal-address: "+nowhere)
	if code != cli.ExitFailure || strings.Count(stdout, "failed   ") != 2 {
		t.Errorf("nobody answers: got exit %d", code)
	}
	clitest.Contains(t, "nobody answers", stdout, "failed   temporal-address", "failed   nats-url", "connection refused")
}

// streams are the names of the streams that a server has.
func streams(t *testing.T, server *natstest.Server) (names []string) {
	t.Helper()
	listed := server.Connect().StreamNames(t.Context())
	for name := range listed.Name() {
		names = append(names, name)
	}
	if err := listed.Err(); err != nil {
		t.Fatal(err)
	}
	return names
}
