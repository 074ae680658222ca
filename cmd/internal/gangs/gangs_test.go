package gangs

import (
	"context"
	"encoding/json"
	"strings"
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

// TestAGangForWhichThereIsNoPlaceSaysSo has trainings with commands of 60 KiB ask until no more are kept: those that
// are kept go on being heard, and the next has a place once one is over.
func TestAGangForWhichThereIsNoPlaceSaysSo(t *testing.T) {
	t.Parallel()
	size := quantity.Size{CPU: quantity.Core, Memory: quantity.GiB}
	now := time.Now()
	g := New(Options{
		Documents: documents.Of[gang.State](documents.Local(), "gangs", nil),
		Hosts: func(context.Context) ([]predictor.Host, error) {
			return []predictor.Host{{ID: "a", Instance: "1", Capacity: size, TrainingAddress: "10.0.0.1"}}, nil
		},
		Secret: func(string) string { return "secret" },
		Prove:  func(string, []byte, bool, []predictor.HostShare) string { return "proof" },
		Now:    func() time.Time { return now },
	})
	ask := func(i int) gang.Gang {
		t.Helper()
		found, err := g.Ask(t.Context(), gang.Ask{
			ID: gang.ID("run", "task", i), Host: "a", Instance: "1", Least: 2, Most: 2, Size: size,
			Order: json.RawMessage(`"` + strings.Repeat("x", 60<<10) + `"`),
		})
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	const noPlace = "have no room to note another"
	kept := 1
	for ; !strings.Contains(ask(kept).Waits, noPlace); kept++ {
		if kept > 100 {
			t.Fatal("more than 6 MiB are kept")
		}
	}
	for i := range kept - 1 {
		if found := ask(i + 1); found.At.IsZero() {
			t.Errorf("one of %d that are kept is %+v, want that it is heard", kept, found)
		}
	}
	if err := g.Over(t.Context(), gang.ID("run", "task", 1), "a"); err != nil {
		t.Fatal(err)
	}
	if found := ask(kept); found.At.IsZero() || strings.Contains(found.Waits, noPlace) {
		t.Errorf("one is over, and the next is %+v; want that it has a place", found)
	}
}
