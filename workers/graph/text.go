package graph

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// ReadPipeDream reads a profile in the text format of PipeDream (https://github.com/msr-fiddle/pipedream, profiler):
//
//	node1 -- Conv2d(3, 64) -- forward_compute_time=1.5, backward_compute_time=2.5, activation_size=4096.0, \
//	  parameter_size=1024.0
//		node1 -- node2
//
// Times are milliseconds of one batch; sizes are bytes. DAPPLE's profiles (https://github.com/AlibabaPAI/DAPPLE) are
// the same with activation_size=[a; b], the outputs of a layer, which are taken together. Every layer becomes an
// operation of class Accelerator, and every edge carries the activation of its producer. Errors tell the line.
func ReadPipeDream(r io.Reader) (Graph, error) {
	reader := textReader{index: map[string]int{}}
	lines := bufio.NewScanner(io.LimitReader(r, mostText))
	lines.Buffer(nil, 1<<20)
	number := 0
	for lines.Scan() {
		number++
		if err := reader.line(lines.Text()); err != nil {
			return Graph{}, fmt.Errorf("read a profile: line %d: %w", number, err)
		}
	}
	if err := lines.Err(); err != nil {
		return Graph{}, fmt.Errorf("read a profile: line %d: %w", number+1, err)
	}
	if len(reader.graph.Ops) == 0 {
		return Graph{}, errors.New("read a profile: it holds no layer")
	}
	for _, e := range reader.edges {
		from, known := reader.index[e.from]
		to, alsoKnown := reader.index[e.to]
		if !known || !alsoKnown {
			return Graph{}, fmt.Errorf("read a profile: line %d: edge %s -- %s names a layer that is not described", e.line,
				e.from, e.to)
		}
		reader.graph.Edges = append(reader.graph.Edges, Edge{From: from, To: to, Bytes: reader.graph.Ops[from].Activation})
	}
	if err := reader.graph.Validate(); err != nil {
		return Graph{}, fmt.Errorf("read a profile: %w", err)
	}
	return reader.graph, nil
}

// textReader is a profile that is half read; edges may precede their layers.
type textReader struct {
	graph Graph
	index map[string]int
	edges []textEdge
	lines int
}

type textEdge struct {
	from, to string
	line     int
}

func (t *textReader) line(text string) error {
	t.lines++
	trimmed := strings.TrimSpace(text)
	if trimmed == "" {
		return nil
	}
	parts := strings.Split(trimmed, " -- ")
	if len(parts) == 2 && !strings.Contains(parts[1], "forward_compute_time=") {
		t.edges = append(t.edges, textEdge{from: parts[0], to: parts[1], line: t.lines})
		return nil
	}
	for i, part := range parts {
		if i > 0 && strings.HasPrefix(part, "forward_compute_time=") {
			return t.layer(parts[0], strings.Join(parts[1:i], " -- "), part)
		}
	}
	return fmt.Errorf("%q is neither a layer with forward_compute_time nor an edge \"A -- B\"", trimmed)
}

// layer adds the layer that key=value pairs describe.
func (t *textReader) layer(id, name, values string) error {
	if _, twice := t.index[id]; twice {
		return fmt.Errorf("layer %q is described twice", id)
	}
	pairs := map[string]float64{}
	for pair := range strings.SplitSeq(values, ", ") {
		key, value, _ := strings.Cut(pair, "=")
		number, err := sumOf(strings.TrimSpace(value))
		if err != nil {
			return fmt.Errorf("layer %q: %s: %w", id, key, err)
		}
		pairs[strings.TrimSpace(key)] = number
	}
	for _, key := range []string{"forward_compute_time", "backward_compute_time", "activation_size", "parameter_size"} {
		if _, given := pairs[key]; !given {
			return fmt.Errorf("layer %q has no %s", id, key)
		}
	}
	const millisecond Seconds = 1e-3
	var f fields
	op := Op{
		ID: id, Name: name,
		Costs: map[string]Cost{Accelerator: {
			Forward:  f.span("forward_compute_time", pairs["forward_compute_time"], millisecond),
			Backward: f.span("backward_compute_time", pairs["backward_compute_time"], millisecond),
		}},
		Activation: f.bytes("activation_size", pairs["activation_size"]),
		Parameters: f.bytes("parameter_size", pairs["parameter_size"]),
	}
	if f.err != nil {
		return fmt.Errorf("layer %q: %w", id, f.err)
	}
	t.index[id] = len(t.graph.Ops)
	t.graph.Ops = append(t.graph.Ops, op)
	return nil
}

// sumOf reads a number, or the sum of "[a; b]".
func sumOf(text string) (float64, error) {
	text = strings.TrimSuffix(strings.TrimPrefix(text, "["), "]")
	sum := 0.0
	for part := range strings.SplitSeq(text, ";") {
		value, err := strconv.ParseFloat(strings.TrimSpace(part), 64)
		if err != nil {
			return 0, fmt.Errorf("%q is no number", part)
		}
		sum += value
	}
	return sum, nil
}
