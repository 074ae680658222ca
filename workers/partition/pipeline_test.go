package partition_test

import (
	"errors"
	"math"
	"slices"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/graph"
	"github.com/spillway-ml/spillway/workers/partition"
	"github.com/spillway-ml/spillway/workers/schedule"
)

// drawChain draws layers to be trained on devices of up to two kinds.
func drawChain(t *rapid.T, layers, devices int) partition.Problem {
	var g graph.Graph
	for i := range rapid.IntRange(1, layers).Draw(t, "layers") {
		forward := graph.Seconds(rapid.IntRange(0, 20).Draw(t, "forward"))
		backward := graph.Seconds(rapid.IntRange(0, 30).Draw(t, "backward"))
		costs := map[string]graph.Cost{
			fast: {Forward: forward, Backward: backward},
			slow: {Forward: graph.Seconds(rapid.IntRange(0, 40).Draw(t, "slow forward")), Backward: 2 * backward},
		}
		if rapid.IntRange(0, 7).Draw(t, "one class") == 0 {
			delete(costs, rapid.SampledFrom([]string{fast, slow}).Draw(t, "absent"))
		}
		g.Ops = append(g.Ops, graph.Op{
			ID: strconv.Itoa(i), Costs: costs,
			Parameters: quantity.Bytes(rapid.IntRange(0, 40).Draw(t, "parameters")),
			Activation: quantity.Bytes(rapid.IntRange(0, 400).Draw(t, "activation")),
		})
		if i > 0 {
			g.Edges = append(g.Edges, graph.Edge{
				From: i - 1, To: i,
				Bytes: quantity.Bytes(rapid.IntRange(0, 300).Draw(t, "bytes")),
			})
		}
	}
	p := partition.Problem{
		Graph: g, Objective: partition.Step, Training: true,
		MicroBatches: rapid.SampledFrom([]int{1, 2, 4, 8}).Draw(t, "micro-batches"),
		Links: partition.Links{
			Between:     partition.Link{BytesPerSecond: float64(rapid.IntRange(0, 100).Draw(t, "bandwidth"))},
			ThroughHost: rapid.Bool().Draw(t, "through host"),
		},
		Memory: partition.Memory{ZeRO: rapid.IntRange(0, 3).Draw(t, "zero"), Recompute: rapid.Bool().Draw(t, "recompute")},
	}
	var room quantity.Bytes
	if rapid.Bool().Draw(t, "tight") {
		room = quantity.Bytes(rapid.IntRange(100, 1000).Draw(t, "room"))
	}
	p.Devices = equal(rapid.IntRange(1, devices).Draw(t, "devices"), room)
	for i := range p.Devices {
		if i >= 2 && rapid.IntRange(0, 2).Draw(t, "slow") == 0 {
			p.Devices[i].Class = slow
		}
	}
	return p
}

func TestThePipelineIsTheBestOfAllCutsReplicasAndOrders(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := drawChain(t, 5, 4)
		p.MostReplicas = rapid.IntRange(0, 2).Draw(t, "most replicas")
		want := everyPipeline(t, p)
		got, err := partition.Solve(p)
		if errors.Is(err, partition.ErrUnfit) || errors.Is(err, partition.ErrProblem) {
			if !math.IsInf(want, 1) {
				t.Fatalf("no plan, though one takes %v: %v", want, err)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if i := slices.IndexFunc(got.Stages, func(s partition.Stage) bool {
			return p.MostReplicas > 0 && len(s.Devices) > p.MostReplicas
		}); i >= 0 {
			t.Fatalf("stage %d has %d replicas of at most %d", i, len(got.Stages[i].Devices), p.MostReplicas)
		}
		if !near(float64(got.StepTime), want) {
			t.Fatalf("%d stages take %v, the best of all takes %v", len(got.Stages), got.StepTime, want)
		}
		if float64(got.LowerBound) > want*(1+1e-9) {
			t.Fatalf("the bound is %v", got.LowerBound)
		}
	})
}

