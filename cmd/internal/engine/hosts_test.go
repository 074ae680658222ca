package engine_test

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/timeline"
)

// testAgent is a `spillway agent` in a process of its own.
type testAgent struct {
	t       *testing.T
	name    string
	program string // empty for this one
	state   string
	command *exec.Cmd
	ended   chan struct{}
	output  *output
}

// startServer starts an engine without a pool that listens for other machines, and returns the arguments with which an
// agent joins it.
func startServer(t *testing.T, app string, flags ...string) (server *testEngine, join []string) {
	t.Helper()
	server = &testEngine{t: t, state: t.TempDir(), server: true}
	server.start(os.Args[0], app, append(listening("0"), flags...)...)
	return server, server.joining()
}

// listening are the flags of a server that listens at a port of this machine.
func listening(port string) []string {
	return []string{"--listen", "127.0.0.1:" + port, "--advertise", "127.0.0.1", "--no-burst"}
}

// joining returns the arguments with which an agent joins a server.
func (e *testEngine) joining() []string {
	t, server := e.t, e
	t.Helper()
	show := exec.CommandContext(t.Context(), os.Args[0], "hosts", "token", "--state", server.state)
	show.Env = append(os.Environ(), asEngine+"=1")
	token, err := show.Output()
	if err != nil {
		var said []byte
		if ended, is := errors.AsType[*exec.ExitError](err); is {
			said = ended.Stderr
		}
		t.Fatalf("hosts token: %v\n%s", err, said)
	}
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, token, 0o600); err != nil {
		t.Fatal(err)
	}
	var address string
	server.until("it says where other hosts join", func() bool {
		address = regexp.MustCompile(`https://127\.0\.0\.1:[0-9]+`).FindString(server.printed())
		return address != ""
	})
	return []string{"--join", address, "--token-file", file}
}

// newAgent is one that is not started yet.
func newAgent(t *testing.T, name string) *testAgent {
	t.Helper()
	a := &testAgent{t: t, name: name, state: t.TempDir()}
	t.Cleanup(func() {
		a.kill()
		if err := errors.Join(sweepGroups(filepath.Join(a.state, "agent")), gone(a.state)); err != nil {
			t.Error(err)
		}
		if t.Failed() && a.output != nil {
			t.Logf("agent %s printed:\n%s", name, a.output)
		}
	})
	return a
}

// start starts the agent, which joins as the arguments say.
func (a *testAgent) start(join []string) {
	a.t.Helper()
	arguments := append([]string{
		"agent", "--state", a.state, "--name", a.name, "--pool-memory", "512MiB", "--drain", "1s",
	}, join...)
	a.command = exec.Command(cmp.Or(a.program, os.Args[0]), arguments...)
	a.command.Env = append(os.Environ(), asEngine+"=1")
	a.output, a.ended = &output{}, make(chan struct{})
	a.command.Stdout, a.command.Stderr = a.output, a.output
	if err := a.command.Start(); err != nil {
		a.t.Fatal(err)
	}
	go func() {
		defer close(a.ended)
		_ = a.command.Wait()
	}()
	a.says("has joined")
}

// says waits until the agent has printed something.
func (a *testAgent) says(text string) {
	a.t.Helper()
	deadline := time.Now().Add(patience)
	for ; !strings.Contains(a.output.String(), text); time.Sleep(10 * time.Millisecond) {
		select {
		case <-a.ended:
			a.t.Fatalf("agent %s ended and did not say %q:\n%s", a.name, text, a.output)
		default:
		}
		if time.Now().After(deadline) {
			a.t.Fatalf("agent %s did not say %q:\n%s", a.name, text, a.output)
		}
	}
}

// kill ends the agent with all below it.
func (a *testAgent) kill() {
	if a.command == nil || a.command.Process == nil {
		return
	}
	_ = a.command.Process.Signal(syscall.SIGCONT) // it may have ended
	_ = a.command.Process.Kill()
	<-a.ended
}

func (a *testAgent) signal(signal syscall.Signal) {
	a.t.Helper()
	if err := a.command.Process.Signal(signal); err != nil {
		a.t.Fatal(err)
	}
}

// attempts are those of a run, in the order of tasks and numbers.
func (e *testEngine) attempts(run string) []timeline.Attempt {
	e.t.Helper()
	all, err := e.client.Attempts(e.t.Context(), web.AttemptQuery{Run: run, Limit: 1000})
	if err != nil {
		e.t.Fatal(err)
	}
	slices.SortFunc(all, func(a, b timeline.Attempt) int {
		return strings.Compare(fmt.Sprintf("%s/%04d", a.Task, a.Number), fmt.Sprintf("%s/%04d", b.Task, b.Number))
	})
	return all
}

