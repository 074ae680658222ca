package gomlx_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/exec/gomlx"
)

// mlp is a multilayer perceptron with dropout. It is smooth: rounding that pushes one number over the kink of a
// rectifier would show in the losses.
func mlp(inputs, width, layers, classes int) gomlx.Model {
	m := gomlx.Model{Name: "mlp", Blocks: []gomlx.Block{gomlx.Dense("in", inputs, width), gomlx.GELU("in gelu")}}
	for i := range layers - 2 {
		m.Blocks = append(m.Blocks, gomlx.Dense(fmt.Sprintf("hidden%d", i), width, width),
			gomlx.GELU(fmt.Sprintf("gelu%d", i)))
	}
	m.Blocks = append(m.Blocks, gomlx.Dropout("dropout", 0.3), gomlx.Dense("out", width, classes))
	return m
}

// points are samples around one center for each class.
func points(samples, inputs, classes int) gomlx.InMemory {
	random := rand.New(rand.NewPCG(1, 2))
	centers := make([]float32, classes*inputs)
	for i := range centers {
		centers[i] = float32(random.NormFloat64())
	}
	x := gomlx.Array{Shape: []int{inputs}}
	y := gomlx.Array{}
	for range samples {
		class := random.IntN(classes)
		y.Int32 = append(y.Int32, int32(class))
		for i := range inputs {
			x.Float32 = append(x.Float32, centers[class*inputs+i]+0.5*float32(random.NormFloat64()))
		}
	}
	return gomlx.InMemory{Inputs: []gomlx.Array{x}, Target: y}
}

// cut splits a model into parts with these many blocks.
func cut(model gomlx.Model, sizes ...int) []exec.Part {
	var parts []exec.Part
	next := 0
	for i, size := range sizes {
		p := exec.Part{Device: exec.Device{ID: fmt.Sprintf("cpu-%d", i), Threads: 1}, InFlight: 8}
		for _, b := range model.Blocks[next : next+size] {
			p.Ops = append(p.Ops, b.Name)
		}
		parts = append(parts, p)
		next += size
	}
	return parts
}

// load makes a pipeline.
func load(tb testing.TB, model gomlx.Model, data gomlx.Dataset, layout exec.Layout) exec.Pipeline {
	tb.Helper()
	executor, err := gomlx.New(model, data)
	if err != nil {
		tb.Fatal(err)
	}
	pipeline, err := executor.Load(tb.Context(), layout)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := pipeline.Close(); err != nil {
			tb.Error(err)
		}
	})
	return pipeline
}

// train takes steps from a first one: all forward passes, then all backward passes.
func train(tb testing.TB, pipeline exec.Pipeline, layout exec.Layout, first, steps int64) []float64 {
	tb.Helper()
	var losses []float64
	for step := first; step < first+steps; step++ {
		batch, err := pipeline.Batch(tb.Context(), step)
		if err != nil {
			tb.Fatal(err)
		}
		losses = append(losses, takeStep(tb, pipeline.Stages(), layout, batch, step))
	}
	return losses
}

func takeStep(tb testing.TB, stages []exec.Stage, layout exec.Layout, batch exec.Batch, step int64) float64 {
	tb.Helper()
	forth(tb, stages, layout, batch, step)
	loss := 0.0
	for _, s := range stages {
		part, err := s.Step(tb.Context(), 1)
		if err != nil {
			tb.Fatal(err)
		}
		loss += part
	}
	return loss
}

// forth does the passes of a step.
func forth(tb testing.TB, stages []exec.Stage, layout exec.Layout, batch exec.Batch, step int64) {
	tb.Helper()
	for m, micro := range batch.MicroBatches {
		from := make([]exec.Message, len(stages))
		for i, s := range stages {
			message, err := s.Forward(tb.Context(), step, m, micro, from)
			if err != nil {
				tb.Fatal(err)
			}
			from[i] = message
		}
	}
	for m := range batch.MicroBatches {
		answers := make([][]exec.Message, len(stages))
		for i := len(stages) - 1; i >= 0; i-- {
			if layout.Parts[i].Recompute {
				if err := stages[i].Recompute(tb.Context(), m); err != nil {
					tb.Fatal(err)
				}
			}
			later := make([]exec.Message, len(stages))
			for j := i + 1; j < len(stages); j++ {
				later[j] = answers[j][i]
			}
			var err error
			if answers[i], err = stages[i].Backward(tb.Context(), m, later); err != nil {
				tb.Fatal(err)
			}
		}
	}
}

func TestASplitModelLearnsAsTheUnsplitOne(t *testing.T) {
	t.Parallel()
	model, data := mlp(6, 16, 4, 3), points(100, 6, 3)
	layout := exec.Layout{Parts: cut(model, len(model.Blocks)), Batch: 20, MicroBatches: 3, Seed: 7}
	want := train(t, load(t, model, data, layout), layout, 0, 12)
	if last := want[len(want)-1]; !(last < 0.8*want[0]) {
		t.Fatalf("the loss went from %v to %v; want it to fall", want[0], last)
	}
	for _, sizes := range [][]int{{3, 5}, {1, 2, 5}, {7, 1}} {
		for _, recompute := range []bool{false, true} {
			layout.Parts = cut(model, sizes...)
			for i := range layout.Parts {
				layout.Parts[i].Recompute = recompute
			}
			got := train(t, load(t, model, data, layout), layout, 0, 12)
			for i := range want {
				if math.Abs(got[i]-want[i]) > 1e-6 {
					t.Fatalf("split %v, recompute %v: loss %v in step %d, want %v", sizes, recompute, got[i], i, want[i])
				}
			}
		}
	}
}
