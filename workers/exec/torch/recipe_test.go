package torch

import (
	"bufio"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/workers/exec/torch/torchtest"
)

// interpreterSource runs one snippet a line, beside all that is in the runner's package. It answers each with what the
// snippet calls result, as JSON; a Refusal becomes its kind, message, hint and the line of the file that it blames.
const interpreterSource = `
import importlib, json, os, sys, traceback
answers, sys.stdout = sys.stdout, sys.stderr
first = json.loads(sys.stdin.readline())
space = {}
sys.path.insert(0, os.getcwd())
for file in first["files"]:
    module = importlib.import_module(os.path.splitext(file)[0].replace("/", "."))
    space.update((n, v) for n, v in vars(module).items() if not n.startswith("__"))
files = 0
def source(text):
    """A user's file of this text."""
    global files
    files += 1
    path = os.path.join(first["directory"], "file%d.py" % files)
    with open(path, "w") as file:
        file.write(text)
    return space["Source"](path)
def refusal(function, *args):
    """What a Refusal says, or that there was none."""
    try:
        return "no refusal, but %r" % (function(*args),)
    except space["Refusal"] as refusal:
        fields = refusal.fields
        said = "%s: %s; %s" % (fields["kind"], fields["message"], fields["hint"])
        return said + (" @" + fields["at"].rsplit(":", 1)[1] if ".py:" in fields["at"] else "")
space.update(source=source, refusal=refusal, directory=first["directory"])
space["torch"].set_num_threads(1)
for line in sys.stdin:
    here = dict(space)
    try:
        exec(json.loads(line), here)
        answer = here["result"]
    except Exception:
        answer = {"failed": traceback.format_exc()}
    answers.write(json.dumps(answer) + "\n")
    answers.flush()
`

// interpreter returns a function that runs Python beside the runner's package and reads what it calls result.
func interpreter(t *testing.T) func(t *testing.T, code string, result any) {
	t.Helper()
	carried, err := texts()
	if err != nil {
		t.Fatal(err)
	}
	//nolint:gosec // the Python that has torch
	python := exec.CommandContext(t.Context(), torchtest.Python(t), "-B", "-c", interpreterSource)
	python.Env = append(os.Environ(), "OMP_NUM_THREADS=1")
	stdin, err := python.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := python.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr strings.Builder
	python.Stderr = &stderr
	if err := python.Start(); err != nil {
		t.Fatal(err)
	}
	to, from := json.NewEncoder(stdin), json.NewDecoder(bufio.NewReader(stdout))
	t.Cleanup(func() {
		_ = stdin.Close()                                                                         // it ends then
		if err := python.Wait(); err != nil && !strings.Contains(err.Error(), "signal: killed") { // the context may end first
			t.Errorf("%v\n%s", err, stderr.String())
		}
	})
	if err := to.Encode(map[string]any{"files": slices.Sorted(maps.Keys(carried)), "directory": t.TempDir()}); err != nil {
		t.Fatal(err)
	}
	return func(t *testing.T, code string, result any) {
		t.Helper()
		if err := to.Encode(code); err != nil {
			t.Fatal(err)
		}
		var answer json.RawMessage
		if err := from.Decode(&answer); err != nil {
			t.Fatal(err)
		}
		var failed struct{ Failed string }
		if json.Unmarshal(answer, &failed) == nil && failed.Failed != "" {
			t.Fatalf("the snippet fails:\n%s", failed.Failed)
		}
		if err := json.Unmarshal(answer, result); err != nil {
			t.Fatalf("%v: %s", err, answer)
		}
	}
}

// snippet is Python whose result is a list of strings or numbers.
type snippet struct {
	name, code string
	want       []any
}

