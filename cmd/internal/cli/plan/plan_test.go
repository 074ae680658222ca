package plan_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/cmd/internal/cli"
	"github.com/spillway-ml/spillway/cmd/internal/cli/clitest"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/graph"
	"github.com/spillway-ml/spillway/workers/partition/appraisal"
)

// planJSON plans and decodes the JSON.
func planJSON(t *testing.T, wantCode int, args ...string) appraisal.Report {
	t.Helper()
	code, stdout, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, append([]string{"plan", "--json"}, args...)...)
	if code != wantCode {
		t.Fatalf("got exit %d, want %d: %s", code, wantCode, stderr)
	}
	var plan appraisal.Report
	if err := json.Unmarshal([]byte(stdout), &plan); err != nil {
		t.Fatalf("%v in %s", err, stdout)
	}
	return plan
}

func TestATrainingStepIsPlannedAsAPipelineWithItsSchedule(t *testing.T) {
	t.Parallel()
	got := planJSON(t, cli.ExitOK, clitest.WriteGraph(t, clitest.ChainGraph(8, 0.020)), "--devices",
		clitest.Write(t, "devices.yaml", clitest.TwoDevices), "--micro-batches", "4")
	if got.Objective != "step" || !got.Training || got.Plan == nil || got.Plan.Schedule == nil ||
		got.Plan.MicroBatches != 4 {
		t.Fatalf("got %+v", got)
	}
	plan := got.Plan
	if plan.Seconds < plan.LowerBoundSeconds || plan.LowerBoundSeconds < 8*0.030/2-1e-9 {
		t.Errorf("a step of %v, at least %v; half of the work takes 0.12", plan.Seconds, plan.LowerBoundSeconds)
	}
	if s := plan.Schedule; s.Bubble < 0 || s.Bubble >= 1 || s.Seconds > plan.Seconds+1e-9 || len(s.Spans) == 0 {
		t.Errorf("schedule %+v of a step of %v", s, plan.Seconds)
	}
	ops := map[string]bool{}
	for _, d := range plan.Devices {
		if d.PeakBytes > d.MemoryBytes {
			t.Errorf("device %s holds %v of %v", d.ID, d.PeakBytes, d.MemoryBytes)
		}
		for _, op := range d.Ops {
			ops[op] = true
		}
	}
	if len(ops) != 8 {
		t.Errorf("%d of 8 operations are on a device", len(ops))
	}
	chosen := 0
	for i, choice := range got.Front {
		if choice.Chosen {
			chosen++
		}
		if i > 0 && (choice.Seconds < got.Front[i-1].Seconds || choice.IdleBytes >= got.Front[i-1].IdleBytes) {
			t.Errorf("plan %d of the front is beaten: %+v", i+1, got.Front)
		}
	}
	if chosen != 1 || len(got.Front) != 2 {
		t.Errorf("%d of %d plans are chosen", chosen, len(got.Front))
	}
	for _, b := range got.Baselines {
		if b.Seconds < plan.Seconds-1e-9 {
			t.Errorf("%s takes %v, the plan %v", b.Name, b.Seconds, plan.Seconds)
		}
	}
}

func TestLambdaChoosesFewerDevices(t *testing.T) {
	t.Parallel()
	name, devices := clitest.WriteGraph(t, clitest.ChainGraph(8, 0.020)),
		clitest.Write(t, "devices.yaml", clitest.TwoDevices)
	used := func(args ...string) (n int) {
		for _, d := range planJSON(t, cli.ExitOK, append([]string{name, "--devices", devices}, args...)...).Plan.Devices {
			if len(d.Ops) > 0 {
				n++
			}
		}
		return n
	}
	if fast, frugal := used(), used("--lambda", "100"); fast != 2 || frugal != 1 {
		t.Errorf("%d devices without a price of idle memory and %d with a high one; want 2 and 1", fast, frugal)
	}
}

