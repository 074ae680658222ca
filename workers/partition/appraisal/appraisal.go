// Package appraisal plans a partition, and says what the plan comes to beside the front of plans, simpler ways and,
// where nothing fits, what would help.
package appraisal

import (
	"errors"
	"slices"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/graph"
	"github.com/spillway-ml/spillway/workers/partition"
	"github.com/spillway-ml/spillway/workers/schedule"
)

// Of plans, compares with simpler ways, and explains where nothing fits. Format and Notes of the report are left to
// whoever read the graph. An error wraps [partition.ErrProblem] where the problem is wrong.
func Of(p partition.Problem) (Report, error) {
	report := Report{
		Graph: graphReport(p), Objective: p.Objective.String(), Front: []Choice{},
		Training: p.Training || slices.ContainsFunc(p.Graph.Ops, func(op graph.Op) bool {
			return op.Backward || op.BackwardOf != ""
		}),
	}
	front, err := partition.Front(p)
	switch {
	case errors.Is(err, partition.ErrUnfit):
		if report.Infeasible, err = infeasibilityReport(p, err); err != nil {
			return Report{}, err
		}
	case err != nil:
		return Report{}, err
	default:
		picked := partition.Pick(p, front)
		// no two are equal there
		chosen := slices.IndexFunc(front, func(plan partition.Plan) bool { return plan.Idle == picked.Idle })
		if report.Plan, err = onePlan(p, front[chosen]); err != nil {
			return Report{}, err
		}
		for i, plan := range front {
			report.Front = append(report.Front, Choice{
				Chosen: i == chosen, Seconds: float64(plan.StepTime), IdleBytes: plan.Idle, Devices: len(plan.Used()),
				Stages:       len(plan.Stages),
				MicroBatches: plan.MicroBatches, PicodollarsPerHour: plan.HourlyPrice,
			})
		}
	}
	report.Baselines = baselines(p)
	return report, nil
}

func graphReport(p partition.Problem) Graph {
	s := p.Graph.Summary()
	g := Graph{
		Name: p.Graph.Name, Ops: s.Ops, Edges: s.Edges, BackwardOps: s.Backward, ParameterBytes: s.Parameters,
		ActivationBytes: s.Activation,
		WorkspaceBytes:  s.Workspace, TransfersMeasured: p.Links.ThroughHost, TotalSeconds: map[string]float64{},
	}
	for class, total := range s.Total {
		g.TotalSeconds[class] = float64(total)
	}
	return g
}

func infeasibilityReport(p partition.Problem, unfit error) (*Infeasibility, error) {
	v, err := partition.Explain(p)
	if err != nil {
		return nil, err
	}
	reason := unfit.Error()
	if p.Objective == partition.Step { // the error counts the activations of a whole batch, which no step holds at once
		reason = "no pipeline was found that the memory of these devices holds"
	}
	report := &Infeasibility{Reason: reason, ShortDevice: v.Device, ShortBytes: v.Short, Remedies: []Remedy{}}
	for _, r := range v.Remedies {
		report.Remedies = append(report.Remedies, Remedy{Change: r.Change, Seconds: float64(r.Plan.StepTime)})
	}
	return report, nil
}

