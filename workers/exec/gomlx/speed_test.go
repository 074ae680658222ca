package gomlx

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"

	"github.com/gomlx/gomlx/core/graph"

	"github.com/spillway-ml/spillway/workers/exec"
)

// large are models and batches of sizes that people train on a laptop.
func large() map[string]struct {
	model Model
	data  InMemory
	batch int
} {
	random := rand.New(rand.NewPCG(1, 1))
	floats := func(samples int, shape ...int) Array {
		a := Array{Shape: shape, Float32: make([]float32, samples*product(shape))}
		for i := range a.Float32 {
			a.Float32[i] = float32(random.NormFloat64())
		}
		return a
	}
	integers := func(samples, most int, shape ...int) Array {
		a := Array{Shape: shape, Int32: make([]int32, samples*product(shape))}
		for i := range a.Int32 {
			a.Int32[i] = random.Int32N(int32(most))
		}
		return a
	}
	mlp := Model{Blocks: []Block{Dense("in", 784, 1024), Relu("relu")}}
	for i := range 6 {
		mlp.Blocks = append(mlp.Blocks, Dense(fmt.Sprint("dense", i), 1024, 1024), Relu(fmt.Sprint("relu", i)))
	}
	mlp.Blocks = append(mlp.Blocks, Dense("out", 1024, 10))
	cnn := Model{Blocks: []Block{
		Convolution("convolution1", 3, 1, 32), Relu("relu1"), MaxPool("pool1", 2),
		Convolution("convolution2", 3, 32, 64), Relu("relu2"), MaxPool("pool2", 2),
		Convolution("convolution3", 3, 64, 64), Relu("relu3"),
		Flatten("flatten"), Dropout("dropout", 0.3), Dense("out", 7*7*64, 10),
	}}
	transformer := Model{Blocks: []Block{Embedding("words", 1000, 256), Positions("places", 128, 256)}}
	for i := range 4 {
		transformer.Blocks = append(transformer.Blocks, TransformerLayer(fmt.Sprint("layer", i), 256, 4, 1024, false, 0))
	}
	transformer.Blocks = append(transformer.Blocks, LayerNorm("norm", 256), Dense("out", 256, 1000))
	return map[string]struct {
		model Model
		data  InMemory
		batch int
	}{
		"mlp":         {mlp, InMemory{[]Array{floats(64, 784)}, integers(64, 10)}, 64},
		"cnn":         {cnn, InMemory{[]Array{floats(64, 28, 28, 1)}, integers(64, 10)}, 64},
		"transformer": {transformer, InMemory{[]Array{integers(8, 1000, 128)}, integers(8, 1000, 128)}, 8},
	}
}

// BenchmarkStep times a step of one part, by its passes, beside one graph of both passes, whose gradients are neither
// added up nor applied.
func BenchmarkStep(b *testing.B) {
	for name, c := range large() {
		layout := exec.Layout{Parts: []exec.Part{{}}, Batch: c.batch, MicroBatches: 1}
		executor, err := New(c.model, c.data)
		if err != nil {
			b.Fatal(err)
		}
		loaded, err := executor.load(b.Context(), layout)
		if err != nil {
			b.Fatal(err)
		}
		batch, err := loaded.Batch(b.Context(), 0)
		if err != nil {
			b.Fatal(err)
		}
		s := loaded.stages[0]
		b.Run(name+"/passes", func(b *testing.B) {
			processor(b)
			for b.Loop() {
				if _, err := s.Forward(b.Context(), 0, 0, batch.MicroBatches[0], nil); err != nil {
					b.Fatal(err)
				}
				if _, err := s.Backward(b.Context(), 0, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(name+"/update", func(b *testing.B) {
			processor(b)
			for b.Loop() {
				if _, err := s.Step(b.Context(), 1); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(name+"/one graph", func(b *testing.B) { oneGraph(b, s, batch.MicroBatches[0].(*microBatch)) })
		if err := loaded.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// processor reports the processor time of an iteration, which other processes on the machine disturb less than the time
// on the clock.
func processor(b *testing.B) {
	b.Helper()
	var before syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &before); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		var after syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &after); err != nil {
			b.Fatal(err)
		}
		spent := after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()
		b.ReportMetric(float64(spent)/1e6/float64(b.N), "cpu-ms/op")
	})
}

func oneGraph(b *testing.B, s *stage, m *microBatch) {
	b.Helper()
	made := s.part.forward(graph.NewGraph(s.device.backend, "both passes"), s.programs[m.count].inputs, m.target.shape)
	results := slices.Concat(made.outputs, graph.Gradient(made.outputs[0], made.parameters...))
	if err := made.graph.Compile(results...); err != nil {
		b.Fatal(err)
	}
	f := &flight{batch: m, program: s.programs[m.count], inputs: m.inputs}
	processor(b)
	for b.Loop() {
		f.masks = nil
		if err := s.fillMasks(f); err != nil {
			b.Fatal(err)
		}
		arguments := make([]argument, len(made.arguments))
		for i, from := range made.arguments {
			arguments[i] = argument{tensor: s.source(f, from)}
		}
		if _, err := call(made.graph, arguments); err != nil {
			b.Fatal(err)
		}
		s.release(f)
	}
}
