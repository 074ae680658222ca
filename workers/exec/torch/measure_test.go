package torch_test

import (
	"bufio"
	"bytes"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	spillway "github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/exec/exectest"
	"github.com/spillway-ml/spillway/workers/exec/torch"
	"github.com/spillway-ml/spillway/workers/exec/torch/torchtest"
	"github.com/spillway-ml/spillway/workers/graph"
	"github.com/spillway-ml/spillway/workers/schedule"
)

func median(list []float64) float64 {
	list = slices.Clone(list)
	slices.Sort(list)
	return list[len(list)/2]
}

func milliseconds(list []float64) string { return fmt.Sprintf("%.2f ms", median(list)*1e3) }

// core is a device of one thread on a core of its own.
func core(number int) spillway.Device {
	return spillway.Device{ID: "core-" + strconv.Itoa(number), Threads: 1, CPUs: []int{number}}
}

// cutInTwo is the unsplit model's operations in two parts of the costs that come closest to each other, on two cores.
func cutInTwo(t *testing.T, e *torch.Executor, samples int) []spillway.Part {
	t.Helper()
	probe, err := e.Probe(t.Context(), spillway.ProbeOptions{Samples: samples, Device: core(0)})
	if err != nil {
		t.Fatal(err)
	}
	ops := probe.Graph.Ops
	total, sum := 0.0, 0.0
	cost := func(op graph.Op) float64 { return float64(op.Costs[graph.CPU].Forward + op.Costs[graph.CPU].Backward) }
	for _, op := range ops {
		total += cost(op)
	}
	cut, nearest := 0, math.Inf(1)
	for i, op := range ops {
		sum += cost(op)
		if distance := math.Abs(sum - total/2); distance < nearest {
			cut, nearest = i+1, distance
		}
	}
	parts := []spillway.Part{{Device: core(0)}, {Device: core(1)}}
	for i, op := range ops {
		part := &parts[0]
		if i >= cut {
			part = &parts[1]
		}
		part.Ops = append(part.Ops, op.ID)
	}
	return parts
}

func measured(t *testing.T, model string) *torch.Executor {
	t.Helper()
	return measuredWith(t, torch.RequirePython(t), model)
}