// began waits until an attempt of a run goes on at a host, and returns it.
func (e *testEngine) began(run, host string, number int) (found timeline.Attempt) {
	e.t.Helper()
	e.until(fmt.Sprintf("attempt %d of run %s goes on at host %s", number, run, host), func() bool {
		all, err := e.client.Attempts(e.t.Context(), web.AttemptQuery{Run: run, Limit: 1000})
		if err != nil {
			return false // its event is taken, and it has not started yet
		}
		for _, one := range all {
			if one.Host == host && one.Number == number && one.Outcome == "" && !one.StartedAt.IsZero() {
				found = one
				return true
			}
		}
		return false
	})
	return found
}

// TestHostsThatJoinRunWhatALostOneLeft joins two hosts to a server that has no pool. What one of them runs when it is
// killed the other runs again; what one runs that is stopped for longer than its lease is killed when it goes on, and
// changes nothing: each attempt is accounted for once.
func TestHostsThatJoinRunWhatALostOneLeft(t *testing.T) {
	server, join := startServer(t, buildApp(t, 0))
	a, b := newAgent(t, "host-a"), newAgent(t, "host-b")
	joined := time.Now()
	a.start(join)
	one := server.publish("count", "first", map[string]int{"steps": 1, "milliseconds": 10})
	if began := succeed[int](server, one, patience); began != 0 {
		t.Errorf("the first run began at step %d", began)
	}
	t.Logf("from the start of an agent to the end of its first run: %s", time.Since(joined).Round(time.Millisecond))

	// The only host there is runs it, so that it is known which one to kill.
	long := map[string]int{"steps": 40, "milliseconds": 250}
	killed := server.publish("count", "killed", long)
	server.began(killed, "host-a", 1)
	b.start(join)
	server.checkpointed(killed)
	at := time.Now()
	a.kill()
	again := server.began(killed, "host-b", 2)
	t.Logf("from the kill of an agent to the start of the next attempt: %s",
		again.StartedAt.Sub(at).Round(time.Millisecond))
	if began := succeed[int](server, killed, patience); began < 1 {
		t.Errorf("it began again at step %d, not at its checkpoint", began)
	}

	stopped := server.publish("count", "stopped", long)
	server.began(stopped, "host-b", 1)
	b.signal(syscall.SIGSTOP)
	a.start(join[:2]) // with what it has kept
	server.began(stopped, "host-a", 2)
	b.signal(syscall.SIGCONT)
	b.says("was killed")
	b.says("tasks are taken again")
	succeed[int](server, stopped, patience)

	for run, hosts := range map[string][]string{
		one: {"host-a"}, killed: {"host-a", "host-b"}, stopped: {"host-b", "host-a"},
	} {
		attempts := server.attempts(run)
		if len(attempts) != len(hosts) {
			t.Errorf("run %s has %d attempts, want %d: %+v", run, len(attempts), len(hosts), attempts)
			continue
		}
		for i, attempt := range attempts {
			want := predictor.Lost
			if i == len(hosts)-1 {
				want = predictor.Succeeded
			}
			if attempt.Host != hosts[i] || attempt.Number != i+1 || attempt.Outcome != want {
				t.Errorf("run %s, attempt %d: got %s on %s, want %s on %s", run, attempt.Number, attempt.Outcome, attempt.Host,
					want, hosts[i])
			}
		}
	}
	for _, agent := range []*testAgent{a, b} {
		agent.signal(syscall.SIGTERM)
		<-agent.ended
		if code := agent.command.ProcessState.ExitCode(); code != 0 {
			t.Errorf("agent %s ended with exit code %d after SIGTERM:\n%s", agent.name, code, agent.output)
		}
	}
	server.until("both hosts are stopped, and not lost", func() bool {
		hosts, err := server.client.Hosts(t.Context())
		return err == nil && len(hosts) == 2 && hosts[0].State == web.HostStopped && hosts[1].State == web.HostStopped
	})
}

// TestAnAgentThatIsCutOffEndsWithoutAWord kills the server of an agent that runs something, and tells the agent to end.
func TestAnAgentThatIsCutOffEndsWithoutAWord(t *testing.T) {
	t.Parallel()
	server, join := startServer(t, buildApp(t, 0))
	agent := newAgent(t, "host-a")
	agent.start(join)
	run := server.publish("count", "cut", map[string]int{"steps": 1000, "milliseconds": 100})
	server.began(run, "host-a", 1)
	server.kill()
	agent.says("is not reached any more")
	told := time.Now()
	agent.signal(syscall.SIGTERM)
	<-agent.ended
	t.Logf("it ended after %s", time.Since(told).Round(time.Millisecond))
	agent.says("stopping without a word to the server")
	agent.says("1 attempt that ran here done again")
	if code := agent.command.ProcessState.ExitCode(); code != 0 {
		t.Errorf("it ended with exit code %d:\n%s", code, agent.output)
	}
}
