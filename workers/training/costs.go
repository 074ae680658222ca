package training

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strconv"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/graph"
)

// A micro-batch of n samples takes an operation
//
//	t(n) = a + b n
//
// a is what a call costs whatever it works on, which is what makes small micro-batches dear. The line goes through two
// probes, of few and of many samples; neither a nor b is negative, and the line always goes through the second probe.
// The times of operations, which are measured one by one, are first scaled so that they add up to the time of the
// unsplit model.

// line is a time by the number of samples, in seconds.
type line struct{ fixed, each float64 }

func (l line) at(samples float64) float64 { return l.fixed + l.each*samples }

// through returns the line through two measurements.
func through(few, many int, fewSeconds, manySeconds float64) line {
	if few >= many {
		return line{each: manySeconds / float64(many)}
	}
	each := (manySeconds - fewSeconds) / float64(many-few)
	each = min(max(each, 0), manySeconds/float64(many))
	return line{fixed: manySeconds - each*float64(many), each: each}
}

// work is what the two passes of an operation take on one class of device.
type work struct{ forward, backward line }

// model is what probes tell about a model.
type model struct {
	digest  string
	dataset int
	// validates says that there are validation data, metrics are the names of what is computed of them; nil where they are
	// not known.
	validates bool
	metrics   []string
	// statistics is the name of an operation that computes statistics over the samples that pass together; empty without.
	statistics string
	// flops is what the forward pass of a sample takes, peaks what a device of a class does at most in a second; 0 where
	// they are not known.
	flops float64
	peaks map[string]float64
	base  quantity.Bytes
	// shape is the graph of the largest probe; its sizes are those of samples samples, and its costs are not used.
	shape   graph.Graph
	samples int
	order   []int // of the operations, topological
	rank    []int // of each operation in it
	// tensors are those of shape; coloured says that some of its operations must be together.
	tensors  []graph.Tensor
	coloured bool
	tied     []exec.Tied
	// activations are what each operation keeps by the number of samples, in bytes: copies of parameters in another
	// precision, and masks that all samples share, do not grow with it.
	activations []line
	// working is what each operation takes while it works: as the executor measured it, or else by the sizes of tensors.
	working  []working
	measured bool
	// data is what the data hold in the process of the first part; 0 where the executor does not tell.
	data    quantity.Bytes
	loading loading
	// classes has the costs of all operations by class of device.
	classes map[string][]work
	// performances has the classes that were rehearsed.
	performances map[string]performance
}

// classOf tells apart the devices that were probed on their own: GPUs by the name of their model, CPUs by how many
// threads they lend.
func classOf(d exec.Device) string {
	if d.Kind == exec.CUDA {
		return d.Kind + "/" + d.Class
	}
	return exec.CPU + "/" + strconv.Itoa(d.Threads)
}

// prober measures a model on classes of devices, each once.
type prober struct {
	executor  exec.Executor
	batch     int
	optimizer exec.Optimizer
	precision exec.Precision
	clip      bool
	recompute bool // every part computes its activations again
	// microBatches is their number where it is decided, else 0.
	microBatches int
	// steps and epochs are those of the job.
	steps  int64
	epochs int
	// logger is told of models that cannot be rehearsed; nil rehearses none.
	logger *slog.Logger
	// limit is what the limits of this process leave of the host's memory; 0 is no limit.
	limit quantity.Bytes
	model model
	call  float64 // what a call to another process takes, in seconds
	// least is how many samples a micro-batch has at least, where nobody wants others: 2 where one sample alone was not
	// looked at, or has other operations, as in models that ask how many there are. 0 is 1.
	least int
}

// alike reports whether two probes found the same operations.
func alike(a, b exec.Probe) bool {
	return slices.EqualFunc(a.Graph.Ops, b.Graph.Ops, func(one, other graph.Op) bool { return one.ID == other.ID })
}

// fewer is by how much the small probe is smaller than the large one.
const fewer = 8

