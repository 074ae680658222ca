package engine

import (
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	loopwire "github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/build"
	"github.com/spillway-ml/spillway/workflows/chain"
)

// servedText is a chain of this name with one stage, and whatever more its text says.
func servedText(t *testing.T, name, more string) served {
	t.Helper()
	text := "name: " + name + "\ncode: none\n" + more + "stages: {only: {run: a}}\n"
	c, err := chain.Parse("c.yaml", []byte(text), chain.Checks{})
	if err != nil {
		t.Fatal(err)
	}
	return servedChain(c, "/chains/"+name)
}

// servedBinary is an app with one pipeline.
func servedBinary(name, pipeline string) served {
	described := loopwire.App{Name: name, Pipelines: []loopwire.Pipeline{{Name: pipeline}}}
	return served{App: build.App{Digest: "b1", Descriptor: described}}
}

func TestOnlyChainsThatNothingNeedsBecomeIdle(t *testing.T) {
	t.Parallel()
	now := time.Now()
	long := now.Add(-2 * chainIdle)
	a := &apps{current: map[string]served{"app": servedBinary("app", "p")}, used: map[string]time.Time{}}
	for name, c := range map[string]struct {
		more string
		used time.Time
	}{
		"listens": {"on: {subject: files.new}\n", long}, "ticks": {"on: {schedule: '@hourly'}\n", long},
		"runs": {"", long}, "wanted": {"", now.Add(-time.Minute)}, "idle": {"", long}, "other": {"", long},
	} {
		a.current[name], a.used[name] = servedText(t, name, c.more), c.used
	}
	idle := a.idle(map[string]bool{"runs": true}, now)
	slices.Sort(idle)
	if diff := cmp.Diff([]string{"idle", "other"}, idle); diff != "" {
		t.Errorf("idle (-want +got):\n%s", diff)
	}
	if idle = a.idle(nil, now.Add(chainIdle)); slices.Contains(idle, "runs") {
		t.Errorf("idle: %v, although a run of it went on an hour ago", idle)
	}
}

func TestAChainThatIsNotServedYieldsItsNameToAnAppOnly(t *testing.T) {
	t.Parallel()
	single, err := chain.Single("prep")
	if err != nil {
		t.Fatal(err)
	}
	stored := map[string]served{"prep": servedText(t, "prep", ""), "other": servedText(t, "other", "")}
	a := &apps{current: map[string]served{}, stored: stored}
	for name, c := range map[string]struct {
		app     served
		refused bool
	}{
		"an app of its name":     {servedBinary("prep", "p"), false},
		"a pipeline of its name": {servedBinary("app", "prep"), false},
		"a newer chain":          {servedText(t, "prep", "parameters: {n: 1}\n"), false},
		"a single command":       {servedChain(single, ""), true},
	} {
		if err := a.admit(c.app); (err != nil) != c.refused {
			t.Errorf("%s: got %v, want refused %v", name, err, c.refused)
		}
	}
	names := func() (names []string) {
		for _, app := range a.waiting() {
			names = append(names, app.Descriptor.Name)
		}
		return names
	}
	if diff := cmp.Diff([]string{"other", "prep"}, names()); diff != "" {
		t.Errorf("chains that wait (-want +got):\n%s", diff)
	}
	a.current["app"] = servedBinary("app", "prep")
	if diff := cmp.Diff([]string{"other"}, names()); diff != "" {
		t.Errorf("chains that wait beside an app that has a name of theirs (-want +got):\n%s", diff)
	}
}

func TestAttackAStoredChainThatCannotRunIsNotServed(t *testing.T) {
	t.Parallel()
	var cycle chain.Chain
	text := `{"name":"cycle","stages":[{"name":"a","script":"x","after":["b"]},{"name":"b","script":"x","after":["a"]}]}`
	if err := json.Unmarshal([]byte(text), &cycle); err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	a := &apps{stored: map[string]served{}, logger: slog.New(slog.NewTextHandler(&log, nil))}
	right := *servedText(t, "right", "").chain
	a.keepStored(t.Context(), []build.StoredChain{
		{Chain: cycle, Path: "/chains/cycle"},
		{Chain: right, Path: "/chains/right"},
	})
	if len(a.stored) != 1 || a.stored["right"].chain == nil {
		t.Errorf("stored: %v, want only the chain that can run", a.stored)
	}
	if !strings.Contains(log.String(), "/chains/cycle") || !strings.Contains(log.String(), "wait for each other") {
		t.Errorf("log: %s, want the chain that is left out, and why", log.String())
	}
}
