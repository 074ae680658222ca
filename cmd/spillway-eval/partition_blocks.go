package main

import (
	"github.com/spillway-ml/spillway/workers/graph"
)

// blockLatency is the latency of an assignment in the model of the NeurIPS 2020 paper
// (https://github.com/msr-fiddle/dnn-partitioning, latency-greedy): an accelerator runs each contiguous part of its
// operations as one call, which waits for all inputs, reads them from the memory of the host, computes, and writes what
// others need; calls do not wait for each other, and any number of CPUs runs one operation each. A split that is not
// contiguous is cut into as few contiguous parts as a pass in topological order finds.
func (w workload) blockLatency(assignment []int) float64 {
	order, err := w.graph.Order()
	if err != nil {
		return 0
	}
	part, next := w.parts(assignment, order)
	ops := make([][]int, len(next))
	for op, at := range part {
		ops[at] = append(ops[at], op)
	}
	end := make([]float64, len(next))
	last := 0.0
	tensors := w.graph.Tensors()
	for _, at := range graph.Topological(next) {
		begin, work := 0.0, 0.0
		class := graph.Accelerator
		if assignment[ops[at][0]] >= w.limits.Accelerators {
			class = graph.CPU
		}
		for _, op := range ops[at] {
			work += float64(w.graph.Ops[op].Costs[class].Forward)
		}
		for _, t := range tensors {
			home, reads, leaves := part[t.From], false, false
			for _, reader := range t.Readers {
				reads = reads || (part[reader] == at && home != at)
				leaves = leaves || (home == at && part[reader] != at)
			}
			if reads {
				begin = max(begin, end[home])
			}
			if class == graph.Accelerator && (reads || leaves) {
				work += float64(t.Transfer)
			}
		}
		end[at] = begin + work
		last = max(last, end[at])
	}
	return last
}

// parts numbers the contiguous parts of the accelerators and the single operations of the CPUs, and returns the edges
// between them.
func (w workload) parts(assignment, order []int) (part []int, next [][]int) {
	inputs := make([][]int, len(order))
	for _, e := range w.graph.Edges {
		inputs[e.To] = append(inputs[e.To], e.From)
	}
	type place struct{ device, visit int }
	numbers := map[place]int{}
	part = make([]int, len(order))
	for device := range w.limits.Accelerators {
		visits := w.visits(device, assignment, order, inputs)
		for _, op := range order {
			if assignment[op] != device {
				continue
			}
			at := place{device, visits[op]}
			if _, known := numbers[at]; !known {
				numbers[at] = len(numbers)
			}
			part[op] = numbers[at]
		}
	}
	count := len(numbers)
	for _, op := range order {
		if assignment[op] >= w.limits.Accelerators {
			part[op] = count
			count++
		}
	}
	next = make([][]int, count)
	for _, e := range w.graph.Edges {
		if part[e.From] != part[e.To] {
			next[part[e.From]] = append(next[part[e.From]], part[e.To])
		}
	}
	return part, next
}

// visits counts, for each operation, how often a path to it has entered the device.
func (workload) visits(device int, assignment, order []int, inputs [][]int) []int {
	visits := make([]int, len(order))
	for _, op := range order {
		here := assignment[op] == device
		if here {
			visits[op] = 1
		}
		for _, from := range inputs[op] {
			entered := visits[from]
			if here && assignment[from] != device {
				entered++
			}
			visits[op] = max(visits[op], entered)
		}
	}
	return visits
}
