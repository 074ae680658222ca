package exectest

import (
	"fmt"
	"math"

	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/graph"
)

// Split divides a probed model into so many parts that follow each other in a topological order, so that the slowest
// part is as fast as can be. Operations of one colour stay together. It is an error where there are too few operations.
func Split(probe exec.Probe, parts int) ([][]string, error) {
	order, err := probe.Graph.Order()
	if err != nil {
		return nil, fmt.Errorf("split a model: %w", err)
	}
	ops := make([]graph.Op, len(order))
	for i, at := range order {
		ops[i] = probe.Graph.Ops[at]
	}
	blocks := together(ops)
	if parts < 1 || len(blocks) < parts {
		return nil, fmt.Errorf("split a model into %d parts: it has %d that can be separated", parts, len(blocks))
	}
	var split [][]string
	for _, part := range balance(blocks, parts) {
		var ids []string
		for _, block := range part {
			for _, op := range block {
				ids = append(ids, op.ID)
			}
		}
		split = append(split, ids)
	}
	return split, nil
}

// together returns the runs of operations between which the order may be cut: nowhere between two of one colour.
func together(ops []graph.Op) [][]graph.Op {
	last := map[string]int{}
	for i, op := range ops {
		last[op.Colour] = i
	}
	var blocks [][]graph.Op
	begin, end := 0, 0
	for i, op := range ops {
		if op.Colour != "" {
			end = max(end, last[op.Colour])
		}
		if i >= end {
			blocks = append(blocks, ops[begin:i+1])
			begin, end = i+1, i+1
		}
	}
	return blocks
}

func cost(block []graph.Op) float64 {
	total := 1e-9 // so that free operations are spread, too
	for _, op := range block {
		for _, c := range op.Costs {
			total += float64(c.Forward + c.Backward)
		}
	}
	return total
}

// balance cuts the blocks so that the largest sum is smallest, by trying every last cut.
func balance(blocks [][]graph.Op, parts int) [][][]graph.Op {
	if parts == 1 {
		return [][][]graph.Op{blocks}
	}
	n := len(blocks)
	// best[k][i] is the least largest sum of the first i blocks in k parts; cut[k][i] is where the last part begins.
	best, cut := make([][]float64, parts+1), make([][]int, parts+1)
	for k := range best {
		best[k], cut[k] = make([]float64, n+1), make([]int, n+1)
		for i := range best[k] {
			best[k][i] = math.Inf(1)
		}
	}
	best[0][0] = 0
	for k := 1; k <= parts; k++ {
		for i := k; i <= n; i++ {
			sum := 0.0
			for from := i - 1; from >= k-1; from-- {
				sum += cost(blocks[from])
				if worst := max(best[k-1][from], sum); worst < best[k][i] {
					best[k][i], cut[k][i] = worst, from
				}
			}
		}
	}
	made := make([][][]graph.Op, parts)
	for k, end := parts, n; k > 0; k-- {
		made[k-1] = blocks[cut[k][end]:end]
		end = cut[k][end]
	}
	return made
}
