package cli

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/spf13/pflag"

	"github.com/spillway-ml/spillway/workers/graph"
	"github.com/spillway-ml/spillway/workers/partition"
)

// planFlags are the flags of `plan`.
type planFlags struct {
	devices, format, objective, svg string
	lambda                          float64
	microBatches, batch             int
	training, inference             bool
	weightBytes, optimizerBytes     float64
	zero                            int
	recompute, json, sharedOut      bool
	set                             *pflag.FlagSet
}

// usualWeight is the size of a parameter in single precision, in which models are recorded.
const usualWeight = 4

func (f *planFlags) add(set *pflag.FlagSet) {
	f.set = set
	set.StringVar(&f.devices, "devices", "", "`FILE` of the devices and the links between them, in YAML")
	set.Var(choice{&f.format, []string{formatAuto, formatSpillway, formatDNN, formatPipe, formatDAPPLE, formatPiper}}, "format",
		"the format of the graph; auto is by what the file holds")
	set.Var(choice{&f.objective, []string{"throughput", "step", "latency"}}, "objective", "the time to make small (default step for training, else throughput)")
	set.Var(weight{&f.lambda, 0}, "lambda", "how much idle memory counts: as many times the least possible time as the part of all memory that is idle (default 0)")
	set.Var(microBatches{&f.microBatches}, "micro-batches", "into how many parts a step cuts the batch (default auto)")
	set.Var(count{&f.batch, 1}, "batch", "samples of a batch: the most micro-batches; a model is run with so many (default 32), and Piper's costs are multiplied by it (default: its own)")
	set.BoolVar(&f.training, "training", false, "plan for training (default where the graph has a backward pass)")
	set.BoolVar(&f.inference, "inference", false, "plan for inference: no backward pass, no gradients")
	set.Var(weight{&f.weightBytes, 1}, "weight-bytes", "bytes of one parameter in the graph, and of its gradient")
	set.Var(weight{&f.optimizerBytes, 0}, "optimizer-bytes", "bytes of optimizer state for each parameter (default 16 less weight and gradient: Adam)")
	set.Var(stageOfZeRO{&f.zero}, "zero", "what replicas share out: 0 nothing, 1 the optimizer's state, 2 gradients too, 3 weights too (default 0)")
	set.BoolVar(&f.recompute, "recompute", false, "allow stages to compute activations again before the backward pass where memory is short")
	set.BoolVar(&f.json, "json", false, "print everything as JSON; the units are in the names")
	set.Var(destination{&f.svg}, "svg", "write a picture of the plan to this `FILE`")
	addSharedOut(set, &f.sharedOut, "--svg")
}

// check refuses flags that contradict each other.
func (f *planFlags) check() error {
	if f.devices == "" {
		return &usage{problem: "it needs --devices", hint: "give the file of the devices; `spillway plan --help` shows one"}
	}
	if err := exclusive([]string{"--training", "--inference"}, f.training, f.inference); err != nil {
		return err
	}
	if !f.inference {
		return nil
	}
	for _, name := range []string{"weight-bytes", "optimizer-bytes", "zero", "recompute"} {
		if f.set.Changed(name) {
			return &usage{problem: "--" + name + " is for training", hint: "leave it or --inference out"}
		}
	}
	if f.objective == "step" {
		return &usage{problem: "--objective step is for training", hint: "write --objective throughput or latency, or leave --inference out"}
	}
	return nil
}

