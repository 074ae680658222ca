package graph_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/workers/graph"
)

func fixture(tb testing.TB, name string) string {
	tb.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		tb.Fatal(err)
	}
	return string(text)
}

func TestAPipeDreamProfileIsReadWithItsUnits(t *testing.T) {
	t.Parallel()
	got, err := graph.ReadPipeDream(strings.NewReader(fixture(t, "small.pipedream.txt")))
	if err != nil {
		t.Fatal(err)
	}
	cost := func(forward, backward graph.Seconds) map[string]graph.Cost {
		return map[string]graph.Cost{graph.Accelerator: {Forward: forward, Backward: backward}}
	}
	want := graph.Graph{
		Ops: []graph.Op{
			{ID: "node1", Name: "Input0", Costs: cost(0, 0), Activation: 4096},
			{
				ID: "node2", Name: "Conv2d(3, 8, kernel_size=(3, 3))", Costs: cost(0.0015, 0.00225), Activation: 1536,
				Parameters: 864,
			},
			{
				ID: "node3", Name: "Linear(in_features=8, out_features=2, bias=True)", Costs: cost(0.00025, 0.0005), Activation: 64,
				Parameters: 72,
			},
		},
		Edges: []graph.Edge{{From: 0, To: 1, Bytes: 4096}, {From: 1, To: 2, Bytes: 1536}},
	}
	if diff := cmp.Diff(want, got, near()); diff != "" {
		t.Error(diff)
	}
}

// near forgives what changing a unit rounds.
func near() cmp.Option {
	return cmp.Comparer(func(a, b graph.Seconds) bool { return a-b < 1e-12 && b-a < 1e-12 })
}

