package engine_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities/artifact/s3store/s3test"
	"github.com/spillway-ml/spillway/activities/ledgerstore/postgrestest"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
)

// cluster is what several servers of one stack share, each of which a test starts on it.
type cluster struct {
	*others

	t       *testing.T
	shared  []string
	servers []*testEngine
}

func startCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{others: startOthers(t), t: t}
	file := filepath.Join(t.TempDir(), "url")
	if err := os.WriteFile(file, []byte(postgrestest.Start(t).Schema("ledger")), 0o600); err != nil {
		t.Fatal(err)
	}
	c.shared = append(c.flags(t), "--ledger-url-file", file, "--artifacts",
		"s3://"+s3test.Bucket+"/stack?region=us-east-1&endpoint="+s3test.Start(t).URL, "--no-burst",
		"--listen", "127.0.0.1:0", "--advertise", "127.0.0.1")
	return c
}

// s3Environment has who asks the S3 of tests show something.
var s3Environment = []string{
	"AWS_ACCESS_KEY_ID=key", "AWS_SECRET_ACCESS_KEY=secret", "AWS_EC2_METADATA_DISABLED=true",
}

// start starts another server. The first serves the app; the others join it, on an empty state directory, and have what
// they are told.
func (c *cluster) start(app string) *testEngine {
	c.t.Helper()
	if len(c.servers) > 0 {
		return c.startBeside(c.servers[0])
	}
	return c.launch(app, nil)
}

// startBeside starts a server that joins another.
func (c *cluster) startBeside(first *testEngine) *testEngine { return c.launch("", first) }

func (c *cluster) launch(app string, first *testEngine) *testEngine {
	c.t.Helper()
	server := &testEngine{t: c.t, state: c.t.TempDir(), server: true, environment: s3Environment}
	flags := slices.Clone(c.shared)
	if first != nil {
		token, err := first.client.JoinToken(c.t.Context(), true, false)
		if err != nil {
			c.t.Fatal(err)
		}
		file := filepath.Join(c.t.TempDir(), "server-token")
		if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
			c.t.Fatal(err)
		}
		flags = append(flags, "--join", c.at(first), "--token-file", file)
	}
	server.start(os.Args[0], app, flags...)
	c.servers = append(c.servers, server)
	return server
}

// at is where other machines reach a server.
func (c *cluster) at(server *testEngine) string {
	c.t.Helper()
	stack, err := server.client.Stack(c.t.Context())
	if err != nil || stack.Addresses.TLS == "" {
		c.t.Fatalf("where other machines reach a server: %q, %v", stack.Addresses.TLS, err)
	}
	return stack.Addresses.TLS
}

// agent joins a server.
func (c *cluster) agent(name string, server *testEngine) *testAgent {
	c.t.Helper()
	show := exec.CommandContext(c.t.Context(), os.Args[0], "hosts", "token", "--state", server.state)
	show.Env = append(os.Environ(), asEngine+"=1")
	token, err := show.Output()
	if err != nil {
		c.t.Fatalf("hosts token: %v", err)
	}
	file := filepath.Join(c.t.TempDir(), "token")
	if err := os.WriteFile(file, token, 0o600); err != nil {
		c.t.Fatal(err)
	}
	agent := newAgent(c.t, name)
	agent.start([]string{"--join", c.at(server), "--token-file", file})
	return agent
}

// knows waits until the agent keeps that there is a server at an address.
func (a *testAgent) knows(address string) {
	a.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		text, err := os.ReadFile(filepath.Join(a.state, "agent", "joined.json"))
		if err == nil && strings.Contains(string(text), `"`+strings.TrimPrefix(address, "https://")+`"`) {
			return
		}
		if time.Now().After(deadline) {
			a.t.Fatalf("agent %s does not know %s: %v\n%s", a.name, address, err, a.output)
		}
	}
}

// leads is the server that leads by the word of another.
func (c *cluster) leads(by *testEngine) string {
	c.t.Helper()
	stack, err := by.client.Stack(c.t.Context())
	if err != nil {
		return ""
	}
	for _, server := range stack.Servers {
		if server.Leads {
			return server.Address
		}
	}
	return ""
}

