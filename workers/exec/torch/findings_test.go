package torch

import (
	"encoding/json"
	"testing"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/graph"
)

func TestOperationsHaveOneColourExactlyWhenParametersLinkThem(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 8).Draw(t, "operations")
		held := rapid.IntRange(1, 8).Draw(t, "parameters")
		var f findings
		var total quantity.Bytes
		read := make([]bool, held)
		for h := range held {
			f.Held = append(f.Held, foundHeld{Name: string(rune('a' + h)), Bytes: 1 << h})
		}
		for i := range n {
			op := foundOp{ID: string(rune('A' + i))}
			for h := range held {
				if rapid.IntRange(0, 3).Draw(t, "reads") == 0 {
					op.Parameters = append(op.Parameters, h)
					read[h] = true
				}
			}
			f.Ops = append(f.Ops, op)
		}
		for h, is := range read {
			if is {
				total += f.Held[h].Bytes
			}
		}
		g, _, err := f.graph(graph.CPU, false)
		if err != nil {
			t.Fatal(err)
		}
		if got := g.Summary().Parameters; got != total {
			t.Fatalf("%d bytes of parameters in the graph, want %d", got, total)
		}
		linked := links(f)
		for i := range n {
			alone := true
			for j := range n {
				if i == j {
					continue
				}
				alone = alone && !linked[i][j]
				if same := g.Ops[i].Colour != "" && g.Ops[i].Colour == g.Ops[j].Colour; same != linked[i][j] {
					t.Fatalf("operations %d and %d: colours %q and %q, linked %v", i, j, g.Ops[i].Colour, g.Ops[j].Colour,
						linked[i][j])
				}
			}
			if alone != (g.Ops[i].Colour == "") {
				t.Fatalf("operation %d shares nothing: %v; colour %q", i, alone, g.Ops[i].Colour)
			}
		}
	})
}

// links tells, by Warshall's closure, which operations a chain of shared parameters links.
func links(f findings) [][]bool {
	n := len(f.Ops)
	linked := make([][]bool, n)
	for i := range n {
		linked[i] = make([]bool, n)
		for j := range n {
			for _, a := range f.Ops[i].Parameters {
				for _, b := range f.Ops[j].Parameters {
					linked[i][j] = linked[i][j] || a == b
				}
			}
		}
	}
	for k := range n {
		for i := range n {
			for j := range n {
				linked[i][j] = linked[i][j] || linked[i][k] && linked[k][j]
			}
		}
	}
	return linked
}

func TestBuffersThatAreOnlyReadBindNobody(t *testing.T) {
	t.Parallel()
	f := findings{
		Held: []foundHeld{{Name: "mask", Bytes: 10}, {Name: "mean", Bytes: 3}},
		Ops: []foundOp{
			{ID: "a", Constants: []int{0}},
			{ID: "b", Constants: []int{0}, Buffers: []int{1}},
			{ID: "c", Buffers: []int{1}},
		},
	}
	g, _, err := f.graph(graph.Accelerator, false)
	if err != nil {
		t.Fatal(err)
	}
	cost := map[string]graph.Cost{graph.Accelerator: {}}
	equal(t, "operations", g.Ops, []graph.Op{
		{ID: "a", Costs: cost, Workspace: 10},
		{ID: "b", Costs: cost, Workspace: 13, Colour: "mean"},
		{ID: "c", Costs: cost, Colour: "mean"},
	})
}

func FuzzFindings(f *testing.F) {
	f.Add([]byte(
		`{"ops":[{"id":"a","parameters":[0]},{"id":"b","parameters":[0],"forward":1}],"held":[{"name":"w","bytes":4}],` +
			`"edges":[{"from":"a","to":"b","bytes":8}]}`))
	f.Add([]byte(`{"ops":[{"id":"a","constants":[1]}],"held":[{"bytes":-4}]}`))
	f.Add([]byte(`{"ops":[{"id":"a"},{"id":"b"}],"edges":[{"from":"a","to":"b"},{"from":"b","to":"a"}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var found findings
		if json.Unmarshal(text, &found) != nil {
			return
		}
		g, r, err := found.graph(graph.CPU, false)
		if err != nil {
			return
		}
		if err := g.Validate(); err != nil {
			t.Errorf("accepted a graph that is not valid: %v", err)
		}
		if _, err := g.Order(); err != nil || len(r.Ops) != len(g.Ops) {
			t.Errorf("accepted %d operations with %d reports: %v", len(g.Ops), len(r.Ops), err)
		}
	})
}
