package graph

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Version is the version of Spillway's own JSON form of a graph. A reader refuses every other.
const Version = 1

type encoded struct {
	Version int           `json:"version"`
	Name    string        `json:"name,omitempty"`
	Ops     []Op          `json:"ops"`
	Edges   []encodedEdge `json:"edges,omitempty"`
}

// encodedEdge names operations by ID, so that a person can edit the file.
type encodedEdge struct {
	From     string         `json:"from"`
	To       string         `json:"to"`
	Output   int            `json:"output,omitempty"`
	Bytes    quantity.Bytes `json:"bytes,omitempty"`
	Transfer Seconds        `json:"transfer_seconds,omitempty"`
	State    bool           `json:"state,omitempty"`
}

// Write writes the graph as JSON. It refuses a graph that Read would refuse.
func (g Graph) Write(w io.Writer) error {
	if err := g.Validate(); err != nil {
		return fmt.Errorf("write a graph: %w", err)
	}
	file := encoded{Version: Version, Name: g.Name, Ops: g.Ops}
	for _, e := range g.Edges {
		file.Edges = append(file.Edges, encodedEdge{
			From: g.Ops[e.From].ID, To: g.Ops[e.To].ID, Output: e.Output, Bytes: e.Bytes, Transfer: e.Transfer, State: e.State,
		})
	}
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", " ")
	if err := encoder.Encode(file); err != nil {
		return fmt.Errorf("write a graph: %w", err)
	}
	return nil
}

// Read reads what Write wrote. Errors tell the line or the field.
func Read(r io.Reader) (Graph, error) {
	var file encoded
	if err := decode(r, "a graph", &file); err != nil {
		return Graph{}, err
	}
	if file.Version != Version {
		return Graph{}, fmt.Errorf("read a graph: version %d; this build reads version %d", file.Version, Version)
	}
	g := Graph{Name: file.Name, Ops: file.Ops}
	index := make(map[string]int, len(g.Ops))
	for i, op := range g.Ops {
		index[op.ID] = i
	}
	for i, e := range file.Edges {
		from, known := index[e.From]
		to, alsoKnown := index[e.To]
		if !known || !alsoKnown {
			return Graph{}, fmt.Errorf("read a graph: edges[%d]: %q -> %q names an operation that is not listed", i, e.From,
				e.To)
		}
		g.Edges = append(g.Edges, Edge{
			From: from, To: to, Output: e.Output, Bytes: e.Bytes, Transfer: e.Transfer,
			State: e.State,
		})
	}
	if err := g.Validate(); err != nil {
		return Graph{}, fmt.Errorf("read a graph: %w", err)
	}
	return g, nil
}