// class measures the model on a device unless one of its class was measured. beside are the devices of the class that
// work at the same time, itself included.
func (p *prober) class(ctx context.Context, device exec.Device, beside []exec.Device, state float64) error {
	name := classOf(device)
	if _, known := p.model.classes[name]; known {
		return nil
	}
	many, fits := p.batch, true
	var alone *exec.Probe // of one sample
	// The whole model with a whole batch may be more than the device holds, or than the limit of this attempt leaves for
	// a plan: one sample tells.
	if bound := p.bound(device); bound > 0 {
		one, err := p.probe(ctx, device, 1)
		if err != nil {
			return err
		}
		alone = &one
		bounded := device
		bounded.Memory = bound
		has := room(bounded, one.Base)
		many = mostSamples(one.Graph, p.batch, state, has)
		switch {
		case many == 0 && device.Kind == exec.CUDA: // that is what parts are for
			many, fits = mostApart(one.Graph, p.batch, has), false
		case many == 0:
			many = 1
		}
	}
	small, large, least, most, err := p.twice(ctx, device, many, alone)
	if err != nil {
		return err
	}
	p.warnOfImitation(ctx, device, small)
	if p.logger == nil {
		return p.learn(name, small, large, nil)
	}
	if !fits {
		p.logger.InfoContext(ctx, "the unsplit model is larger than the device, so that it is planned by its operations, "+
			"each alone", "device", device.ID, "memory", device.Memory)
		return p.learn(name, small, large, nil)
	}
	p.model.base = large.Base
	if large.Base > 0 && p.call == 0 {
		p.call = roundTrip()
	}
	made, err := p.perform(ctx, beside, least, most)
	if err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		p.logger.WarnContext(ctx, "the unsplit model cannot be tried out, so that predictions are less certain", "device",
			device.ID, "error", err)
		return p.learn(name, small, large, nil)
	}
	small.Forward, small.Backward = graph.Seconds(made.small.pace.forward), graph.Seconds(made.small.pace.backward)
	large.Forward, large.Backward = graph.Seconds(made.large.pace.forward), graph.Seconds(made.large.pace.backward)
	return p.learn(name, small, large, &made)
}

// twice probes the model with few samples and with many, which are what a batch has in most and in least micro-batches.
// alone is a probe of one sample, if there was one.
func (p *prober) twice(
	ctx context.Context, device exec.Device, many int, alone *exec.Probe,
) (small, large exec.Probe, least, most int, err error) {
	least = (p.batch + many - 1) / many
	many = p.batch / least
	most = min(p.batch, least*fewer)
	if p.microBatches > least {
		most = p.microBatches
	}
	few := p.batch / most
	if small, err = p.probe(ctx, device, few); err != nil {
		return small, large, least, most, err
	}
	if small.Dataset > 0 && p.batch > small.Dataset {
		return small, large, least, most, refused("a batch of %d of %d samples of data; choose a smaller one", p.batch,
			small.Dataset)
	}
	large = small
	if many > few {
		if large, err = p.probe(ctx, device, many); err != nil {
			return small, large, least, most, err
		}
	}
	if few == 1 {
		alone = &small
	}
	switch differ := alone == nil || !alike(*alone, large); {
	case !differ:
	case few > 1:
		p.least = 2
	case p.microBatches == p.batch: // all have one
		large, least = small, most
	case p.microBatches == 0 || p.batch/p.microBatches > 1:
		p.least, few = 2, min(2, many)
		small, most = large, p.batch/few
		if many > few {
			small, err = p.probe(ctx, device, few)
		}
	}
	return small, large, least, most, err
}

// bound is what the unsplit model may take where it is tried out on a device; 0 is no bound.
func (p *prober) bound(d exec.Device) quantity.Bytes {
	if d.Kind == exec.CUDA || p.limit == 0 {
		return d.Memory
	}
	if d.Memory == 0 {
		return p.limit
	}
	return min(d.Memory, p.limit)
}

func (p *prober) probe(ctx context.Context, device exec.Device, samples int) (exec.Probe, error) {
	probe, err := p.executor.Probe(ctx, exec.ProbeOptions{Samples: samples, Device: device, Precision: p.precision})
	if err != nil {
		return exec.Probe{}, fmt.Errorf("probe the model with %d samples on %s: %w", samples, device.ID, err)
	}
	if err := probe.Graph.Validate(); err != nil {
		return exec.Probe{}, fmt.Errorf("probe the model with %d samples on %s: %w", samples, device.ID, err)
	}
	if probe.Samples == 0 {
		probe.Samples = samples
	}
	if len(probe.Graph.Ops) == 0 {
		return exec.Probe{}, fmt.Errorf("probe the model with %d samples on %s: it has no operations", samples, device.ID)
	}
	return probe, nil
}