// TestALargerBudgetFindsABetterPlan divides twelve chains of eight operations, all of other lengths, that one operation
// feeds and one takes in: to begin with, devices end at different times.
func TestALargerBudgetFindsABetterPlan(t *testing.T) {
	t.Parallel()
	const chains, length = 12, 8
	g := clitest.ChainGraph(2+chains*length, 0)
	g.Edges = nil
	for i := range g.Ops {
		g.Ops[i].Costs[graph.Accelerator] = graph.Cost{Forward: 0.010 + 0.001*graph.Seconds(i*i%29)}
	}
	for chain := range chains {
		before := 0
		for i := range length {
			op := 1 + chain*length + i
			g.Edges = append(g.Edges, graph.Edge{From: before, To: op, Bytes: quantity.MiB})
			before = op
		}
		g.Edges = append(g.Edges, graph.Edge{From: before, To: len(g.Ops) - 1, Bytes: quantity.MiB})
	}
	name, devices := clitest.WriteGraph(t, g), clitest.Write(t, "devices.yaml", clitest.TwoDevices)
	seconds := func(budget string) float64 {
		args := []string{name, "--devices", devices, "--inference", "--objective", "latency", "--budget", budget}
		return float64(planJSON(t, cli.ExitOK, args...).Plan.Seconds)
	}
	if quick, long := seconds("1ns"), seconds("500ms"); long >= quick {
		t.Errorf("a plan of %v s with half a second to search and of %v s with none", long, quick)
	}
	code, _, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, "plan", name, "--devices", devices, "--budget", "0")
	if code != cli.ExitUsage {
		t.Errorf("no budget at all: got exit %d, want that of a wrong flag: %s", code, stderr)
	}
	clitest.Contains(t, "standard error", stderr, "leave the flag out")
}

func TestInferenceIsAStreamUnlessLatencyIsAskedFor(t *testing.T) {
	t.Parallel()
	name, devices := clitest.WriteGraph(t, clitest.ChainGraph(4, 0)), clitest.Write(t, "devices.yaml", clitest.TwoDevices)
	stream := planJSON(t, cli.ExitOK, name, "--devices", devices)
	if stream.Objective != "throughput" || stream.Training || stream.Plan.Seconds < 0.020 || stream.Plan.Seconds > 0.021 {
		t.Errorf("a stream leaves a batch every %v s, want half of the work, 0.02", stream.Plan.Seconds)
	}
	one := planJSON(t, cli.ExitOK, name, "--devices", devices, "--objective", "latency")
	if one.Objective != "latency" || one.Plan.Seconds < 0.040-1e-9 || one.Plan.Seconds > 0.040+1e-9 {
		t.Errorf("a batch takes %v s; want 0.04, the whole chain", one.Plan.Seconds)
	}
}

func TestNothingFitsIsSaidWithWhatHelps(t *testing.T) {
	t.Parallel()
	name, devices := clitest.WriteGraph(t, clitest.ChainGraph(8, 0)), clitest.Write(t, "devices.yaml", clitest.TinyDevice)
	code, stdout, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, "plan", name, "--devices", devices)
	if code != cli.ExitFailure {
		t.Errorf("got exit %d, want 1: %s", code, stderr)
	}
	// 8 layers of 4 MiB of parameters and 8 MiB of activations are 96 MiB, 56 more than there are.
	clitest.Contains(t, "standard output", stdout, "plan   none: ", "short  tiny lacks 56",
		"helps  2 more devices like tiny: then a batch leaves every", "single device")
	clitest.Contains(t, "standard error", stderr, "spillway: plan: nothing fits: tiny lacks 56",
		"hint: 2 more devices like tiny would do")
	got := planJSON(t, cli.ExitFailure, name, "--devices", devices)
	if short := got.Infeasible.ShortBytes; got.Plan != nil || short < 56*quantity.MiB || short > 57*quantity.MiB {
		t.Errorf("what is short is %+v, want short of 56 MiB", got.Infeasible)
	}
}

