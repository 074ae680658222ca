package torch

import (
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/exec/torch/torchtest"
	"github.com/spillway-ml/spillway/workers/graph"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// looker returns a function that probes models in one Python process, which takes a second or two to start.
func looker(t *testing.T) func(*testing.T, Options) (graph.Graph, Report, error) {
	t.Helper()
	r, err := new(forks).start(t.Context(), launching{
		python: torchtest.Python(t), threads: 1,
		logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.close)
	return func(t *testing.T, opts Options) (graph.Graph, Report, error) {
		t.Helper()
		opts.Model, opts.Threads, opts.Repeats = "testdata/"+opts.Model, 1, 3
		opts, err := opts.normalized()
		if err != nil {
			t.Fatal(err)
		}
		return r.probe(t.Context(), opts)
	}
}

func TestAGraphIsThatOfTheModel(t *testing.T) {
	t.Parallel()
	look := looker(t)
	const float = 4
	for _, tt := range []struct {
		model string
		opts  Options
		check func(*testing.T, graph.Graph, Report)
	}{
		{"models.py:mlp", Options{Batch: 16}, func(t *testing.T, g graph.Graph, r Report) {
			t.Helper()
			equal(t, "operations", ids(g), "input_1 _0 _1 _2 _3 _4")
			equal(t, "parameters", r.Parameters, float*(64*256+256+256*256+256+256*10+10))
			// The input and the results of both activations: the layers' own results are overwritten, or nobody's.
			equal(t, "activations", g.Summary().Activation, float*16*(64+256+256))
			equal(t, "FLOPs", flops(r), 2*16*(64*256+256*256+256*10))
			equal(t, "edges", edges(g), "input_1>_0 _0>_1 _1>_2 _2>_3 _3>_4")
		}},
		{"models.py:cnn", Options{}, func(t *testing.T, g graph.Graph, r Report) {
			t.Helper()
			equal(t, "the batch of the file's inputs", r.Batch, 8)
			equal(t, "buffers", g.Summary().Workspace, r.Buffers)
			equal(t, "buffers of the normalization", op(t, g, "norm").Workspace, 2*16*float+8)
			equal(t, "FLOPs", flops(r), 2*8*(32*32*16*3*9+16*16*32*16*9+32*8*8*10))
			equal(t, "place of conv2", quoted(t, place(t, g, r, "conv2")),
				"models.py:x = F.max_pool2d(F.relu(self.conv2(x)), 2)")
			if strings.Contains(edges(g), "mask") {
				t.Errorf("edges %s: an argument that is not given is not part of the model", edges(g))
			}
		}},
		{"models.py:functional", Options{Shape: []int{32}}, func(t *testing.T, g graph.Graph, _ Report) {
			t.Helper()
			equal(t, "operations", ids(g), "x linear relu linear_1")
			equal(t, "colour", op(t, g, "linear").Colour, "weight")
			equal(t, "colour of the tied operation", op(t, g, "linear_1").Colour, "weight")
			equal(t, "colour between", op(t, g, "relu").Colour, "")
			equal(t, "parameters counted twice", op(t, g, "linear_1").Parameters, 0)
		}},
		{"models.py:encoder", Options{}, func(t *testing.T, g graph.Graph, _ Report) {
			t.Helper()
			equal(t, "operations", ids(g), "src layers_0 layers_1 layers_2")
		}},
		{"models.py:tagger", Options{}, func(t *testing.T, g graph.Graph, r Report) {
			t.Helper()
			equal(t, "operations", ids(g), "x encoder_layers_0 encoder_layers_1 encoder_norm head")
			equal(t, "the mask of both layers", g.Summary().Workspace, 2*r.Buffers)
			equal(t, "colour of a reader of the mask", op(t, g, "encoder_layers_0").Colour, "")
		}},
		{"models.py:returns", Options{}, func(t *testing.T, g graph.Graph, _ Report) {
			t.Helper()
			var got []graph.Edge
			for _, e := range g.Edges {
				if g.Ops[e.From].ID == "lstm" {
					got = append(got, graph.Edge{Output: e.Output, Bytes: e.Bytes})
				}
			}
			equal(t, "outputs of the recurrent layer", got,
				[]graph.Edge{{Output: 0, Bytes: 4 * 8 * 16 * float}, {Output: 1, Bytes: 2 * 4 * 16 * float}})
		}},
		{"models.py:integer", Options{Shape: []int{7}, Type: "int64", Batch: 2}, func(t *testing.T, g graph.Graph, _ Report) {
			t.Helper()
			equal(t, "bytes of the tokens", g.Edges[0].Bytes, 2*7*8)
		}},
		{"training.py:rewritten", Options{Batch: 16}, func(t *testing.T, g graph.Graph, _ Report) {
			t.Helper()
			equal(t, "operations", ids(g), "x one tanh mul_ add add_1 two")
			colour := op(t, g, "mul_").Colour
			if colour == "" {
				t.Error("what writes to a value that others read is free")
			}
			for _, id := range []string{"one", "tanh", "mul_", "add", "add_1", "two"} {
				want := colour
				if id == "one" || id == "two" || id == "add_1" {
					want = ""
				}
				equal(t, "colour of "+id, op(t, g, id).Colour, want)
			}
		}},
		{"blocks.py:build", Options{Batch: 16}, func(t *testing.T, g graph.Graph, r Report) {
			t.Helper()
			equal(t, "blocks", r.Blocks, true)
			equal(t, "operations", ids(g), "input0 first second")
			equal(t, "names", g.Ops[1].Name, "first Absolute")
			equal(t, "edges", edges(g), "input0>first first>second first>second")
		}},
	} {
		t.Run(tt.model, func(t *testing.T) {
			tt.opts.Model = tt.model
			g, r, err := look(t, tt.opts)
			if err != nil {
				t.Fatal(err)
			}
			sound(t, g, r)
			tt.check(t, g, r)
		})
	}
	t.Run("what is not used is named", func(t *testing.T) {
		g, r, err := look(t, Options{Model: "models.py:lazy"})
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "unused", r.Unused, []string{"spare.weight", "spare.bias"})
		equal(t, "parameters", g.Summary().Parameters, r.Parameters-(4*5+5)*float)
	})
}

func TestATransformersResidualsAndTiedWeightsAreInItsGraph(t *testing.T) {
	t.Parallel()
	g, r, err := Probe(t.Context(), Options{
		Python: torchtest.Python(t), Model: "testdata/models.py:transformer", Threads: 1,
		Repeats: 3,
	})
	if err != nil {
		t.Fatal(err)
	}
	sound(t, g, r)
	for _, edge := range []string{
		// the residuals
		"add>layers_0_norm1", "add>add_1", "layers_0_attention_drop_1>add_1", "add_1>add_2", "layers_0_down>add_2",
		"chunk>getitem", "softmax>layers_0_attention_drop", "layers_0_attention_drop>matmul_1",
	} {
		if !slices.Contains(strings.Fields(edges(g)), edge) {
			t.Errorf("edge %s is not among %s", edge, edges(g))
		}
	}
	const tokens, width, batch, length, heads, layers = 100, 64, 4, 24, 2, 2
	attention := 2 * 2 * batch * heads * length * length * (width / heads)
	linear := 2 * batch * length * width * (3*width + width + 2*4*width)
	equal(t, "FLOPs", flops(r), int64(layers*(attention+linear)+2*batch*length*width*tokens))
	for _, o := range g.Ops {
		want := ""
		if o.ID == "embed" || o.ID == "head" {
			want = "embed.weight"
		}
		equal(t, "colour of "+o.ID, o.Colour, want)
	}
	equal(t, "parameters of the tied layer", op(t, g, "head").Parameters, 0)
	equal(t, "the parameter that is added", op(t, g, "add").Parameters, length*width*4)
	equal(t, "the buffer that is multiplied with", op(t, g, "mul").Workspace, width*4)
	equal(t, "name", g.Name, "testdata/models.py:transformer")
	equal(t, "threads", r.Threads, 1)
}

// sound checks what holds for every graph, and prints what the measurement is worth.
func sound(t *testing.T, g graph.Graph, r Report) {
	t.Helper()
	if err := g.Validate(); err != nil {
		t.Fatal(err)
	}
	for _, e := range g.Edges {
		if e.From >= e.To {
			t.Errorf("edge %s -> %s leads back", g.Ops[e.From].ID, g.Ops[e.To].ID)
		}
	}
	for i, o := range g.Ops {
		cost, measured := o.Costs[graph.CPU]
		if !measured || (cost.Forward == 0) != (r.Ops[i].Kind == "placeholder") {
			t.Errorf("%s (%s) takes %v", o.ID, r.Ops[i].Kind, o.Costs)
		}
		equal(t, "ID in the report", r.Ops[i].ID, o.ID)
	}
	equal(t, "parameters of all operations", g.Summary().Parameters, r.Parameters)
	if r.Forward <= 0 || r.Backward <= 0 || r.OpsForward <= 0 || r.OpsBackward <= 0 || r.Torch == "" || r.Python == "" {
		t.Errorf("the report lacks something: %+v", r)
	}
	t.Logf("%d operations; forward %.0f us, sum %.0f us (%.2f); backward %.0f us, sum %.0f us (%.2f)", len(g.Ops),
		r.Forward*1e6, r.OpsForward*1e6, r.OpsForward/r.Forward, r.Backward*1e6, r.OpsBackward*1e6, r.OpsBackward/r.Backward)
}

func TestAnErrorSaysWhatIsWrongAndWhere(t *testing.T) {
	t.Parallel()
	look := looker(t)
	for _, tt := range []struct {
		model string
		opts  Options
		kind  string
		place string // the file, and the text of the line where it has one
		want  []string
	}{
		{"models.py:none", Options{}, "function", "models.py", []string{"no function none", "mlp", "transformer"}},
		{
			"models.py:fails",
			Options{},
			"function", `models.py:raise ValueError("no such data set")`,
			[]string{"ValueError: no such data set", `raise ValueError("no such data set")`},
		},
		{"loud.py:leaves", Options{}, "function", "loud.py:sys.exit(3)", []string{"SystemExit: 3"}},
		{"models.py:nothing", Options{}, "module", "models.py", []string{"int, not a torch.nn.Module"}},
		{"models.py:unknown", Options{}, "inputs", "models.py", []string{"example_inputs(batch)", "shape"}},
		{"models.py:unknown", Options{Shape: []int{3}, Type: "float31"}, "inputs", "", []string{"float31"}},
		{"models.py:mismatch", Options{Batch: 16}, "run", "models.py", []string{"_2 (2 Linear)", "(16, 32)", "(10, 33)"}},
		{
			"models.py:narrow",
			Options{Batch: 16},
			"run", "models.py:return x + self.other",
			[]string{"add (add)", "(16, 8)", "(9)"},
		},
		{
			"dynamic.py:build",
			Options{},
			"untraceable", "dynamic.py:if x.sum() > 0:",
			[]string{"`if x.sum() > 0:`", "define blocks(model)"},
		},
		{"partial.py:build", Options{}, "blocks", "partial.py", []string{"576 bytes", "848"}},
		{
			"broken.py:build",
			Options{},
			"import", "broken.py:import nonexistent_library",
			[]string{"No module named 'nonexistent_library'", "import nonexistent_library"},
		},
		{"syntax.py:build", Options{}, "import", "syntax.py:return (1 +", []string{"SyntaxError"}},
	} {
		t.Run(tt.model, func(t *testing.T) {
			tt.opts.Model = tt.model
			_, _, err := look(t, tt.opts)
			var wrong *ModelError
			if !errors.As(err, &wrong) {
				t.Fatalf("got %v, want a ModelError", err)
			}
			equal(t, "kind", wrong.Kind, tt.kind)
			equal(t, "place", quoted(t, wrong.Place), tt.place)
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is not in the error:\n%v", want, err)
				}
			}
			if wrong.Hint == "" {
				t.Errorf("no hint in %v", err)
			}
			equal(t, "is ErrUntraceable", errors.Is(err, ErrUntraceable), tt.kind == "untraceable")
		})
	}
}

