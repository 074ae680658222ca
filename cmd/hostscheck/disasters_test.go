//go:build linux

package hostscheck_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"golang.org/x/sys/unix"
)

const (
	// shards of the load take a second of a core each, about; more work than a disaster takes would only be waited for.
	shards, rounds = 40, 5_000_000
	// diskSize is that of the first agent's state: its builds, and room for what it runs.
	diskSize = 768 * quantity.MiB
	// cutOff is for how long an agent is cut off, which is much longer than its lease; databaseCut for how long the
	// database is, and diskFull for how long a disk is full.
	cutOff, databaseCut, diskFull = 60 * time.Second, 10 * time.Second, 20 * time.Second
	// restart is after how long a supervisor starts again what was killed.
	restart = 2 * time.Second
	// brief is how long a certificate is valid that expires in the middle of runs.
	brief = 5 * time.Second
)

// field is where disasters happen: an engine, and two agents.
type field struct {
	*stack

	servers     *servers // that the engine runs on; nil where it has its own
	authority   *authority
	js          jetstream.JetStream
	agents      [2]*agent
	certificate pair // of the engine's port
	loads       int
	undisturbed time.Duration
	want        map[string]string // what a load's runs come to, by pipeline
}

// load is what runs while something befalls the hosts.
type load struct {
	id, fan string
	runs    []string
	began   time.Time
}

// startLoad starts a map, the sample pipeline and a chain.
func (f *field) startLoad() (l load) {
	f.t.Helper()
	f.loads++
	l.id, l.began = fmt.Sprintf("load-%d", f.loads), time.Now()
	l.fan = f.trigger("fan", l.id+"-fan", fmt.Sprintf(`{"shards": %d, "rounds": %d, "salt": %q}`, shards, rounds, l.id))
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

// wantWhole waits until a load has ended, and looks that it came to what it does undisturbed.
func (f *field) wantWhole(t *testing.T, l load) (a account, took time.Duration) {
	t.Helper()
	a = f.settle(f.js, l.runs...)
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
			case attempt.Outcome == predictor.Succeeded && begun > 0:
				if ended := attempt.EndedAt.Sub(struck); r.first == 0 || ended < r.first {
					r.first = ended
				}
			}
		}
	}
	return r
}

// befalls starts a load, has something befall the hosts in the middle of it, and wants it to come to what it does
// undisturbed. Strike may go on for as long as the disaster does; what it returns is done when the load has ended.
func (f *field) befalls(t *testing.T, strike func(*field) (after func())) {
	t.Helper()
	f.adopt(t)
	l := f.startLoad()
	f.halfway(l)
	struck := time.Now()
	after := strike(f)
	lasted := time.Since(struck)
	a, took := f.wantWhole(t, l)
	if after != nil {
		after()
	}
	f.up("agent1", "agent2")
	r := a.recovery(struck)
	t.Logf("it lasted %s; %s after it had begun the first task was done that began after it; %d attempts were lost, and "+
		"the last of their tasks began again after %s; the load took %s, undisturbed %s", lasted.Round(100*time.Millisecond),
		r.first.Round(100*time.Millisecond), r.lost, r.again.Round(100*time.Millisecond), took.Round(100*time.Millisecond),
		f.undisturbed.Round(100*time.Millisecond))
}

// adopt has failures be those of a part of the test.
func (f *field) adopt(t *testing.T) {
	t.Helper()
	f.stack.t, f.authority.t, f.network().t = t, t, t
	if f.servers != nil {
		f.servers.t = t
	}
	for _, h := range f.network().hosts {
		h.t = t
	}
}

func (f *field) network() *network { return f.stack.host.network }