func TestThePlanIsDrawn(t *testing.T) {
	t.Parallel()
	picture := filepath.Join(t.TempDir(), "plan.svg")
	code, stdout, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, "plan",
		clitest.WriteGraph(t, clitest.ChainGraph(4, 0.02)), "--devices", clitest.Write(t, "d.yaml", clitest.TwoDevices),
		"--svg", picture)
	if code != cli.ExitOK || stderr != "" {
		t.Fatalf("got exit %d: %s", code, stderr)
	}
	clitest.Contains(t, "standard output", stdout, "graph  chain (spillway): 4 operations, 3 edges",
		"a training step takes", "beside it", "even split", "per hour")
	text, err := os.ReadFile(picture)
	if err != nil {
		t.Fatal(err)
	}
	clitest.Contains(t, "the picture", string(text), "<svg ", "gpu-1", "gpu-2", `class="forward"`, `class="backward"`)
}

// The same two layers in the other formats.
const (
	dnnText = `{"maxSizePerFPGA": 1e9, "maxFPGAs": 2, "maxCPUs": 1, "nodes": [
 {"id": 1, "name": "a", "supportedOnFpga": 1, "cpuLatency": 30, "fpgaLatency": 3, "isBackwardNode": 0, "size": 100},
 {"id": 2, "name": "b", "supportedOnFpga": 1, "cpuLatency": 30, "fpgaLatency": 3, "isBackwardNode": 0, "size": 100}],
 "edges": [{"sourceId": 1, "destId": 2, "cost": 0.1, "size": 10}]}`
	pipeText = "n1 -- A -- forward_compute_time=1, backward_compute_time=2, activation_size=10, parameter_size=4\n" +
		"n2 -- B -- forward_compute_time=1, backward_compute_time=2, activation_size=10, parameter_size=4\n\tn1 -- n2\n"
	piperText = `{"maxDevices": 2, "maxMemoryPerDevice": 1e6, "bandwidth": 1e9, "mbsInBatch": 16, "nodes": [
 {"id": 0, "name": "a", "TMPCs": {"1": [{"id": "vanilla", "timePerSample": 0.003,
   "parameterSize": 100, "memoryUsageA": 50, "memoryUsageB": 250}]}},
 {"id": 1, "name": "b", "TMPCs": {"1": [{"id": "vanilla", "timePerSample": 0.003,
   "parameterSize": 100, "memoryUsageA": 50, "memoryUsageB": 250}]}}],
 "edges": [{"sourceId": 0, "destId": 1, "communicationCost": 10}]}`
)

func TestFormatsAreRecognisedByWhatTheyHold(t *testing.T) {
	t.Parallel()
	devices := clitest.Write(t, "devices.yaml", clitest.TwoDevices)
	for want, text := range map[string]string{
		"dnn-partitioning": dnnText, "pipedream": pipeText,
		"dapple": strings.Replace(pipeText, "size=10,", "size=[10; 20],", 1), "piper": piperText,
	} {
		name := clitest.Write(t, "graph", text)
		if got := planJSON(t, cli.ExitOK, name, "--devices", devices); got.Graph.Format != want || got.Graph.Ops != 2 ||
			got.Graph.Edges != 1 {
			t.Errorf("got %+v, want the format %s", got.Graph, want)
		}
		if got := planJSON(t, cli.ExitOK, name, "--devices", devices, "--format", want); got.Graph.Format != want {
			t.Errorf("got the format %s, want %s", got.Graph.Format, want)
		}
	}
}

func TestPiperIsMultipliedByTheBatch(t *testing.T) {
	t.Parallel()
	name, devices := clitest.Write(t, "graph", piperText), clitest.Write(t, "devices.yaml", clitest.TwoDevices)
	for batch, want := range map[string]float64{"": 16 * 0.006, "4": 4 * 0.006} {
		args := []string{name, "--devices", devices}
		if batch != "" {
			args = append(args, "--batch", batch)
		}
		if got := planJSON(t, cli.ExitOK, args...).Graph.TotalSeconds[graph.Accelerator]; got < want-1e-9 || got > want+1e-9 {
			t.Errorf("batch %q takes %v s, want %v", batch, got, want)
		}
	}
}

