package torch_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	spillway "github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/exec/exectest"
	"github.com/spillway-ml/spillway/workers/exec/torch"
	"github.com/spillway-ml/spillway/workers/exec/torch/torchtest"
	"github.com/spillway-ml/spillway/workers/schedule"
)

func newExecutor(tb testing.TB, model, data string) *torch.Executor {
	tb.Helper()
	return executorOf(tb, torch.RequirePython(tb), model, data)
}

func executorOf(tb testing.TB, python, model, data string) *torch.Executor {
	tb.Helper()
	e, err := torch.New(torch.Options{Python: python, Model: "testdata/" + model, Data: data, Repeats: 1})
	if err != nil {
		tb.Fatal(err)
	}
	return e
}

func TestTheExecutorKeepsTheContract(t *testing.T) {
	t.Parallel()
	keepsTheContract(t, "torch", torch.RequirePython(t), torchtest.Precision(t), "mlp", "batchnorm", "cnn", "transformer",
		"recurrent", "blocks")
}

// TestPyTorch2KeepsTheContract has the version that people have, beside the one that happens to be installed. Models
// that show little of the version besides are left to SPILLWAY_MEASURE=1.
func TestPyTorch2KeepsTheContract(t *testing.T) {
	t.Parallel()
	python := torchtest.Python2(t)
	names := []string{"mlp", "transformer", "recurrent"}
	if os.Getenv("SPILLWAY_MEASURE") == "1" {
		names = append(names, "batchnorm", "cnn", "blocks")
	}
	keepsTheContract(t, "torch2", python, torchtest.Precision(t), names...)
}

// TestPyTorch2KeepsTheContractInBFloat16 is on CPUs, too: those without instructions for it imitate them.
func TestPyTorch2KeepsTheContractInBFloat16(t *testing.T) {
	t.Parallel()
	python := torchtest.Python2(t)
	if torchtest.Precision(t) != "" {
		t.Skip("SPILLWAY_TEST_PRECISION asks for another precision")
	}
	names := []string{"mlp"}
	if os.Getenv("SPILLWAY_MEASURE") == "1" {
		names = []string{"mlp", "transformer", "recurrent", "batchnorm", "cnn", "blocks"}
	}
	keepsTheContract(t, "torch2, bfloat16", python, spillway.BFloat16, names...)
}

func keepsTheContract(t *testing.T, name, python string, precision spillway.Precision, names ...string) {
	t.Helper()
	models := map[string][2]string{
		"mlp": {"training.py:mlp", "points"}, "batchnorm": {"training.py:batchnorm", "points"},
		"cnn":         {"training.py:cnn", "images"},
		"transformer": {"training.py:transformer", "words"}, "recurrent": {"training.py:recurrent", "sequences"},
		"blocks": {"chain.py:build", "points"},
	}
	on := torchtest.Devices(t)
	subject := exectest.Subject{
		Name: name, Dear: true, Precision: precision,
		New: func(tb testing.TB, model string) spillway.Executor {
			tb.Helper()
			return executorOf(tb, python, models[model][0], models[model][1])
		},
		Device: func(part int) spillway.Device { return on[part%len(on)] },
		Models: names,
	}
	if on[0].Kind == spillway.CUDA { // some of its kernels add in any order
		subject.Split, subject.FullBatch = 1e-4, 1e-3
	}
	if precision == spillway.BFloat16 || precision == spillway.Float16 { // of 8 bits and of 11
		subject.Split, subject.FullBatch = 2e-2, 1e-1
	}
	exectest.Run(t, subject)
}

