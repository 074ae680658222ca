// Package graph describes what a model computes as operations with measured costs and the tensors between them.
package graph

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"unicode/utf8"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Seconds is a span of time in seconds. Profiles hold spans far below a nanosecond's share of their sums, so it is no
// time.Duration.
type Seconds float64

// Cost is how long one operation takes on one class of device. The zero value is free.
type Cost struct {
	// Forward is the time of the operation itself.
	Forward Seconds `json:"forward_seconds"`
	// Backward is the time of its gradient where that is not an operation of its own.
	Backward Seconds `json:"backward_seconds,omitempty"`
}

// Op is one operation, or a layer of several.
type Op struct {
	// ID is unique in its graph and not empty.
	ID string `json:"id"`
	// Name is for people.
	Name string `json:"name,omitempty"`
	// Costs are by device class; a class that is absent cannot run the operation.
	Costs map[string]Cost `json:"costs"`
	// Parameters is the size of the trained weights.
	Parameters quantity.Bytes `json:"parameter_bytes,omitempty"`
	// Activation is what the forward pass keeps for the backward pass, for the whole batch.
	Activation quantity.Bytes `json:"activation_bytes,omitempty"`
	// Workspace is held for as long as the operation is on a device, whatever the batch.
	Workspace quantity.Bytes `json:"workspace_bytes,omitempty"`
	// Colour is shared by operations that must be on one device; empty means free.
	Colour string `json:"colour,omitempty"`
	// Backward says that the operation belongs to the backward pass.
	Backward bool `json:"backward,omitempty"`
	// BackwardOf is the ID of the operation whose gradient this one computes; it implies Backward and the same device.
	BackwardOf string `json:"backward_of,omitempty"`
	// Recompute is the extra time and the smaller activation when the forward pass is repeated before the backward pass;
	// nil where nobody measured it: the time is then that of the forward pass.
	Recompute *Recompute `json:"recompute,omitempty"`
}

// Recompute is what recomputation of activations costs and leaves.
type Recompute struct {
	// Extra is added to the backward pass.
	Extra Seconds `json:"extra_seconds"`
	// Activation is what stays in memory between the passes, for the whole batch.
	Activation quantity.Bytes `json:"activation_bytes"`
}

// Edge carries one output of From to To. It travels once to each device that needs it, whatever the number of consumers
// there.
type Edge struct {
	// From and To are indices of Graph.Ops.
	From, To int
	// Output tells the outputs of From apart; edges with the same From and Output carry the same tensor.
	Output int
	// Bytes is the size of the tensor for the whole batch.
	Bytes quantity.Bytes
	// Transfer is the measured time of one transfer between a device and the memory of its host; 0 where only Bytes are
	// known.
	Transfer Seconds
	// State says that the edge leads back to an earlier operation of the next time step: the graph is recurrent there.
	State bool
}

// Graph is a directed graph of operations. It may branch and skip; Contract removes declared recurrences. The zero
// value is an empty graph.
type Graph struct {
	// Name is for people.
	Name string
	// Ops and Edges are in no particular order.
	Ops   []Op
	Edges []Edge
}

// MostBytes bounds every size, so that no sum of a million of them overflows.
const MostBytes quantity.Bytes = 1 << 43

// MostSeconds bounds every time.
const MostSeconds Seconds = 1e9

// Validate refuses graphs with repeated or missing IDs, names that tell things apart and are not UTF-8 (encoded, two
// of them may be one), edges to nowhere, two sizes of one tensor, and amounts that are negative, not finite or beyond
// MostBytes and MostSeconds. It does not look for cycles: Order and Contract do.
func (g Graph) Validate() error {
	seen := make(map[string]int, len(g.Ops))
	for i, op := range g.Ops {
		if op.ID == "" {
			return fmt.Errorf("operation %d has no ID; give it one", i)
		}
		if !utf8.ValidString(op.ID) || !utf8.ValidString(op.Colour) {
			return fmt.Errorf("operation %d: its ID %q or its colour %q is no UTF-8 text; write the file in UTF-8", i, op.ID,
				op.Colour)
		}
		if before, twice := seen[op.ID]; twice {
			return fmt.Errorf("operations %d and %d are both %q; IDs must be unique", before, i, op.ID)
		}
		seen[op.ID] = i
		if err := op.validate(); err != nil {
			return fmt.Errorf("operation %q: %w", op.ID, err)
		}
	}
	for _, op := range g.Ops {
		if _, known := seen[op.BackwardOf]; op.BackwardOf != "" && !known {
			return fmt.Errorf("operation %q is the gradient of %q, which does not exist", op.ID, op.BackwardOf)
		}
	}
	return g.validateEdges()
}

