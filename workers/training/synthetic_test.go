package training

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/graph"
)

// synthetic is an executor whose operations take exactly what is written down; it probes only.
type synthetic struct {
	ops   []syntheticOp
	reads [][2]int // from, to
	base  quantity.Bytes
	speed func(exec.Device) float64 // nil is 1
	held  *quantity.Bytes           // the most that a probe held
	asked *[]exec.ProbeOptions      // by all probes
	seen  map[int]exec.Surveyed     // CUDA devices by index
	tied  []exec.Tied
	other bool // one sample alone has other operations
	// slowdown is Probe.Slowdown.
	slowdown float64
	// statistics is Probe.Statistics.
	statistics string
}

type syntheticOp struct {
	forward, backward  line
	parameters         quantity.Bytes
	activation, output quantity.Bytes // of one sample
	keeps              quantity.Bytes // whatever the number of samples
	colour             string
}

func (synthetic) Name() string { return "synthetic" }

func (synthetic) Load(context.Context, exec.Layout) (exec.Pipeline, error) {
	return nil, errors.New("it only probes")
}

func (s synthetic) Probe(_ context.Context, o exec.ProbeOptions) (exec.Probe, error) {
	speed, n := 1.0, float64(o.Samples)
	if s.speed != nil {
		speed = s.speed(o.Device)
	}
	p := exec.Probe{
		Samples: o.Samples, Model: "a digest", Dataset: 1 << 20, Base: s.base, Tied: s.tied, Slowdown: s.slowdown,
		Statistics: s.statistics,
	}
	if s.asked != nil {
		*s.asked = append(*s.asked, o)
	}
	var held quantity.Bytes
	for i, op := range s.ops {
		// Operations measured one by one are slower than together; the plan must go by the whole.
		cost := graph.Cost{
			Forward:  graph.Seconds(1.5 * op.forward.at(n) / speed),
			Backward: graph.Seconds(1.25 * op.backward.at(n) / speed),
		}
		id := strconv.Itoa(i)
		if s.other && o.Samples == 1 {
			id += " alone"
		}
		p.Graph.Ops = append(p.Graph.Ops, graph.Op{
			ID: id, Costs: map[string]graph.Cost{graph.CPU: cost}, Parameters: op.parameters,
			Activation: op.keeps + op.activation*quantity.Bytes(o.Samples), Colour: op.colour,
		})
		p.Forward += cost.Forward / 1.5
		p.Backward += cost.Backward / 1.25
		held += op.parameters + op.activation*quantity.Bytes(o.Samples)
	}
	for _, r := range s.reads {
		p.Graph.Edges = append(p.Graph.Edges, graph.Edge{
			From: r[0], To: r[1],
			Bytes: s.ops[r[0]].output * quantity.Bytes(o.Samples),
		})
	}
	if s.held != nil {
		*s.held = max(*s.held, held)
	}
	return p, nil
}

// Survey knows the devices in seen.
func (s synthetic) Survey(_ context.Context, devices []exec.Device) ([]exec.Surveyed, error) {
	all := make([]exec.Surveyed, len(devices))
	for i, d := range devices {
		seen, there := s.seen[d.Index]
		if !there {
			return nil, fmt.Errorf("there is no cuda:%d: %w", d.Index, exec.ErrRequest)
		}
		all[i] = seen
	}
	return all, nil
}

// drawSynthetic draws a chain, with skips and colours where branches is set.
func drawSynthetic(t *rapid.T, least, most int, branches bool) synthetic {
	var s synthetic
	n := rapid.IntRange(least, most).Draw(t, "ops")
	millis := func(name string, most int) float64 { return float64(rapid.IntRange(0, most).Draw(t, name)) / 1000 }
	for i := range n {
		s.ops = append(s.ops, syntheticOp{
			forward:    line{millis("fixed", 5), millis("each", 3)},
			backward:   line{millis("fixed back", 5), millis("each back", 6)},
			parameters: quantity.Bytes(4 * rapid.IntRange(0, 1000).Draw(t, "parameters")),
			activation: quantity.Bytes(rapid.IntRange(0, 2000).Draw(t, "activation")),
			output:     quantity.Bytes(rapid.IntRange(0, 500).Draw(t, "output")),
		})
		if i > 0 {
			s.reads = append(s.reads, [2]int{i - 1, i})
		}
		if branches && i > 1 && rapid.Bool().Draw(t, "skip") {
			s.reads = append(s.reads, [2]int{rapid.IntRange(0, i-2).Draw(t, "from"), i})
		}
		if branches && i > 0 && rapid.IntRange(0, 4).Draw(t, "coloured") == 0 {
			s.ops[i].colour = "together " + strconv.Itoa(i)
			s.ops[i-1].colour = s.ops[i].colour
		}
	}
	return s
}

// equalDevices are n of some memory.
func equalDevices(n int, memory quantity.Bytes) []exec.Device {
	all := make([]exec.Device, n)
	for i := range all {
		all[i] = exec.Device{ID: "device-" + strconv.Itoa(i), Threads: 1, Memory: memory}
	}
	return all
}

// setupOf probes a synthetic model.
func setupOf(t rapid.TB, s synthetic, batch int, device exec.Device) setup {
	t.Helper()
	p := prober{executor: s, batch: batch}
	if err := p.class(context.Background(), device, []exec.Device{device}, 8); err != nil {
		t.Fatal(err)
	}
	return setup{
		model: p.model, machine: machine{copyRate: 1e6, call: 1e-4}, batch: batch,
		schedule: OneForwardOneBackward, state: 8, recompute: RecomputeAuto,
	}
}

// everySplit returns the least time of all ways to cut a chain into k parts that fit, +Inf where none does.
func everySplit(t rapid.TB, s setup, devices []exec.Device, microBatches int) float64 {
	t.Helper()
	best := math.Inf(1)
	var cut func(stages [][]int, rest []int)
	cut = func(stages [][]int, rest []int) {
		if len(stages) == len(devices)-1 {
			made, err := s.price(append(slices.Clone(stages), rest), devices, microBatches, unchanged)
			if err != nil {
				t.Fatal(err)
			}
			if made.fits() == nil {
				best = min(best, made.seconds)
			}
			return
		}
		for at := 1; at < len(rest); at++ {
			cut(append(slices.Clone(stages), rest[:at]), rest[at:])
		}
	}
	cut(nil, s.model.order)
	return best
}