// newField starts two agents and an engine, on servers that exist or on its own.
func newField(t *testing.T, exist bool) *field {
	t.Helper()
	n := newNetwork(t)
	at, first, second := n.host("server"), n.host("agent1"), n.host("agent2")
	f := &field{authority: newAuthority(t, n.dir), want: map[string]string{}}
	f.certificate = f.authority.issue(at, "port", day)
	flags := []string{
		"--listen", "0.0.0.0:" + port, "--advertise", at.address,
		"--tls-certificate", f.certificate.certificate, "--tls-key", f.certificate.key,
	}
	var environment []string
	if exist {
		f.servers = startServers(t, n, f.authority, at)
		var on []string
		on, environment = f.servers.flags(at)
		flags = append(flags, on...)
	}
	f.stack = at.serve("server", environment, flags...)
	t.Logf("the engine was ready after %s", time.Since(f.process.began).Round(100*time.Millisecond))
	f.open()
	disk(t, filepath.Join(first.dir, "state"))
	for i, h := range []*host{first, second} {
		f.agents[i] = f.join(h, pools[i]...)
	}
	f.up("agent1", "agent2")
	return f
}

// open connects to NATS, as whoever looks at what is there.
func (f *field) open() {
	f.t.Helper()
	if f.servers != nil {
		f.js = f.servers.stream(f.stack.host)
		return
	}
	f.js = f.stream()
}

