package hosts_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/cli"
	"github.com/spillway-ml/spillway/cmd/internal/cli/clitest"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/cmd/internal/web/webtest"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// served starts a stack with two hosts, and returns a function that runs a command on it.
func served(t *testing.T) func(command string) (code int, stdout, stderr string) {
	t.Helper()
	state := t.TempDir()
	stack := clitest.StartStack(t, state, clitest.ServedDigits)
	stack.SetListed(webtest.Listed{
		Token: "0a.secret", Renewed: "0a.another",
		Hosts: []web.Host{
			{
				Name: "gpu-1", State: web.HostUp, Version: "v0.1.0", Platform: "linux/amd64",
				Capacity: quantity.Size{CPU: 8 * quantity.Core, Memory: 32 * quantity.GiB, GPU: quantity.Core},
				Used:     quantity.Size{CPU: quantity.Core / 2, Memory: quantity.GiB}, Stages: []string{"digits/score"},
			},
			{Name: "old", State: web.HostLost, Seen: time.Now().Add(-time.Hour)},
		},
	})
	return func(command string) (code int, stdout, stderr string) {
		return clitest.Execute(t, t.Context(), cli.Deps{}, append(strings.Fields(command), "--state", state)...)
	}
}

func TestHostsAreListedDrainedAndRemoved(t *testing.T) {
	t.Parallel()
	spillway := served(t)
	code, stdout, stderr := spillway("hosts")
	if code != cli.ExitOK {
		t.Fatalf("got exit %d: %s", code, stderr)
	}
	clitest.Contains(t, "the list", stdout, "gpu-1", "up", "0.5 CPUs, 1 GiB", "8 CPUs, 32 GiB, 1 GPU", "linux/amd64",
		"digits/score", "old", "lost")
	for _, step := range []struct{ command, said, listed string }{
		{"hosts drain gpu-1", "host gpu-1 takes no new work", "up, drained"},
		{"hosts undrain gpu-1", "host gpu-1 takes work", "up "},
		{"hosts remove old", "host old is removed", "gpu-1"},
	} {
		code, stdout, stderr := spillway(step.command)
		if code != cli.ExitOK || !strings.Contains(stdout, step.said) {
			t.Errorf("%s: got exit %d, %q, %q", step.command, code, stdout, stderr)
		}
		if _, listed, _ := spillway("hosts"); !strings.Contains(listed, step.listed) {
			t.Errorf("after %s the list is %q, want %q in it", step.command, listed, step.listed)
		}
	}
	if _, listed, _ := spillway("hosts --json"); strings.Contains(listed, `"old"`) {
		t.Errorf("a host that was removed is listed: %s", listed)
	}
	for _, command := range []string{"hosts drain none", "hosts undrain none", "hosts remove none"} {
		code, _, stderr := spillway(command)
		if code != cli.ExitUsage {
			t.Errorf("%s: got exit %d, want %d", command, code, cli.ExitUsage)
		}
		clitest.Contains(t, command, stderr, "there is no host \"none\"", "hint: `spillway hosts` lists them")
	}
}

func TestTheTokenToJoinWithIsPrintedAlone(t *testing.T) {
	t.Parallel()
	spillway := served(t)
	for _, step := range []struct{ command, want string }{
		{"hosts token", "0a.secret\n"}, {"hosts token --new", "0a.another\n"}, {"hosts token", "0a.another\n"},
	} {
		if code, stdout, stderr := spillway(step.command); code != cli.ExitOK || stdout != step.want || stderr != "" {
			t.Errorf("%s: got exit %d, %q, %q; want %q alone", step.command, code, stdout, stderr, step.want)
		}
	}
}

func TestAServerTakesNoFlagsOfAPool(t *testing.T) {
	t.Parallel()
	for _, flag := range []string{"--pool-cpus 0", "--training-address 10.0.0.7"} {
		args := append([]string{"server", "--state", t.TempDir()}, strings.Fields(flag)...)
		code, _, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, args...)
		if code != cli.ExitUsage {
			t.Errorf("%s: got exit %d, want %d", flag, code, cli.ExitUsage)
		}
		clitest.Contains(t, "standard error", stderr, strings.Fields(flag)[0]+": a server has no pool of its own",
			"spillway agent")
	}
	for flag, said := range map[string]string{
		"--listen nowhere": "host and port", "--listen a:99999": "port", "--advertise a:1": "leave the port out",
	} {
		args := append([]string{"server", "--state", t.TempDir()}, strings.Fields(flag)...)
		code, _, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, args...)
		if code != cli.ExitUsage || !strings.Contains(stderr, said) {
			t.Errorf("%s: got exit %d, %q; want %d with %q", flag, code, stderr, cli.ExitUsage, said)
		}
	}
}

// TestAServersTokenThatOthersReadIsRefused gives a machine that could be one more server a token in a file that others
// may read: whoever has that token has everything. A usage error shows that nobody was asked.
func TestAServersTokenThatOthersReadIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	token, ledger := filepath.Join(dir, "token"), filepath.Join(dir, "ledger")
	for file, text := range map[string]string{
		token: strings.Repeat("ab", 32) + ".secret\n", ledger: "postgres://127.0.0.1:1/ledger\n",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for mode, want := range map[os.FileMode]string{
		0o644: "can be read or changed by others", 0o666: "can be read or changed by others", 0o600: "",
	} {
		if err := os.Chmod(token, mode); err != nil {
			t.Fatal(err)
		}
		code, _, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, "server", "--join", "https://127.0.0.1:1",
			"--token-file", token, "--temporal-address", "127.0.0.1:1", "--nats-url", "nats://127.0.0.1:1",
			"--ledger-url-file", ledger, "--artifacts", "s3://bucket/prefix?region=eu-central-1", "--state", t.TempDir())
		if want == "" {
			if code == cli.ExitUsage || strings.Contains(stderr, "token-file") {
				t.Errorf("mode %o: got exit %d, %q; want that the server is asked", mode, code, stderr)
			}
			continue
		}
		if code != cli.ExitUsage || !strings.Contains(stderr, want) || !strings.Contains(stderr, "umask 077") {
			t.Errorf("mode %o: got exit %d, %q; want %d with %q", mode, code, stderr, cli.ExitUsage, want)
		}
	}
}

// TestWhatCannotJoinIsToldSoBeforeAnybodyIsAsked has nobody at the address to join: a usage error shows that nobody was
// asked.
func TestWhatCannotJoinIsToldSoBeforeAnybodyIsAsked(t *testing.T) {
	t.Parallel()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte(strings.Repeat("ab", 32)+".secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for command, said := range map[string]string{
		"agent --training-address 192.0.2.7": "network interface of this machine", // an address that nobody has: RFC 5737
		"server":                             "it would have NATS in its own process",
	} {
		args := append(strings.Fields(command), "--join", "https://127.0.0.1:1", "--token-file", token,
			"--state", t.TempDir())
		code, _, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, args...)
		if code != cli.ExitUsage || !strings.Contains(stderr, said) {
			t.Errorf("%s: got exit %d, %q; want %d with %q", command, code, stderr, cli.ExitUsage, said)
		}
	}
}