// everyPipeline returns the least time of all ways to cut a chain and to give the parts devices.
func everyPipeline(t *rapid.T, p partition.Problem) float64 {
	best := math.Inf(1)
	classes := map[string][]int{}
	for d, device := range p.Devices {
		classes[device.Class] = append(classes[device.Class], d)
	}
	var extend func(start int, used map[string]int, stages []partition.Stage)
	extend = func(start int, used map[string]int, stages []partition.Stage) {
		if start == len(p.Graph.Ops) {
			plan, err := partition.EvaluateStages(p, stages, p.MicroBatches)
			if errors.Is(err, partition.ErrProblem) {
				return
			}
			if err != nil && !errors.Is(err, partition.ErrUnfit) {
				t.Fatal(err)
			}
			if err == nil {
				best = min(best, float64(plan.StepTime))
			}
			return
		}
		for end := start + 1; end <= len(p.Graph.Ops); end++ {
			var ops []int
			for i := start; i < end; i++ {
				ops = append(ops, i)
			}
			for class, devices := range classes {
				for n := 1; used[class]+n <= len(devices) && (p.MostReplicas == 0 || n <= p.MostReplicas); n++ {
					stage := partition.Stage{Ops: ops, Devices: devices[used[class] : used[class]+n]}
					used[class] += n
					extend(end, used, append(slices.Clone(stages), stage))
					used[class] -= n
				}
			}
		}
	}
	extend(0, map[string]int{}, nil)
	return best
}

// simulated runs a plan as the schedule it stands for.
func simulated(tb testing.TB, plan partition.Plan) float64 {
	tb.Helper()
	flight := make([]int, len(plan.Stages))
	var costs schedule.Costs
	for i, s := range plan.Stages {
		flight[i] = s.InFlight
		costs.Forward = append(costs.Forward, float64(s.Forward))
		costs.Backward = append(costs.Backward, float64(s.Backward))
		costs.AllReduce = append(costs.AllReduce, float64(s.AllReduce))
		if i+1 < len(plan.Stages) {
			costs.Send = append(costs.Send, float64(s.Send))
		}
	}
	made, err := schedule.InFlight(flight, plan.MicroBatches, schedule.Options{AllReduce: true})
	if err != nil {
		tb.Fatal(err)
	}
	result, err := schedule.Simulate(made, costs)
	if err != nil {
		tb.Fatal(err)
	}
	return result.Makespan
}

func TestTheTimeOfAStepIsCloseToThatOfItsSchedule(t *testing.T) {
	t.Parallel()
	low, high, sum, n := 1.0, 1.0, 0.0, 0.0
	rapid.Check(t, func(tt *rapid.T) {
		p := drawChain(tt, 8, 4)
		plan, err := partition.Solve(p)
		if err != nil || plan.StepTime == 0 {
			return
		}
		ratio := simulated(t, plan) / float64(plan.StepTime)
		low, high = min(low, ratio), max(high, ratio)
		sum, n = sum+ratio, n+1
		if ratio < 0.6 || ratio > 1.5 {
			tt.Fatalf("the schedule takes %v times what the plan says: %+v", ratio, plan.Stages)
		}
	})
	t.Logf("schedules take %.3f to %.3f times what plans say, %.3f on average", low, high, sum/n)
}

func TestEqualStagesTakeWhatTheScheduleTakes(t *testing.T) {
	t.Parallel()
	const stages = 4
	var g graph.Graph
	for i := range stages {
		g.Ops = append(g.Ops, graph.Op{
			ID: strconv.Itoa(i), Costs: map[string]graph.Cost{fast: {Forward: 16, Backward: 32}},
			Parameters: 100,
		})
		if i > 0 {
			g.Edges = append(g.Edges, graph.Edge{From: i - 1, To: i})
		}
	}
	p := partition.Problem{Graph: g, Devices: equal(stages, 0), Objective: partition.Step, Training: true}
	for _, micro := range []int{1, 2, 8, 16} {
		var given []partition.Stage
		for i := range stages {
			given = append(given, partition.Stage{Ops: []int{i}, Devices: []int{i}})
		}
		plan, err := partition.EvaluateStages(p, given, micro)
		if err != nil {
			t.Fatal(err)
		}
		want := 48 * float64(micro+stages-1) / float64(micro)
		if !near(float64(plan.StepTime), want) || !near(simulated(t, plan), want) {
			t.Errorf("%d micro-batches: %v, simulated %v, want %v", micro, plan.StepTime, simulated(t, plan), want)
		}
	}
}