func TestAPartitioningWorkloadIsReadWithItsMachines(t *testing.T) {
	t.Parallel()
	got, limits, err := graph.ReadDNNPartitioning(strings.NewReader(fixture(t, "small.dnn.json")))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(graph.Limits{Accelerators: 2, CPUs: 1, Memory: 1000}, limits); diff != "" {
		t.Error(diff)
	}
	want := graph.Graph{
		Ops: []graph.Op{
			{ID: "7", Name: "embed", Costs: map[string]graph.Cost{graph.CPU: {Forward: 0.002}}, Workspace: 10, Colour: "1"},
			{ID: "8", Name: "dense", Costs: map[string]graph.Cost{
				graph.CPU:         {Forward: 0.03},
				graph.Accelerator: {Forward: 0.003},
			}, Workspace: 400},
			{
				ID: "9", Name: "dense grad", Costs: map[string]graph.Cost{
					graph.CPU:         {Forward: 0.05},
					graph.Accelerator: {Forward: 0.005},
				},
				Workspace: 500, Colour: "1", Backward: true,
			},
		},
		Edges: []graph.Edge{
			{From: 0, To: 1, Transfer: 0.00025},
			{From: 0, To: 2, Transfer: 0.00025},
			{From: 1, To: 2, Transfer: 0.0005},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestAPiperWorkloadTellsWhatRecomputationCosts(t *testing.T) {
	t.Parallel()
	got, limits, err := graph.ReadPiper(strings.NewReader(fixture(t, "small.piper.json")))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(graph.Limits{Accelerators: 4, Memory: 1e6, BytesPerSecond: 1e9, MicroBatches: 16}, limits); diff !=
		"" {
		t.Error(diff)
	}
	want := graph.Graph{
		Ops: []graph.Op{
			{
				ID: "0", Name: "first", Costs: map[string]graph.Cost{graph.Accelerator: {Forward: 0.001, Backward: 0.003}},
				Parameters: 100, Activation: 50, Workspace: 150, Recompute: &graph.Recompute{Extra: 0.001, Activation: 10},
			},
			{
				ID: "1", Name: "second", Costs: map[string]graph.Cost{graph.Accelerator: {Forward: 0.002, Backward: 0.004}},
				Parameters: 200, Activation: 70,
			},
		},
		Edges: []graph.Edge{{From: 0, To: 1, Bytes: 32}},
	}
	if diff := cmp.Diff(want, got, near()); diff != "" {
		t.Error(diff)
	}
}

func TestWhatIsWrittenIsReadBack(t *testing.T) {
	t.Parallel()
	g := recurrent()
	g.Ops[0].Recompute = &graph.Recompute{Extra: 1, Activation: 2}
	var text bytes.Buffer
	if err := g.Write(&text); err != nil {
		t.Fatal(err)
	}
	got, err := graph.Read(&text)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(g, got); diff != "" {
		t.Error(diff)
	}
}

func TestRefusalsNameThePlace(t *testing.T) {
	t.Parallel()
	pipedream := func(text string) error { _, err := graph.ReadPipeDream(strings.NewReader(text)); return err }
	dnn := func(text string) error { _, _, err := graph.ReadDNNPartitioning(strings.NewReader(text)); return err }
	piper := func(text string) error { _, _, err := graph.ReadPiper(strings.NewReader(text)); return err }
	own := func(text string) error { _, err := graph.Read(strings.NewReader(text)); return err }
	edit := func(name, from, to string) string {
		text := fixture(t, name)
		if !strings.Contains(text, from) {
			t.Fatalf("%s has no %q", name, from)
		}
		return strings.Replace(text, from, to, 1)
	}
	for _, c := range []struct {
		read       func(string) error
		text, want string
	}{
		{pipedream, "", "no layer"},
		{
			pipedream, edit("small.pipedream.txt", "activation_size=64.0, ", ""),
			`line 3: layer "node3" has no activation_size`,
		},
		{
			pipedream, edit("small.pipedream.txt", "=0.250", "=fast"),
			`line 3: layer "node3": forward_compute_time: "fast" is no number`,
		},
		{pipedream, edit("small.pipedream.txt", "=0.250", "=-1"), "line 3"},
		{pipedream, edit("small.pipedream.txt", "=0.250", "=NaN"), "line 3"},
		{
			pipedream, edit("small.pipedream.txt", "node2 -- node3", "node2 -- node9"),
			"line 5: edge node2 -- node9 names a layer",
		},
		{
			pipedream, edit("small.pipedream.txt", "node3 -- Linear", "node2 -- Linear"),
			`line 3: layer "node2" is described twice`,
		},
		{pipedream, edit("small.pipedream.txt", "node1 -- node2", "node1"), "line 4"},
		{pipedream, strings.ReplaceAll(fixture(t, "small.pipedream.txt"), "node3", "node\xff"), `its ID "node\xff"`},
		{dnn, "", "line 1"},
		{dnn, "{\n\"nodes\": [\n{\"id\": \"x\"}]}", "line 3"},
		{dnn, edit("small.dnn.json", `"cpuLatency": 30.0`, `"cpuLatency": -3`), "nodes[1].cpuLatency"},
		{dnn, edit("small.dnn.json", `"size": 500.0`, `"size": 1e300`), "nodes[2].size"},
		{dnn, edit("small.dnn.json", `"destId": 8`, `"destId": 80`), "edges[0]"},
		{dnn, edit("small.dnn.json", `"isBackwardNode": true`, `"isBackwardNode": "yes"`), "nodes[2].isBackwardNode"},
		{dnn, edit("small.dnn.json", `9, "cost": 0.25`, `9, "cost": 0.75`), "two sizes"},
		{dnn, edit("small.dnn.json", `"id": 9`, `"id": 8`), "must be unique"},
		{dnn, fixture(t, "small.dnn.json") + "{}", "line 7: text after the end"},
		{piper, edit("small.piper.json", `"vanilla", "timePerSample": 0.006`, `"other", "timePerSample": 0.006`), "nodes[1]"},
		{
			piper, edit("small.piper.json", `"communicationCost": 32.0`, `"communicationCost": -1`),
			"edges[0].communicationCost",
		},
		{own, `{"version": 2}`, "version 2; this build reads version 1"},
		{own, `{"version": 1, "ops": [{"id": "a"}], "edges": [{"from": "a", "to": "b"}]}`, "edges[0]"},
		{own, `{"version": 1, "ops": [{"id": "a"}], "edges": [{"from": "a", "to": "a"}]}`, "is a loop"},
		{own, `{"version": 1, "ops": [{"id": "a", "backward_of": "b"}]}`, `gradient of "b"`},
		{own, `{"version": 1, "ops": [{}]}`, "has no ID"},
	} {
		if err := c.read(c.text); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.80q: got %v, want an error with %q", c.text, err, c.want)
		}
	}
}

// check fails where a reader let a graph through that the rest of the package refuses.
func check(t *testing.T, g graph.Graph) {
	t.Helper()
	if err := g.Validate(); err != nil {
		t.Fatal(err)
	}
	g.Summary()
	g.Tensors()
	var text bytes.Buffer
	if err := g.Write(&text); err != nil {
		t.Fatal(err)
	}
	if _, err := graph.Read(&text); err != nil {
		t.Fatal(err)
	}
}

func FuzzReadPipeDream(f *testing.F) {
	f.Add(fixture(f, "small.pipedream.txt"))
	// two IDs that were one when encoded
	f.Add(strings.NewReplacer("node1", "\xff", "node2", "\xfe").Replace(fixture(f, "small.pipedream.txt")))
	f.Fuzz(func(t *testing.T, text string) {
		if g, err := graph.ReadPipeDream(strings.NewReader(text)); err == nil {
			check(t, g)
		}
	})
}

func FuzzReadDNNPartitioning(f *testing.F) {
	f.Add(fixture(f, "small.dnn.json"))
	f.Fuzz(func(t *testing.T, text string) {
		if g, _, err := graph.ReadDNNPartitioning(strings.NewReader(text)); err == nil {
			check(t, g)
		}
	})
}

func FuzzReadPiper(f *testing.F) {
	f.Add(fixture(f, "small.piper.json"))
	f.Fuzz(func(t *testing.T, text string) {
		if g, _, err := graph.ReadPiper(strings.NewReader(text)); err == nil {
			check(t, g)
		}
	})
}

func FuzzRead(f *testing.F) {
	var text bytes.Buffer
	if err := recurrent().Write(&text); err != nil {
		f.Fatal(err)
	}
	f.Add(text.String())
	f.Fuzz(func(t *testing.T, text string) {
		if g, err := graph.Read(strings.NewReader(text)); err == nil {
			check(t, g)
		}
	})
}
