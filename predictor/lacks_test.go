package predictor_test

import (
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// TestAHostThatLacksAStageHasItsOthers withholds a stage from one of two hosts, and then from both.
func TestAHostThatLacksAStageHasItsOthers(t *testing.T) {
	t.Parallel()
	room := quantity.Size{CPU: 4 * quantity.Core, Memory: 16 * quantity.GiB}
	state := fold(learn(learn(predictor.State{}, "score", 8, 100), "load", 8, 100),
		started("r", 0, predictor.Goal{}), hint("r", "score", 40, 0), hint("r", "load", 40, 0))
	id := hint("r", "score", 40, 0).Stage
	lack := predictor.Lack{App: id.App, Build: id.Build, Stage: "score", Why: "it shows no proofs"}
	for tick, c := range []struct {
		lack map[string]bool // the hosts that lack it
		on   string          // where it is
		told string
	}{
		{nil, "b", ""},
		{map[string]bool{"b": true}, "a", ""},
		{map[string]bool{"a": true, "b": true}, "", lack.Why},
	} {
		snap := laptop(2+float64(tick), 1)
		snap.Hosts, snap.Functions.Enabled = nil, false
		for _, host := range []string{"a", "b"} {
			one := predictor.Host{ID: host, Capacity: room, Free: room}
			if c.lack[host] {
				one.Lacks = []predictor.Lack{lack}
			}
			snap.Hosts = append(snap.Hosts, one)
		}
		var plan predictor.Plan
		plan, state = predictor.Decide(state, snap)
		on := map[string][]string{}
		for _, placed := range plan.Placements {
			if placed.Slots > 0 {
				on[placed.Stage.Name] = append(on[placed.Stage.Name], placed.Host)
			}
		}
		if got := strings.Join(on["score"], " "); got != c.on || len(on["load"]) == 0 {
			t.Errorf("%v lack it: it is on %q, want %q, and the other stage on %v", c.lack, got, c.on, on["load"])
		}
		if told := strings.Join(reasons(plan), "\n"); !strings.Contains(told, c.told) {
			t.Errorf("%v lack it: nobody is told that %s: %s", c.lack, c.told, told)
		}
	}
}
