package gomlx_test

import (
	"errors"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gomlx/gomlx/core/graph"

	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/exec/gomlx"
)

func TestModelsThatCannotBeTrainedAreRefusedByName(t *testing.T) {
	t.Parallel()
	data := points(10, 4, 3)
	weight := []gomlx.Parameter{{Name: "weight", Shape: []int{4, 3}}}
	block := func(forward func(c *gomlx.Context, x *graph.Node) *graph.Node) gomlx.Block {
		return gomlx.Block{
			Name: "mine", Parameters: weight,
			Forward: func(c *gomlx.Context, inputs []*graph.Node) []*graph.Node {
				return []*graph.Node{forward(c, inputs[0])}
			},
		}
	}
	times := func(c *gomlx.Context, x *graph.Node) *graph.Node { return graph.MatMul(x, c.Parameter("weight")) }
	buffered := block(func(c *gomlx.Context, x *graph.Node) *graph.Node { c.Buffer("mean"); return times(c, x) })
	buffered.Buffers = []gomlx.Parameter{{Name: "mean"}}
	for name, c := range map[string]struct {
		blocks []gomlx.Block
		data   gomlx.Dataset
		want   string
	}{
		"no blocks":                  {nil, data, "no blocks"},
		"two blocks of one name":     {[]gomlx.Block{gomlx.Dense("a", 4, 3), gomlx.Relu("a")}, data, `"a"`},
		"a block without a name":     {[]gomlx.Block{gomlx.Dense("", 4, 3)}, data, "block 0"},
		"a block without a function": {[]gomlx.Block{{Name: "a"}}, data, `"a" has no Forward`},
		"a parameter that is not used": {[]gomlx.Block{block(func(_ *gomlx.Context, x *graph.Node) *graph.Node {
			return x
		})}, data, `"weight" and does not use it`},
		"one that is not declared": {[]gomlx.Block{block(func(c *gomlx.Context, _ *graph.Node) *graph.Node {
			return c.Parameter("bias")
		})}, data, `"bias" and does not declare it`},
		"a dimension of 0": {[]gomlx.Block{gomlx.Dense("a", 4, 0)}, data, "dimensions from 1"},
		"shapes that do not fit": {
			[]gomlx.Block{gomlx.Dense("a", 4, 5), gomlx.Dense("b", 4, 3)},
			data,
			`block "b" with inputs of shape [(Float32)[2, 5]]: DotGeneral`,
		},
		"a panic of the user's": {[]gomlx.Block{block(func(*gomlx.Context, *graph.Node) *graph.Node {
			panic("ouch")
		})}, data, "ouch"},
		"no output": {[]gomlx.Block{block(func(c *gomlx.Context, x *graph.Node) *graph.Node {
			times(c, x)
			return nil
		})}, data, "output 0 is nil"},
		"a buffer that is read": {[]gomlx.Block{buffered}, data, `"mine.mean" is read in training`},
		"a rate of dropout of 1": {
			[]gomlx.Block{gomlx.Dense("a", 4, 3), gomlx.Dropout("d", 1)},
			data,
			"want 0 or more and less than 1",
		},
		"no data": {[]gomlx.Block{gomlx.Dense("a", 4, 3)}, nil, "no samples"},
		"no target": {
			[]gomlx.Block{gomlx.Dense("a", 4, 3)},
			gomlx.InMemory{Inputs: data.Inputs},
			"no samples",
		},
		"more samples than targets": {
			[]gomlx.Block{gomlx.Dense("a", 4, 3)},
			gomlx.InMemory{Inputs: data.Inputs, Target: gomlx.Array{Int32: []int32{1, 2}}},
			"input 0 has 10 samples and the target 2",
		},
		"outputs that no target matches": {
			[]gomlx.Block{gomlx.Dense("a", 4, 3)},
			gomlx.InMemory{Inputs: data.Inputs, Target: gomlx.Array{Float32: make([]float32, 10)}},
			"squared errors",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := gomlx.New(gomlx.Model{Name: "bad", Blocks: c.blocks}, c.data)
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), `model "bad"`) {
				t.Errorf("got %v; want an error with %q", err, c.want)
			}
		})
	}
}

