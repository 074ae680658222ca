package plan

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/graph"
)

// The formats of recorded graphs.
const (
	formatAuto     = "auto"
	formatSpillway = "spillway"
	formatDNN      = "dnn-partitioning"
	formatPipe     = "pipedream"
	formatDAPPLE   = "dapple"
	formatPiper    = "piper"
	// formatModel says that the graph was made by looking into a model.
	formatModel = "model"
)

// errNoOperation refuses an empty graph.
var errNoOperation = errors.New("the graph has no operation")

// mostGraphText bounds a recorded graph: those of ten thousand operations have a few MiB.
const mostGraphText = 256 << 20

// recorded is an op graph with the batch that its costs are of.
type recorded struct {
	graph  graph.Graph
	format string
	// samples is how many samples a batch has; 0 where the file does not tell.
	samples int
}

// ModelReference is FILE.py:FUNCTION.
var ModelReference = regexp.MustCompile(`\.py:[A-Za-z_][A-Za-z0-9_]*$`)

// readOpGraph reads a recorded graph. batch is the number of samples of a batch, 0 for what the file says.
func readOpGraph(name, format string, batch int) (recorded, error) {
	text, err := flag.ReadFile(name, mostGraphText)
	if err != nil {
		return recorded{}, &fault.UsageError{Problem: fmt.Sprintf("read %s: %v", name, fault.WithoutPath(err)), Hint: "give the file of a recorded graph, or MODEL.py:FUNCTION"}
	}
	if format == formatAuto {
		if format, err = formatOf(name, text); err != nil {
			return recorded{}, err
		}
	}
	found, err := parseOpGraph(text, format, batch)
	if err != nil {
		return recorded{}, &fault.UsageError{Problem: fmt.Sprintf("%s as %s: %v", name, format, err), Hint: "correct the file, or name its format with --format"}
	}
	if found.graph.Name == "" {
		found.graph.Name = filepath.Base(name)
	}
	return found, nil
}

// formatOf recognises a format by what the text holds: the keys of JSON, or the layers of a profile.
func formatOf(name string, text []byte) (string, error) {
	if !bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) {
		switch {
		case !bytes.Contains(text, []byte("forward_compute_time=")):
			return "", unknownFormat(name, "it is neither JSON nor a profile with forward_compute_time")
		case bytes.Contains(text, []byte("activation_size=[")):
			return formatDAPPLE, nil
		default:
			return formatPipe, nil
		}
	}
	if err := flag.CheckJSON(name, text); err != nil {
		return "", err
	}
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(text, &keys); err != nil {
		return "", unknownFormat(name, err.Error())
	}
	has := func(names ...string) bool {
		return !slices.ContainsFunc(names, func(name string) bool { return keys[name] == nil })
	}
	switch {
	case has("version", "ops"):
		return formatSpillway, nil
	case has("nodes", "maxFPGAs"):
		return formatDNN, nil
	case has("nodes", "maxDevices"):
		return formatPiper, nil
	default:
		known := slices.Sorted(maps.Keys(keys))
		return "", unknownFormat(name, "it is JSON with the keys "+strings.Join(known[:min(len(known), 8)], ", "))
	}
}

func unknownFormat(name, why string) error {
	return &fault.UsageError{
		Problem: fmt.Sprintf("%s is of no known format: %s", name, why),
		Hint:    "formats are those of spillway, dnn-partitioning, pipedream, dapple and piper; --format names one",
	}
}

// parseOpGraph reads a graph of a format and checks that it has operations and an order.
func parseOpGraph(text []byte, format string, batch int) (found recorded, err error) {
	found = recorded{format: format, samples: batch}
	r := bytes.NewReader(text)
	switch format {
	case formatDNN:
		found.graph, _, err = graph.ReadDNNPartitioning(r)
	case formatPipe, formatDAPPLE:
		found.graph, err = graph.ReadPipeDream(r)
	case formatPiper:
		var limits graph.Limits
		if found.graph, limits, err = graph.ReadPiper(r); err == nil {
			if found.samples == 0 {
				found.samples = max(limits.MicroBatches, 1)
			}
			found.graph = times(found.graph, found.samples) // its costs are of one sample
		}
	default:
		found.graph, err = graph.Read(r)
	}
	if err != nil {
		return recorded{}, err
	}
	return found, checkOpGraph(found.graph)
}

// checkOpGraph refuses a graph that cannot be planned for.
func checkOpGraph(g graph.Graph) error {
	if len(g.Ops) == 0 {
		return errNoOperation
	}
	if err := g.Validate(); err != nil {
		return err
	}
	_, err := g.Order()
	return err
}

// times is the graph of a batch of n samples, from that of one.
func times(g graph.Graph, n int) graph.Graph {
	many := graph.Graph{Name: g.Name, Ops: slices.Clone(g.Ops), Edges: slices.Clone(g.Edges)}
	span, size := graph.Seconds(n), quantity.Bytes(n)
	for i, op := range many.Ops {
		op.Costs = maps.Clone(op.Costs)
		for class, cost := range op.Costs {
			op.Costs[class] = graph.Cost{Forward: cost.Forward * span, Backward: cost.Backward * span}
		}
		op.Activation = scaled(op.Activation, size)
		if op.Recompute != nil {
			op.Recompute = &graph.Recompute{Extra: op.Recompute.Extra * span, Activation: scaled(op.Recompute.Activation, size)}
		}
		many.Ops[i] = op
	}
	for i := range many.Edges {
		many.Edges[i].Bytes = scaled(many.Edges[i].Bytes, size)
	}
	return many
}

// scaled is size times n, or where that is beyond graph.MostBytes an amount that graphs refuse.
func scaled(size, n quantity.Bytes) quantity.Bytes {
	if size > graph.MostBytes/n {
		return graph.MostBytes + 1
	}
	return size * n
}
