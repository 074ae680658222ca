package torch

import (
	"fmt"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/graph"
)

// findings is the answer of spillway_runner to probe.
type findings struct {
	Ops        []foundOp      `json:"ops"`
	Edges      []foundEdge    `json:"edges"`
	Held       []foundHeld    `json:"held"`
	Batch      int            `json:"batch"`
	Blocks     bool           `json:"blocks"`
	Parameters quantity.Bytes `json:"parameter_bytes"`
	Buffers    quantity.Bytes `json:"buffer_bytes"`
	Unused     []string       `json:"unused"`
	Forward    graph.Seconds  `json:"forward"`
	Backward   graph.Seconds  `json:"backward"`
	Python     string         `json:"python"`
	Torch      string         `json:"torch"`
	CUDA       string         `json:"cuda"`
	Threads    int            `json:"threads"`
	Device     string         `json:"device"`
	Base       quantity.Bytes `json:"base"`
	Data       quantity.Bytes `json:"data_bytes"`
	Model      string         `json:"model"`
	Dataset    int            `json:"dataset"`
	Slowdown   float64        `json:"slowdown"`
	Validates  bool           `json:"validates"`
	PeakFLOPS  float64        `json:"peak_flops"`
	Metrics    []string       `json:"metrics"`
	Statistics string         `json:"statistics"`
	// What it takes to fetch a batch; see exec.Fetching.
	FetchSeconds graph.Seconds  `json:"fetch_seconds"`
	BatchBytes   quantity.Bytes `json:"batch_bytes"`
	FetchBytes   quantity.Bytes `json:"fetch_bytes"`
	Fetchers     int            `json:"fetchers"`
	Unasked      int            `json:"unasked"`
}

// flops are those of the forward pass; 0 where they are not known.
func (f findings) flops() float64 {
	sum := int64(0)
	for _, op := range f.Ops {
		if op.FLOPs < 0 {
			return 0
		}
		sum += op.FLOPs
	}
	return float64(sum)
}

// fetching is what it takes to fetch a batch.
func (f findings) fetching() exec.Fetching {
	return exec.Fetching{
		Seconds: f.FetchSeconds, Batch: f.BatchBytes, Working: f.FetchBytes, Processes: f.Fetchers, Unasked: f.Unasked,
	}
}

type foundOp struct {
	ID    string `json:"id"`
	Name  string `json:"name"`
	Kind  string `json:"kind"`
	Place string `json:"at"`
	// Parameters, Buffers and Constants are indices of findings.Held. Buffers are those of the operation's own module,
	// which it may write.
	Parameters []int          `json:"parameters"`
	Buffers    []int          `json:"buffers"`
	Constants  []int          `json:"constants"`
	Shape      string         `json:"shape"`
	Output     quantity.Bytes `json:"output_bytes"`
	Activation quantity.Bytes `json:"activation_bytes"`
	FLOPs      int64          `json:"flops"`
	Forward    graph.Seconds  `json:"forward"`
	Backward   graph.Seconds  `json:"backward"`
	// What it takes while it works; see exec.Working.
	ForwardBytes  quantity.Bytes `json:"forward_bytes"`
	BackwardBytes quantity.Bytes `json:"backward_bytes"`
	LibraryBytes  quantity.Bytes `json:"library_bytes"`
}

type foundEdge struct {
	From   string         `json:"from"`
	To     string         `json:"to"`
	Output int            `json:"output"`
	Bytes  quantity.Bytes `json:"bytes"`
}

type foundHeld struct {
	Name  string         `json:"name"`
	Bytes quantity.Bytes `json:"bytes"`
}