// slower is from which slowdown on a precision is not worth it; less may be noise.
const slower = 1.25

// warnOfImitation says that a CPU takes longer in the wanted precision than in float32: it has no instructions for it.
func (p *prober) warnOfImitation(ctx context.Context, device exec.Device, probe exec.Probe) {
	if probe.Slowdown > slower && p.logger != nil {
		p.logger.WarnContext(ctx, "this CPU imitates the precision, which takes longer than float32 and is less exact; "+
			"choose --precision float32", "precision", p.precision, "device", device.ID,
			"times_as_long", math.Round(10*probe.Slowdown)/10)
	}
}

// mostSamples is how many samples of at most a batch the unsplit model can train at once in some memory, by what one
// sample takes; 0 is none.
func mostSamples(g graph.Graph, batch int, state float64, memory quantity.Bytes) int {
	summary := g.Summary()
	rest := float64(memory) - float64(summary.Parameters)*(2+state/parameterBytes) - float64(summary.Workspace)
	each := float64(summary.Activation + largest(g))
	if each == 0 {
		return batch
	}
	return max(0, min(batch, int(spared*rest/each)))
}

// spared is the part of a device's memory that a model is tried out in.
const spared = 0.8

// mostApart is how many samples, from one to a batch, each operation alone can train at once in some memory, with its
// gradients and those of what it makes, by what one sample takes; all that is kept fits it, too, as it is measured at
// once.
func mostApart(g graph.Graph, batch int, memory quantity.Bytes) int {
	made := make([]quantity.Bytes, len(g.Ops))
	for _, t := range g.Tensors() {
		made[t.From] += t.Bytes
		for _, reader := range t.Readers {
			made[reader] += t.Bytes
		}
	}
	most := float64(batch)
	if all := float64(g.Summary().Activation + largest(g)); all > 0 {
		most = min(most, spared*float64(memory)/all)
	}
	for i, op := range g.Ops {
		if each := float64(op.Activation + 2*made[i]); each > 0 {
			most = min(most, (spared*float64(memory)-2*float64(op.Parameters))/each)
		}
	}
	return max(1, int(most))
}

// largest is the largest tensor or activation of an operation.
func largest(g graph.Graph) quantity.Bytes {
	var most quantity.Bytes
	for _, op := range g.Ops {
		most = max(most, op.Activation)
	}
	for _, t := range g.Tensors() {
		most = max(most, t.Bytes)
	}
	return most
}

// learn adds the costs on a class of device.
func (p *prober) learn(class string, small, large exec.Probe, made *performance) error {
	m := &p.model
	if m.classes == nil {
		order, err := large.Graph.Order()
		if err != nil {
			return fmt.Errorf("order the model's operations: %w", err)
		}
		*m = model{
			classes: map[string][]work{}, performances: map[string]performance{}, digest: large.Model,
			flops: large.FLOPs / float64(max(large.Samples, 1)), peaks: map[string]float64{},
			dataset: large.Dataset, validates: large.Validates, metrics: large.Metrics,
			statistics: large.Statistics, base: large.Base,
			order: order, rank: make([]int, len(order)),
		}
		for i, op := range order {
			m.rank[op] = i
		}
	}
	if large.Model != m.digest || small.Model != m.digest {
		return fmt.Errorf("probe the model: it has other parameters each time it is made (%s, then %s); make it without "+
			"choices by chance", m.digest, large.Model)
	}
	if large.Samples > m.samples {
		m.shape, m.samples, m.tensors = large.Graph, large.Samples, large.Graph.Tensors()
		m.activations, m.working = keptBy(small, large), workingOf(small, large)
		if m.measured = m.working != nil; !m.measured {
			m.working = m.workingOfTensors()
		}
		m.data, m.tied, m.loading = max(m.data, large.Data), large.Tied, loadingOf(small, large)
		m.coloured = slices.ContainsFunc(m.shape.Ops, func(op graph.Op) bool { return op.Colour != "" })
	}
	few, err := scaled(small)
	if err != nil {
		return err
	}
	many, err := scaled(large)
	if err != nil {
		return err
	}
	works := make([]work, len(m.shape.Ops))
	for i, op := range m.shape.Ops {
		a, inSmall := few[op.ID]
		b, inLarge := many[op.ID]
		if !inSmall || !inLarge || len(few) != len(works) || len(many) != len(works) {
			return fmt.Errorf("probe the model: it has other operations with %d samples than with %d (%q); make it the same "+
				"for every number of samples",
				small.Samples, large.Samples, op.ID)
		}
		works[i] = work{
			forward:  through(small.Samples, large.Samples, float64(a.Forward), float64(b.Forward)),
			backward: through(small.Samples, large.Samples, float64(a.Backward), float64(b.Backward)),
		}
	}
	m.classes[class] = works
	m.peaks[class] = max(small.PeakFLOPS, large.PeakFLOPS)
	if made != nil {
		m.performances[class] = *made
	}
	return nil
}

