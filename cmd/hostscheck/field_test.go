//go:build linux

package hostscheck_test

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/spillway-ml/spillway/predictor"
)

// field is where disasters happen: an engine, and two agents.
type field struct {
	*stack

	at          *host // of the engine
	servers     *servers
	authority   *authority
	js          jetstream.JetStream
	agents      [2]*agent
	certificate pair     // of the engine's port
	settings    settings // of every server, and own those of the first besides
	own         settings
	loads       int
	undisturbed time.Duration
	took        []string          // what each disaster took, one line each
	want        map[string]string // what a load's runs come to, by pipeline
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

// undisturbedly runs a load that nothing befalls, which must come to what it does on one machine.
func (f *field) undisturbedly(t *testing.T, want reports) {
	t.Helper()
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
	wantSame(t, "the map", want.fan, f.want["fan"])
	t.Logf("the load takes %s undisturbed; tasks by host: %s", tenths(f.undisturbed), counted(a.hosts()))
}

// befalls starts a load, has something befall the hosts in the middle of it, and wants it to come to what it does
// undisturbed. Strike may go on for as long as the disaster does; what it returns is done when the load has ended.
func (f *field) befalls(t *testing.T, one disaster) {
	t.Helper()
	f.adopt(t)
	l := f.startLoad()
	f.halfway(l)
	struck := time.Now()
	after := one.strike(f)
	lasted := time.Since(struck)
	a, took := f.wantWhole(t, l)
	if after != nil {
		after()
	}
	f.up("agent1", "agent2")
	r := a.recovery(struck)
	recovered := max(lasted, r.first, r.again)
	within := "within"
	if took > f.undisturbed*5/4+recovered {
		within = "NOT within"
	}
	f.took = append(f.took, fmt.Sprintf("%s: it lasted %s, the first task that began after it was done %s after it had "+
		"begun, %d attempts were lost and the last of them began again after %s; the load took %s, %s a quarter more than "+
		"undisturbed (%s) and the recovery (%s)", one.name, tenths(lasted), tenths(r.first), r.lost, tenths(r.again),
		tenths(took), within, tenths(f.undisturbed), tenths(recovered)))
	t.Log(f.took[len(f.took)-1])
}

func tenths(d time.Duration) time.Duration { return d.Round(100 * time.Millisecond) }

// adopt has failures be those of a part of the test.
func (f *field) adopt(t *testing.T) {
	t.Helper()
	if f.stack != nil {
		f.stack.t = t
	}
	f.authority.t, f.servers.t, f.network().t = t, t, t
	for _, h := range f.network().hosts {
		h.t = t
	}
}

func (f *field) network() *network { return f.at.network }

// newField starts servers, and has settings with which an engine runs on them.
func newField(t *testing.T) *field {
	t.Helper()
	n := newNetwork(t)
	f := &field{authority: newAuthority(t, n.dir), want: map[string]string{}, at: n.host("server")}
	f.certificate = f.authority.issue(f.at, "port", day)
	f.servers = startServers(t, n, f.authority, f.at)
	f.settings = f.servers.settings(n.dir, f.at).but(settings{
		"listen": "0.0.0.0:" + port, "app": []string{filepath.Join(bin, "digits"), filepath.Join(bin, "app")},
		"no-ui": true, "no-burst": true,
	})
	f.own = settings{
		"state": filepath.Join(f.at.dir, "state"), "advertise": f.at.address,
		"tls-certificate": f.certificate.certificate, "tls-key": f.certificate.key,
	}
	return f
}

// startEngine starts an engine and two agents.
func (f *field) startEngine(t *testing.T) {
	t.Helper()
	f.adopt(t)
	file := f.settings.but(f.own).write(f.at, "spillway.yaml")
	check := spillway("config", "check", file)
	check.environment = f.servers.identity()
	t.Logf("spillway config check says:\n%s", f.at.must(check))
	f.stack = f.at.serve(spillway("server", "--config", file), filepath.Join(f.at.dir, "state"), f.servers.identity())
	t.Logf("the engine was ready after %s", tenths(time.Since(f.process.began)))
	f.js = f.servers.stream(f.at)
	first, second := f.network().host("agent1"), f.network().host("agent2")
	disk(t, filepath.Join(first.dir, "state"))
	for i, h := range []*host{first, second} {
		f.agents[i] = f.join(h, pools[i]...)
	}
	f.up("agent1", "agent2")
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