func TestDevicesThatTheGraphHasNoCostsForAreLeftOutAndNamed(t *testing.T) {
	t.Parallel()
	list, _, _ := strings.Cut(clitest.TwoDevices, "links:")
	list += "  - {id: host, class: cpu, count: 3, memory: 1GiB}\n"
	got := planJSON(t, cli.ExitOK, clitest.WriteGraph(t, clitest.ChainGraph(4, 0)), "--devices",
		clitest.Write(t, "devices.yaml", list))
	if len(got.Plan.Devices) != 2 || len(got.Notes) != 2 ||
		!strings.HasSuffix(got.Notes[0],
			`devices.yaml:3 are left out: the graph has no cost of class "cpu"; known: accelerator`) {
		t.Errorf("got %d devices, notes %q", len(got.Plan.Devices), got.Notes)
	}
}

func TestModelsAreLookedInto(t *testing.T) {
	t.Parallel()
	devices := clitest.Write(t, "devices.yaml", clitest.TwoDevices)
	var asked string
	var batch int
	deps := cli.Deps{ProbeModel: func(_ context.Context, reference string, samples int) (graph.Graph, error) {
		asked, batch = reference, samples
		return clitest.ChainGraph(3, 0.02), nil
	}}
	code, stdout, stderr := clitest.Execute(t, t.Context(), deps, "plan", "train.py:model", "--devices", devices,
		"--batch", "48")
	if code != cli.ExitOK || asked != "train.py:model" || batch != 48 {
		t.Errorf("got exit %d, asked for %q with %d samples: %s", code, asked, batch, stderr)
	}
	clitest.Contains(t, "standard output", stdout, "(model): 3 operations")
	if clitest.Execute(t, t.Context(), deps, "plan", "train.py:model", "--devices", devices); batch != 32 {
		t.Errorf("a model is run with %d samples unless told", batch)
	}
	deps.ProbeModel = func(context.Context, string, int) (graph.Graph, error) {
		return graph.Graph{}, errors.New("no torch")
	}
	if code, _, stderr = clitest.Execute(t, t.Context(), deps, "plan", "train.py:model", "--devices", devices); code !=
		cli.ExitFailure {
		t.Errorf("got exit %d", code)
	}
	clitest.Contains(t, "standard error", stderr, "look into train.py:model: no torch")
}

func TestAPlanEndsWhenItIsInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	code, stdout, stderr := clitest.Execute(t, ctx, cli.Deps{}, "plan", clitest.WriteGraph(t, clitest.ChainGraph(3, 0)),
		"--devices", clitest.Write(t, "d.yaml", clitest.TwoDevices))
	if code != cli.ExitFailure || stdout != "" || stderr != "spillway: plan: interrupted\n" {
		t.Errorf("got exit %d, %q, %q", code, stdout, stderr)
	}
}