// TestTheWholeModelIsBuiltOnce has a model that notes where it was built, and one that cannot be built without memory.
func TestTheWholeModelIsBuiltOnce(t *testing.T) {
	t.Parallel()
	const text = `
import torch
from torch import nn

NOTES = %q

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.three = nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 1)
        self.register_buffer("scale", torch.rand(5))
        self.own = nn.Parameter(torch.randn(5))
        %s
        with open(NOTES, "a") as file:
            print(self.one.weight.device, file=file)

    def forward(self, x):
        return self.three(self.two(self.one(x)) * self.scale + self.own)

def build():
    return Model()

def data():
    torch.manual_seed(1)
    return torch.rand(40, 4), torch.rand(40, 1)
`
	for name, c := range map[string]struct{ line, want string }{
		"without memory":         {"", "cpu\nmeta\nmeta\n"},
		"one that reads numbers": {"self.first = self.own[0].item()", "cpu\ncpu\ncpu\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			directory := t.TempDir()
			model, notes := filepath.Join(directory, "model.py"), filepath.Join(directory, "notes")
			if err := os.WriteFile(model, fmt.Appendf(nil, text, notes, c.line), 0o600); err != nil {
				t.Fatal(err)
			}
			e, err := torch.New(torch.Options{Python: torch.RequirePython(t), Model: model + ":build", Repeats: 1})
			if err != nil {
				t.Fatal(err)
			}
			whole, split := layout(), layout("x one", "two mul", "add three loss")
			unsplit := load(t, e, whole)
			want, err := os.ReadFile(notes)
			if err != nil || string(want) != "cpu\n" {
				t.Fatalf("the unsplit model was built on %q, %v", want, err)
			}
			parts := load(t, e, split)
			if got, err := os.ReadFile(notes); err != nil || string(got) != "cpu\n"+c.want {
				t.Errorf("the parts were built on %q, %v; want %q", strings.TrimPrefix(string(got), "cpu\n"), err, c.want)
			}
			if diff := cmp.Diff(train(t, unsplit, whole, 4), train(t, parts, split, 4)); diff != "" {
				t.Errorf("the losses (-unsplit +split):\n%s", diff)
			}
		})
	}
}

// TestAPartThatIsOutOfMemoryNamesTheLayerAndWhatWouldHelp has a layer that fails as torch does.
func TestAPartThatIsOutOfMemoryNamesTheLayerAndWhatWouldHelp(t *testing.T) {
	t.Parallel()
	l := layout()
	run := engine(t, load(t, newExecutor(t, "full.py:build", ""), l), l)
	_, err := run.Step(t.Context(), 0)
	if !errors.Is(err, spillway.ErrMemory) {
		t.Fatalf("got %v, want that it is out of memory", err)
	}
	for _, want := range []string{
		"full.py:", "part 0 on cpu is out of memory at operation second, with micro-batches of 2 samples",
		"Tried to allocate 2.00 GiB", "cut the batch into more micro-batches, or recompute",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in the error:\n%v", want, err)
		}
	}
}

// layout is one of parts with these operations; none is the unsplit model.
func layout(parts ...string) spillway.Layout {
	l := spillway.Layout{
		Batch: 10, MicroBatches: 4, Seed: 3,
		Optimizer: spillway.Optimizer{Kind: spillway.Adam, LearningRate: 0.02},
	}
	for i, ops := range parts {
		l.Parts = append(l.Parts, spillway.Part{
			Ops: strings.Fields(ops), InFlight: 4, Device: spillway.Device{ID: "cpu-" + strconv.Itoa(i), Threads: 1},
		})
	}
	if len(parts) == 0 {
		l.Parts = []spillway.Part{{InFlight: 4, Device: spillway.Device{Threads: 1}}}
	}
	return l
}

