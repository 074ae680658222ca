//go:build linux

package hostscheck_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/timeline"
)

// field is where disasters happen: two engines on servers that exist, of which one leads, and two agents.
type field struct {
	*stack // that is asked: one of the engines, which lives

	t           testing.TB // of the part of the test that goes on
	at          [2]*host   // of the engines
	engines     [2]*stack
	servers     *servers
	authority   *authority
	js          jetstream.JetStream
	plans       *plans
	agents      [2]*agent
	settings    settings // of every engine
	loads       int
	trainings   int
	undisturbed time.Duration
	took        []string          // what each disaster took, one line each
	want        map[string]string // what a load's runs come to on one machine, by pipeline
}

// load is what runs while something befalls the hosts.
type load struct {
	id, fan string
	runs    []string
	began   time.Time
}

// fanInput is that of a map whose shards take some of a second of a core each.
func fanInput(salt string) string {
	return fmt.Sprintf(`{"shards": %d, "rounds": %d, "salt": %q}`, shards, rounds, salt)
}

// trigger publishes an event at one engine and then at the other, and returns the one run that it starts.
func (f *field) trigger(pipeline, id, input string) (run string) {
	f.t.Helper()
	return publish(f.engines[:], pipeline, id, input)
}

// startLoad starts a map, the sample pipeline and a chain.
func (f *field) startLoad() (l load) {
	f.t.Helper()
	f.loads++
	l.id, l.began = fmt.Sprintf("load-%d", f.loads), time.Now()
	l.fan = f.trigger("fan", l.id+"-fan", fanInput(l.id))
	l.runs = []string{
		l.fan, f.trigger("digits", l.id+"-digits", digitsInput), f.trigger("rungs", l.id+"-rungs", saltInput("rungs-1")),
	}
	return l
}

// halfway waits until a third of the map is done: what befalls the hosts then befalls all that is under way.
func (f *field) halfway(l load) {
	f.t.Helper()
	until(f.t, "a third of the map is done", func() bool {
		view, err := f.run(l.fan)
		if err != nil {
			return false
		}
		done := 0
		for _, stage := range view.Stages {
			done += stage.Done
		}
		if view.State != "running" {
			f.t.Fatalf("run %s has %s before anything befell it", l.fan, view.State)
		}
		return done >= shards/3
	})
}

// settle settles runs. A task may have succeeded again where Temporal could not be told the first time, of which agents
// have told oftener than before; so may one of an agent that was killed before it did, whose name is killed, empty for
// none.
func (f *field) settle(before int, killed string, runs ...string) (a account) {
	f.t.Helper()
	a = f.settleAgain(f.js, runs...)
	untold := f.untold() - before
	for _, first := range a.again {
		if first.Host == killed {
			killed = "" // it runs one task at a time
		} else if untold--; untold < 0 {
			f.t.Errorf("task %s of run %s has succeeded on %s at %s, which Temporal was told, and again", first.Task, first.Run,
				first.Host, first.At)
		}
	}
	return a
}

// wantWhole waits until a load has ended, and looks that it came to what it does on one machine.
func (f *field) wantWhole(t *testing.T, l load, before int, killed string) (a account, took time.Duration) {
	t.Helper()
	a = f.settle(before, killed, l.runs...)
	for _, run := range l.runs {
		view := a.views[run]
		took = max(took, view.EndedAt.Sub(l.began))
		wantSame(t, view.Pipeline, f.want[view.Pipeline], a.report(run))
	}
	return a, took
}

// recovery is what a disaster did to a load.
type recovery struct {
	// first is how long after it the first task was done that had begun after it.
	first time.Duration
	// lost counts the attempts that were lost, and again is how long after the disaster the last of their tasks had begun
	// again.
	lost  int
	again time.Duration
	// retried counts the tasks that did not succeed at once, also those of whose first attempt nobody has told.
	retried int
}

func (a account) recovery(struck time.Time) (r recovery) {
	for _, attempts := range a.attempts {
		lost := map[string]bool{}
		for _, attempt := range attempts {
			begun := attempt.StartedAt.Sub(struck)
			if lost[attempt.Task] {
				r.again, lost[attempt.Task] = max(r.again, begun), false
			}
			switch {
			case attempt.Outcome == predictor.Lost:
				r.lost, lost[attempt.Task] = r.lost+1, true
			case attempt.Outcome == predictor.Succeeded && attempt.Number > 1:
				r.retried++
			}
			if attempt.Outcome == predictor.Succeeded && begun > 0 {
				if ended := attempt.EndedAt.Sub(struck); r.first == 0 || ended < r.first {
					r.first = ended
				}
			}
		}
	}
	return r
}

