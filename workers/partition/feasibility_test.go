package partition_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/graph"
	"github.com/spillway-ml/spillway/workers/partition"
)

func TestNoPlanOfAFrontBeatsAnotherInTimeAndIdleMemory(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := drawProblem(t, shape{ops: 8, devices: 4, tight: true})
		p.Objective = rapid.SampledFrom([]partition.Objective{partition.Throughput, partition.Latency}).Draw(t, "objective")
		front, err := partition.Front(p)
		if err != nil {
			return
		}
		for i, a := range front {
			if !allowed(p, a.Assignment) {
				t.Fatalf("%v is not allowed", a.Assignment)
			}
			var idle quantity.Bytes
			held := make([]quantity.Bytes, len(p.Devices))
			for op, d := range a.Assignment {
				held[d] += p.Graph.Ops[op].Workspace
			}
			for _, d := range a.Used() {
				idle += max(p.Devices[d].Memory-held[d], 0)
			}
			if idle != a.Idle {
				t.Fatalf("%v has %d idle bytes, it says %d", a.Assignment, idle, a.Idle)
			}
			for j, b := range front {
				if i != j && a.StepTime <= b.StepTime && a.Idle <= b.Idle {
					t.Fatalf("%v s with %d idle beats %v s with %d", a.StepTime, a.Idle, b.StepTime, b.Idle)
				}
			}
		}
		if all, err := partition.Solve(p); err == nil && front[0].StepTime > all.StepTime {
			t.Fatalf("the fastest takes %v, all devices together %v", front[0].StepTime, all.StepTime)
		}
	})
}

func TestTheWeightOfIdleMemoryChoosesHowManyDevicesAreUsed(t *testing.T) {
	t.Parallel()
	p := layered(40, 6, 3)
	p.Training, p.Moves = false, 20_000
	for i := range p.Devices {
		p.Devices[i].Memory = 64 * quantity.KiB
	}
	last, lastIdle := 0, quantity.Bytes(0)
	for i, weight := range []float64{100, 5, 0} {
		p.IdleWeight = weight
		plan := solve(t, p)
		if n := len(plan.Used()); i > 0 && (n < last || plan.Idle < lastIdle) {
			t.Errorf("with a weight of %v %d devices are used, with more %d", weight, n, last)
		}
		last, lastIdle = len(plan.Used()), plan.Idle
		if weight == 100 && last != 1 {
			t.Errorf("%d devices, though one has room and idle memory is dear", last)
		}
	}
	if last != 6 {
		t.Errorf("%d devices, though idle memory costs nothing", last)
	}
}

// heavy is a chain of layers of training that needs 16 bytes of state for every 2 of weights.
func heavy(devices int, room quantity.Bytes) partition.Problem {
	p := partition.Problem{Devices: equal(devices, room), Objective: partition.Step, Training: true, MicroBatches: 4}
	for i := range 8 {
		p.Graph.Ops = append(p.Graph.Ops, graph.Op{
			ID: string(rune('a' + i)), Costs: map[string]graph.Cost{fast: {Forward: 1, Backward: 2}}, Parameters: 1000,
			Activation: 4000,
		})
		if i > 0 {
			p.Graph.Edges = append(p.Graph.Edges, graph.Edge{From: i - 1, To: i, Bytes: 100})
		}
	}
	p.Links.Between.BytesPerSecond = 1e6
	return p
}

