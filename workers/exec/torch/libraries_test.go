package torch_test

import (
	"encoding/json"
	"math"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	spillway "github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/exec/exectest"
	"github.com/spillway-ml/spillway/workers/exec/torch"
	"github.com/spillway-ml/spillway/workers/exec/torch/torchtest"
)

// librarySteps are compared of each model; its losses may differ by libraryTolerance, relative to them.
const (
	librarySteps     = 20
	libraryTolerance = 1e-5
)

// TestModelsOfLibrariesTrainInParts has what people have: an unchanged file that builds a model of transformers or
// torchvision, cut in the middle. The parts of the first two share the words' embedding.
func TestModelsOfLibrariesTrainInParts(t *testing.T) {
	t.Parallel()
	python := torchtest.Python2(t)
	for _, c := range []struct{ model, cut string }{
		{"sentences.py:gpt2", "transformer_h_2"},
		{"sentences.py:bert", "bert_encoder_layer_2"},
		{"vision.py:resnet", "layer3_0_conv1"},
		{"vision.py:tuned", "body_layer3_0_conv1"},
	} {
		t.Run(c.model, func(t *testing.T) {
			t.Parallel()
			if c.model == "vision.py:tuned" { // the test below has it unsplit
				exectest.RequireMeasuring(t)
			}
			e := executorOf(t, python, c.model, "")
			whole := libraryLayout()
			want := train(t, load(t, e, whole), whole, librarySteps)
			if want[librarySteps-1] >= want[0] {
				t.Errorf("the losses do not fall: %v", want)
			}
			parts := libraryLayout(cutBefore(t, e, c.cut)...)
			p := load(t, e, parts)
			closeTo(t, train(t, p, parts, librarySteps), want)
			loadsAsUsual(t, python, c.model, p)
		})
	}
}

// TestModelsOfLibrariesTrainAsPlainPyTorchDoes compares with a loop as people write it. A step has all samples, so that
// it does not matter in which order they come.
func TestModelsOfLibrariesTrainAsPlainPyTorchDoes(t *testing.T) {
	t.Parallel()
	python := torchtest.Python2(t)
	const loop = `
import importlib.util, json, sys
import torch
file, function = sys.argv[1].split(":")
spec = importlib.util.spec_from_file_location("library", "testdata/" + file)
library = importlib.util.module_from_spec(spec)
spec.loader.exec_module(library)
torch.set_num_threads(1)
torch.manual_seed(3)
model = getattr(library, function)().train()
optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9)
data, losses = library.data(), []
for _ in range(int(sys.argv[2])):
    if isinstance(data, tuple):
        loss = torch.nn.functional.cross_entropy(model(data[0]), data[1])
    else:
        loss = model(**data.columns).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
json.dump(losses, sys.stdout)
`
	for model, compared := range map[string]int{
		"sentences.py:still_gpt2": librarySteps, "sentences.py:still_bert": librarySteps,
		// Afterwards rounding has turned rectifiers and maxima of some pixels another way.
		"vision.py:tuned": 8,
	} {
		t.Run(model, func(t *testing.T) {
			t.Parallel()
			if model == "sentences.py:still_bert" {
				exectest.RequireMeasuring(t)
			}
			cmd := exec.CommandContext(t.Context(), python, "-B", "-c", loop, model, strconv.Itoa(compared))
			printed, err := cmd.Output()
			if err != nil {
				t.Fatal(err)
			}
			var want []float64
			if err := json.Unmarshal(printed, &want); err != nil {
				t.Fatal(err)
			}
			l := libraryLayout()
			l.Optimizer = spillway.Optimizer{Kind: spillway.Momentum, LearningRate: 0.005, Momentum: 0.9}
			closeTo(t, train(t, load(t, executorOf(t, python, model, ""), l), l, int64(compared)), want)
		})
	}
}

// loadsAsUsual writes the model and has plain PyTorch load both of its files.
func loadsAsUsual(t *testing.T, python, model string, p spillway.Pipeline) {
	t.Helper()
	const check = `
import importlib.util, sys
import torch
from safetensors.torch import load_file
file, function = sys.argv[1].split(":")
spec = importlib.util.spec_from_file_location("library", "testdata/" + file)
library = importlib.util.module_from_spec(spec)
spec.loader.exec_module(library)
model = getattr(library, function)()
first = {k: v.clone() for k, v in model.state_dict().items()}
pickled, plain = torch.load(sys.argv[2] + ".pt", weights_only=True), load_file(sys.argv[2] + ".safetensors")
assert first.keys() == pickled.keys() == plain.keys()
for state in (pickled, plain):
    model.load_state_dict(state, strict=True)
    assert all(torch.equal(v, pickled[k]) for k, v in model.state_dict().items())
    assert any(not torch.equal(v, pickled[k]) for k, v in first.items())
`
	path := filepath.Join(t.TempDir(), "model")
	if err := p.Write(t.Context(), export(t, p), path+".pt"); err != nil {
		t.Fatal(err)
	}
	printed, err := exec.CommandContext(t.Context(), python, "-B", "-c", check, model, path).CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, printed)
	}
}

// libraryLayout is one of three micro-batches of all samples.
func libraryLayout(parts ...string) spillway.Layout {
	l := layout(parts...)
	l.Batch, l.MicroBatches = 24, 3
	l.Optimizer = spillway.Optimizer{Kind: spillway.Adam, LearningRate: 0.002}
	return l
}

// cutBefore are the operations of a model before and from one on, as a layout names them.
func cutBefore(t *testing.T, e *torch.Executor, operation string) []string {
	t.Helper()
	probe, err := e.Probe(t.Context(), spillway.ProbeOptions{Samples: 4, Device: spillway.Device{Threads: 1}})
	if err != nil {
		t.Fatal(err)
	}
	parts, at := make([]string, 2), 0
	for _, op := range probe.Graph.Ops {
		if op.ID == operation {
			at = 1
		}
		parts[at] += " " + op.ID
	}
	if at == 0 {
		t.Fatalf("the model has no operation %s, but%s", operation, parts[0])
	}
	return parts
}

// closeTo compares losses.
func closeTo(t *testing.T, got, want []float64) {
	t.Helper()
	worst := 0.0
	for i := range want {
		worst = max(worst, math.Abs(got[i]-want[i])/math.Abs(want[i]))
	}
	if len(got) != len(want) || worst > libraryTolerance || slices.ContainsFunc(got, math.IsNaN) {
		t.Errorf("losses differ by %.1e, want %.0e at most\ngot  %v\nwant %v", worst, libraryTolerance, got, want)
	}
	t.Logf("losses differ by %.1e", worst)
}