func (o Op) validate() error {
	for _, class := range slices.Sorted(maps.Keys(o.Costs)) {
		cost := o.Costs[class]
		if !utf8.ValidString(class) {
			return fmt.Errorf("device class %q is no UTF-8 text; write it in UTF-8", class)
		}
		if !cost.Forward.valid() || !cost.Backward.valid() {
			return fmt.Errorf("costs %v and %v seconds on %q; want finite times from 0 to %v", cost.Forward, cost.Backward,
				class, MostSeconds)
		}
	}
	for _, size := range []quantity.Bytes{o.Parameters, o.Activation, o.Workspace} {
		if size < 0 || size > MostBytes {
			return fmt.Errorf("size %d bytes; want 0 to %d", size, MostBytes)
		}
	}
	if r := o.Recompute; r != nil && (!r.Extra.valid() || r.Activation < 0 || r.Activation > MostBytes) {
		return fmt.Errorf("recomputation of %v seconds that keeps %d bytes; want finite amounts from 0", r.Extra,
			r.Activation)
	}
	return nil
}

func (s Seconds) valid() bool { return s >= 0 && s <= MostSeconds && !math.IsNaN(float64(s)) }

func (g Graph) validateEdges() error {
	tensors := make(map[[2]int]Edge, len(g.Edges))
	for i, e := range g.Edges {
		if e.From < 0 || e.From >= len(g.Ops) || e.To < 0 || e.To >= len(g.Ops) {
			return fmt.Errorf("edge %d joins operations %d and %d; the graph has %d", i, e.From, e.To, len(g.Ops))
		}
		from, to := g.Ops[e.From].ID, g.Ops[e.To].ID
		switch {
		case e.Bytes < 0 || e.Bytes > MostBytes || !e.Transfer.valid():
			return fmt.Errorf("edge %q -> %q moves %d bytes in %v seconds; want finite amounts from 0", from, to, e.Bytes,
				e.Transfer)
		case e.From == e.To && !e.State:
			return fmt.Errorf("edge %q -> %q is a loop; declare it as state or remove it", from, to)
		case e.Output < 0:
			return fmt.Errorf("edge %q -> %q carries output %d; want 0 or more", from, to, e.Output)
		}
		key := [2]int{e.From, e.Output}
		if other, known := tensors[key]; known && !e.State && (other.Bytes != e.Bytes || other.Transfer != e.Transfer) {
			return fmt.Errorf("output %d of %q has two sizes, %d bytes for %q and %d bytes for %q; number its outputs apart",
				e.Output, from, other.Bytes, g.Ops[other.To].ID, e.Bytes, to)
		} else if !known && !e.State {
			tensors[key] = e
		}
	}
	return nil
}

// Index returns the index of the operation with this ID.
func (g Graph) Index(id string) (int, bool) {
	i := slices.IndexFunc(g.Ops, func(op Op) bool { return op.ID == id })
	return i, i >= 0
}

// Tensor is one output of an operation and who reads it.
type Tensor struct {
	// From is the index of the producer.
	From int
	// Readers are the indices of the consumers, ascending, each once.
	Readers []int
	// Bytes and Transfer are those of its edges.
	Bytes    quantity.Bytes
	Transfer Seconds
}

// Tensors returns the tensors in the order of producer and output; state edges are left out.
func (g Graph) Tensors() []Tensor {
	edges := make([]Edge, 0, len(g.Edges))
	for _, e := range g.Edges {
		if !e.State && e.From != e.To {
			edges = append(edges, e)
		}
	}
	slices.SortFunc(edges, func(a, b Edge) int {
		switch {
		case a.From != b.From:
			return a.From - b.From
		case a.Output != b.Output:
			return a.Output - b.Output
		default:
			return a.To - b.To
		}
	})
	var tensors []Tensor
	for i, e := range edges {
		if i == 0 || edges[i-1].From != e.From || edges[i-1].Output != e.Output {
			tensors = append(tensors, Tensor{From: e.From, Bytes: e.Bytes, Transfer: e.Transfer})
		}
		last := &tensors[len(tensors)-1]
		if n := len(last.Readers); n == 0 || last.Readers[n-1] != e.To {
			last.Readers = append(last.Readers, e.To)
		}
	}
	return tensors
}

// Summary is a graph in a few numbers.
type Summary struct {
	Ops        int            `json:"ops"`
	Edges      int            `json:"edges"`
	Backward   int            `json:"backward_ops"`
	Colours    int            `json:"colours"`
	Parameters quantity.Bytes `json:"parameter_bytes"`
	Activation quantity.Bytes `json:"activation_bytes"`
	Workspace  quantity.Bytes `json:"workspace_bytes"`
	// Total is the time of all operations, forward and backward, by device class; a class that cannot run them all is
	// absent.
	Total map[string]Seconds `json:"total_seconds"`
}

// Summary returns the graph in a few numbers.
func (g Graph) Summary() Summary {
	s := Summary{Ops: len(g.Ops), Edges: len(g.Edges), Total: map[string]Seconds{}}
	colours := map[string]bool{}
	runs := map[string]int{}
	for _, op := range g.Ops {
		s.Parameters += op.Parameters
		s.Activation += op.Activation
		s.Workspace += op.Workspace
		if op.Backward {
			s.Backward++
		}
		if op.Colour != "" {
			colours[op.Colour] = true
		}
		for class, cost := range op.Costs {
			s.Total[class] += cost.Forward + cost.Backward
			runs[class]++
		}
	}
	s.Colours = len(colours)
	maps.DeleteFunc(s.Total, func(class string, _ Seconds) bool { return runs[class] < len(g.Ops) })
	return s
}
