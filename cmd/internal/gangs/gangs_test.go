package gangs

import (
	"context"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities/documents"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/gang"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// TestAGangOutlivesThatAllLeasesAreLostAtOnce forms a gang of two hosts, and has NATS forget all leases for a moment.
func TestAGangOutlivesThatAllLeasesAreLostAtOnce(t *testing.T) {
	t.Parallel()
	size := quantity.Size{CPU: quantity.Core, Memory: quantity.GiB}
	both := []predictor.Host{
		{ID: "a", Instance: "1", Capacity: size, Free: size, TrainingAddress: "10.0.0.1"},
		{ID: "b", Instance: "2", Capacity: size, Free: size, TrainingAddress: "10.0.0.2"},
	}
	leased, now := both, time.Now()
	g := New(Options{
		Documents: documents.Of[gang.State](documents.Local(), "gangs", nil),
		Hosts:     func(context.Context) ([]predictor.Host, error) { return leased, nil },
		Secret:    func(string) string { return "secret" },
		Prove:     func(string, []byte, bool, []predictor.HostShare) string { return "proof" },
		Now:       func() time.Time { return now },
	})
	ask := gang.Ask{ID: gang.ID("run", "task", 1), Host: "a", Instance: "1", Least: 2, Most: 2, Size: size}
	asked := func() gang.Gang {
		t.Helper()
		now = now.Add(hostsFor)
		found, err := g.Ask(t.Context(), ask)
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	for range missedFor/hostsFor + 1 {
		asked()
	}
	for _, host := range both {
		_, err := g.Report(t.Context(), gang.Report{
			Host: host.ID, Instance: host.Instance, Gangs: []gang.Told{{ID: ask.ID, Phase: gang.Held, Address: "10.0.0.1:1"}},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if formed := asked(); !formed.Formed || formed.Broken != "" {
		t.Fatalf("both hold their room: %+v, want that it is formed", formed)
	}
	leased = nil
	if formed := asked(); !formed.Formed || formed.Broken != "" {
		t.Errorf("the leases are gone since a moment: %+v, want that it goes on", formed)
	}
	leased = both
	asked()

	now = now.Add(gang.SilentFor - time.Second) // nobody asks this server, and another one hears of the gang
	leased = nil
	if formed := asked(); !formed.Formed || formed.Broken != "" {
		t.Errorf("the leases are gone as a server looks for the first time: %+v, want that it goes on", formed)
	}
	leased = both
	if formed := asked(); !formed.Formed || formed.Broken != "" {
		t.Errorf("the leases are there again: %+v, want that it goes on", formed)
	}

	leased = both[:1]
	var broken gang.Gang
	for range 2 * missedFor / hostsFor {
		broken = asked()
	}
	if !broken.Lost {
		t.Errorf("one has had no lease for longer: %+v, want that the gang is broken", broken)
	}
}
