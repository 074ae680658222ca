//go:build linux

package hostscheck_test

import (
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor"
)

// digitsInput has the sample pipeline do the same wherever it runs: a tuning would depend on which trial ends first.
const digitsInput = `{"max_epochs": 8, "shards": 16, "views": 20, "seed": 3, "learning_rate": 0.002}`

// pools are what the agents offer: a core each, so that neither takes the other's.
var pools = [2][]string{{"--pool-cpus", "0", "--pool-memory", "2GiB"}, {"--pool-cpus", "1", "--pool-memory", "2GiB"}}

// reports are what runs come to on one machine, by what runs.
type reports struct{ digits, rungs, fan string }

// once are those of the machine that has run first: they are the same each time.
var once *reports

// onOneMachine runs the sample pipeline and a chain on an engine that has everything in its process.
func onOneMachine(t *testing.T) (r reports) {
	t.Helper()
	if once != nil {
		return *once
	}
	buildProducts(t)
	alone := newNetwork(t).host("alone").serveAlone("dev")
	js := alone.stream()
	digits, rungs := alone.trigger("digits", "digits-1", digitsInput), alone.chain("rungs-1")
	fan := alone.trigger("fan", "fan-1", fanInput("fan-1"))
	a := alone.settle(js, digits, rungs, fan)
	r = reports{a.report(digits), a.report(rungs), a.report(fan)}
	if err := alone.process.end(interrupt); err != nil {
		t.Errorf("the engine ended with %v", err)
	}
	once = &r
	return r
}

// TestAServerAndTwoAgentsReportWhatOneMachineDoes joins two machines to one that runs nothing itself.
func TestAServerAndTwoAgentsReportWhatOneMachineDoes(t *testing.T) {
	need(t)
	want := onOneMachine(t)

	n := newNetwork(t)
	at, first, second := n.host("server"), n.host("agent1"), n.host("agent2")
	server := at.serveAlone("server", "--listen", "0.0.0.0:"+port, "--advertise", at.address)
	js := server.stream()
	waiting := server.trigger("digits", "digits-1", digitsInput) // there is no host yet
	one := server.join(first, pools[0]...)
	began := one.began
	joined := one.says("has joined")
	until(t, "a task of a host that has just joined is done", func() bool {
		attempts, err := server.attempts(waiting)
		return err == nil && len(attempts) > 0 && attempts[0].Outcome == predictor.Succeeded
	})
	attempts, err := server.attempts(waiting)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("a host with nothing but the program joined in %s; the code of its first task began %s after the agent, "+
		"and the task was done after %s", joined.Round(time.Millisecond),
		attempts[0].StartedAt.Sub(began).Round(time.Millisecond), attempts[0].EndedAt.Sub(began).Round(time.Millisecond))
	two := server.join(second, pools[1]...)
	server.up("agent1", "agent2")

	digits, rungs := server.trigger("digits", "digits-2", digitsInput), server.chain("rungs-1")
	a := server.settle(js, waiting, digits, rungs)
	wantSame(t, "digits while a host joined", want.digits, a.report(waiting))
	wantSame(t, "digits", want.digits, a.report(digits))
	wantSame(t, "the chain", want.rungs, a.report(rungs))
	by := a.hosts()
	t.Logf("tasks by host: %s", counted(by))
	for _, name := range []string{"agent1", "agent2"} {
		if by[name] == 0 {
			t.Errorf("%s has run nothing", name)
		}
	}
	if len(by) != 2 {
		t.Errorf("tasks ran on %s, want on the two agents alone", counted(by))
	}
	listed := server.tell("hosts")
	if !strings.Contains(listed, "agent1") || !strings.Contains(listed, "agent2") {
		t.Errorf("spillway hosts prints\n%s", listed)
	}
	for _, p := range []*process{one.process, two.process, server.process} {
		if err := p.end(interrupt); err != nil {
			t.Errorf("%s ended with %v\n%s", p.log, err, p.printed())
		}
	}
}
