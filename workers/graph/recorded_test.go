package graph_test

import (
	"testing"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/graph"
)

func TestFormatsAreRecognisedAndOthersSayWhatTheyAre(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct {
		format  graph.Format
		problem string
	}{
		` {"version": 1, "ops": []}`:                     {format: graph.Spillway},
		`{"nodes": [], "maxFPGAs": 1}`:                   {format: graph.DNN},
		`{"nodes": [], "maxDevices": 1}`:                 {format: graph.Piper},
		`a -- L -- forward_compute_time=1`:               {format: graph.PipeDream},
		`forward_compute_time=1, activation_size=[1; 2]`: {format: graph.DAPPLE},
		`hello`:               {problem: "it is neither JSON nor a profile with forward_compute_time"},
		`{"b": 1, "a": 2}`:    {problem: "it is JSON with the keys a, b"},
		`{"version": 1}`:      {problem: "it is JSON with the keys version"},
		`{"ops": null, "x": `: {problem: "unexpected end of JSON input"},
	} {
		format, err := graph.FormatOf([]byte(text))
		problem := ""
		if err != nil {
			problem = err.Error()
		}
		if format != want.format || problem != want.problem {
			t.Errorf("%s: got %q, %q, want %+v", text, format, problem, want)
		}
	}
}

func TestPiperIsOfAsManySamplesAsAreAskedFor(t *testing.T) {
	t.Parallel()
	const one = `{"maxDevices": 1, "nodes": [{"id": 0, "TMPCs": {"1": [{"id": "vanilla", "timePerSample": 2, ` +
		`"memoryUsageA": 3}]}}]}`
	once, err := graph.ReadAs([]byte(one), graph.Piper, 1)
	if err != nil {
		t.Fatal(err)
	}
	many, err := graph.ReadAs([]byte(one), graph.Piper, 7)
	if err != nil || many.Samples != 7 {
		t.Fatalf("%d samples, %v", many.Samples, err)
	}
	single, all := once.Graph.Summary(), many.Graph.Summary()
	for class, total := range single.Total {
		if all.Total[class] != 7*total || all.Activation != 7*single.Activation {
			t.Errorf("%s: got %+v, want 7 times %+v", class, all, single)
		}
	}
	if _, err := graph.ReadAs([]byte(one), graph.Piper, int(graph.MostBytes/quantity.Bytes(2))); err == nil {
		t.Error("a batch beyond all memory is taken")
	}
}

// FuzzReadAs checks that every text is refused or a graph that can be ordered.
func FuzzReadAs(f *testing.F) {
	f.Add(`{"version": 1, "ops": [{"id": "a", "costs": {"cpu": {"forward_seconds": 1}}}]}`, 3)
	f.Add(`{"maxFPGAs": 1, "nodes": [{"id": 1, "supportedOnFpga": 1, "cpuLatency": 1, "fpgaLatency": 1, `+
		`"isBackwardNode": 0, "size": 1}]}`, 0)
	f.Add(`{"maxDevices": 1, "nodes": [{"id": 0, "TMPCs": {"1": [{"id": "vanilla", "timePerSample": 1, "memoryUsageA": `+
		`9e12}]}}]}`, 1<<31-1)
	f.Add("a -- L -- forward_compute_time=1, backward_compute_time=1, activation_size=[1; 2], parameter_size=1\n", 1)
	f.Fuzz(func(t *testing.T, text string, batch int) {
		format, err := graph.FormatOf([]byte(text))
		if err != nil {
			return
		}
		found, err := graph.ReadAs([]byte(text), format, max(batch, 0))
		if err != nil {
			return
		}
		if _, err := found.Graph.Order(); err != nil || len(found.Graph.Ops) == 0 {
			t.Fatalf("%d operations, %v", len(found.Graph.Ops), err)
		}
	})
}
