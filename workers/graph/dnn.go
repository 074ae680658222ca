package graph

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
)

// ReadDNNPartitioning reads a workload of the NeurIPS 2020 paper on device placement
// (https://github.com/msr-fiddle/dnn-partitioning): JSON with nodes, edges and the machines. Times are milliseconds;
// the cost of an edge is the time between an accelerator and the memory of its host. The size of a node becomes
// Workspace, as it stands for all that the node holds. Errors tell the line or the field.
func ReadDNNPartitioning(r io.Reader) (Graph, Limits, error) {
	var file dnnFile
	if err := decode(r, "a workload", &file); err != nil {
		return Graph{}, Limits{}, err
	}
	g, limits, err := file.graph()
	if err != nil {
		return Graph{}, Limits{}, fmt.Errorf("read a workload: %w", err)
	}
	return g, limits, nil
}

type dnnFile struct {
	MaxSize      float64   `json:"maxSizePerFPGA"`
	Accelerators int       `json:"maxFPGAs"`
	CPUs         int       `json:"maxCPUs"`
	Nodes        []dnnNode `json:"nodes"`
	Edges        []dnnEdge `json:"edges"`
}

type dnnNode struct {
	ID          int64   `json:"id"`
	Name        string  `json:"name"`
	Supported   flag    `json:"supportedOnFpga"`
	CPU         float64 `json:"cpuLatency"`
	Accelerator float64 `json:"fpgaLatency"`
	Backward    flag    `json:"isBackwardNode"`
	Colour      *int64  `json:"colorClass"`
	Size        float64 `json:"size"`
}

type dnnEdge struct {
	From int64   `json:"sourceId"`
	To   int64   `json:"destId"`
	Cost float64 `json:"cost"`
	Size float64 `json:"size"`
}

// flag is a Boolean that may be written as 0 or 1.
type flag struct{ json.RawMessage }

func (f *fields) flag(name string, value flag) bool {
	switch string(value.RawMessage) {
	case "true", "1", "1.0":
		return true
	case "false", "0", "0.0", "null", "":
	default:
		f.keep(name, fmt.Errorf("%.20s; want true, false, 0 or 1", value.RawMessage))
	}
	return false
}

func (d dnnFile) graph() (Graph, Limits, error) {
	const millisecond Seconds = 1e-3
	var f fields
	limits := Limits{Accelerators: d.Accelerators, CPUs: d.CPUs, Memory: f.bytes("maxSizePerFPGA", d.MaxSize)}
	if f.err == nil && (d.Accelerators < 0 || d.CPUs < 0) {
		f.err = fmt.Errorf("maxFPGAs %d, maxCPUs %d: want 0 or more", d.Accelerators, d.CPUs)
	}
	var g Graph
	index := make(map[int64]int, len(d.Nodes))
	for i, node := range d.Nodes {
		at := "nodes[" + strconv.Itoa(i) + "]."
		op := Op{
			ID: strconv.FormatInt(node.ID, 10), Name: node.Name, Backward: f.flag(at+"isBackwardNode", node.Backward),
			Costs:     map[string]Cost{CPU: {Forward: f.span(at+"cpuLatency", node.CPU, millisecond)}},
			Workspace: f.bytes(at+"size", node.Size),
		}
		if f.flag(at+"supportedOnFpga", node.Supported) {
			op.Costs[Accelerator] = Cost{Forward: f.span(at+"fpgaLatency", node.Accelerator, millisecond)}
		}
		if node.Colour != nil {
			op.Colour = strconv.FormatInt(*node.Colour, 10)
		}
		if other, twice := index[node.ID]; twice {
			return Graph{}, Limits{}, fmt.Errorf("nodes[%d] and nodes[%d] are both %d; IDs must be unique", other, i, node.ID)
		}
		index[node.ID] = i
		g.Ops = append(g.Ops, op)
	}
	for i, edge := range d.Edges {
		at := "edges[" + strconv.Itoa(i) + "]"
		from, known := index[edge.From]
		to, alsoKnown := index[edge.To]
		if !known || !alsoKnown {
			return Graph{}, Limits{}, fmt.Errorf("%s: %d -> %d names a node that is not listed", at, edge.From, edge.To)
		}
		// The size is for information in these files, and differs among edges that share a tensor; the cost counts.
		g.Edges = append(g.Edges, Edge{From: from, To: to, Transfer: f.span(at+".cost", edge.Cost, millisecond)})
	}
	if f.err != nil {
		return Graph{}, Limits{}, f.err
	}
	return g, limits, g.Validate()
}