// onePlan tells a plan in the words of its problem.
func onePlan(p partition.Problem, plan partition.Plan) (*Plan, error) {
	report := &Plan{
		Seconds: float64(plan.StepTime), LowerBoundSeconds: float64(plan.LowerBound), Optimal: plan.Optimal,
		MicroBatches: plan.MicroBatches,
		MostReplicas: 1, IdleBytes: plan.Idle, PicodollarsPerHour: plan.HourlyPrice, Reason: plan.Reason, Stages: []Stage{},
	}
	namer, err := newNamer(p)
	if err != nil {
		return nil, err
	}
	of := make([]int, len(p.Devices)) // the stage of each device, from 1
	for i, stage := range plan.Stages {
		one := Stage{
			Ops: namer.names(stage.Ops), ForwardSeconds: float64(stage.Forward), BackwardSeconds: float64(stage.Backward),
			SendSeconds:      float64(stage.Send),
			AllReduceSeconds: float64(stage.AllReduce), InFlight: stage.InFlight, Recompute: stage.Recompute,
		}
		for _, d := range stage.Devices {
			of[d] = i + 1
			one.Devices = append(one.Devices, p.Devices[d].ID)
		}
		report.MostReplicas = max(report.MostReplicas, len(stage.Devices))
		report.Stages = append(report.Stages, one)
	}
	held := make([][]int, len(p.Devices))
	for op, d := range plan.Assignment {
		held[d] = append(held[d], op)
	}
	for d, device := range p.Devices {
		share, ops := plan.PerDevice[d], held[d]
		if of[d] > 0 {
			ops = plan.Stages[of[d]-1].Ops // replicas hold them all
		}
		report.Devices = append(report.Devices, Device{
			ID: device.ID, Class: device.Class, Stage: of[d], Ops: namer.names(ops), LoadSeconds: float64(share.Load),
			PeakBytes:   share.Memory,
			MemoryBytes: device.Memory, SentBytes: share.Sent,
		})
	}
	switch {
	case p.Objective == partition.Step:
		report.Schedule, err = stepSchedule(plan)
	case p.Objective == partition.Throughput && !p.Training && len(plan.Stages) > 0:
		report.Schedule = streamSchedule(plan)
	}
	return report, err
}

// namer names operations in topological order.
type namer struct {
	p  partition.Problem
	at []int // the place of each operation in that order
}

func newNamer(p partition.Problem) (namer, error) {
	order, err := p.Graph.Order()
	if err != nil {
		return namer{}, err
	}
	n := namer{p, make([]int, len(order))}
	for i, op := range order {
		n.at[op] = i
	}
	return n, nil
}

func (n namer) names(ops []int) []string {
	ops = slices.SortedFunc(slices.Values(ops), func(a, b int) int { return n.at[a] - n.at[b] })
	names := make([]string, len(ops))
	for i, op := range ops {
		names[i] = n.p.Graph.Ops[op].ID
	}
	return names
}

// stepSchedule simulates the schedule that a training step was planned for.
func stepSchedule(plan partition.Plan) (*Schedule, error) {
	var c schedule.Costs
	flight, reduces := make([]int, len(plan.Stages)), false
	for i, stage := range plan.Stages {
		flight[i] = stage.InFlight
		c.Forward, c.Backward = append(c.Forward, float64(stage.Forward)), append(c.Backward, float64(stage.Backward))
		c.AllReduce = append(c.AllReduce, float64(stage.AllReduce))
		reduces = reduces || stage.AllReduce > 0
		if i+1 < len(plan.Stages) {
			c.Send = append(c.Send, float64(stage.Send))
		}
	}
	s, err := schedule.InFlight(flight, plan.MicroBatches, schedule.Options{AllReduce: reduces})
	if err != nil {
		return nil, err
	}
	result, err := schedule.Simulate(s, c)
	if err != nil {
		return nil, err
	}
	return &Schedule{Name: s.Name, Seconds: result.Makespan, Bubble: result.Bubble(), Spans: Timeline(s, c)}, nil
}

// shownBatches is how many batches of a stream are shown besides those that fill the pipeline.
const shownBatches = 4

func streamSchedule(plan partition.Plan) *Schedule {
	loads := make([]float64, len(plan.Stages))
	for i, stage := range plan.Stages {
		loads[i] = float64(plan.PerDevice[stage.Devices[0]].Load)
	}
	busy := 0.0
	for _, load := range loads {
		busy += load
	}
	spans := Stream(loads, len(loads)+shownBatches)
	s := &Schedule{Name: "stream", Spans: spans, Seconds: spans[len(spans)-1].EndSeconds}
	if plan.StepTime > 0 {
		s.Bubble = 1 - busy/(float64(plan.StepTime)*float64(len(loads)))
	}
	return s
}

