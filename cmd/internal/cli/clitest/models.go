package clitest

import (
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/cmd/internal/cli"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/exec/exectest"
	"github.com/spillway-ml/spillway/workers/graph"
)

// ChainGraph is a chain of equal layers with 1 MiB tensors between them; the times are of accelerators.
func ChainGraph(layers int, backward graph.Seconds) graph.Graph {
	g := graph.Graph{Name: "chain"}
	for i := range layers {
		g.Ops = append(g.Ops, graph.Op{
			ID: "layer" + strconv.Itoa(i), Costs: map[string]graph.Cost{graph.Accelerator: {Forward: 0.010, Backward: backward}},
			Parameters: 4 * quantity.MiB, Activation: 8 * quantity.MiB,
		})
		if i > 0 {
			g.Edges = append(g.Edges, graph.Edge{From: i - 1, To: i, Bytes: quantity.MiB})
		}
	}
	return g
}

// Write puts text into a file of a directory of the test.
func Write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// WriteGraph puts a graph into a file of a directory of the test.
func WriteGraph(t *testing.T, g graph.Graph) string {
	t.Helper()
	var text strings.Builder
	if err := g.Write(&text); err != nil {
		t.Fatal(err)
	}
	return Write(t, "graph.json", text.String())
}

// Files of devices.
const (
	TwoDevices = "devices:\n  - {id: gpu, class: accelerator, count: 2, memory: 1GiB, price: 1.5}\nlinks:\n  - " +
		"{between: all, bandwidth: 10GiB/s, latency: 10us}\n"
	TinyDevice = "devices:\n  - {id: tiny, class: accelerator, memory: 40MiB}\n"
)

// Reference makes the executor of the commands the reference executor, which needs no Python.
func Reference(options exectest.Options) cli.Deps {
	return cli.Deps{Executor: func(_, _, _ string, _ *slog.Logger) (exec.Executor, error) {
		return exectest.Reference(options), nil
	}}
}

// ModelOf is a file of a model that the reference executor does not read.
func ModelOf(t *testing.T) string {
	t.Helper()
	return Write(t, "model.py", "def build(): ...\n") + ":build"
}
