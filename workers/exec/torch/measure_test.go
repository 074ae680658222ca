package torch_test

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	spillway "github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/exec/torch"
	"github.com/spillway-ml/spillway/workers/schedule"
)

// bareLoop trains a model of measured.py in PyTorch alone, and prints the seconds of each step. It reads a line before each, so that turns can be taken.
const bareLoop = `
import sys, time, torch
sys.path.insert(0, "testdata")
import measured
torch.set_num_threads(1)
torch.manual_seed(3)
model, (inputs, targets) = getattr(measured, sys.argv[1])(), measured.data(sys.argv[1])
model = model[0] if isinstance(model, tuple) else model
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
order = torch.randperm(len(inputs))
for step, _ in enumerate(sys.stdin):
    began = time.perf_counter()
    rows = order[step % 4 * 64:][:64]
    output = model(inputs.index_select(0, rows))
    loss = torch.nn.functional.cross_entropy(output.flatten(0, -2), targets.index_select(0, rows).flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    loss.item()
    print(time.perf_counter() - began, flush=True)
`

// TestMeasureTheExecutorBesideABareLoop prints what a step costs in the executor, and what it costs in PyTorch alone; both take turns.
func TestMeasureTheExecutorBesideABareLoop(t *testing.T) {
	if os.Getenv("SPILLWAY_MEASURE") != "1" {
		t.Skip("measures for minutes; set SPILLWAY_MEASURE=1")
	}
	for _, model := range []string{"mlp", "cnn", "transformer"} {
		t.Run(model, func(t *testing.T) { measureBeside(t, model) })
	}
}

func measureBeside(t *testing.T, model string) {
	t.Helper()
	e, err := torch.New(torch.Options{Python: torch.RequirePython(t), Model: "testdata/measured.py:" + model, Data: model})
	if err != nil {
		t.Fatal(err)
	}
	l := spillway.Layout{Batch: 64, MicroBatches: 1, Seed: 3, Optimizer: spillway.Optimizer{Kind: spillway.Adam}, Parts: []spillway.Part{
		{InFlight: 1, Device: spillway.Device{ID: "cpu-0", Threads: 1}},
	}}
	p := load(t, e, l)
	s, err := schedule.GPipe(1, 1, schedule.Options{})
	if err != nil {
		t.Fatal(err)
	}
	run, err := spillway.NewEngine(p, s, spillway.EngineOptions{Layout: l})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), torch.RequirePython(t), "-B", "-c", bareLoop, model)
	cmd.Env, cmd.Stderr = append(cmd.Environ(), "OMP_NUM_THREADS=1", "OMP_WAIT_POLICY=PASSIVE"), os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	var ours, bare []float64
	for step := range int64(15) {
		began := time.Now()
		if _, err := run.Step(t.Context(), step); err != nil {
			t.Fatal(err)
		}
		ours = append(ours, time.Since(began).Seconds())
		if _, err := in.Write([]byte("\n")); err != nil || !lines.Scan() {
			t.Fatal("the bare loop ended")
		}
		seconds, err := strconv.ParseFloat(lines.Text(), 64)
		if err != nil {
			t.Fatal(err)
		}
		bare = append(bare, seconds)
	}
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	a, b := median(ours[3:]), median(bare[3:])
	t.Logf("%s, 1 thread, batch 64: %.2f ms a step, bare loop %.2f ms (%.3f); least %.2f and %.2f (%.3f)", model, a*1e3, b*1e3, a/b,
		slices.Min(ours)*1e3, slices.Min(bare)*1e3, slices.Min(ours)/slices.Min(bare))
	stage := p.Stages()[0]
	const calls = 1000
	began := time.Now()
	for range calls {
		if _, err := stage.GradientSquares(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%s: %.0f us a call", model, time.Since(began).Seconds()/calls*1e6)
	began = time.Now()
	wait, err := stage.Export(t.Context(), filepath.Join(t.TempDir(), "part"))
	if err != nil {
		t.Fatal(err)
	}
	copied := time.Since(began)
	if err := wait(); err != nil {
		t.Fatal(err)
	}
	used, err := stage.Usage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s: copied for export in %v, written after %v; %+v", model, copied, time.Since(began), used)
}

func median(list []float64) float64 {
	list = slices.Clone(list)
	slices.Sort(list)
	return list[len(list)/2]
}

// TestMeasureWhatPassesBetweenParts prints the time of a step of two parts that compute nearly nothing and pass large tensors.
func TestMeasureWhatPassesBetweenParts(t *testing.T) {
	if os.Getenv("SPILLWAY_MEASURE") != "1" {
		t.Skip("measures; set SPILLWAY_MEASURE=1")
	}
	for _, model := range []string{"narrow", "wide"} {
		e, err := torch.New(torch.Options{Python: torch.RequirePython(t), Model: "testdata/measured.py:" + model, Data: model})
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range []spillway.Layout{layout(), layout("input_1 _0", "_1 _2 _3 loss")} {
			l.Batch, l.MicroBatches = 64, 4
			p := load(t, e, l)
			run := engine(t, p, l)
			var durations []float64
			for step := range int64(15) {
				report, err := run.Step(t.Context(), step)
				if err != nil {
					t.Fatal(err)
				}
				durations = append(durations, report.Duration.Seconds())
			}
			t.Logf("%s in %d parts: %.2f ms a step of 4 micro-batches, at least %.2f", model, len(l.Parts), median(durations[3:])*1e3, slices.Min(durations)*1e3)
		}
	}
}