func load(t *testing.T, e *torch.Executor, l spillway.Layout) spillway.Pipeline {
	t.Helper()
	p, err := e.Load(t.Context(), l)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func engine(t *testing.T, p spillway.Pipeline, l spillway.Layout) *spillway.Engine {
	t.Helper()
	s, err := schedule.OneForwardOneBackward(len(l.Parts), l.MicroBatches, schedule.Options{Recompute: true})
	if err != nil {
		t.Fatal(err)
	}
	e, err := spillway.NewEngine(p, s, spillway.EngineOptions{Layout: l})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func train(t *testing.T, p spillway.Pipeline, l spillway.Layout, steps int64) []float64 {
	t.Helper()
	run := engine(t, p, l)
	var losses []float64
	for step := range steps {
		report, err := run.Step(t.Context(), step)
		if err != nil {
			t.Fatal(err)
		}
		losses = append(losses, report.Loss)
	}
	return losses
}

// export writes the state of all parts.
func export(t *testing.T, p spillway.Pipeline) []string {
	t.Helper()
	var paths []string
	for i, s := range p.Stages() {
		path := filepath.Join(t.TempDir(), strconv.Itoa(i))
		wait, err := s.Export(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		if err := wait(); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	return paths
}

func TestASplitModelLearnsAsTheWholeOneAndPyTorchLoadsIt(t *testing.T) {
	t.Parallel()
	e := newExecutor(t, "training.py:mlp", "points")
	probe, err := e.Probe(t.Context(), spillway.ProbeOptions{Samples: 6, Device: spillway.Device{Threads: 1}})
	if err != nil {
		t.Fatal(err)
	}
	whole := layout()
	unsplit := load(t, e, whole)
	if got := unsplit.Data(); got != (spillway.Data{Samples: 512, StepsPerEpoch: 51, Model: probe.Model}) {
		t.Errorf("got %+v, want 512 samples in batches of 10 of model %s", got, probe.Model)
	}
	if last := probe.Graph.Ops[len(probe.Graph.Ops)-1]; last.ID != "loss" || probe.Dataset != 512 || probe.Base < 32<<20 {
		t.Errorf("a probe of %d samples that ends with %s, and a base of %s", probe.Dataset, last.ID, probe.Base)
	}
	want := train(t, unsplit, whole, 40)
	split := layout("x first tanh second", "relu drop third tanh_1", "drop_1 add last loss")
	split.Parts[1].Recompute = true
	p := load(t, e, split)
	if diff := cmp.Diff(want, train(t, p, split, 40)); diff != "" {
		t.Errorf("losses of three parts (-unsplit +split):\n%s", diff)
	}
	if err := unsplit.Stages()[0].Import(t.Context(), export(t, p)); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "model.pt")
	if err := p.Write(t.Context(), export(t, unsplit), path); err != nil {
		t.Fatal(err)
	}
	const check = `import sys, torch
sys.path.insert(0, "testdata")
import training
model = training.mlp()
model.load_state_dict(torch.load(sys.argv[1]), strict=True)
x, y = training.data("points")
model.eval()
print((model(x).argmax(1) == y).sum().item())`
	cmd := exec.CommandContext(t.Context(), torch.RequirePython(t), "-B", "-c", check, path)
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	printed, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, complaints.String())
	}
	if right, err := strconv.Atoi(strings.TrimSpace(string(printed))); err != nil || right < 512/2 {
		t.Errorf("%s of 512 are right, want more than guesses", printed)
	}
}

// probedTied is a model whose head has the weights of its embedding, with the names of its operations in their order.
func probedTied(t *testing.T) (e *torch.Executor, probe spillway.Probe, ops []string) {
	t.Helper()
	e = newExecutor(t, "training.py:tied", "words")
	probe, err := e.Probe(t.Context(), spillway.ProbeOptions{Samples: 6, Device: spillway.Device{Threads: 1}})
	if err != nil {
		t.Fatal(err)
	}
	for _, op := range probe.Graph.Ops {
		ops = append(ops, op.ID)
	}
	return e, probe, ops
}

// The head of the model has the weights of its embedding. What is split off is the loss, or the head as well.
func TestPyTorchLoadsAModelWithTiedWeights(t *testing.T) {
	t.Parallel()
	e, _, ops := probedTied(t)
	last := len(ops) - 1
	const check = `import sys, torch
sys.path.insert(0, "testdata")
import training
torch.manual_seed(1)
model = training.tied()
before = model.head.weight.detach().clone()
state = torch.load(sys.argv[1])
assert state["head.weight"].data_ptr() == state["embed.weight"].data_ptr(), "two copies of one weight"
model.load_state_dict(state, strict=True)
assert model.head.weight is model.embed.weight and not torch.equal(before, model.head.weight)
x, y = training.data("words")
model.eval()
print((model(x).argmax(2) == y).float().mean().item())`
	var want []float64
	for _, l := range []spillway.Layout{
		layout(), layout(strings.Join(ops[:last], " "), ops[last]),
		layout(strings.Join(ops[:last-1], " "), strings.Join(ops[last-1:], " ")),
	} {
		p := load(t, e, l)
		losses := train(t, p, l, 60)
		if want == nil {
			want = losses
		}
		closeTo(t, losses[:30], want[:30]) // later, rounding that grew is the larger
		path := filepath.Join(t.TempDir(), "model.pt")
		if err := p.Write(t.Context(), export(t, p), path); err != nil {
			t.Fatal(err)
		}
		printed, err := exec.CommandContext(t.Context(), torch.RequirePython(t), "-B", "-c", check, path).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, printed)
		}
		if right, err := strconv.ParseFloat(strings.TrimSpace(string(printed)), 64); err != nil || right < 0.5 {
			t.Errorf("%s of the next words are right, want more than half; guesses are a thirtieth", printed)
		}
	}
}

