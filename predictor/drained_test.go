package predictor_test

import (
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// A host that is drained, or whose disk is full, is given nothing, keeps what runs there, and is given work again as
// soon as it is not.
func TestAHostThatIsDrainedOrFullTakesNoNewWorkAndKeepsWhatRuns(t *testing.T) {
	t.Parallel()
	room := quantity.Size{CPU: 4 * quantity.Core, Memory: 16 * quantity.GiB}
	hosts := func(drained, full string) (all []predictor.Host) {
		for _, id := range []string{"a", "b"} {
			all = append(all, predictor.Host{
				ID: id, Capacity: room, Free: room, Drained: strings.Contains(drained, id), DiskFull: strings.Contains(full, id),
			})
		}
		return all
	}
	state := learn(predictor.State{}, "score", 8, 100)
	state = fold(state, started("r", 0, predictor.Goal{}), hint("r", "score", 40, 0))
	running := start("r", "score", 0, 1)
	running.Host = "a"
	state = fold(state, running, predictor.Sampled{
		Run: "r", Stage: running.Stage, Task: running.Task, Attempt: 1, Venue: predictor.Pool, Host: "a", Step: 1, Of: 9,
		At: after(1.5),
	})
	for tick, step := range []struct {
		drained, full string
		on            string // the hosts that have slots
		told          string
	}{
		{"", "", "a b", ""},
		{"a", "", "b", ""},
		{"a b", "", "", "every host is drained"},
		{"", "", "a b", ""},
		{"", "b", "a", ""},
		{"", "a b", "", "the disk of every host is full"},
		{"", "", "a b", ""},
		{"a", "b", "", "every host is drained or its disk is full"},
		{"", "", "a b", ""},
	} {
		snap := laptop(2+float64(tick), 1)
		snap.Hosts, snap.Functions.Enabled = hosts(step.drained, step.full), false
		var plan predictor.Plan
		plan, state = predictor.Decide(state, snap)
		var on []string
		for _, placed := range plan.Placements {
			if placed.Slots > 0 {
				on = append(on, placed.Host)
			}
		}
		if got := strings.Join(on, " "); got != step.on {
			t.Errorf("tick %d: slots are on %q, want %q: %s", tick, got, step.on, strings.Join(reasons(plan), "\n"))
		}
		if (len(plan.Kinds) > 0) != (step.drained == "") { // a disk that is full will have room again
			t.Errorf("tick %d: %d kinds of hosts are told", tick, len(plan.Kinds))
		}
		if told := strings.Join(reasons(plan), "\n"); !strings.Contains(told, step.told) {
			t.Errorf("tick %d: nobody is told that %s: %s", tick, step.told, told)
		}
	}
	// What ran there all the while was not taken for lost, though nobody spoke of it.
	for tick := range 30 {
		snap := laptop(20+float64(tick), 1)
		snap.Hosts = hosts("a", "")
		_, state = predictor.Decide(state, snap)
	}
	if got := state.Progress(after(50), "r")["r"]; len(got) != 1 {
		t.Errorf("after half a minute on a drained host: got %+v, want the attempt that runs", got)
	}
}