// server is what one says of the server at an address.
func (c *cluster) server(by *testEngine, address string) (found web.StackServer) {
	c.t.Helper()
	stack, err := by.client.Stack(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	for _, server := range stack.Servers {
		if server.Address == address {
			found = server
		}
	}
	return found
}

// termOf is the term in which a decision was made.
func (c *cluster) termOf(decision predictor.Decision) uint64 {
	c.t.Helper()
	term, _, _ := strings.Cut(decision.ID, ".")
	number, err := strconv.ParseUint(term, 10, 64)
	if err != nil {
		c.t.Fatalf("decision %q tells no term: %v", decision.ID, err)
	}
	return number
}

// once looks that each attempt has one line in the stream, each run one end, and each attempt is billed once.
func (c *cluster) once(server *testEngine, runs map[string]int) {
	c.t.Helper()
	attempts, ends, first := map[string]int{}, map[string]int{}, map[uint64]time.Time{}
	var decisions []predictor.Decision
	for _, message := range c.lines(c.t) {
		switch event := message.Event.(type) {
		case predictor.Record:
			attempts[fmt.Sprintf("%s %s %d", event.Run, event.Task, event.Attempt)]++
		case predictor.RunEnded:
			ends[event.Run]++
		}
		if message.Decision != nil {
			decisions = append(decisions, *message.Decision)
			if term := c.termOf(*message.Decision); first[term].IsZero() || message.Decision.At.Before(first[term]) {
				first[term] = message.Decision.At
			}
		}
	}
	for attempt, lines := range attempts {
		if lines != 1 {
			c.t.Errorf("attempt %s has %d lines, want 1", attempt, lines)
		}
	}
	for run := range runs {
		if ends[run] != 1 {
			c.t.Errorf("run %s has ended %d times, want once", run, ends[run])
		}
	}
	for _, decision := range decisions { // the words about them may come later
		for term, began := range first {
			if own := c.termOf(decision); own < term && decision.At.After(began) {
				c.t.Errorf("decision %s was made at %s, when term %d had begun at %s", decision.ID, decision.At, term, began)
			}
		}
	}
	server.until("every attempt is billed once", func() bool {
		bill, err := server.client.Cost(c.t.Context(), ledger.BillQuery{By: ledger.ByRun})
		if err != nil {
			return false
		}
		billed := map[string]int{}
		for _, line := range bill.Lines {
			billed[line.Name] = line.Count
		}
		told := map[string]int{}
		for attempt := range attempts {
			run, _, _ := strings.Cut(attempt, " ")
			told[run]++
		}
		for run := range runs {
			if billed[run] != told[run] {
				return false
			}
		}
		return true
	})
}

// TestTheLeadingServerIsKilledInTheMiddleOfRuns has one agent that has joined the server which is killed. The other
// leads then, and all goes on with it.
func TestTheLeadingServerIsKilledInTheMiddleOfRuns(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	first := c.start(buildApp(t, 0))
	first.leads()
	agent := c.agent("gpu-1", first)
	second := c.start("")
	second.until("the second says that the first leads", func() bool { return c.leads(second) == c.at(first) })
	if second.metric("spillway_leader") != 0 {
		t.Error("both lead")
	}
	first.until("the second knows the agent", func() bool {
		hosts, err := second.client.Hosts(t.Context())
		return err == nil && len(hosts) > 0 && hosts[0].Name == "gpu-1"
	})
	agent.knows(c.at(second))
	const shards = 40
	runs := map[string]int{}
	publish := func(e *testEngine, n int) {
		for range n {
			runs[e.publish("fan", "event-"+strconv.Itoa(len(runs)), fanInput{Shards: shards, Milliseconds: 200})] = len(runs)
		}
	}
	publish(first, 2)
	publish(second, 1)
	second.until("tasks run", func() bool { return strings.Contains(agent.output.String(), "attempt 1: succeeded") })
	before, addressOfFirst := c.server(second, c.at(first)), c.at(first)
	if before.Term == 0 || before.LeadsSince.IsZero() || before.Gone || time.Since(before.SeenAt) > time.Minute {
		t.Errorf("the second says of the first: %+v", before)
	}
	killed := time.Now()
	first.kill()
	second.until("the second leads", func() bool { return second.metric("spillway_leader") == 1 })
	took := time.Since(killed)
	publish(second, 1)
	for run := range runs {
		succeed[fanResult](second, run, patience).check(t, shards)
	}
	for run, i := range runs {
		again := second.publish("fan", "event-"+strconv.Itoa(i), fanInput{Shards: shards, Milliseconds: 200})
		if again != run {
			t.Errorf("event %d again: run %s, want %s", i, again, run)
		}
	}
	c.once(second, runs)
	if strings.Contains(agent.output.String(), "was killed") {
		t.Errorf("the agent was fenced:\n%s", agent.output)
	}
	third := c.startBeside(second)
	third.until("the third says that the second leads", func() bool { return c.leads(third) == c.at(second) })
	show := exec.CommandContext(t.Context(), os.Args[0], "hosts", "--state", third.state)
	show.Env = append(os.Environ(), asEngine+"=1")
	after := c.server(second, c.at(second))
	if after.Term <= before.Term || !after.LeadsSince.After(before.LeadsSince) {
		t.Errorf("the second leads in term %d since %v, and the first did in %d since %v", after.Term, after.LeadsSince,
			before.Term, before.LeadsSince)
	}
	if lost := c.server(second, addressOfFirst); !lost.Gone || lost.Leads || lost.SeenAt.Before(before.LeadsSince) {
		t.Errorf("the second says of the first: %+v", lost)
	}
	out, err := show.CombinedOutput()
	for address, want := range map[string]string{
		c.at(third): `stands by \(here\) +- +- +now`, c.at(second): fmt.Sprintf(`leads +%d +[0-9:]+ +now`, after.Term),
	} {
		if !regexp.MustCompile(`(?m) `+want+` .* `+regexp.QuoteMeta(address)+`$`).Match(out) || err != nil {
			t.Errorf("spillway hosts does not say that %s %s: %v\n%s", address, want, err, out)
		}
	}
	if os.Getenv("SPILLWAY_MEASURE") != "" {
		t.Logf("%.1f s without decisions after kill -9 of the leading server", took.Seconds())
	}
}

// TestALeadingServerThatIsSuspendedStepsDown stops the process of the leading server for longer than its lease. The
// agent that has joined it goes on at the other before its own lease ends, although nothing has closed a connection.
func TestALeadingServerThatIsSuspendedStepsDown(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	first := c.start(buildApp(t, 0))
	first.leads()
	agent := c.agent("gpu-1", first)
	second := c.start("")
	agent.knows(c.at(second))
	run := first.publish("fan", "one", fanInput{Shards: 30, Milliseconds: 200})
	second.until("tasks run", func() bool { return strings.Contains(agent.output.String(), "attempt 1: succeeded") })
	if err := first.command.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	second.until("the second leads", func() bool { return second.metric("spillway_leader") == 1 })
	if err := first.command.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	first.until("the first knows that it leads no more", func() bool {
		return first.metric("spillway_leader") == 0 && c.leads(first) == c.at(second)
	})
	later := first.publish("fan", "two", fanInput{Shards: 10, Milliseconds: 20})
	runs := map[string]int{run: 0, later: 1}
	for run := range runs {
		view := first.wait(run, patience)
		if view.State != predictor.RunSucceeded {
			t.Errorf("run %s: %s", run, view.State)
		}
	}
	c.once(first, runs)
	c.once(second, runs)
	if strings.Contains(agent.output.String(), "was killed") {
		t.Errorf("the agent was fenced:\n%s", agent.output)
	}
}

// TestAServerThatSharesTooLittleIsRefused starts a server with the keys of one that is alone, on the same NATS.
func TestAServerThatSharesTooLittleIsRefused(t *testing.T) {
	t.Parallel()
	o := startOthers(t)
	flags := append(o.flags(t), "--no-burst")
	first, state := startEngine(t, t.TempDir(), "", flags...), t.TempDir()
	keys := filepath.Join(first.state, "keys")
	if out, err := exec.CommandContext(t.Context(), "cp", "-a", keys, state).CombinedOutput(); err != nil {
		t.Fatalf("copy %s: %v\n%s", keys, err, out)
	}
	command := exec.CommandContext(t.Context(), os.Args[0], append([]string{
		"dev", "--state", state, "--no-ui",
	}, append(ports(false, flags), flags...)...)...)
	command.Env = append(os.Environ(), asEngine+"=1")
	var printed bytes.Buffer
	command.Stdout, command.Stderr = &printed, &printed
	err := command.Run()
	if err == nil || !strings.Contains(printed.String(), "runs on this NATS already") ||
		!strings.Contains(printed.String(), "--ledger-url-file") {
		t.Errorf("a second server with a ledger and artifacts of its own: %v\n%s", err, printed.String())
	}
}