func TestMemoryOfAReplicaIsThatOfTheTableOfZeRO(t *testing.T) {
	t.Parallel()
	// 7.5 billion parameters on 64 devices: 120, 31.4, 16.6 and 1.9 GB.
	const parameters = 7_500_000_000
	g := graph.Graph{Ops: []graph.Op{{
		ID: "all", Costs: map[string]graph.Cost{fast: {Forward: 1}},
		Parameters: 2 * parameters,
	}}}
	for stage, want := range []float64{120, 31.4, 16.6, 1.9} {
		p := partition.Problem{
			Graph: g, Devices: equal(64, 0), Objective: partition.Step, Training: true,
			Memory: partition.Memory{ZeRO: stage},
		}
		whole := partition.Stage{Ops: []int{0}}
		for d := range p.Devices {
			whole.Devices = append(whole.Devices, d)
		}
		plan, err := partition.EvaluateStages(p, []partition.Stage{whole}, 1)
		if err != nil {
			t.Fatal(err)
		}
		if got := float64(plan.PerDevice[0].Memory) / 1e9; math.Abs(got-want) > 0.05 {
			t.Errorf("stage %d takes %.2f GB on each device, want %v", stage, got, want)
		}
	}
}

func TestPipeDreamsPlanIsTheBestByItsOwnCost(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := drawChain(t, 6, 4)
		for i := range p.Devices {
			p.Devices[i].Class = fast
		}
		for i := range p.Graph.Ops {
			if _, runs := p.Graph.Ops[i].Costs[fast]; !runs {
				p.Graph.Ops[i].Costs[fast] = graph.Cost{Forward: 1}
			}
		}
		p.Links.Between.BytesPerSecond++
		activations := rapid.Bool().Draw(t, "activations")
		best := math.Inf(1)
		var extend func(start, left int, worst float64)
		extend = func(start, left int, worst float64) {
			if start == len(p.Graph.Ops) {
				if left == 0 {
					best = min(best, worst)
				}
				return
			}
			work, size := 0.0, 0.0
			for end := start; end < len(p.Graph.Ops); end++ {
				op := p.Graph.Ops[end]
				work += float64(op.Costs[fast].Forward + op.Costs[fast].Backward)
				size += float64(op.Parameters)
				for n := 1; n <= left; n++ {
					r, b := float64(n), p.Links.Between.BytesPerSecond
					cost := (work + 4*(r-1)*size/(b*r)) / r
					if activations && start > 0 { // the first stage is not charged for what it hands on
						cost = max(cost, 2*float64(p.Graph.Ops[start-1].Activation)/(b*r))
						if end+1 < len(p.Graph.Ops) {
							cost = max(cost, 2*float64(op.Activation)/(b*r))
						}
					}
					extend(end+1, left-n, max(worst, cost))
				}
			}
		}
		extend(0, len(p.Devices), 0)
		plan, err := partition.PipeDream(p, activations)
		if err != nil {
			t.Fatal(err)
		}
		if !near(float64(plan.StepTime), best) {
			t.Fatalf("PipeDream's plan costs %v, the best %v", plan.StepTime, best)
		}
	})
}

func TestAStepIsNeverSlowerThanPipeDreamsPlanOrDataParallelism(t *testing.T) {
	t.Parallel()
	for seed := range uint64(5) {
		p := layered(40, 6, seed)
		p.Objective, p.MicroBatches, p.Links.Between.BytesPerSecond = partition.Step, 8, 300
		plan := solve(t, p)
		dream, err := partition.PipeDream(p, seed%2 == 0)
		if err != nil {
			t.Fatal(err)
		}
		whole := partition.Stage{}
		for i := range p.Graph.Ops {
			whole.Ops = append(whole.Ops, i)
		}
		for d := range p.Devices {
			whole.Devices = append(whole.Devices, d)
		}
		for name, stages := range map[string][]partition.Stage{"PipeDream": dream.Stages, "data parallelism": {whole}} {
			other, err := partition.EvaluateStages(p, stages, 8)
			if err != nil {
				t.Fatal(err)
			}
			if plan.StepTime > other.StepTime*(1+1e-9) {
				t.Errorf("seed %d: %v, %s %v", seed, plan.StepTime, name, other.StepTime)
			}
		}
	}
}

func TestAStageWithMoreReplicasThanItMayHaveIsRefused(t *testing.T) {
	t.Parallel()
	p := partition.Problem{
		Graph:     graph.Graph{Ops: []graph.Op{{ID: "a", Costs: map[string]graph.Cost{fast: {Forward: 1, Backward: 2}}}}},
		Devices:   equal(2, 0),
		Objective: partition.Step, Training: true, MostReplicas: 1,
	}
	if _, err := partition.EvaluateStages(p, []partition.Stage{{Ops: []int{0}, Devices: []int{0, 1}}}, 1); err == nil {
		t.Error("two replicas are taken, though one is the most")
	}
	p.MostReplicas = -1
	if _, err := partition.Solve(p); !errors.Is(err, partition.ErrProblem) {
		t.Errorf("at most -1 replicas: got the error %v", err)
	}
}