func runSnippets(t *testing.T, snippets []snippet) {
	t.Helper()
	run := interpreter(t)
	for _, tt := range snippets {
		t.Run(tt.name, func(t *testing.T) { //nolint:paralleltest // they share a process
			var got []any
			run(t, tt.code, &got)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestALossIsThatOfTheFileOrTheUsualOne(t *testing.T) {
	t.Parallel()
	runSnippets(t, []snippet{
		{"Classes have the cross entropy.", `
usual = Recipe(source(""), {}).loss
def by_definition(output, target):  # output (N, C)
    return -sum(math.log(math.exp(row[t]) / sum(map(math.exp, row))) 
        for row, t in zip(output.tolist(), target.tolist())) / len(target)
output, target = torch.randn(6, 5), torch.tensor([0, 4, 2, 2, 1, 3])
tokens, words = torch.randn(2, 3, 5), torch.tensor([[0, 4, 2], [2, 1, 3]])
pictures, pixels = torch.randn(2, 5, 3, 4), torch.randint(0, 5, (2, 3, 4))
close = lambda a, b: bool(abs(a.item() - b) < 1e-5)
result = [close(usual(output, target), by_definition(output, target)),
          close(usual(output, target.to(torch.uint8)), by_definition(output, target)),
          close(usual(tokens, words), by_definition(tokens.reshape(6, 5), words.reshape(6))),
          close(usual(pictures, pixels), by_definition(pictures.permute(0, 2, 3, 1).reshape(-1, 5),
                                                 pixels.reshape(-1)))]`, []any{true, true, true, true}},
		{"Numbers have the mean squared error.", `
usual = Recipe(source(""), {}).loss
result = [usual(torch.tensor([[1.0], [2.0]]), torch.tensor([[0.0], [4.0]])).item(),
    usual(torch.tensor([[3.5]])).item()]`, []any{2.5, 3.5}},
		{"The file's loss takes an output and a target, or an output.", `
both = Recipe(source("def loss(output, target, weight=2): return weight * (output - target).abs().mean()"), {}).loss
one = Recipe(source("loss = lambda output: output.sum()"), {}).loss
from_torch = Recipe(source("import torch\nloss = torch.nn.L1Loss()"), {}).loss
result = [both(torch.tensor([1.0, 5.0]), torch.tensor([0.0, 0.0])).item(),
    one(torch.tensor([1.0, 5.0]), torch.tensor([7.0])).item(),
          from_torch(torch.tensor([1.0, 5.0]), torch.tensor([0.0, 0.0])).item()]`, []any{6., 6., 3.}},
		{"Shapes that do not fit are refused and named.", `
usual = Recipe(source(""), {}).loss
result = [refusal(usual, torch.rand(4, 3), torch.tensor([0, 1])),
    refusal(usual, torch.rand(4, 3), torch.tensor([[0], [1], [0], [1]])),
          refusal(usual, torch.rand(4, 1), torch.rand(4)), refusal(usual, torch.rand(4), None),
          refusal(usual, torch.rand(4, 1), torch.tensor([0, 1, 1, 0])), refusal(usual, [torch.rand(4)], torch.rand(4)),
          refusal(usual, torch.rand(4), torch.tensor([0, 1, 1, 0]))]`, []any{
			"loss: the output has shape (4, 3) and the target, of classes, (2); give the target one number for each row of " +
				"the output, or define loss(output, target)",
			"loss: the output has shape (4, 3) and the target, of classes, (4, 1); give the target one number for each row of " +
				"the output, or define loss(output, target)",
			"loss: the output has shape (4, 1) and the target (4); give them equal shapes, or define loss(output, target)",
			"loss: there is no target, and the model returns (4) of float32, not a floating scalar; return the loss from the " +
				"model, or have data() return (inputs, targets)",
			"loss: the output has shape (4, 1): with one class the cross entropy is always 0; return two classes, or define " +
				"loss(output, target) with binary_cross_entropy_with_logits",
			"loss: the output is ((4)) and the target is (4); define loss(output, target): without it both are one tensor",
			"loss: an output (4) of float32 and a target (4) of int64 have no usual loss; define loss(output, target)",
		}},
		{"What is wrong within a loss is named with the line.", `
def of(text): return Recipe(source(text), {}).loss
output, target = torch.rand(2, 3), torch.tensor([0, 7])
result = [refusal(of(""), output, target),
    refusal(of("\ndef loss(output, target):\n    return output[target]"), output, target),
          refusal(of("def loss(output, target): return output"), output, target),
          refusal(of("def loss(output, target): return 3.0"), output, target)]`, []any{
			"loss: the cross entropy of an output (2, 3) fails: IndexError: Target 7 is out of bounds.; targets are from 0 to 2",
			"loss: loss() fails on an output (2, 3) and a target (2): IndexError: index 7 is out of bounds for dimension 0 " +
				"with size 2; it takes the model's output and the target, and returns a scalar tensor @3",
			"loss: loss() returns (2, 3) of float32, not a floating scalar; return the mean over the samples, with a gradient",
			"loss: loss() returns a float, not a floating scalar; return the mean over the samples, with a gradient",
		}},
	})
}

func TestDataIsTheSameForTheSameStep(t *testing.T) {
	t.Parallel()
	run := interpreter(t)
	const file = `
import numpy, random, torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset

class Numbers(Dataset):
    def __len__(self): return 11
    def __getitem__(self, i): return (torch.rand(2), random.random(), numpy.random.rand()), i

class Endless(IterableDataset):
    def __iter__(self):
        return ((torch.rand(2), random.randrange(100)) for _ in range(11))

class Rows:  # no Dataset, but like one
    def __len__(self): return 11
    def __getitem__(self, i): return {"x": torch.tensor([1.0 * i]), "mask": torch.rand(2)}

def data(path):
    return {
        "pair": lambda: (torch.arange(11.0)[:, None], torch.arange(11)),
        "arrays": lambda: ({"a": numpy.arange(11.0), "b": numpy.arange(22).reshape(11, 2)}, numpy.arange(11)),
        "inputs": lambda: torch.arange(11),
        "tensors": lambda: TensorDataset(torch.arange(11.0), torch.arange(11)),
        "dataset": Numbers,
        "rows": Rows,
        "loader": lambda: DataLoader(Numbers(), batch_size=4, shuffle=True),
        "seeded loader": lambda: DataLoader(Numbers(), batch_size=4, shuffle=True, generator=torch.Generator()),
        "seeded sampler": lambda: DataLoader(Numbers(), batch_size=4,
        sampler=RandomSampler(Numbers(), generator=torch.Generator())),
        "own batches": lambda: DataLoader(Numbers(), batch_sampler=[[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]),
        "iterable": Endless,
        "batches": lambda: [(torch.full((4, 1), 1.0 * i), torch.full((4,), i)) for i in range(2)],
        "generator": lambda: ((torch.rand(4), torch.full((4,), random.randrange(100))) for _ in range(2)),
    }[path]()
`
	kinds := []string{
		"pair", "arrays", "inputs", "tensors", "dataset", "rows", "loader", "seeded loader",
		"seeded sampler", "own batches", "iterable", "batches", "generator",
	}
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) { //nolint:paralleltest // they share a process
			var got struct {
				Same, Again, Seeds, Epochs []bool
				Steps                      int
				Example                    int
				Distinct                   int
			}
			run(t, "file, kind = "+quotedPython(t, file)+", "+quotedPython(t, kind)+`
made = source(file)
def flat(batch): return [t.tolist() for t in tensors(list(batch))]
def new(seed=7): return Data(made, kind, 4, seed)
one, other = new(), new()
batches = [flat(one.batch(step)) for step in range(7)]
example = one.example(6)
result = {
    "same": [flat(other.batch(step)) == batches[step] for step in (5, 6, 1, 1, 0, 3, 2, 4)],
    "again": [flat(one.batch(step)) == batches[step] for step in (3, 0)],
    "seeds": [flat(new(seed).batch(0)) == batches[0] for seed in (7, 8)],
    "epochs": [batches[0] == batches[2], batches[2] == batches[4]],
    "steps": other.steps_per_epoch, "example": next(tensors(example)).shape[0],
    "distinct": len({json.dumps(row) for t in (one.batch(2), one.batch(3))
    for row in list(tensors(list(t)))[-1].tolist()}),
}`, &got)
			shuffled := kind != "batches"
			if want := slices.Repeat([]bool{true}, 8); !slices.Equal(got.Same, want) {
				t.Errorf("batches in another order of steps: %v, want equal ones", got.Same)
			}
			if !slices.Equal(got.Again, []bool{true, true}) {
				t.Errorf("batches after an example: %v, want equal ones", got.Again)
			}
			if !slices.Equal(got.Seeds, []bool{true, !shuffled}) {
				t.Errorf("batches with an equal seed and with another: %v", got.Seeds)
			}
			if !slices.Equal(got.Epochs, []bool{!shuffled, !shuffled}) {
				t.Errorf("equal first batches of epochs: %v", got.Epochs)
			}
			if got.Steps != 2 || got.Example != 6 {
				t.Errorf("%d steps in an epoch and %d examples, want 2 and 6", got.Steps, got.Example)
			}
			if numbered := slices.Index(kinds, kind) < 9; numbered && got.Distinct != 8 {
				t.Errorf("%d samples in the two batches of an epoch, want 8", got.Distinct)
			}
		})
	}
}

// quotedPython returns text as a literal.
func quotedPython(t *testing.T, text string) string {
	t.Helper()
	quoted, err := json.Marshal(text)
	if err != nil {
		t.Fatal(err)
	}
	return string(quoted)
}

func TestBadDataIsRefusedByName(t *testing.T) {
	t.Parallel()
	runSnippets(t, []snippet{
		{"Of too few samples, both numbers are named.", `
result = [refusal(Data, source("import torch\ndef data(): return torch.rand(3, 2), torch.rand(3)"), "", 4, 0)]`, []any{
			"data: the data has 3 samples, fewer than one batch of 4; use smaller batches or more data",
		}},
		{"A sample that cannot be read is named with the line.", `
text = """
class Broken:
    def __len__(self): return 4
    def __getitem__(self, i):
        return [1.0, 2.0, None.x, 4.0][i] if i == 2 else (float(i), i)
def data(): return Broken()
"""
result = [refusal(Data(source(text), "", 4, 0).batch, 0)]`, []any{
			"data: sample 2 cannot be read: AttributeError: 'NoneType' object has no attribute 'x'; find out what " +
				"dataset[2] does @5",
		}},
		{"Samples of several shapes are named.", `
text = """
import torch
class Ragged:
    def __len__(self): return 2
    def __getitem__(self, i): return torch.zeros(3 + i), 0
def data(): return Ragged()
"""
result = [refusal(Data(source(text), "", 2, 0).example, 2)]`, []any{
			"data: the samples of a batch do not fit together: sample 0 is ((3), int) and sample 1 is ((4), int); return " +
				"samples of equal shapes, or a DataLoader with a collate_fn",
		}},
		{"Batches of another size are refused, and an incomplete last one is left out.", `
def of(text):
    head = "import torch\nfrom torch.utils.data import DataLoader, TensorDataset\ndef data(): return "
    return Data(source(head + text), "", 4, 0)
result = [refusal(of, "DataLoader(TensorDataset(torch.rand(9, 1)), batch_size=3)"),
    refusal(of("[torch.rand(4), torch.rand(3), torch.rand(4)]").batch, 1),
          refusal(of("[torch.rand(5)]").batch, 0),
          of("[torch.rand(4), torch.rand(4), torch.rand(3)]").batch(2)[0][0].shape[0],
          refusal(of("[torch.rand(3)]").batch, 0),
          refusal(of("iter(())").batch, 0)]`, []any{
			"data: the DataLoader of data() makes batches of 3 samples, and a batch has 4 here; make them equal, or return " +
				"the Dataset",
			"data: batch 1 of the data has 3 samples, and a batch has 4 here; make them equal, or return a Dataset",
			"data: batch 0 of the data has 5 samples, and a batch has 4 here; make them equal, or return a Dataset",
			4.,
			"data: the data ends after 0 batches; make sure that it can be iterated again and that there is one whole " +
				"batch at least",
			"data: the data ends after 0 batches; make sure that it can be iterated again and that there is one whole " +
				"batch at least",
		}},
		{"What is no data is refused.", `
def of(text, path="", batch=4): return Data(source("import torch, numpy\n" + text), path, batch, 0)
result = [refusal(of, ""), refusal(of, "", "absent.csv"),
    refusal(of, "", "/dev/null"),
          refusal(of, "def data(path): return 1"), refusal(of, "def data(): return 1", "there"),
          refusal(of, "def data(): pass"),
          refusal(of, "def data(path):\n    return open(path)", "absent"),
          refusal(of, "def data(): return torch.rand(4), torch.rand(5)"),
          refusal(of, "def data(): return torch.rand(0, 3)"), refusal(of, "def data(): return numpy.array([None])"),
          refusal(of("def data(): return torch.rand(4), torch.rand(4), torch.rand(4)").batch, 0),
          refusal(of("def data(): return [({'x': 1}, torch.rand(4))]").batch, 0)]`, []any{
			"data: there is no data; define data(path) in the file: it returns (inputs, targets), a Dataset or a DataLoader; " +
				"or give the path of an .npz, .pt or .csv file",
			"data: there is no file absent.csv; give the path of an .npz, .pt or .csv file, or define data(path)",
			"data: there is no file /dev/null; give the path of an .npz, .pt or .csv file, or define data(path)",
			"data: data(path) needs a path, and none was given; say where the data is",
			"data: data() takes no path, and there was given; define data(path)",
			"data: data() returns a NoneType; return a pair of tensors, a Dataset or a DataLoader",
			"data: the data cannot be read: FileNotFoundError: [Errno 2] No such file or directory: 'absent'; data(path) " +
				"returns a pair of tensors, a Dataset or a DataLoader @3",
			"data: the data is ((4), (5)); all of its tensors have one row for each sample, and there is one at least",
			"data: the data is (0, 3); all of its tensors have one row for each sample, and there is one at least",
			"data: torch has no tensors like an array of object: TypeError: can't convert np.ndarray of type numpy.object_. " +
				"The only supported types are: float64, float32, float16, complex64, complex128, int64, int32, int16, int8, " +
				"uint8, and bool.; convert it with astype",
			"data: a sample has 3 parts; return (inputs, target), where inputs may be a tuple or a dict",
			"data: the inputs of a batch are {x: int}, without a tensor; return tensors, arrays or numbers",
		}},
	})
}

func TestFilesAreReadWithoutCode(t *testing.T) {
	t.Parallel()
	runSnippets(t, []snippet{
		{"Tables may have names and classes or numbers as targets.", `
def of(text):
    path = os.path.join(directory, "table.csv")
    with open(path, "w") as file:
        file.write(text)
    return Data(source(""), path, 2, 0)
def read(data): return [[t.tolist(), str(t.dtype)] for t in tensors(list(data.example_batch(2)))]
result = [read(of("a,b,c\n1,2.5,0\n3,4,1\n")), read(of("1,2.5,0.5\n3,4,1")), of("1,2\n3,4\n5,6\n").samples,
          refusal(of, "a,b\n1,2\n3,x\n").replace(directory, ""), refusal(of, "1,2\n1,2,3\n"), refusal(of, ""),
          refusal(of, "1\n2\n")]`, []any{
			[]any{
				[]any{[]any{[]any{1., 2.5}, []any{3., 4.}}, "torch.float32"},
				[]any{[]any{0., 1.}, "torch.int64"},
			},
			[]any{
				[]any{[]any{[]any{1., 2.5}, []any{3., 4.}}, "torch.float32"},
				[]any{[]any{[]any{.5}, []any{1.}}, "torch.float32"},
			},
			3.,
			"data: row 2 of numbers is 3,x; write at least two numbers, and as many in each row",
			"data: row 2 of numbers is 1,2,3; write at least two numbers, and as many in each row",
			"data: there are no numbers; write at least two numbers, and as many in each row",
			"data: row 1 of numbers is 1; write at least two numbers, and as many in each row",
		}},
		{
			"Saved arrays and tensors are pairs.", `
x, y = torch.rand(5, 2), torch.arange(5)
def read(name):
    return [t.shape == s.shape and bool((t == s).all()) and t.dtype == s.dtype for t,
        s in zip(tensors(list(Data(source(""), os.path.join(directory, name), 5, 0).example_batch(5))), (x, y))]
numpy.savez(os.path.join(directory, "named.npz"), z=y, y=y, x=x.double())
numpy.savez(os.path.join(directory, "first.npz"), inputs=x, classes=y, more=y)
torch.save((x, y), os.path.join(directory, "pair.pt"))
torch.save({"inputs": x, "targets": y}, os.path.join(directory, "named.pth"))
result = read("named.npz") + read("first.npz") + read("pair.pt") + read("named.pth")`,
			[]any{true, true, true, true, true, true, true, true},
		},
		{"A file that says something else is refused.", `
path = os.path.join(directory, "data.npz")
with open(path, "w") as file:
    file.write("PK")
result = [refusal(Data, source(""), path, 2, 0).startswith("data: %s cannot be read: " % path)]`, []any{true}},
	})
}

func TestAnOptimizerIsThatOfTorch(t *testing.T) {
	t.Parallel()
	runSnippets(t, []snippet{
		{"Each kind has the values that were asked for.", `
def of(config, text=""):
    made = Recipe(source(text), config).optimizer([("w", nn.Parameter(torch.zeros(2)))])
    return [type(made).__name__] + [v for k,
        v in sorted(made.defaults.items()) if k in ("lr", "momentum", "betas", "eps", "weight_decay")]
own = "import torch\ndef optimizer(parameters): return torch.optim.RMSprop(parameters, lr=0.5)"
result = [of({}), of({"kind": "sgd"}), of({"kind": "momentum", "learning_rate": 0.5}),
    of({"kind": "momentum", "momentum": 0.5, "weight_decay": 0.25}),
          of({"kind": "adam", "beta1": 0.5, "beta2": 0.75, "epsilon": 0.125}, own), of({"kind": "adamw"}),
          of({"kind": "adamw", "weight_decay": 0.5}), of({}, own)[:3],
          refusal(of, {"kind": "lion"}), refusal(of, {}, "def optimizer(parameters): return 3"),
          refusal(of, {}, "import torch\nw = torch.nn.Parameter(torch.zeros(1))\n"
              "def optimizer(parameters): return torch.optim.SGD(parameters + [w], lr=1)"),
          refusal(of, {}, "import torch\ndef optimizer(parameters): return torch.optim.LBFGS(parameters)"),
          type(Recipe(source(own), {}).optimizer([])).__name__]`, []any{
			[]any{"Adam", []any{.9, .999}, 1e-8, .001, 0.},
			[]any{"SGD", .01, 0., 0.},
			[]any{"SGD", .5, .9, 0.},
			[]any{"SGD", .01, .5, .25},
			[]any{"Adam", []any{.5, .75}, .125, .001, 0.},
			[]any{"AdamW", []any{.9, .999}, 1e-8, .001, .01},
			[]any{"AdamW", []any{.9, .999}, 1e-8, .001, .5},
			[]any{"RMSprop", 1e-8, .5},
			"optimizer: there is no optimizer lion; choose one of sgd, momentum, adam, adamw",
			"optimizer: optimizer() returns int, not a torch.optim.Optimizer; return one such as torch.optim.AdamW(parameters)",
			"optimizer: optimizer() holds a parameter that it was not given; use its argument only: it is called for each " +
				"part of the model with that part's parameters",
			"optimizer: LBFGS runs the model several times a step, which a pipeline cannot; return another optimizer",
			"SGD",
		}},
		{"Schedulers go by steps.", `
def of(text): return Recipe(source("from torch.optim.lr_scheduler import *\ndef scheduler(optimizer): return " + text),
    {}).scheduler(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0))
def total(course):
    text = "import torch\ndef scheduler(optimizer, total_steps):\n" + (
        "    return torch.optim.lr_scheduler.StepLR(optimizer, total_steps)")
    return Recipe(source(text), {}).scheduler(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0), course)
result = [Recipe(source(""), {}).scheduler(None), type(of("StepLR(optimizer, 2)").made).__name__,
    refusal(of, "ReduceLROnPlateau(optimizer)"),
    refusal(of, '{"scheduler": StepLR(optimizer, 2), "interval": "epoch"}'),
    refusal(of, '{"scheduler": StepLR(optimizer, 2), "interval": "day"}'), total(Course(steps=7)).made.step_size,
    refusal(total, Course()), refusal(of, "3")]`, []any{
			nil, "StepLR",
			"scheduler: ReduceLROnPlateau goes by validation data, and there are none; define validation(), or return a " +
				"scheduler that goes by the number of steps",
			"scheduler: the scheduler goes by epochs, and the data do not say how many batches one has; return a Dataset from " +
				"data(), or a scheduler that goes by the number of steps",
			"scheduler: scheduler() returns a dict of 'scheduler', 'interval' with the interval 'day'; return a scheduler, or " +
				"{\"scheduler\": one, \"interval\": \"step\" or \"epoch\"}; of a ReduceLROnPlateau \"monitor\" names a metric",
			7.,
			"scheduler: scheduler(optimizer, total_steps) asks for the number of steps, which is not known; give the number " +
				"of steps with --steps",
			"scheduler: scheduler() returns int, which has no step(); return a scheduler of torch.optim.lr_scheduler",
		}},
	})
}

// The oracle is the same training without the interruption.
func TestTrainingGoesOnAfterAnExportIntoAnotherSplit(t *testing.T) {
	t.Parallel()
	run := interpreter(t)
	for name, definitions := range map[string]string{
		"the usual one":     "",
		"momentum":          "optimizer = lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True)",
		"AMSGrad":           "optimizer = lambda p: torch.optim.AdamW(p, lr=0.1, amsgrad=True)",
		"with signs":        "optimizer = lambda p: torch.optim.Rprop(p)",
		"NAdam":             "optimizer = lambda p: torch.optim.NAdam(p)",
		"one that averages": "optimizer = lambda p: torch.optim.ASGD(p, lr=0.1)",
		"Adagrad":           "optimizer = lambda p: torch.optim.Adagrad(p)",
		"a schedule":        "scheduler = lambda o: torch.optim.lr_scheduler.StepLR(o, 2, gamma=0.5)",
		"a function":        "scheduler = lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda n: 1 / (1 + n))",
		"one cycle":         "scheduler = lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=20)",
		"milestones":        "scheduler = lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [2, 4, 6])",
		"a chain": `
def scheduler(o):
    s = torch.optim.lr_scheduler
    return s.SequentialLR(o, [s.LinearLR(o, total_iters=3), s.CosineAnnealingLR(o, 5)], milestones=[3])`,
		"groups of names": `
def optimizer(named_parameters):
    groups = [{"params": [q for n, q in named_parameters if n.endswith("weight")], "weight_decay": 0.1},
        {"params": [q for n, q in named_parameters if not n.endswith("weight")], "lr": 0.2}]
    return torch.optim.AdamW(groups, lr=0.1)
scheduler = lambda o: torch.optim.lr_scheduler.LambdaLR(o, [lambda n: 1 / (1 + n), lambda n: 0.5 ** n])`,
		"groups of a model, left out where they are empty": `
def optimizer(model):
    groups = [{"params": [q for n, q in model.named_parameters() if n.endswith("weight")]},
        {"params": [q for n, q in model.named_parameters() if not n.endswith("weight")], "lr": 0.2}]
    return torch.optim.Adam([g for g in groups if g["params"]], lr=0.1)
scheduler = lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda n: 1 / (1 + n))`,
		"a plateau": `
def scheduler(o):
    return {"scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau(o, patience=0, factor=0.5)}`,
		"an epoch of two steps": `
def scheduler(o):
    return {"scheduler": torch.optim.lr_scheduler.StepLR(o, 1, gamma=0.5), "interval": "epoch"}`,
		"groups": `
def optimizer(p):
    groups = [{"params": [q for q in p if q.dim() > 1]},
        {"params": [q for q in p if q.dim() < 2], "lr": 0.2, "weight_decay": 0.1}]
    return torch.optim.Adam([g for g in groups if g["params"]], lr=0.1)
scheduler = lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.5)`,
	} {
		t.Run(name, func(t *testing.T) { //nolint:paralleltest // they share a process
			var got struct {
				Difference, Moved float64
				Slots             []string
			}
			run(t, "text = "+quotedPython(t, "import torch\n"+definitions)+`
recipe = Recipe(source(text), {})
def parameters():
    torch.manual_seed(3)
    return {n: nn.Parameter(torch.randn(s)) for n,
        s in (("a.weight", (3, 2)), ("a.bias", (3,)), ("b.weight", (2, 2)), ("scale", ()))}
class Training:
    """One optimizer and scheduler for each group of names."""
    def __init__(self, held, split):
        self.held, self.parts = held, []
        for names in split:
            named = [(n, held[n]) for n in names]
            optimizer = recipe.optimizer(named)
            self.parts.append((named, optimizer, recipe.scheduler(optimizer, Course(20, 2, True))))
    def steps(self, first, last):
        for step in range(first, last):
            torch.manual_seed(step)
            for n in sorted(self.held):
                self.held[n].grad = torch.randn(self.held[n].shape)
            for _, optimizer, scheduler in self.parts:
                optimizer.step()
                if scheduler is not None:
                    scheduler.step()
                    scheduler.judge({"validation_loss": abs(3.0 - step)})
whole = ["a.weight", "a.bias", "b.weight", "scale"]
through = Training(parameters(), [whole])
through.steps(0, 7)
one = Training(parameters(), [["a.weight", "b.weight"], ["a.bias", "scale"], []])
one.steps(0, 3)
other = Training({n: nn.Parameter(p.detach().clone()) for n, p in one.held.items()},
    [["a.bias"], ["a.weight", "scale", "b.weight"]])
state, groups, schedule = {}, [], None
for named, optimizer, scheduler in one.parts:
    state.update(recipe.optimizer_state(optimizer, named))
    groups += recipe.optimizer_groups(optimizer, named)
    schedule = schedule or recipe.scheduler_state(scheduler)
groups, schedule = json.loads(json.dumps([groups, schedule]))
state = {k: v.clone() for k, v in state.items()}
for named, optimizer, scheduler in other.parts:
    recipe.load_optimizer_state(optimizer, named, state)
    recipe.load_optimizer_groups(optimizer, named, groups)
    recipe.load_scheduler_state(scheduler, schedule)
other.steps(3, 7)
start = parameters()
result = {"difference": max((through.held[n] - other.held[n]).abs().max().item() for n in whole),
          "moved": min((through.held[n] - one.held[n]).abs().max().item() for n in whole),
          "slots": sorted({k.split("/")[1] for k in state})}`, &got)
			if got.Difference != 0 || got.Moved == 0 {
				t.Errorf("parameters differ by %g from those of the training in one go, which moved them by %g; state %v",
					got.Difference, got.Moved, got.Slots)
			}
		})
	}
}
