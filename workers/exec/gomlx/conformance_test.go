package gomlx_test

import (
	"testing"

	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/exec/exectest"
	"github.com/spillway-ml/spillway/workers/exec/gomlx"
)

// transformer predicts the next word.
func transformer(words, length, width, heads, layers int, dropout float64) gomlx.Model {
	m := gomlx.Model{Name: "transformer", Blocks: []gomlx.Block{
		gomlx.Embedding("words", words, width),
		gomlx.Positions("places", length, width),
	}}
	for _, name := range []string{"layer0", "layer1", "layer2", "layer3"}[:layers] {
		m.Blocks = append(m.Blocks, gomlx.TransformerLayer(name, width, heads, 4*width, true, dropout))
	}
	m.Blocks = append(m.Blocks, gomlx.LayerNorm("norm", width), gomlx.Dense("out", width, words))
	return m
}

// cnn classifies images of 8 x 8.
func cnn(classes int) gomlx.Model {
	return gomlx.Model{Name: "cnn", Blocks: []gomlx.Block{
		gomlx.Convolution("convolution1", 3, 1, 6), gomlx.Relu("relu1"), gomlx.MaxPool("pool1", 2),
		gomlx.Convolution("convolution2", 3, 6, 8), gomlx.Relu("relu2"), gomlx.MaxPool("pool2", 2),
		gomlx.Flatten("flatten"), gomlx.Dropout("dropout", 0.2), gomlx.Dense("out", 2*2*8, classes),
	}}
}

func TestTheExecutorKeepsTheContract(t *testing.T) {
	t.Parallel()
	exectest.Run(t, exectest.Subject{
		Name: "gomlx",
		New: func(tb testing.TB, name string) exec.Executor {
			tb.Helper()
			var model gomlx.Model
			var data gomlx.InMemory
			switch name {
			case "mlp":
				model, data = mlp(6, 16, 4, 3), points(240, 6, 3)
			case "batchnorm":
				model, data = mlp(6, 16, 3, 3), points(240, 6, 3)
				model.Blocks[1] = gomlx.Sequence("norm", gomlx.BatchNorm("batch", 16), gomlx.Relu("relu"))
			case "cnn":
				model, data = cnn(4), images(240, 8, 1, 4)
				data.Target = points(240, 1, 4).Target
			case "transformer":
				model, data = transformer(11, 6, 16, 2, 2, 0.1), sentences(240, 6, 11)
			}
			executor, err := gomlx.New(model, data)
			if err != nil {
				tb.Fatal(err)
			}
			return executor
		},
		Device: func(int) exec.Device { return exec.Device{ID: "cpu", Threads: 1} },
		Models: []string{"mlp", "batchnorm", "cnn", "transformer"},
	})
}
