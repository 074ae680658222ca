package training

import (
	"encoding/json"
	"math"
	"os"
	"strconv"
	"testing"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/graph"
)

// recorded is a training on a GPU as it was measured: by probes of few and of many samples, by rehearsals in few and in
// many micro-batches where there were any, and in parts.
type recorded struct {
	Name         string  `json:"name"`
	Schedule     string  `json:"schedule"`
	Batch        int     `json:"batch"`
	MicroBatches int     `json:"micro_batches"`
	State        float64 `json:"state"`
	Probes       []struct {
		Samples int `json:"samples"`
		// Ops are parameters, activation, workspace, and what the operation takes: forward, backward, library.
		Ops [][6]quantity.Bytes `json:"ops"`
		// Edges are from, to, output and bytes.
		Edges [][4]int `json:"edges"`
	} `json:"probes"`
	// Rehearsals are samples, and bytes of parameters, of the optimizer's state and held at most.
	Rehearsals [][4]quantity.Bytes `json:"rehearsals"`
	// Parts are from one operation to another, and what was held at most.
	Parts []struct {
		First int            `json:"first"`
		Last  int            `json:"last"`
		Peak  quantity.Bytes `json:"peak"`
	} `json:"parts"`
}

// setup learns what was recorded of operations on a device.
func (r recorded) setup(t *testing.T, device exec.Device) setup {
	t.Helper()
	var probes []exec.Probe
	for _, p := range r.Probes {
		made := exec.Probe{Samples: p.Samples, Model: "a digest"}
		for i, op := range p.Ops {
			made.Graph.Ops = append(made.Graph.Ops, graph.Op{
				ID: strconv.Itoa(i), Parameters: op[0], Activation: op[1], Workspace: op[2],
			})
			made.Working = append(made.Working, exec.Working{Forward: op[3], Backward: op[4], Library: op[5]})
		}
		for _, e := range p.Edges {
			made.Graph.Edges = append(made.Graph.Edges, graph.Edge{
				From: e[0], To: e[1], Output: e[2], Bytes: quantity.Bytes(e[3]),
			})
		}
		probes = append(probes, made)
	}
	var made *performance
	if len(r.Rehearsals) > 0 {
		all := make([]rehearsal, len(r.Rehearsals))
		for i, one := range r.Rehearsals {
			all[i] = rehearsal{samples: int(one[0]), usage: exec.Usage{Parameters: one[1], Optimizer: one[2], Peak: one[3]}}
		}
		made = &performance{small: all[0], large: all[1], cuda: device.Kind == exec.CUDA}
	}
	p := prober{batch: r.Batch}
	if err := p.learn(classOf(device), probes[0], probes[1], made); err != nil {
		t.Fatal(err)
	}
	s := setup{
		model: p.model, batch: r.Batch, schedule: r.Schedule, state: r.State, recompute: RecomputeNever,
		machine: machine{copyRate: 1e9},
	}
	s.learn()
	return s
}

// TestPeaksAreThoseThatCameOnAnH200 has what was predicted 12 to 19 % too small, as no work space of cuBLAS was known,
// and more than twice too large, as that of the model was in both parts, though the first has convolutions alone.
func TestPeaksAreThoseThatCameOnAnH200(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/h200.json")
	if err != nil {
		t.Fatal(err)
	}
	var all []recorded
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	const bar = 0.05 // half of what is wanted: these are known
	for _, r := range all {
		devices := gpus(0, 0)
		s := r.setup(t, devices[0])
		var stages [][]int
		for _, p := range r.Parts {
			var ops []int
			for op := p.First; op <= p.Last; op++ {
				ops = append(ops, op)
			}
			stages = append(stages, s.ordered(ops))
		}
		made, err := s.price(stages, devices, r.MicroBatches, unchanged)
		if err != nil {
			t.Fatal(err)
		}
		for i, p := range made.parts {
			if off := p.peak/float64(r.Parts[i].Peak) - 1; math.Abs(off) > bar {
				t.Errorf("%s, part %d: %v is %.1f %% off; %v came", r.Name, i, quantity.Bytes(p.peak), 100*off, r.Parts[i].Peak)
			}
		}
		if len(r.Rehearsals) == 0 {
			continue
		}
		whole, err := s.price([][]int{s.model.order}, gpus(0), r.MicroBatches, unchanged)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := whole.parts[0].peak, float64(r.Rehearsals[0][3]); math.Abs(got-want) > 1 {
			t.Errorf("%s, unsplit: %v; the rehearsal held %v", r.Name, got, want)
		}
	}
}

// three is a chain of an operation with parameters, one with a library, and a loss, in bytes for each sample: 10 and 20
// go from one to the next. The loss takes most, and makes nothing.
func three() recorded {
	r := recorded{Schedule: GPipe, Batch: 4, MicroBatches: 2}
	for _, n := range []quantity.Bytes{1, 4} {
		r.Probes = append(r.Probes, struct {
			Samples int                 `json:"samples"`
			Ops     [][6]quantity.Bytes `json:"ops"`
			Edges   [][4]int            `json:"edges"`
		}{int(n), [][6]quantity.Bytes{
			{1000, 7 * n, 50, 12 * n, 1000 + 3*n, 0},
			{400, 5 * n, 0, 25 * n, 400 + 11*n, 6000},
			{0, 30 * n, 0, 90 * n, 800 * n, 0},
		}, [][4]int{{0, 1, 0, int(10 * n)}, {1, 2, 0, int(20 * n)}}})
	}
	return r
}