// TestATiedWeightIsClippedAndGoesOnFromACheckpoint has three parts, of which the outer ones share a weight: the norm
// counts the sum of its gradients, and the state of the optimizer is in one file.
func TestATiedWeightIsClippedAndGoesOnFromACheckpoint(t *testing.T) {
	t.Parallel()
	e, probe, ops := probedTied(t)
	middle, last := len(ops)/2, len(ops)-2
	if len(probe.Tied) != 1 || probe.Graph.Ops[probe.Tied[0].Ops[1]].ID != "head" || probe.Tied[0].Bytes != 30*16*4 {
		t.Fatalf("the tied parameters are %v", probe.Tied)
	}
	split := layout(strings.Join(ops[:middle], " "), strings.Join(ops[middle:last], " "), strings.Join(ops[last:], " "))
	clipped := func(p spillway.Pipeline, l spillway.Layout, first, steps int64) []float64 {
		t.Helper()
		s, err := schedule.OneForwardOneBackward(len(l.Parts), l.MicroBatches, schedule.Options{Recompute: true})
		if err != nil {
			t.Fatal(err)
		}
		run, err := spillway.NewEngine(p, s, spillway.EngineOptions{Layout: l, ClipNorm: 0.5})
		if err != nil {
			t.Fatal(err)
		}
		var losses []float64
		for step := first; step < first+steps; step++ {
			report, err := run.Step(t.Context(), step)
			if err != nil {
				t.Fatal(err)
			}
			losses = append(losses, report.Loss)
		}
		return losses
	}
	want := clipped(load(t, e, layout()), layout(), 0, 20)
	first := load(t, e, split)
	got := clipped(first, split, 0, 10)
	paths := export(t, first)
	for _, l := range []spillway.Layout{layout(), split} {
		p := load(t, e, l)
		for _, stage := range p.Stages() {
			if err := stage.Import(t.Context(), paths); err != nil {
				t.Fatal(err)
			}
		}
		closeTo(t, append(slices.Clone(got), clipped(p, l, 10, 10)...), want)
	}
}

// What the process itself grows by in its first step is in the base, so that predictions of small parts are not off by
// it.
func TestASmallPartHoldsLittleBesideTheBase(t *testing.T) {
	t.Parallel()
	e := newExecutor(t, "training.py:mlp", "points")
	l := layout()
	p := load(t, e, l)
	train(t, p, l, 5)
	used, err := p.Stages()[0].Usage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if used.Peak == 0 {
		t.Skip("the system does not tell the peak of a process")
	}
	if used.Peak > 8<<20 { // pages of libraries that a forked process maps as it runs their code for the first time
		t.Errorf("a part with %s of parameters peaks %s above the base; want at most 8 MiB", used.Parameters, used.Peak)
	}
}