func measuredWith(t *testing.T, python, model string) *torch.Executor {
	t.Helper()
	e, err := torch.New(torch.Options{Python: python, Model: "testdata/measured.py:" + model, Data: model, Repeats: 3})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// started is a pipeline with an engine for each schedule. Each part may hold all micro-batches.
func started(
	t *testing.T, e *torch.Executor, parts []spillway.Part, batch, microBatches int,
	schedules ...func(int, int, schedule.Options) (schedule.Schedule, error),
) []*spillway.Engine {
	t.Helper()
	l := spillway.Layout{
		Batch: batch, MicroBatches: microBatches, Seed: 3, Parts: slices.Clone(parts),
		Optimizer: spillway.Optimizer{Kind: spillway.SGD, LearningRate: 0.001},
	}
	for i := range l.Parts {
		l.Parts[i].InFlight = microBatches
	}
	p := load(t, e, l)
	var engines []*spillway.Engine
	for _, made := range schedules {
		s, err := made(len(parts), microBatches, schedule.Options{})
		if err != nil {
			t.Fatal(err)
		}
		run, err := spillway.NewEngine(p, s, spillway.EngineOptions{Layout: l})
		if err != nil {
			t.Fatal(err)
		}
		engines = append(engines, run)
	}
	return engines
}

// How far figures may be off, and what is noise beyond that: the bubble of the fastest step, in parts of the step; a
// step of two parts beside one of a single part; a step beside that of a bare training loop and that of two replicas
// beside DistributedDataParallel, the medians of the ratios.
const (
	bubbleBar, bubbleNoise = 0.02, 0.03
	twoBar, twoNoise       = 0.80, 0.15
	bareBar, bareNoise     = 1.03, 0.05
	replicasBar            = 1.05
)

// The bubble of equal stages is (K-1)/(M+K-1) (Y. Huang et al., GPipe, https://arxiv.org/abs/1811.06965, section 2.3).
func TestMeasureTheBubbleOfTwoProcessesBesideItsFormula(t *testing.T) {
	exectest.RequireMeasuring(t)
	if runtime.NumCPU() < 2 {
		t.Skip("it needs two cores")
	}
	const samples, rounds = 128, 7 // samples of a micro-batch
	e := measured(t, "halves")
	parts := []spillway.Part{
		{Ops: strings.Fields("input_1 _0 _1 _2 _3 _4 _5 _6 _7 _8"), Device: core(0)},
		{Ops: strings.Fields("_9 _10 _11 _12 _13 _14 _15 _16 _17 loss"), Device: core(1)},
	}
	for _, microBatches := range []int{1, 2, 4, 8, 16, 32} {
		t.Run(fmt.Sprintf("%d micro-batches", microBatches), func(t *testing.T) {
			engines := started(t, e, parts, samples*microBatches, microBatches, schedule.GPipe, schedule.OneForwardOneBackward)
			bubbles, durations := make([][]float64, 2), make([][]float64, 2)
			step := int64(0)
			for round := range rounds + 1 {
				for i, run := range engines {
					report, err := run.Step(t.Context(), step)
					if err != nil {
						t.Fatal(err)
					}
					step++
					if round > 0 { // the first allocates
						bubbles[i], durations[i] = append(bubbles[i], report.Bubble()), append(durations[i], report.Duration.Seconds())
					}
				}
			}
			formula := 1 / float64(microBatches+1)
			for i, name := range []string{"GPipe", "1F1B"} {
				bubble := median(bubbles[i])
				// the step that others on the machine disturbed least
				fastest := slices.Index(durations[i], slices.Min(durations[i]))
				t.Logf("%-5s M = %2d: formula %.3f, bubble %.3f (%.3f to %.3f), %+.1f points; in the fastest step %.3f, %+.1f "+
					"points; steps of %s, at least %.2f ms",
					name, microBatches, formula, bubble, slices.Min(bubbles[i]), slices.Max(bubbles[i]), 100*(bubble-formula),
					bubbles[i][fastest], 100*(bubbles[i][fastest]-formula), milliseconds(durations[i]), durations[i][fastest]*1e3)
				if off := math.Abs(bubbles[i][fastest] - formula); off > bubbleBar+bubbleNoise {
					t.Errorf("%s: the bubble of the fastest step is %.1f points from its formula, want %.0f, and %.0f more for noise",
						name, 100*off, 100*bubbleBar, 100*bubbleNoise)
				}
			}
			exectest.LogLoad(t)
		})
	}
}

// TestMeasureTwoPartsBesideOne tells how long a step of two parts on a core each takes beside one of the whole model on
// one core, the same samples in each.
func TestMeasureTwoPartsBesideOne(t *testing.T) {
	exectest.RequireMeasuring(t)
	if runtime.NumCPU() < 2 {
		t.Skip("it needs two cores")
	}
	for _, tt := range []struct {
		model               string
		batch, microBatches int
	}{{"cnn", 256, 8}, {"halves", 2048, 8}, {"untied", 16, 8}} {
		t.Run(fmt.Sprintf("%s in %d micro-batches", tt.model, tt.microBatches), func(t *testing.T) {
			e := measured(t, tt.model)
			split := started(t, e, cutInTwo(t, e, tt.batch/tt.microBatches), tt.batch, tt.microBatches,
				schedule.OneForwardOneBackward)[0]
			whole := started(t, e, []spillway.Part{{Device: core(0)}}, tt.batch, 1, schedule.GPipe)[0]
			cut := started(t, e, []spillway.Part{{Device: core(0)}}, tt.batch, tt.microBatches,
				schedule.OneForwardOneBackward)[0]
			var inTwo, inOne, inOneCut, bubbles []float64
			for step := range int64(8) {
				for engine, durations := range map[*spillway.Engine]*[]float64{split: &inTwo, whole: &inOne, cut: &inOneCut} {
					report, err := engine.Step(t.Context(), step)
					if err != nil {
						t.Fatal(err)
					}
					if step < 2 {
						continue
					}
					*durations = append(*durations, report.Duration.Seconds())
					if engine == split {
						bubbles = append(bubbles, report.Bubble())
					}
				}
			}
			t.Logf("%s, batch %d: 2 parts of %d micro-batches %s, bubble %.3f; 1 part of one micro-batch %s, ratio %.3f; 1 "+
				"part of %d %s, ratio %.3f", tt.model, tt.batch,
				tt.microBatches, milliseconds(inTwo), median(bubbles), milliseconds(inOne), median(inTwo)/median(inOne),
				tt.microBatches, milliseconds(inOneCut), median(inTwo)/median(inOneCut))
			t.Logf("fastest steps: %.2f, %.2f (%.3f) and %.2f ms (%.3f)", slices.Min(inTwo)*1e3, slices.Min(inOne)*1e3,
				slices.Min(inTwo)/slices.Min(inOne),
				slices.Min(inOneCut)*1e3, slices.Min(inTwo)/slices.Min(inOneCut))
			if ratio := slices.Min(inTwo) / slices.Min(inOne); ratio > twoBar+twoNoise {
				t.Errorf("a step of two parts takes %.2f times that of one, want %.2f, and %.2f more for noise", ratio, twoBar,
					twoNoise)
			}
			exectest.LogLoad(t)
		})
	}
}

// TestMeasureThePassageOfTensors prints the speed at which a tensor goes to the next process and its gradient comes
// back, beside a copy of as many bytes within a process. A passage is written once, by the part that sends it, and read
// where it lies.
func TestMeasureThePassageOfTensors(t *testing.T) {
	exectest.RequireMeasuring(t)
	if runtime.NumCPU() < 2 {
		t.Skip("it needs two cores")
	}
	var overhead float64 // of the four calls
	for _, tt := range []struct {
		model string
		size  int
	}{
		{"one_number", 4},
		{"megabyte", 1 << 20},
		{"megabytes4", 4 << 20},
		{"megabytes16", 16 << 20},
		{"megabytes64", 64 << 20},
	} {
		e, err := torch.New(torch.Options{Python: torch.RequirePython(t), Model: "testdata/passing.py:" + tt.model})
		if err != nil {
			t.Fatal(err)
		}
		l := spillway.Layout{
			Batch: 1, MicroBatches: 1, Optimizer: spillway.Optimizer{Kind: spillway.SGD, LearningRate: 1},
			Parts: []spillway.Part{
				{Ops: []string{"input0", "giver"}, InFlight: 1, Device: core(0)},
				{Ops: []string{"taker", "loss"}, InFlight: 1, Device: core(1)},
			},
		}
		p := load(t, e, l)
		// written to, as pages that nobody wrote are all the same one
		source, target := bytes.Repeat([]byte{1}, tt.size), make([]byte, tt.size)
		var there, back, copies []float64
		for step := range int64(40) {
			forward, backward := pass(t, p, step)
			began := time.Now()
			copy(target, source)
			copies = append(copies, time.Since(began).Seconds())
			there, back = append(there, forward), append(back, backward)
		}
		there, back, copies = there[8:], back[8:], copies[8:]
		if overhead == 0 {
			overhead = median(there) + median(back)
			t.Logf("one number there and back: %s in 4 calls", fmt.Sprintf("%.0f us", overhead*1e6))
			continue
		}
		speed := func(times float64, seconds float64) float64 { return times * float64(tt.size) / seconds / 1e9 }
		both := median(there) + median(back)
		t.Logf("%2d MiB: there %s, %.2f GB/s; back %s, %.2f GB/s; both %.2f GB/s (%.2f without the calls); memcpy %s, %.2f "+
			"GB/s; ratio %.2f",
			tt.size>>20, milliseconds(there), speed(1, median(there)), milliseconds(back), speed(1, median(back)),
			speed(2, both), speed(2, both-overhead),
			milliseconds(copies), speed(1, median(copies)), both/2/median(copies))
	}
	exectest.LogLoad(t)
}

// pass trains one step and returns the seconds of both forward and both backward passes.
func pass(t *testing.T, p spillway.Pipeline, step int64) (there, back float64) {
	t.Helper()
	b, err := p.Batch(t.Context(), step)
	if err != nil {
		t.Fatal(err)
	}
	first, second := p.Stages()[0], p.Stages()[1]
	began := time.Now()
	message, err := first.Forward(t.Context(), step, 0, b.MicroBatches[0], nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := second.Forward(t.Context(), step, 0, b.MicroBatches[0], []spillway.Message{message}); err != nil {
		t.Fatal(err)
	}
	there = time.Since(began).Seconds()
	began = time.Now()
	cotangents, err := second.Backward(t.Context(), 0, make([]spillway.Message, 2))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := first.Backward(t.Context(), 0, []spillway.Message{nil, cotangents[0]}); err != nil {
		t.Fatal(err)
	}
	back = time.Since(began).Seconds()
	squares, err := first.GradientSquares(t.Context())
	if err != nil || squares != 25 {
		t.Fatalf("what came back ends with the root of %v, %v; want 5", squares, err)
	}
	if _, err := first.Step(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	loss, err := second.Step(t.Context(), 1)
	if err != nil || loss != float64(3-step) { // its anchor falls by the gradient, which is 1
		t.Fatalf("a loss of %v, %v; want %v", loss, err, 3-step)
	}
	return there, back
}

// bareLoop trains a model of measured.py in PyTorch alone, and prints the seconds of each step. It reads a line before
// each, so that turns can be taken.
const bareLoop = `
import sys, time, torch
sys.path.insert(0, "testdata")
import measured
threads, batch = int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(threads)
torch.manual_seed(3)
model, (inputs, targets) = getattr(measured, sys.argv[1])(), measured.data(sys.argv[1])
model = model[0] if isinstance(model, tuple) else model
model.train()
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
order = torch.randperm(len(inputs))
for step, _ in enumerate(sys.stdin):
    began = time.perf_counter()
    rows = order[step % (len(inputs) // batch) * batch:][:batch]
    output = model(inputs.index_select(0, rows))
    loss = torch.nn.functional.cross_entropy(output.flatten(0, -2), targets.index_select(0, rows).flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    loss.item()
    print(time.perf_counter() - began, flush=True)
`

// TestMeasureTheExecutorBesideABareLoop prints what a step costs in the executor, and what it costs in PyTorch alone;
// both take turns, and the median is that of the ratios of two neighbours.
func TestMeasureTheExecutorBesideABareLoop(t *testing.T) {
	exectest.RequireMeasuring(t)
	for _, version := range []struct {
		name   string
		python func(testing.TB) string
	}{{"1.13", torchtest.Python}, {"2", torchtest.Python2}} {
		for _, threads := range []int{1, 2} {
			for _, tt := range []struct {
				model string
				batch int
			}{{"mlp", 64}, {"cnn", 64}, {"transformer", 8}} {
				t.Run(fmt.Sprintf("torch %s, %s with %d threads", version.name, tt.model, threads), func(t *testing.T) {
					measureBeside(t, version.python(t), tt.model, tt.batch, threads)
				})
			}
		}
	}
}

func measureBeside(t *testing.T, python, model string, batch, threads int) {
	t.Helper()
	l := spillway.Layout{
		Batch: batch, MicroBatches: 1, Seed: 3, Optimizer: spillway.Optimizer{Kind: spillway.Adam},
		Parts: []spillway.Part{
			{InFlight: 1, Device: spillway.Device{ID: "cpu-0", Threads: threads}},
		},
	}
	p := load(t, measuredWith(t, python, model), l)
	what := fmt.Sprintf("%s, %d threads, batch %d", model, threads, batch)
	inTurns(t, what, engine(t, p, l), bareBar+bareNoise, threads, python, "-B", "-c", bareLoop, model,
		strconv.Itoa(threads), strconv.Itoa(batch))
	stage := p.Stages()[0]
	const calls = 1000
	began := time.Now()
	for range calls {
		if _, err := stage.GradientSquares(t.Context()); err != nil { // there are none
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
	exectest.LogLoad(t)
}

// inTurns does steps beside another program, each its own in turn: that reads a line before each and prints its
// seconds. The median of the ratios of two neighbours must not be above most.
func inTurns(
	t *testing.T, what string, run spillway.Stepper, most float64, threads int, program string, arguments ...string,
) {
	t.Helper()
	//nolint:gosec // a Python that was looked for
	cmd := exec.CommandContext(t.Context(), program, arguments...)
	cmd.Env, cmd.Stderr = append(cmd.Environ(), "OMP_NUM_THREADS="+strconv.Itoa(threads), "OMP_WAIT_POLICY=PASSIVE"),
		os.Stderr
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
	var ours, bare, data, ratios []float64
	for step := range int64(65) {
		began := time.Now()
		report, err := run.Step(t.Context(), step)
		if err != nil {
			t.Fatal(err)
		}
		mine := time.Since(began).Seconds()
		if _, err := in.Write([]byte("\n")); err != nil || !lines.Scan() {
			t.Fatal("the other program ended")
		}
		seconds, err := strconv.ParseFloat(lines.Text(), 64)
		if err != nil {
			t.Fatal(err)
		}
		if step >= 5 { // the first ones allocate
			ours, bare, ratios = append(ours, mine), append(bare, seconds), append(ratios, mine/seconds)
			data = append(data, report.Data.Seconds())
		}
	}
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%s: %s a step, %s of it for data; in PyTorch alone %s; median of the ratios %.3f; least %.2f and %.2f ms, "+
		"ratio %.3f", what, milliseconds(ours), milliseconds(data), milliseconds(bare), median(ratios),
		slices.Min(ours)*1e3, slices.Min(bare)*1e3, slices.Min(ours)/slices.Min(bare))
	if ratio := median(ratios); ratio > most {
		t.Errorf("%s: a step takes %.3f times that in PyTorch alone, want at most %.2f", what, ratio, most)
	}
}

// distributed trains a model of measured.py in two replicas of DistributedDataParallel, as torchrun starts them. The
// first prints the seconds of each step, and reads a line before each.
const distributed = `
import os, sys, time, torch
import torch.distributed as dist
sys.path.insert(0, "testdata")
import measured
batch = int(sys.argv[2])
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, count = dist.get_rank(), dist.get_world_size()
os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
torch.manual_seed(3)
model, (inputs, targets) = getattr(measured, sys.argv[1])(), measured.data(sys.argv[1])
model = model[0] if isinstance(model, tuple) else model
model = torch.nn.parallel.DistributedDataParallel(model.train())
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(3))
step = 0
while True:
    go = torch.tensor([1 if rank > 0 or sys.stdin.readline() else 0])
    dist.broadcast(go, 0)
    if not go.item():
        break
    began = time.perf_counter()
    rows = order[step % (len(inputs) // batch) * batch:][rank * batch // count:(rank + 1) * batch // count]
    output = model(inputs.index_select(0, rows))
    loss = torch.nn.functional.cross_entropy(output.flatten(0, -2), targets.index_select(0, rows).flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    loss = loss.detach()
    dist.all_reduce(loss)
    loss.item()
    step += 1
    if rank == 0:
        print(time.perf_counter() - began, flush=True)
dist.destroy_process_group()
os._exit(0)  # threads that are still there may abort an orderly end
`

// TestMeasureTwoReplicasBesideDistributedDataParallel prints what a step of two replicas costs, and what it costs as
// torchrun starts DistributedDataParallel; each process has one core.
func TestMeasureTwoReplicasBesideDistributedDataParallel(t *testing.T) {
	exectest.RequireMeasuring(t)
	python := torchtest.Python2(t)
	script := filepath.Join(t.TempDir(), "distributed.py")
	if err := os.WriteFile(script, []byte(distributed), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		model string
		batch int
	}{{"mlp", 64}, {"cnn", 64}, {"transformer", 8}} {
		t.Run(tt.model, func(t *testing.T) {
			device := func(i int) spillway.Device {
				return spillway.Device{ID: fmt.Sprintf("cpu-%d", i), Threads: 1, CPUs: []int{i}}
			}
			p := load(t, measuredWith(t, python, tt.model), spillway.Layout{
				Batch: tt.batch, MicroBatches: 1, Seed: 3, Optimizer: spillway.Optimizer{Kind: spillway.Adam}, Replicas: 2,
				Parts: []spillway.Part{{InFlight: 1, Device: device(0), Replicas: []spillway.Device{device(1)}}},
			})
			run, whole := p.(spillway.Stepper)
			if !whole {
				t.Fatalf("%T does no whole steps", p)
			}
			inTurns(t, tt.model, run, replicasBar+bareNoise, 1, python, "-B", "-m", "torch.distributed.run", "--standalone",
				"--nproc-per-node=2", script, tt.model, strconv.Itoa(tt.batch))
		})
	}
}

// TestMeasureACompiledPartBesideOneThatIsNot prints what torch.compile brings on a CPU; both take turns.
func TestMeasureACompiledPartBesideOneThatIsNot(t *testing.T) {
	exectest.RequireMeasuring(t)
	t.Setenv("TORCHINDUCTOR_CACHE_DIR", t.TempDir())
	python := torchtest.Python2(t)
	for _, tt := range []struct {
		model string
		batch int
	}{{"mlp", 64}, {"cnn", 64}, {"transformer", 8}} {
		t.Run(tt.model, func(t *testing.T) {
			e := measuredWith(t, python, tt.model)
			l := spillway.Layout{
				Batch: tt.batch, MicroBatches: 1, Seed: 3, Optimizer: spillway.Optimizer{Kind: spillway.Adam},
				Parts: []spillway.Part{{InFlight: 1, Device: core(0)}},
			}
			compiled := l
			compiled.Compile = true
			began := time.Now()
			runs := []*spillway.Engine{engine(t, load(t, e, l), l), engine(t, load(t, e, compiled), compiled)}
			var ratios []float64
			var first time.Duration
			for step := range int64(30) {
				var took [2]float64
				for i, run := range runs {
					began := time.Now()
					if _, err := run.Step(t.Context(), step); err != nil {
						t.Fatal(err)
					}
					took[i] = time.Since(began).Seconds()
				}
				if step == 1 { // which compiles
					first = time.Since(began)
				}
				if step >= 5 {
					ratios = append(ratios, took[1]/took[0])
				}
			}
			t.Logf("%s, batch %d, one thread: a compiled step takes %.3f times as long (%.3f to %.3f); ready after %.0f s",
				tt.model, tt.batch, median(ratios), slices.Min(ratios), slices.Max(ratios), first.Seconds())
			exectest.LogLoad(t)
		})
	}
}