// undisturbedly runs a load that nothing befalls, which must come to what it does on one machine.
func (f *field) undisturbedly(t *testing.T, want reports) {
	t.Helper()
	f.adopt(t)
	f.want = map[string]string{"digits": want.digits, "rungs": want.rungs, "fan": want.fan}
	untold, rungs := f.untold(), f.chain("rungs-1")
	wantSame(t, "the chain", want.rungs, f.settle(untold, "", rungs).report(rungs))
	untold = f.untold()
	var a account
	a, f.undisturbed = f.wantWhole(t, f.startLoad(), untold, "")
	t.Logf("the load takes %s undisturbed; tasks by host: %s", tenths(f.undisturbed), counted(a.hosts()))
}

// befalls starts a load, has something befall the hosts in the middle of it, and wants it to come to what it does
// undisturbed. Strike may go on for as long as the disaster does; what it returns is done when the load has ended.
func (f *field) befalls(t *testing.T, one disaster) {
	t.Helper()
	f.adopt(t)
	fenced, untold := f.fenced(), f.untold()
	l := f.startLoad()
	f.halfway(l)
	if before := f.fenced() - fenced; before > 0 {
		t.Logf("agents killed what they ran %d times before anything befell them:\n%s\n%s", before,
			tail(f.agents[0].printed(), 20), tail(f.agents[1].printed(), 20))
	}
	struck := time.Now()
	after := one.strike(f)
	lasted := time.Since(struck)
	a, took := f.wantWhole(t, l, untold, one.kills)
	if after != nil {
		after()
	}
	f.upAll()
	r := a.recovery(struck)
	recovered := max(lasted, r.first, r.again)
	within := "within"
	if took > f.undisturbed*5/4+recovered {
		within = "NOT within"
	}
	f.took = append(f.took, fmt.Sprintf("%s: it lasted %s, the first task that began after it was done %s after it had "+
		"begun, %d attempts were lost and the last of them began again after %s, %d tasks were tried again, of which %d "+
		"had succeeded, agents killed what they ran %d times; the load took %s, %s a quarter more than undisturbed (%s) and "+
		"the recovery (%s)", one.name, tenths(lasted), tenths(r.first), r.lost, tenths(r.again), r.retried, len(a.again),
		f.fenced()-fenced, tenths(took), within, tenths(f.undisturbed), tenths(recovered)))
	t.Log(f.took[len(f.took)-1])
	if within != "within" {
		t.Logf("what took longest was %s", a.longest())
	}
}

// longest tells of the attempt that took longest, and where its time went.
func (a account) longest() string {
	var longest timeline.Attempt
	for _, attempts := range a.attempts {
		for _, attempt := range attempts {
			if attempt.Wall > longest.Wall {
				longest = attempt
			}
		}
	}
	return fmt.Sprintf("task %s of stage %s, attempt %d on %s: %s, of which it read artifacts for %s and wrote them for "+
		"%s, and used a core for %s", longest.Task, longest.Stage, longest.Number, longest.Host, tenths(longest.Wall),
		tenths(longest.Fetch), tenths(longest.Publish), tenths(longest.CPU))
}

// fenced counts how often agents killed what they ran, since they reached no server for too long.
func (f *field) fenced() int { return f.said("agent-*.log", "was not reached for too long") }

// untold counts how often agents could not tell Temporal what a task came to, in the words of its SDK.
func (f *field) untold() int {
	return f.said("state/agent/spillway.log*", `msg="Task processing failed with error"`)
}

// said counts a text in files of the agents' hosts.
func (f *field) said(pattern, text string) (times int) {
	f.t.Helper()
	for _, a := range f.agents {
		files, err := filepath.Glob(filepath.Join(a.host.dir, pattern))
		if err != nil {
			f.t.Fatal(err)
		}
		for _, file := range files {
			content, err := os.ReadFile(file)
			if err != nil {
				f.t.Fatal(err)
			}
			times += strings.Count(string(content), text)
		}
	}
	return times
}

func tenths(d time.Duration) time.Duration { return d.Round(100 * time.Millisecond) }

// adopt has failures be those of a part of the test.
func (f *field) adopt(t *testing.T) {
	t.Helper()
	f.t = t
	for _, engine := range f.engines {
		if engine != nil {
			engine.t = t
		}
	}
	f.authority.t, f.servers.t, f.network().t = t, t, t
	for _, h := range f.network().hosts {
		h.t = t
	}
}

func (f *field) network() *network { return f.at[0].network }

// newField starts servers, and has settings with which engines run on them.
func newField(t *testing.T) *field {
	t.Helper()
	n := newNetwork(t)
	f := &field{
		authority: newAuthority(t, n.dir), at: [2]*host{n.host("server1"), n.host("server2")},
	}
	f.servers = startServers(t, n, f.authority, f.at[0])
	f.settings = f.servers.settings(n.dir, f.at[:]...).but(settings{
		"listen": "0.0.0.0:" + port, "app": []string{filepath.Join(bin, "digits"), filepath.Join(bin, "app")},
		"no-ui": true, "no-burst": true,
	})
	for _, h := range f.at {
		f.certify(h, day)
	}
	return f
}