func TestLayoutsThatCannotBeLoadedAreRefused(t *testing.T) {
	t.Parallel()
	model := mlp(4, 8, 3, 3)
	executor, err := gomlx.New(model, points(20, 4, 3))
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(l *exec.Layout){
		"BFloat16":                func(l *exec.Layout) { l.Precision = exec.BFloat16 },
		"CUDA":                    func(l *exec.Layout) { l.Parts[0].Device.Kind = exec.CUDA },
		"a batch beyond the data": func(l *exec.Layout) { l.Batch = 21 },
		"threads below 0":         func(l *exec.Layout) { l.Parts[0].Device.Threads = -1 },
		"no parts":                func(l *exec.Layout) { l.Parts = nil },
		"a learning rate below 0": func(l *exec.Layout) { l.Optimizer = exec.Optimizer{Kind: exec.SGD, LearningRate: -1} },
		"a learning rate of no sum": func(l *exec.Layout) {
			l.Optimizer = exec.Optimizer{Kind: exec.SGD, LearningRate: math.NaN()}
		},
	} {
		layout := exec.Layout{Parts: cut(model, len(model.Blocks)), Batch: 4, MicroBatches: 1}
		change(&layout)
		if _, err := executor.Load(t.Context(), layout); err == nil {
			t.Errorf("%s is loaded", name)
		}
	}
	if _, err := executor.Probe(t.Context(), exec.ProbeOptions{}); err == nil {
		t.Error("a model is probed with no samples")
	}
}

func TestPassesOutOfOrderAreErrors(t *testing.T) {
	t.Parallel()
	model := mlp(4, 8, 3, 3)
	layout := exec.Layout{Parts: cut(model, 3, len(model.Blocks)-3), Batch: 4, MicroBatches: 1}
	pipeline := load(t, model, points(20, 4, 3), layout)
	stages := pipeline.Stages()
	batch, err := pipeline.Batch(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stages[0].Backward(t.Context(), 0, make([]exec.Message, 2)); err == nil {
		t.Error("a backward pass without a forward pass")
	}
	if _, err := stages[1].Forward(t.Context(), 0, 0, batch.MicroBatches[0], nil); err == nil {
		t.Error("a forward pass without a message")
	}
	if _, err := stages[0].Forward(t.Context(), 0, 0, "batch", nil); err == nil {
		t.Error("a forward pass of something else than a batch")
	}
	if _, err := stages[0].Forward(t.Context(), 0, 0, batch.MicroBatches[0], nil); err != nil {
		t.Fatal(err)
	}
	if _, err := stages[0].Forward(t.Context(), 0, 0, batch.MicroBatches[0], nil); err == nil {
		t.Error("a second forward pass")
	}
	if _, err := stages[0].Backward(t.Context(), 0, make([]exec.Message, 2)); err == nil {
		t.Error("a backward pass without cotangents")
	}
	if _, err := stages[0].Step(t.Context(), 1); err == nil {
		t.Error("an update between passes")
	}
	if err := stages[0].Import(t.Context(), exportFiles(t, stages)); err != nil {
		t.Fatal(err)
	}
	if _, err := stages[0].Step(t.Context(), 1); err != nil {
		t.Errorf("after an import, which forgets the pass: %v", err)
	}
	if _, err := pipeline.Batch(t.Context(), -1); err == nil {
		t.Error("a batch of a step below 0")
	}
}

func TestATrainedModelPredictsWhatItLearned(t *testing.T) {
	t.Parallel()
	model, data := mlp(6, 16, 3, 3), points(200, 6, 3)
	model.Blocks[1] = gomlx.Sequence("norm", gomlx.BatchNorm("batch", 16), gomlx.Relu("relu"))
	layout := exec.Layout{
		Parts: cut(model, 2, len(model.Blocks)-2), Batch: 40, MicroBatches: 2,
		Optimizer: exec.Optimizer{Kind: exec.Adam, LearningRate: 0.01},
	}
	pipeline := load(t, model, data, layout)
	train(t, pipeline, layout, 0, 60)
	path := filepath.Join(t.TempDir(), "model.safetensors")
	if err := pipeline.Write(t.Context(), exportFiles(t, pipeline.Stages()), path); err != nil {
		t.Fatal(err)
	}
	predictor, err := gomlx.Open(model, path, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := predictor.Close(); err != nil {
			t.Error(err)
		}
	}()
	output, err := predictor.Predict(data.Inputs...)
	if err != nil {
		t.Fatal(err)
	}
	right := 0
	for i, class := range data.Target.Int32 {
		best := 0
		for j, logit := range output.Float32[3*i : 3*i+3] {
			if logit > output.Float32[3*i+best] {
				best = j
			}
		}
		if best == int(class) {
			right++
		}
	}
	if right < 190 {
		t.Errorf("%d of 200 predictions are right; want 190", right)
	}
	if _, err := predictor.Predict(gomlx.Array{Shape: []int{5}, Float32: make([]float32, 5)}); !errors.Is(err,
		gomlx.ErrModel) && err == nil {
		t.Error("samples of another shape are predicted")
	}
	if _, err := gomlx.Open(mlp(6, 16, 3, 3), path, 1); err == nil {
		t.Error("the file of another model is opened")
	}
}
