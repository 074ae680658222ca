package graph

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Format is how a recorded graph is written.
type Format string

// The formats that [ReadAs] reads.
const (
	Spillway  Format = "spillway"
	DNN       Format = "dnn-partitioning"
	PipeDream Format = "pipedream"
	DAPPLE    Format = "dapple"
	Piper     Format = "piper"
)

// Formats are those that [ReadAs] reads.
func Formats() []Format { return []Format{Spillway, DNN, PipeDream, DAPPLE, Piper} }

// Recorded is an op graph with the batch that its costs are of.
type Recorded struct {
	Graph Graph
	// Format is that in which it was written.
	Format Format
	// Samples is how many samples a batch has; 0 where nothing tells.
	Samples int
}

var errNoOperation = errors.New("the graph has no operation")

// FormatOf recognises a format by what the text holds: the keys of JSON, or the layers of a profile. The error says
// what the text is instead.
func FormatOf(text []byte) (Format, error) {
	if !bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) {
		switch {
		case !bytes.Contains(text, []byte("forward_compute_time=")):
			return "", errors.New("it is neither JSON nor a profile with forward_compute_time")
		case bytes.Contains(text, []byte("activation_size=[")):
			return DAPPLE, nil
		default:
			return PipeDream, nil
		}
	}
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(text, &keys); err != nil {
		return "", err
	}
	has := func(names ...string) bool {
		return !slices.ContainsFunc(names, func(name string) bool { return keys[name] == nil })
	}
	switch {
	case has("version", "ops"):
		return Spillway, nil
	case has("nodes", "maxFPGAs"):
		return DNN, nil
	case has("nodes", "maxDevices"):
		return Piper, nil
	default:
		const shown = 8
		known := slices.Sorted(maps.Keys(keys))
		return "", errors.New("it is JSON with the keys " + strings.Join(known[:min(len(known), shown)], ", "))
	}
}

// ReadAs reads a graph of a format and checks that it can be planned for. samples is the number of samples of a batch,
// 0 for what the text says.
func ReadAs(text []byte, format Format, samples int) (found Recorded, err error) {
	found = Recorded{Format: format, Samples: samples}
	r := bytes.NewReader(text)
	switch format {
	case DNN:
		found.Graph, _, err = ReadDNNPartitioning(r)
	case PipeDream, DAPPLE:
		found.Graph, err = ReadPipeDream(r)
	case Piper:
		var limits Limits
		if found.Graph, limits, err = ReadPiper(r); err == nil {
			if found.Samples == 0 {
				found.Samples = max(limits.MicroBatches, 1)
			}
			found.Graph = found.Graph.times(found.Samples) // its costs are of one sample
		}
	default:
		found.Graph, err = Read(r)
	}
	if err != nil {
		return Recorded{}, err
	}
	return found, found.Graph.Plannable()
}

// Plannable refuses a graph that cannot be planned for: one without an operation, not valid, or without an order.
func (g Graph) Plannable() error {
	if len(g.Ops) == 0 {
		return errNoOperation
	}
	if err := g.Validate(); err != nil {
		return err
	}
	_, err := g.Order()
	return err
}

// Passes says whether the costs of the forward pass stand alone, and whether there are any of the backward pass.
func (g Graph) Passes() (forward, backward bool) {
	forward = true
	for _, op := range g.Ops {
		if op.Backward || op.BackwardOf != "" {
			forward, backward = false, true
		}
		for _, cost := range op.Costs {
			backward = backward || cost.Backward > 0
		}
	}
	return forward, backward
}

// times is the graph of a batch of n samples, from that of one.
func (g Graph) times(n int) Graph {
	many := Graph{Name: g.Name, Ops: slices.Clone(g.Ops), Edges: slices.Clone(g.Edges)}
	span, size := Seconds(n), quantity.Bytes(n)
	for i, op := range many.Ops {
		op.Costs = maps.Clone(op.Costs)
		for class, cost := range op.Costs {
			op.Costs[class] = Cost{Forward: cost.Forward * span, Backward: cost.Backward * span}
		}
		op.Activation = scaled(op.Activation, size)
		if op.Recompute != nil {
			op.Recompute = &Recompute{Extra: op.Recompute.Extra * span, Activation: scaled(op.Recompute.Activation, size)}
		}
		many.Ops[i] = op
	}
	for i := range many.Edges {
		many.Edges[i].Bytes = scaled(many.Edges[i].Bytes, size)
	}
	return many
}

// scaled is size times n, or where that is beyond MostBytes an amount that graphs refuse.
func scaled(size, n quantity.Bytes) quantity.Bytes {
	if size > MostBytes/n {
		return MostBytes + 1
	}
	return size * n
}