// problem is what is to be planned.
func (f *planFlags) problem(found recorded, list deviceList) (partition.Problem, error) {
	forward, backward := passes(found.graph)
	training := f.training || (!f.inference && backward)
	switch {
	case f.inference && !forward:
		return partition.Problem{}, &usage{problem: "the backward pass of this graph is made of operations of its own", hint: "leave --inference out, or record the forward pass only"}
	case f.training && !backward:
		return partition.Problem{}, &usage{problem: "this graph has no backward pass", hint: "record it while training, or leave --training out"}
	}
	p := partition.Problem{
		Graph: found.graph, Devices: list.devices, Links: list.links, IdleWeight: f.lambda, MicroBatches: f.microBatches, MostMicroBatches: found.samples,
		Training: training && forward, // otherwise the operations hold all that already
		Memory:   partition.Memory{Weight: f.weightBytes, Gradient: f.weightBytes, Optimizer: max(16-2*f.weightBytes, 0), ZeRO: f.zero, Recompute: f.recompute},
	}
	if f.set.Changed("optimizer-bytes") {
		p.Memory.Optimizer = f.optimizerBytes
	}
	switch f.objective {
	case "latency":
		p.Objective = partition.Latency
	case "throughput":
	case "step":
		p.Objective = partition.Step
	default:
		if training {
			p.Objective = partition.Step
		}
	}
	p.Links.ThroughHost = slices.ContainsFunc(p.Graph.Edges, func(e graph.Edge) bool { return e.Transfer > 0 })
	if p.Objective != partition.Step {
		if f.microBatches > 0 {
			return p, &usage{problem: "--micro-batches is for training steps", hint: "write --objective step, or leave it out"}
		}
		return p, nil
	}
	if !training {
		return p, &usage{problem: "this graph has no backward pass", hint: "write --objective throughput or latency"}
	}
	p.Links.Between, p.Links.Pairs = slowest(p.Links), nil
	return p, nil
}

// passes says whether the costs of the forward pass stand alone, and whether there are any of the backward pass.
func passes(g graph.Graph) (forward, backward bool) {
	forward = true
	for _, op := range g.Ops {
		if op.Backward || op.BackwardOf != "" {
			forward, backward = false, true
		}
		for _, cost := range op.Costs {
			backward = backward || cost.Backward > 0
		}
	}
	return forward, backward
}

// slowest is the link of least bandwidth: a training step is priced with one link for all pairs.
func slowest(links partition.Links) partition.Link {
	worst := links.Between
	for _, link := range links.Pairs {
		if link.BytesPerSecond > 0 && (worst.BytesPerSecond == 0 || link.BytesPerSecond < worst.BytesPerSecond) {
			worst.BytesPerSecond = link.BytesPerSecond
		}
		worst.Latency = max(worst.Latency, link.Latency)
	}
	return worst
}

// weight is a flag that takes a number of at least least.
type weight struct {
	value *float64
	least float64
}

// String returns the number; empty for zero.
func (w weight) String() string {
	if w.value == nil || *w.value == 0 {
		return ""
	}
	return strconv.FormatFloat(*w.value, 'g', -1, 64)
}

// Type is the placeholder in the usage.
func (w weight) Type() string { return "X" }

// Set reads "0.5" or "4".
func (w weight) Set(text string) error {
	hint := fmt.Sprintf("write a number of at least %g", w.least)
	value, err := number(text, hint)
	if err != nil {
		return err
	}
	const most = 1e6
	if value < w.least || value > most {
		return &usage{problem: "it is not in range", hint: hint + fmt.Sprintf(" and at most %g", most)}
	}
	*w.value = value
	return nil
}

// microBatches is a flag that takes a number, or auto.
type microBatches struct{ value *int }

// String returns the number; empty for auto.
func (m microBatches) String() string { return count{m.value, 1}.String() }

// Type is the placeholder in the usage.
func (m microBatches) Type() string { return "N|auto" }

// Set reads "8" or "auto".
func (m microBatches) Set(text string) error {
	if text == "auto" {
		*m.value = 0
		return nil
	}
	value, err := strconv.Atoi(text)
	const most = 1 << 16
	if err != nil || value < 1 || value > most {
		return &usage{problem: "it is neither auto nor a whole number in range", hint: fmt.Sprintf("write auto, or a number from 1 to %d", most)}
	}
	*m.value = value
	return nil
}

// stageOfZeRO is a flag that takes a stage of ZeRO.
type stageOfZeRO struct{ value *int }

// String returns the stage; empty for 0.
func (z stageOfZeRO) String() string { return count{z.value, 0}.String() }

// Type is the placeholder in the usage.
func (z stageOfZeRO) Type() string { return "0..3" }

// Set reads "0" to "3".
func (z stageOfZeRO) Set(text string) error {
	if len(text) != 1 || text[0] < '0' || text[0] > '3' {
		return &usage{problem: "it is not a stage of ZeRO", hint: "write 0, 1, 2 or 3"}
	}
	*z.value = int(text[0] - '0')
	return nil
}