func TestWrongPlansAreRefusedAtTheDoor(t *testing.T) {
	t.Parallel()
	good, devices := clitest.WriteGraph(t, clitest.ChainGraph(3, 0.02)),
		clitest.Write(t, "devices.yaml", clitest.TwoDevices)
	forward := clitest.WriteGraph(t, clitest.ChainGraph(3, 0))
	cycle := clitest.ChainGraph(3, 0)
	cycle.Edges = append(cycle.Edges, graph.Edge{From: 2, To: 0, Bytes: 1})
	backward := clitest.ChainGraph(3, 0)
	backward.Ops[2].Backward = true
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"no graph": {
			[]string{"--devices", devices},
			"it needs the file of a recorded graph, or MODEL.py:FUNCTION",
		},
		"no devices": {[]string{good}, "it needs --devices"},
		"a graph that is not there": {
			[]string{"nowhere.json", "--devices", devices},
			"read nowhere.json: no such file or directory",
		},
		"a graph that is a directory": {[]string{t.TempDir(), "--devices", devices}, "is a directory"},
		"devices that are not there": {
			[]string{good, "--devices", "nowhere.yaml"},
			"--devices nowhere.yaml: no such file or directory",
		},
		"a list of devices with a mistake": {
			[]string{
				good, "--devices",
				clitest.Write(t, "d.yaml", "devices:\n  - {id: a, class: accelerator, memory: 0GiB}\n"),
			},
			`d.yaml:2:41: memory is "0GiB"`,
		},
		"a class that the graph does not know": {
			[]string{
				good, "--devices",
				clitest.Write(t, "d.yaml", "devices:\n  - {id: a, class: acelerator, memory: 1GiB}\n"),
			},
			`d.yaml:2:20: the graph has no cost of class "acelerator"; nearest: accelerator`,
		},
		"an unknown format": {
			[]string{good, "--devices", devices, "--format", "onnx"},
			"--format onnx: it is none of auto, spillway",
		},
		"text of no format": {
			[]string{clitest.Write(t, "x", "hello\n"), "--devices", devices},
			"is of no known format: it is neither JSON nor a profile",
		},
		"JSON of no format": {
			[]string{clitest.Write(t, "x", `{"a": 1}`), "--devices", devices},
			"is of no known format: it is JSON with the keys a",
		},
		"JSON that is cut": {
			[]string{clitest.Write(t, "x", "{\n \"a\":"), "--devices", devices},
			"is not JSON at line 2",
		},
		"another format than it is": {
			[]string{good, "--devices", devices, "--format", "pipedream"},
			"as pipedream: read a profile: line 1",
		},
		"a graph without operations": {[]string{
			clitest.Write(t, "x", `{"version": 1, "ops": []}`), "--devices",
			devices,
		}, "the graph has no operation"},
		"a cycle that is no recurrence": {
			[]string{clitest.WriteGraph(t, cycle), "--devices", devices},
			"the graph has a cycle",
		},
		"a model that nobody can look into": {
			[]string{"m.py:f", "--devices", devices},
			"this build cannot look into models\n  hint: give a recorded graph",
		},
		"a format of a model": {
			[]string{"m.py:f", "--devices", devices, "--format", "piper"},
			"--format is for recorded graphs",
		},
		"training and inference": {
			[]string{good, "--devices", devices, "--training", "--inference"},
			"--training and --inference exclude each other",
		},
		"training without a backward pass": {
			[]string{forward, "--devices", devices, "--training"},
			"this graph has no backward pass",
		},
		"a step without a backward pass": {
			[]string{forward, "--devices", devices, "--objective", "step"},
			"this graph has no backward pass",
		},
		"inference of a backward pass": {[]string{
			clitest.WriteGraph(t, backward), "--devices", devices,
			"--inference",
		}, "made of operations of its own"},
		"a step of inference": {
			[]string{good, "--devices", devices, "--inference", "--objective", "step"},
			"--objective step is for training",
		},
		"ZeRO of inference": {
			[]string{good, "--devices", devices, "--inference", "--zero", "1"},
			"--zero is for training",
		},
		"micro-batches of a stream": {
			[]string{forward, "--devices", devices, "--micro-batches", "4"},
			"--micro-batches is for training steps",
		},
		"an objective that is none": {
			[]string{good, "--devices", devices, "--objective", "fun"},
			"--objective fun: it is none of throughput, step, latency",
		},
		"ZeRO beyond its stages": {
			[]string{good, "--devices", devices, "--zero", "4"},
			"--zero 4: it is not a stage of ZeRO",
		},
		"a lambda that is no number": {
			[]string{good, "--devices", devices, "--lambda", "NaN"},
			"--lambda NaN: it is not a finite number",
		},
		"a negative lambda": {
			[]string{good, "--devices", devices, "--lambda", "-1"},
			"--lambda -1: it is negative",
		},
		"micro-batches that are none": {
			[]string{good, "--devices", devices, "--micro-batches", "0"},
			"--micro-batches 0: it is neither auto nor a whole number in range",
		},
		"weights of half a byte": {
			[]string{good, "--devices", devices, "--weight-bytes", "0.5"},
			"--weight-bytes 0.5: it is not in range",
		},
		"a picture where none can be": {
			[]string{good, "--devices", devices, "--svg", t.TempDir()},
			"is a directory",
		},
		"a picture in a directory that is not": {
			[]string{good, "--devices", devices, "--svg", "nowhere/x"},
			"--svg nowhere/x: no such file or directory",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, stdout, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, append([]string{"plan"}, test.args...)...)
			if code != cli.ExitUsage || stdout != "" {
				t.Errorf("got exit %d, stdout %q, stderr %q; want exit 2 and an error", code, stdout, stderr)
			}
			clitest.Contains(t, "standard error", stderr, test.want, "\n  hint: ")
		})
	}
}