func TestAPartThatDiesIsNamedWithItsLastWordsAndNoProcessIsLeft(t *testing.T) {
	t.Parallel()
	e := newExecutor(t, "training.py:dies", "points")
	l := layout("input_1 _0", "fatal _2 loss") // of 10 samples in 4 micro-batches, the second has 3
	p := load(t, e, l)
	numbers := torch.Processes(p)
	_, err := engine(t, p, l).Step(t.Context(), 0)
	if err == nil {
		t.Fatal("the step succeeds")
	}
	for _, want := range []string{"part 1 on cpu-1", "signal: killed", "these are the last words"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in the error:\n%v", want, err)
		}
	}
	if _, err := p.Stages()[1].Usage(t.Context()); err == nil || !strings.Contains(err.Error(), "signal: killed") {
		t.Errorf("a later call: got %v, want how it ended", err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	for _, number := range numbers {
		if err := syscall.Kill(number, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("process %d is left: %v", number, err)
		}
	}
}

func TestLayoutsThatMakeNoSenseAreRefusedBeforeAnythingStarts(t *testing.T) {
	t.Parallel()
	e, err := torch.New(torch.Options{Python: "no-such-python", Model: "testdata/training.py:mlp"})
	if err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*spillway.Layout){
		"without parts":             func(l *spillway.Layout) { l.Parts = nil },
		"11 micro-batches":          func(l *spillway.Layout) { l.MicroBatches = 11 },
		"0 micro-batches in flight": func(l *spillway.Layout) { l.Parts[0].InFlight = 0 },
		"names no operations":       func(l *spillway.Layout) { l.Parts = append(l.Parts, l.Parts[0]) },
		"tf32 on cpu":               func(l *spillway.Layout) { l.Precision = spillway.TF32 },
		`precision "float8"`:        func(l *spillway.Layout) { l.Precision = "float8" },
		`of kind "tpu"`:             func(l *spillway.Layout) { l.Parts[0].Device.Kind = "tpu" },
		"-1 threads":                func(l *spillway.Layout) { l.Parts[0].Device.Threads = -1 },
		"install python3":           func(*spillway.Layout) {},
	} {
		l := layout()
		change(&l)
		if p, err := e.Load(t.Context(), l); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, %v; want %q in the error", p, err, want)
		}
	}
	if _, err := e.Probe(t.Context(), spillway.ProbeOptions{}); err == nil || !strings.Contains(err.Error(), "0 samples") {
		t.Errorf("a probe of nothing: got %v", err)
	}
}

// scheduled is a model whose first operation has no parameters, with a schedule of the rates that groups began with.
const scheduled = `
import torch
from torch import nn

def model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))

def data():
    torch.manual_seed(2)
    return torch.randn(40, 2, 2), torch.randint(0, 3, (40,))

def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)

def scheduler(optimizer):
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
`

func TestAScheduleGoesOnBesideAPartWithoutParameters(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "scheduled.py")
	if err := os.WriteFile(path, []byte(scheduled), 0o600); err != nil {
		t.Fatal(err)
	}
	e, err := torch.New(torch.Options{Python: torch.RequirePython(t), Model: path + ":model", Repeats: 1})
	if err != nil {
		t.Fatal(err)
	}
	probe, err := e.Probe(t.Context(), spillway.ProbeOptions{Samples: 6, Device: spillway.Device{Threads: 1}})
	if err != nil {
		t.Fatal(err)
	}
	var ops []string
	for _, op := range probe.Graph.Ops {
		ops = append(ops, op.ID)
	}
	split := layout(strings.Join(ops[:2], " "), strings.Join(ops[2:], " "))
	split.Optimizer = spillway.Optimizer{}
	first := load(t, e, split)
	train(t, first, split, 4)
	paths := export(t, first)
	second := load(t, e, split)
	for _, s := range second.Stages() {
		if err := s.Import(t.Context(), paths); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(train(t, first, split, 4), train(t, second, split, 4)); diff != "" {
		t.Errorf("losses (-of the one that went on +of the one that was imported):\n%s", diff)
	}
}