func TestAProblemWithoutAPlanSaysHowMuchIsMissingAndWhatHelps(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		problem partition.Problem
		helps   []string // parts of the changes that help, in order
		never   []string
	}{
		{"state is too large", heavy(4, 13_000), []string{"more device", "memory of the host"}, nil},
		{
			"activations are too large", heavy(4, 22_000),
			[]string{"more device", "again", "micro-batches", "memory of the host"},
			nil,
		},
	} {
		if _, err := partition.Solve(c.problem); !errors.Is(err, partition.ErrUnfit) {
			t.Fatalf("%s: got %v", c.name, err)
		}
		v, err := partition.Explain(c.problem)
		if err != nil {
			t.Fatal(err)
		}
		if v.Fits || v.Device == "" || v.Short <= 0 {
			t.Errorf("%s: got %+v", c.name, v)
		}
		var changes []string
		for _, r := range v.Remedies {
			changes = append(changes, r.Change)
			again, err := partition.Solve(r.Problem)
			if err != nil || again.StepTime <= 0 {
				t.Errorf("%s: %s does not help: %v", c.name, r.Change, err)
			}
		}
		for _, part := range c.helps {
			if !strings.Contains(strings.Join(changes, "; "), part) {
				t.Errorf("%s: %q, want something with %q", c.name, changes, part)
			}
		}
		// What it says is missing is enough, and a good deal less is not.
		for _, part := range []float64{1.01, 0.5} {
			p := c.problem
			p.Devices = equal(4, p.Devices[0].Memory+quantity.Bytes(part*float64(v.Short)))
			if _, err := partition.Solve(p); (err == nil) != (part > 1) {
				t.Errorf("%s: %v times the missing %v: %v", c.name, part, v.Short, err)
			}
		}
	}
}

func TestAStreamThatDoesNotFitNeedsOneMoreDevice(t *testing.T) {
	t.Parallel()
	for _, objective := range []partition.Objective{partition.Throughput, partition.Latency} {
		p := partition.Problem{Devices: equal(2, 12), Objective: objective}
		for _, id := range []string{"a", "b", "c"} {
			p.Graph.Ops = append(p.Graph.Ops, graph.Op{ID: id, Costs: map[string]graph.Cost{fast: {Forward: 1}}, Workspace: 10})
		}
		v, err := partition.Explain(p)
		if err != nil {
			t.Fatal(err)
		}
		if v.Short != 8 || len(v.Remedies) != 1 || v.Remedies[0].Change != "1 more device like gpu-0" {
			t.Errorf("%v: got %+v", objective, v)
		}
	}
}

func TestAProblemWithAPlanFits(t *testing.T) {
	t.Parallel()
	v, err := partition.Explain(heavy(4, 0))
	if err != nil || !v.Fits || v.Remedies != nil {
		t.Errorf("got %+v, %v", v, err)
	}
}

func TestBadProblemsAreRefused(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string]func(*partition.Problem){
		"no device":        func(p *partition.Problem) { p.Devices = nil },
		"no operation":     func(p *partition.Problem) { p.Graph = graph.Graph{} },
		"an ID twice":      func(p *partition.Problem) { p.Devices[1].ID = p.Devices[0].ID },
		"a negative speed": func(p *partition.Problem) { p.Devices[1].Speed = -1 },
		"a speed of NaN":   func(p *partition.Problem) { p.Devices[1].Speed = math.NaN() },
		"negative memory":  func(p *partition.Problem) { p.Devices[1].Memory = -1 },
		"a bad link":       func(p *partition.Problem) { p.Links.Between.BytesPerSecond = math.Inf(1) },
		"a bad pair": func(p *partition.Problem) {
			p.Links.Pairs = map[[2]string]partition.Link{{"a", "b"}: {Latency: -1}}
		},
		"stage 4 of ZeRO":    func(p *partition.Problem) { p.Memory.ZeRO = 4 },
		"a negative weight":  func(p *partition.Problem) { p.IdleWeight = -1 },
		"no such objective":  func(p *partition.Problem) { p.Objective = 7 },
		"no class that runs": func(p *partition.Problem) { p.Graph.Ops[2].Costs = map[string]graph.Cost{"tpu": {}} },
	} {
		p := heavy(3, 0)
		edit(&p)
		for _, call := range []func(partition.Problem) error{
			func(p partition.Problem) error { _, err := partition.Solve(p); return err },
			func(p partition.Problem) error { _, err := partition.Front(p); return err },
			func(p partition.Problem) error { _, err := partition.Explain(p); return err },
		} {
			if err := call(p); !errors.Is(err, partition.ErrProblem) {
				t.Errorf("%s: got %v", name, err)
			}
		}
	}
}