// graph returns the operations with costs on a device class. Parameters and buffers that several operations write
// colour them all, unless parameters are tied; constants are only read, so each reader holds its own copy.
func (f findings) graph(class string, tied bool) (graph.Graph, Report, error) {
	report := Report{
		Python: f.Python, Torch: f.Torch, CUDA: f.CUDA, Device: f.Device, Threads: f.Threads, Batch: f.Batch,
		Blocks:  f.Blocks,
		Forward: f.Forward, Backward: f.Backward, Parameters: f.Parameters, Buffers: f.Buffers, Unused: f.Unused,
	}
	index := make(map[string]int, len(f.Ops))
	shared := newSharing(len(f.Ops), f.Held)
	var g graph.Graph
	for i, op := range f.Ops {
		index[op.ID] = i
		made := graph.Op{
			ID: op.ID, Name: op.Name, Activation: op.Activation,
			Costs: map[string]graph.Cost{class: {Forward: op.Forward, Backward: op.Backward}},
		}
		for _, list := range []struct {
			held    []int
			written bool
			sum     *quantity.Bytes
		}{
			{op.Parameters, true, &made.Parameters},
			{op.Buffers, true, &made.Workspace},
			{op.Constants, false, &made.Workspace},
		} {
			for _, h := range list.held {
				if h < 0 || h >= len(f.Held) {
					return graph.Graph{}, Report{}, fmt.Errorf("operation %q holds tensor %d of %d", op.ID, h, len(f.Held))
				}
				if !list.written || shared.first(i, h, tied && list.sum == &made.Parameters) {
					*list.sum += f.Held[h].Bytes
				}
			}
		}
		g.Ops = append(g.Ops, made)
		report.Ops = append(report.Ops, OpReport{
			ID: op.ID, Kind: op.Kind, Place: op.Place, Shape: op.Shape, Output: op.Output, FLOPs: op.FLOPs,
		})
		report.OpsForward += op.Forward
		report.OpsBackward += op.Backward
	}
	for i := range g.Ops {
		g.Ops[i].Colour = shared.colour(i)
	}
	for _, e := range f.Edges {
		from, known := index[e.From]
		to, alsoKnown := index[e.To]
		if !known || !alsoKnown {
			return graph.Graph{}, Report{}, fmt.Errorf("edge %q -> %q names an operation that is not there", e.From, e.To)
		}
		g.Edges = append(g.Edges, graph.Edge{From: from, To: to, Output: e.Output, Bytes: e.Bytes})
	}
	if err := g.Validate(); err != nil {
		return graph.Graph{}, Report{}, err
	}
	if _, err := g.Order(); err != nil {
		return graph.Graph{}, Report{}, err
	}
	return g, report, nil
}

// tied are the parameters that several operations read.
func (f findings) tied() []exec.Tied {
	readers := make([][]int, len(f.Held))
	for i, op := range f.Ops {
		for _, h := range op.Parameters {
			if h >= 0 && h < len(readers) {
				readers[h] = append(readers[h], i)
			}
		}
	}
	var all []exec.Tied
	for h, ops := range readers {
		if len(ops) > 1 {
			all = append(all, exec.Tied{Ops: ops, Bytes: f.Held[h].Bytes})
		}
	}
	return all
}

// working is what the operations take while they work, in the order of the graph's.
func (f findings) working() []exec.Working {
	all := make([]exec.Working, len(f.Ops))
	for i, op := range f.Ops {
		all[i] = exec.Working{Forward: op.ForwardBytes, Backward: op.BackwardBytes, Library: op.LibraryBytes}
	}
	return all
}

// sharing joins operations that write the same tensors, by union-find.
type sharing struct {
	held   []foundHeld
	parent []int       // of each operation; a root is its own
	name   []string    // of the tensor that first joined a root's set; empty for a set of one
	owner  map[int]int // the first operation that holds a tensor
}

func newSharing(ops int, held []foundHeld) *sharing {
	s := &sharing{held: held, parent: make([]int, ops), name: make([]string, ops), owner: map[int]int{}}
	for i := range s.parent {
		s.parent[i] = i
	}
	return s
}

// first reports whether op is the first to hold tensor h; otherwise it joins op with the one that was, unless they may
// be apart.
func (s *sharing) first(op, h int, apart bool) bool {
	owner, known := s.owner[h]
	if !known {
		s.owner[h] = op
		return true
	}
	if apart {
		return false
	}
	a, b := s.root(owner), s.root(op)
	if a == b {
		return false
	}
	s.parent[b] = a
	if s.name[a] == "" {
		s.name[a] = s.name[b]
	}
	if s.name[a] == "" {
		s.name[a] = s.held[h].Name
	}
	return false
}

func (s *sharing) root(op int) int {
	for s.parent[op] != op {
		s.parent[op] = s.parent[s.parent[op]]
		op = s.parent[op]
	}
	return op
}

// colour is the name of a tensor that the operation shares; empty where it shares none.
func (s *sharing) colour(op int) string { return s.name[s.root(op)] }