func TestAPartIsChargedWhatItsOwnOperationsTake(t *testing.T) {
	t.Parallel()
	s := three().setup(t, exec.Device{Threads: 1})
	s.state = 4
	price := func(stages [][]int, microBatches int, recompute string) []float64 {
		t.Helper()
		s.recompute = recompute
		made, err := s.price(stages, equalDevices(len(stages), 0), microBatches, unchanged)
		if err != nil {
			t.Fatal(err)
		}
		var peaks []float64
		for _, p := range made.parts {
			peaks = append(peaks, p.peak-processBytes)
		}
		return peaks
	}
	for name, c := range map[string]struct {
		stages       [][]int
		microBatches int
		recompute    string
		want         []float64
	}{
		// 1,400 bytes of parameters and as many of state, 50 of buffers, 6,000 of the library, and four samples: all that is
		// kept and the loss at work, in whose backward pass no parameter has a gradient.
		"unsplit, at once": {[][]int{{0, 1, 2}}, 1, RecomputeNever, []float64{2*1400 + 50 + 6000 + 4*(7+5+30) + 4*800}},
		// One of two samples after the other: in the second, gradients are there.
		"unsplit, one after another": {
			[][]int{{0, 1, 2}}, 2, RecomputeNever, []float64{2*1400 + 50 + 6000 + 2*(7+5+30) + 2*800 + 1400},
		},
		// The first part has no library and no loss, and what goes out, 20 bytes, stays until its gradient is there. Each has
		// most when the second of two samples at a time goes back, beside the gradients that the first left.
		"in parts": {
			[][]int{{0}, {1, 2}},
			2, RecomputeNever,
			[]float64{2*1000 + 50 + 20 + 1000 + 2*(7+10) + 1000 + 2*3, 2*400 + 6000 + 2*20 + 400 + 2*(5+30) + 2*800},
		},
		// Of four samples at a time, in turn, more are under way: of each what is kept and goes out, unless it is computed
		// again.
		"in parts, four in turn": {
			[][]int{{0}, {1, 2}},
			4, RecomputeNever,
			[]float64{2*1000 + 50 + 2*(7+10) + 10 + 1000 + (7 + 10) + 1000 + 3, 2*400 + 6000 + 4*10 + 2*35 + 400 + 35 + 800},
		},
		"in parts, four in turn, computed again": {
			[][]int{{0}, {1, 2}},
			4, RecomputeAlways,
			[]float64{2*1000 + 50 + 10 + 1000 + (7 + 10) + 1000 + 3, 2*400 + 6000 + 4*10 + 400 + 35 + 800},
		},
	} {
		got := price(c.stages, c.microBatches, c.recompute)
		for i := range c.want {
			if !near(got[i], c.want[i]) {
				t.Errorf("%s, part %d: %v; want %v", name, i, got[i], c.want[i])
			}
		}
	}
}

// TestAPartIsChargedWhatItsTensorsTakeWhereNobodyMeasuredThem has a small part beside one that makes a large tensor:
// where each was charged the largest tensor of the model's rehearsal besides, the small one was taken for large.
func TestAPartIsChargedWhatItsTensorsTakeWhereNobodyMeasuredThem(t *testing.T) {
	t.Parallel()
	e := synthetic{
		ops: []syntheticOp{
			{forward: line{each: 1}, parameters: 1000, activation: 2, output: 3},
			{forward: line{each: 1}, parameters: 400, activation: 5, output: 900},
			{forward: line{each: 1}, activation: 7},
		},
		reads: [][2]int{{0, 1}, {1, 2}},
	}
	s := setupOf(t, e, 4, exec.Device{Threads: 1})
	s.state, s.recompute = 0, RecomputeNever
	price := func(stages ...[]int) []float64 {
		made, err := s.price(stages, equalDevices(len(stages), 0), 1, unchanged)
		if err != nil {
			t.Fatal(err)
		}
		var peaks []float64
		for _, p := range made.parts {
			peaks = append(peaks, p.peak)
		}
		return peaks
	}
	// Of four samples. The whole has most when the second operation goes back: parameters, what is kept by then, the
	// gradient of the large tensor, and those that it makes, of its parameters and of what it read. So has the second
	// part, with what came in. The first holds its parameters and their gradient, what it keeps, and what went out with
	// its gradient.
	whole, first := 1400+4*(2+5+900.0)+400+4*3, 2*1000+4*(2+3+3.0)
	second := 400 + 4*3 + 4*(5+900.0) + 400 + 4*3
	if got := price([]int{0, 1, 2}); !near(got[0], whole) {
		t.Errorf("unsplit: %v; want %v", got[0], whole)
	}
	if got := price([]int{0}, []int{1, 2}); !near(got[0], first) || !near(got[1], second) {
		t.Errorf("in two parts: %v; want %v and %v", got, first, second)
	}
	// A rehearsal that held a fifth less says the same of parts.
	usage := exec.Usage{Parameters: 1400, Peak: quantity.Bytes(0.8 * whole)} // a whole number
	s.model.performances = map[string]performance{exec.CPU + "/1": {
		small: rehearsal{samples: 4, usage: usage}, large: rehearsal{samples: 4, usage: usage},
	}}
	s.learn()
	share := float64(usage.Peak) / whole
	if got := price([]int{0}, []int{1, 2}); !near(got[0], share*first) || !near(got[1], share*second) {
		t.Errorf("in two parts after a rehearsal: %v; want %v and %v", got, share*first, share*second)
	}
}