func TestADeviceIsThereOrAnError(t *testing.T) {
	t.Parallel()
	g, r, err := looker(t)(t, Options{Model: "models.py:mlp", Device: CUDA})
	var wrong *ModelError
	switch {
	case errors.As(err, &wrong):
		equal(t, "kind", wrong.Kind, "device")
	case err != nil:
		t.Fatal(err)
	default:
		equal(t, "classes of devices", slices.Collect(maps.Keys(g.Ops[1].Costs)), []string{graph.Accelerator})
		t.Logf("on %s: forward %v s, sum %v s", r.Device, r.Forward, r.OpsForward)
	}
}

func TestASurveyRefusesADeviceThatIsNotThere(t *testing.T) {
	t.Parallel()
	e, err := New(Options{Python: torchtest.Python(t), Model: "testdata/models.py:mlp"})
	if err != nil {
		t.Fatal(err)
	}
	seen, err := e.Survey(t.Context(), []exec.Device{{ID: "one", Kind: exec.CUDA, Index: 4095}})
	if !errors.Is(err, exec.ErrRequest) || !strings.Contains(err.Error(), "finds no device cuda:4095: ") {
		t.Errorf("got %+v and the error %v", seen, err)
	}
}

// TestMeasureWhatASumOfOperationsIsWorth prints how far the sum of the operations' times is from the whole model's.
func TestMeasureWhatASumOfOperationsIsWorth(t *testing.T) {
	if os.Getenv("SPILLWAY_MEASURE") != "1" {
		t.Skip("measures for a minute; set SPILLWAY_MEASURE=1")
	}
	for _, model := range []string{"mlp", "cnn", "transformer"} {
		began := time.Now()
		g, r, err := Probe(t.Context(), Options{
			Python: torchtest.Python(t), Model: "testdata/measured.py:" + model, Batch: 64,
			Threads: 2, Repeats: 9,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s, batch 64, %d threads, torch %s: %d operations, %s of parameters, %s of activations, %.2f GFLOP; "+
			"probed in %.1f s", model, r.Threads, r.Torch,
			len(g.Ops), r.Parameters, g.Summary().Activation, float64(flops(r))/1e9, time.Since(began).Seconds())
		t.Logf("  forward %.2f ms, sum %.2f ms (%.3f); backward %.2f ms, sum %.2f ms (%.3f)", r.Forward*1e3, r.OpsForward*1e3,
			r.OpsForward/r.Forward,
			r.Backward*1e3, r.OpsBackward*1e3, r.OpsBackward/r.Backward)
	}
}

func equal[T any](t *testing.T, what string, got, want T) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func ids(g graph.Graph) string {
	all := make([]string, len(g.Ops))
	for i, o := range g.Ops {
		all[i] = o.ID
	}
	return strings.Join(all, " ")
}

func edges(g graph.Graph) string {
	all := make([]string, len(g.Edges))
	for i, e := range g.Edges {
		all[i] = g.Ops[e.From].ID + ">" + g.Ops[e.To].ID
	}
	return strings.Join(all, " ")
}

func op(t *testing.T, g graph.Graph, id string) graph.Op {
	t.Helper()
	i, found := g.Index(id)
	if !found {
		t.Fatalf("no operation %s among %s", id, ids(g))
	}
	return g.Ops[i]
}

func place(t *testing.T, g graph.Graph, r Report, id string) string {
	t.Helper()
	op(t, g, id)
	i, _ := g.Index(id)
	return r.Ops[i].Place
}

// quoted is the name of a place's file and the text of its line.
func quoted(t *testing.T, place string) string {
	t.Helper()
	file, number, found := strings.Cut(place, ".py:")
	if !found {
		return strings.TrimPrefix(filepath.Base(place), ".") // of no place, the base is a dot
	}
	text, err := os.ReadFile(file + ".py")
	line, notNumber := strconv.Atoi(number)
	if err != nil || notNumber != nil {
		t.Fatal(errors.Join(err, notNumber))
	}
	return filepath.Base(file) + ".py:" + strings.TrimSpace(strings.Split(string(text), "\n")[line-1])
}

func flops(r Report) int64 {
	var sum int64
	for _, o := range r.Ops {
		sum += o.FLOPs
	}
	return sum
}