// certify gives the port of an engine a certificate.
func (f *field) certify(h *host, life time.Duration) { f.authority.issue(h, "port", life) }

// own are the settings of the engine of a host besides those of every engine.
func (f *field) own(h *host) settings {
	certificate := h.pair("port")
	return settings{
		"state": filepath.Join(h.dir, "state"), "advertise": h.address,
		"tls-certificate": certificate.certificate, "tls-key": certificate.key,
	}
}

// startEngines starts an engine, one that joins it, and two agents, each of which joins another engine.
func (f *field) startEngines(t *testing.T) {
	t.Helper()
	f.adopt(t)
	f.startEngine(0)
	f.stack = f.engines[0]
	f.startEngine(1, "--join", f.stack.url(), "--token-file",
		f.at[1].write("server-token", []byte(f.tell("hosts", "token", "--server")), 0o600))
	f.js = f.servers.stream(f.at[0])
	f.plans = watchPlans(t, f.js)
	n := f.network()
	first, second := n.host("agent1"), n.host("agent2")
	disk(t, filepath.Join(first.dir, "state"))
	for i, h := range []*host{first, second} {
		f.agents[i] = f.engines[i].join(h, append(pools[i], "--training-address", h.address)...)
	}
	f.upAll()
}

// startEngine starts one engine with flags, which it does not need when it is started again.
func (f *field) startEngine(i int, flags ...string) {
	f.t.Helper()
	h := f.at[i]
	file := f.settings.but(f.own(h)).write(h, "spillway.yaml")
	check := spillway("config", "check", file)
	check.environment = f.servers.identity()
	f.t.Logf("spillway config check says:\n%s", h.must(check))
	server := spillway(append([]string{"server", "--config", file}, flags...)...)
	f.engines[i] = h.serve(server, filepath.Join(h.dir, "state"), f.servers.identity())
	server.arguments, server.environment = server.arguments[:3], f.servers.identity()
	f.engines[i].begin = func() *process { return h.start("server", server) }
	f.t.Logf("the engine of %s was ready after %s", h.name, tenths(time.Since(f.engines[i].process.began)))
}

// upAll waits until both engines have both agents, and both agents know both engines.
func (f *field) upAll() {
	f.t.Helper()
	for _, engine := range f.engines {
		engine.up("agent1", "agent2")
	}
	for _, a := range f.agents {
		for _, engine := range f.engines {
			a.knows(engine)
		}
	}
}

// leading says which of the engines leads, by the word of the one that is asked.
func (f *field) leading() (leads int) {
	f.t.Helper()
	until(f.t, "an engine leads", func() bool {
		leads = slices.IndexFunc(f.engines[:], func(one *stack) bool { return one.url() == f.leader() })
		return leads >= 0
	})
	return leads
}

// end ends everything as its owner does, and looks what is left.
func (f *field) end(t *testing.T) {
	t.Helper()
	f.adopt(t)
	f.upAll()
	f.wantEvents()
	f.plans.wantTerms(t)
	for _, a := range f.agents {
		if err := a.end(interrupt); err != nil {
			t.Errorf("the agent of %s ended with %v\n%s", a.host.name, err, tail(a.printed(), 20))
		}
		if left, err := processesIn(a.host.namespace); err != nil || len(left) > 0 {
			t.Errorf("%s has processes %v left, %v", a.host.name, left, err)
		}
	}
	for _, engine := range f.engines {
		if err := engine.process.end(interrupt); err != nil {
			t.Errorf("the server of %s ended with %v\n%s", engine.host.name, err, tail(engine.process.printed(), 20))
		}
	}
	for _, group := range groupsBelow(f.network().dir) {
		if exists(group) {
			t.Errorf("the cgroup %s is left", group)
		}
	}
}

// wantEvents looks that each event has started one run.
func (f *field) wantEvents() {
	f.t.Helper()
	var answer struct {
		Runs []struct {
			Run   string `json:"run"`
			Event string `json:"event"`
		} `json:"runs"`
	}
	if err := f.get("/api/v1/runs?limit=1000", &answer); err != nil {
		f.t.Fatal(err)
	}
	started := map[string]int{}
	for _, run := range answer.Runs {
		started[run.Event]++
	}
	for event, runs := range started {
		if runs != 1 {
			f.t.Errorf("event %q has started %d runs", event, runs)
		}
	}
	if want := 3*f.loads + f.trainings + 1; len(started) != want {
		f.t.Errorf("%d events have started runs, want %d: %s", len(started), want, counted(started))
	}
}