// keptBy returns what operations keep by the number of samples, from two probes.
func keptBy(small, large exec.Probe) []line {
	few := make(map[string]quantity.Bytes, len(small.Graph.Ops))
	for _, op := range small.Graph.Ops {
		few[op.ID] = op.Activation
	}
	lines := make([]line, len(large.Graph.Ops))
	for i, op := range large.Graph.Ops {
		lines[i] = through(small.Samples, large.Samples, float64(few[op.ID]), float64(op.Activation))
	}
	return lines
}

// scaled returns the times of a probe's operations so that they add up to those of the whole model; where none has a
// time, all have the same.
func scaled(p exec.Probe) (map[string]graph.Cost, error) {
	costs := make(map[string]graph.Cost, len(p.Graph.Ops))
	var sum graph.Cost
	for _, op := range p.Graph.Ops {
		cost, err := only(op)
		if err != nil {
			return nil, err
		}
		costs[op.ID] = cost
		sum.Forward += cost.Forward
		sum.Backward += cost.Backward
	}
	part := func(whole, sum, own graph.Seconds) graph.Seconds {
		switch {
		case whole <= 0: // not measured as a whole
			return own
		case sum == 0:
			return whole / graph.Seconds(len(costs))
		default:
			return own * whole / sum
		}
	}
	for id, cost := range costs {
		costs[id] = graph.Cost{
			Forward:  part(p.Forward, sum.Forward, cost.Forward),
			Backward: part(p.Backward, sum.Backward, cost.Backward),
		}
	}
	return costs, nil
}

// only returns the cost of an operation on the one class of device that a probe measures.
func only(op graph.Op) (graph.Cost, error) {
	if len(op.Costs) > 1 {
		return graph.Cost{}, fmt.Errorf("probe the model: operation %q has costs on %d classes of device; a probe "+
			"measures one", op.ID, len(op.Costs))
	}
	var cost graph.Cost // an input has none
	for _, measured := range op.Costs {
		cost = measured
	}
	if op.Backward || op.BackwardOf != "" {
		return graph.Cost{}, fmt.Errorf("probe the model: operation %q is one of the backward pass, which an "+
			"executor derives", op.ID)
	}
	return cost, nil
}

// batchGraph is the graph of a batch that is cut into micro-batches: its costs and sizes are those of one micro-batch
// times their number.
func (m model) batchGraph(batch, microBatches int) graph.Graph {
	g := graph.Graph{Name: m.shape.Name, Ops: slices.Clone(m.shape.Ops), Edges: slices.Clone(m.shape.Edges)}
	each, count := float64(batch)/float64(microBatches), float64(microBatches)
	size := float64(batch) / float64(m.samples)
	for i := range g.Ops {
		op := &g.Ops[i]
		op.Costs = make(map[string]graph.Cost, len(m.classes))
		for class, works := range m.classes {
			op.Costs[class] = graph.Cost{
				Forward:  graph.Seconds(works[i].forward.at(each) * count),
				Backward: graph.Seconds(works[i].backward.at(each) * count),
			}
		}
		op.Activation = times(1, m.activations[i].at(each)*count)
		op.Recompute = nil
	}
	for i := range g.Edges {
		g.Edges[i].Bytes = times(g.Edges[i].Bytes, size)
		g.Edges[i].Transfer = 0
	}
	return g
}

func times(size quantity.Bytes, factor float64) quantity.Bytes {
	return min(quantity.Bytes(math.Ceil(float64(size)*factor)), graph.MostBytes)
}