// baselines are what simpler ways come to.
func baselines(p partition.Problem) []Baseline {
	p.IdleWeight = 0
	all := make([]int, len(p.Graph.Ops))
	for i := range all {
		all[i] = i
	}
	even, err := partition.EvenSplit(p)
	if p.Objective == partition.Step && (err == nil || errors.Is(err, partition.ErrUnfit)) && even.Stages != nil {
		even, err = bestStep(p, even.Stages)
	}
	found := []Baseline{baseline("even split", p, even, err)}
	if p.Objective == partition.Step && len(p.Devices) > 1 {
		whole := partition.Stage{Ops: all}
		for d := range p.Devices {
			whole.Devices = append(whole.Devices, d)
		}
		// not for devices of several kinds
		if plan, err := bestStep(p, []partition.Stage{whole}); err == nil || errors.Is(err, partition.ErrUnfit) {
			found = append(found, baseline("data parallel", p, plan, err))
		}
	}
	return append(found, singleDevice(p, all))
}

// singleDevice is the fastest device that holds everything, or the one that lacks least.
func singleDevice(p partition.Problem, all []int) Baseline {
	type likeness struct {
		class string
		speed float64
		room  quantity.Bytes
	}
	seen := map[likeness]bool{}
	var best Baseline
	for d, device := range p.Devices {
		like := likeness{device.Class, device.Speed, device.Memory}
		if seen[like] {
			continue
		}
		seen[like] = true
		var plan partition.Plan
		var err error
		if p.Objective == partition.Step {
			plan, err = bestStep(p, []partition.Stage{{Ops: all, Devices: []int{d}}})
		} else {
			plan, err = partition.Evaluate(p, slices.Repeat([]int{d}, len(all)))
		}
		one := baseline("single device", p, plan, err)
		if len(seen) == 1 || better(one, best) {
			best = one
		}
	}
	return best
}

// better prefers what fits, then the faster one, then what lacks less, then what lacks something to what cannot be.
func better(a, b Baseline) bool {
	rank := func(one Baseline) int {
		switch {
		case one.Problem != "":
			return 2
		case one.ShortDevice != "":
			return 1
		default:
			return 0
		}
	}
	if rank(a) != rank(b) {
		return rank(a) < rank(b)
	}
	if rank(a) == 1 {
		return a.ShortBytes < b.ShortBytes
	}
	return a.Seconds < b.Seconds
}

// bestStep measures stages with the number of micro-batches that suits them best.
func bestStep(p partition.Problem, stages []partition.Stage) (best partition.Plan, err error) {
	numbers := []int{p.MicroBatches}
	if p.MicroBatches == 0 {
		numbers = nil
		most := p.MostMicroBatches
		if most == 0 {
			most = usualSamples
		}
		for n := 1; n <= most; n *= 2 {
			numbers = append(numbers, n)
		}
	}
	err = errNoStep
	for _, n := range numbers {
		plan, failed := partition.EvaluateStages(p, stages, n)
		if failed == nil && (err != nil || plan.StepTime < best.StepTime) || failed != nil && err != nil {
			best, err = plan, failed // the last shortage is the least
		}
	}
	return best, err
}

// usualSamples is how many samples package partition takes a batch to have that does not tell.
const usualSamples = 64

var errNoStep = errors.New("it has no number of micro-batches")

// baseline tells what a plan comes to, or what it lacks.
func baseline(name string, p partition.Problem, plan partition.Plan, err error) Baseline {
	one := Baseline{Name: name}
	switch {
	case err == nil:
		one.Seconds = float64(plan.StepTime)
	case errors.Is(err, partition.ErrUnfit):
		for d, share := range plan.PerDevice {
			if over := share.Memory - p.Devices[d].Memory; over > one.ShortBytes {
				one.ShortDevice, one.ShortBytes = p.Devices[d].ID, over
			}
		}
		if one.ShortDevice == "" {
			one.Problem = err.Error()
		}
	default:
		one.Problem = err.Error()
	}
	return one
}