// disk mounts a small file system.
func disk(t *testing.T, at string) {
	t.Helper()
	if err := os.Mkdir(at, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", at, "tmpfs", 0, fmt.Sprintf("size=%d,mode=700", diskSize)); err != nil {
		t.Fatalf("mount a file system of %s: %v", diskSize, err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// fill takes what a file system has left, and returns the file that does.
func fill(tb testing.TB, dir string) string {
	tb.Helper()
	path := filepath.Join(dir, "filler")
	file, err := os.Create(path)
	if err != nil {
		tb.Fatal(err)
	}
	block := make([]byte, 1<<16)
	for err == nil {
		_, err = file.Write(block)
		if errors.Is(err, syscall.ENOSPC) && len(block) > 1 {
			block, err = block[:1], nil
		}
	}
	if err := file.Close(); err != nil {
		tb.Fatal(err)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		tb.Fatal(err)
	}
	return path
}

// TestWhatBefallsHostsChangesNoResult breaks one thing after another of an engine that has everything in its process,
// and of two agents, in the middle of runs.
func TestWhatBefallsHostsChangesNoResult(t *testing.T) {
	need(t)
	want := onOneMachine(t)
	strike(t, newField(t, false), want, []disaster{
		{"an agent is killed with all below it", (*field).killAgent},
		{"an agent is cut off for 60 s", (*field).cutAgentOff},
		{"the disk of an agent is full for 20 s", (*field).fillDisk},
		{"the certificate of the server expires", (*field).expire},
		{"the server is killed", (*field).killServer},
	})
}

// TestWhatBefallsServersChangesNoResult does so with an engine that runs on Temporal, NATS and S3 that exist.
func TestWhatBefallsServersChangesNoResult(t *testing.T) {
	need(t)
	want := onOneMachine(t)
	strike(t, newField(t, true), want, []disaster{
		{"a process of Temporal is killed", (*field).killTemporal},
		{"the leader of the stream is killed", (*field).killLeader},
		{"the database is cut off for 10 s", (*field).cutDatabaseOff},
		{"the server is killed", (*field).killServer},
	})
}

// disaster befalls the hosts for as long as strike goes on; what that returns is done when the load has ended.
type disaster struct {
	name   string
	strike func(*field) (after func())
}

// strike runs a load undisturbed, which must come to what it does on one machine, and then one for each disaster.
func strike(t *testing.T, f *field, want reports, disasters []disaster) {
	t.Helper()
	defer f.adopt(t) // what is removed at the end is removed by this test

	calm := t.Run("nothing", func(t *testing.T) { //nolint:paralleltest // they share the hosts
		f.adopt(t)
		rungs := f.chain("rungs-1")
		a := f.settle(f.js, rungs)
		wantSame(t, "the chain", want.rungs, a.report(rungs))
		l := f.startLoad()
		a = f.settle(f.js, l.runs...)
		for _, run := range l.runs {
			view := a.views[run]
			f.want[view.Pipeline] = a.report(run)
			f.undisturbed = max(f.undisturbed, view.EndedAt.Sub(l.began))
		}
		wantSame(t, "digits", want.digits, f.want["digits"])
		wantSame(t, "the chain", want.rungs, f.want["rungs"])
		t.Logf("the load takes %s undisturbed; tasks by host: %s", f.undisturbed.Round(100*time.Millisecond),
			counted(a.hosts()))
	})
	for _, one := range disasters {
		if calm { // else there is nothing to compare with
			t.Run(one.name, func(t *testing.T) { //nolint:paralleltest // they share the hosts
				f.befalls(t, one.strike)
			})
		}
	}
	if calm {
		f.end(t)
	}
}

// killTemporal kills the process of Temporal that the engine finds first.
func (f *field) killTemporal() func() {
	one := f.servers.temporal[0]
	one.kill()
	return func() {
		one.again()
		one.answers("7233")
	}
}

// killLeader kills the server of NATS that leads the loop's stream.
func (f *field) killLeader() func() {
	leader := f.servers.leader(f.js)
	leader.kill()
	return func() {
		leader.again()
		leader.answers("4222")
	}
}

// cutDatabaseOff pulls the cable of Temporal's database.
func (f *field) cutDatabaseOff() func() {
	f.servers.database.plug(false)
	time.Sleep(databaseCut)
	f.servers.database.plug(true)
	return nil
}

// killServer kills the engine with all that it has started, and starts it again.
func (f *field) killServer() func() {
	f.stack.host.killAll()
	<-f.process.ended
	time.Sleep(restart)
	f.process = f.begin()
	f.process.says(" is ready\n")
	f.open() // its own NATS may have another port
	return nil
}

// killAgent kills an agent with all that it has started, and starts it again.
func (f *field) killAgent() func() {
	f.agents[0].host.killAll()
	<-f.agents[0].ended
	time.Sleep(restart)
	f.agents[0].again()
	return nil
}

// cutAgentOff pulls the cable of an agent: it goes on, and so does the engine, and each is gone for the other.
func (f *field) cutAgentOff() func() {
	f.agents[1].host.plug(false)
	time.Sleep(cutOff)
	f.agents[1].host.plug(true)
	return nil
}

// fillDisk takes what there is on the disk of an agent.
func (f *field) fillDisk() func() {
	filler := fill(f.t, filepath.Join(f.agents[0].host.dir, "state"))
	time.Sleep(diskFull)
	if err := os.Remove(filler); err != nil {
		f.t.Fatal(err)
	}
	return nil
}

// expire has the certificate of the engine's port expire, and an agent start meanwhile.
func (f *field) expire() func() {
	f.authority.issue(f.stack.host, "port", brief)
	time.Sleep(brief + 2*time.Second)
	one := f.agents[0]
	if err := one.end(interrupt); err != nil {
		f.t.Errorf("the agent ended with %v\n%s", err, one.printed())
	}
	one.process = one.begin(false)
	one.says("expired")
	f.authority.issue(f.stack.host, "port", day)
	renewed := time.Now()
	one.says("has joined")
	f.t.Logf("the agent had joined %s after the certificate was renewed", time.Since(renewed).Round(100*time.Millisecond))
	return nil
}

// end ends everything as its owner does, and looks what is left.
func (f *field) end(t *testing.T) {
	t.Helper()
	f.adopt(t)
	f.up("agent1", "agent2")
	f.wantEvents()
	for _, a := range f.agents {
		if err := a.end(interrupt); err != nil {
			t.Errorf("the agent of %s ended with %v\n%s", a.host.name, err, tail(a.printed(), 20))
		}
		if left, err := processesIn(a.host.namespace); err != nil || len(left) > 0 {
			t.Errorf("%s has processes %v left, %v", a.host.name, left, err)
		}
	}
	if err := f.process.end(interrupt); err != nil {
		t.Errorf("the server ended with %v\n%s", err, tail(f.process.printed(), 20))
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
	if want := 3*f.loads + 1; len(started) != want {
		f.t.Errorf("%d events have started runs, want %d: %s", len(started), want, counted(started))
	}
}
