package gangs

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities/documents"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/gang"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// TestServersWhoseClocksDifferKnowTheSameGangs has the two hosts of a gang ask two servers, of which one is slow or
// fast by half a minute: the gang has its turn, forms, and goes on for as long as its first host asks for it.
func TestServersWhoseClocksDifferKnowTheSameGangs(t *testing.T) {
	t.Parallel()
	for _, ahead := range []time.Duration{0, 30 * time.Second, -30 * time.Second} {
		t.Run(fmt.Sprintf("by %s", ahead), func(t *testing.T) {
			t.Parallel()
			size := quantity.Size{CPU: quantity.Core, Memory: quantity.GiB}
			hosts := []predictor.Host{
				{ID: "a", Instance: "1", Capacity: size, Free: size, TrainingAddress: "10.0.0.1"},
				{ID: "b", Instance: "2", Capacity: size, Free: size, TrainingAddress: "10.0.0.2"},
			}
			now := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
			shared := documents.Of[gang.State](documents.Local(), "gangs", nil)
			server := func(ahead time.Duration) *Gangs {
				return New(Options{
					Documents: shared,
					Hosts:     func(context.Context) ([]predictor.Host, error) { return hosts, nil },
					Secret:    func(string) string { return "secret" },
					Prove:     func(string, []byte, bool, []predictor.HostShare) string { return "proof" },
					Now:       func() time.Time { return now.Add(ahead) },
				})
			}
			first, second := server(0), server(ahead)
			ask := gang.Ask{ID: gang.ID("run", "task", 1), Host: "a", Instance: "1", Least: 2, Most: 2, Size: size}
			asked := func() gang.Gang {
				t.Helper()
				g, err := first.Ask(t.Context(), ask)
				if err != nil {
					t.Fatal(err)
				}
				return g
			}
			reported := func(of *Gangs, host predictor.Host, told ...gang.Told) []gang.Wanted {
				t.Helper()
				wanted, err := of.Report(t.Context(), gang.Report{Host: host.ID, Instance: host.Instance, Gangs: told})
				if err != nil {
					t.Fatal(err)
				}
				return wanted
			}
			wait := func() { now = now.Add(time.Second) }
			for range 4 { // until both have looked for long enough
				asked()
				reported(second, hosts[1])
				wait()
			}
			held := gang.Told{ID: ask.ID, Phase: gang.Held, Address: "10.0.0.1:1"}
			reported(first, hosts[0], held)
			for range gang.HoldFor/time.Second - 5 { // the second host finds no room for a while
				asked()
				wanted := reported(second, hosts[1])
				if len(wanted) != 1 || wanted[0].For <= 0 || wanted[0].For > gang.HoldFor {
					t.Fatalf("the second host is asked for %+v, want that it holds its part for %s at most", wanted, gang.HoldFor)
				}
				wait()
			}
			reported(second, hosts[1], held)
			for range 2 * gang.SilentFor / time.Second {
				wait()
				if g := asked(); !g.Formed || g.Broken != "" {
					t.Fatalf("its first host asks for it: %+v, want that it goes on", g)
				}
				if wanted := reported(second, hosts[1], held); len(wanted) != 1 || !wanted[0].Start {
					t.Fatalf("its first host asks for it, and the second is to run %+v", wanted)
				}
			}
			silent := 0
			for ; len(reported(second, hosts[1], held)) > 0 && silent < 60; silent++ {
				wait()
			}
			if want := int(gang.SilentFor / time.Second); silent < want-4 || silent > want+4 {
				t.Errorf("nobody asks for it, and it goes on for %d s; want about %d", silent, want)
			}
		})
	}
}
