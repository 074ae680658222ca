package graph

import (
	"fmt"
	"io"
	"strconv"
)

// ReadPiper reads a workload of Piper (https://github.com/msr-fiddle/piper): JSON with, for each node, the costs by
// degree of tensor parallelism. Only degree 1 is read, without and with recomputation. Memory of a node is memoryUsageA
// for each sample in flight, which becomes Activation, and memoryUsageB besides, whose part beyond the parameters
// becomes Workspace. A profile tells forward and backward time together: the extra time of recomputation is the forward
// pass; where that is unknown, a third is forward. Times are in the unit of the file, taken as seconds, of one sample;
// an edge carries its tensor for one sample. Errors tell the line or the field.
func ReadPiper(r io.Reader) (Graph, Limits, error) {
	var file piperFile
	if err := decode(r, "a Piper workload", &file); err != nil {
		return Graph{}, Limits{}, err
	}
	g, limits, err := file.graph()
	if err != nil {
		return Graph{}, Limits{}, fmt.Errorf("read a Piper workload: %w", err)
	}
	return g, limits, nil
}

type piperFile struct {
	Devices   int         `json:"maxDevices"`
	Memory    float64     `json:"maxMemoryPerDevice"`
	Bandwidth float64     `json:"bandwidth"`
	Batch     int         `json:"mbsInBatch"`
	Nodes     []piperNode `json:"nodes"`
	Edges     []struct {
		From  int64   `json:"sourceId"`
		To    int64   `json:"destId"`
		Bytes float64 `json:"communicationCost"`
	} `json:"edges"`
}

type piperNode struct {
	ID    int64                  `json:"id"`
	Name  string                 `json:"name"`
	Costs map[string][]piperCost `json:"TMPCs"`
}

type piperCost struct {
	ID         string  `json:"id"`
	Time       float64 `json:"timePerSample"`
	Parameters float64 `json:"parameterSize"`
	PerSample  float64 `json:"memoryUsageA"`
	Fixed      float64 `json:"memoryUsageB"`
}

func (p piperFile) graph() (Graph, Limits, error) {
	var f fields
	limits := Limits{
		Accelerators: p.Devices, Memory: f.bytes("maxMemoryPerDevice", p.Memory), BytesPerSecond: p.Bandwidth,
		MicroBatches: p.Batch,
	}
	if f.err == nil && (p.Devices < 0 || p.Batch < 0 || !(p.Bandwidth >= 0)) {
		f.err = fmt.Errorf("maxDevices %d, mbsInBatch %d, bandwidth %v: want 0 or more", p.Devices, p.Batch, p.Bandwidth)
	}
	var g Graph
	index := make(map[int64]int, len(p.Nodes))
	for i, node := range p.Nodes {
		op, err := node.op()
		if err != nil {
			return Graph{}, Limits{}, fmt.Errorf("nodes[%d]: %w", i, err)
		}
		index[node.ID] = i
		g.Ops = append(g.Ops, op)
	}
	outputs := map[[2]int]int{} // producer and size to number: tensors of one producer are told apart by their sizes
	for i, edge := range p.Edges {
		from, known := index[edge.From]
		to, alsoKnown := index[edge.To]
		if !known || !alsoKnown {
			return Graph{}, Limits{}, fmt.Errorf("edges[%d]: %d -> %d names a node that is not listed", i, edge.From, edge.To)
		}
		size := f.bytes("edges["+strconv.Itoa(i)+"].communicationCost", edge.Bytes)
		key := [2]int{from, int(size)}
		number, same := outputs[key]
		if !same {
			number = len(outputs)
			outputs[key] = number
		}
		g.Edges = append(g.Edges, Edge{From: from, To: to, Output: number, Bytes: size})
	}
	if f.err != nil {
		return Graph{}, Limits{}, f.err
	}
	return g, limits, g.Validate()
}

func (n piperNode) op() (Op, error) {
	var plain, again *piperCost
	for i, cost := range n.Costs["1"] {
		switch cost.ID {
		case "vanilla":
			plain = &n.Costs["1"][i]
		case "activation recomp":
			again = &n.Costs["1"][i]
		}
	}
	if plain == nil {
		return Op{}, fmt.Errorf("TMPCs of node %d has no entry \"vanilla\" of degree 1", n.ID)
	}
	var f fields
	op := Op{ID: strconv.FormatInt(n.ID, 10), Name: n.Name}
	total := f.span("timePerSample", plain.Time, 1)
	forward := total / 3
	if again != nil {
		extra := max(f.span("timePerSample", again.Time, 1)-total, 0)
		forward = min(extra, total)
		op.Recompute = &Recompute{Extra: extra, Activation: f.bytes("memoryUsageA", again.PerSample)}
	}
	op.Costs = map[string]Cost{Accelerator: {Forward: forward, Backward: total - forward}}
	op.Parameters = f.bytes("parameterSize", plain.Parameters)
	op.Activation = f.bytes("memoryUsageA", plain.PerSample)
	op.Workspace = f.bytes("memoryUsageB", max(plain.Fixed-plain.Parameters, 0))
	return op, f.err
}
