package plan

import (
	"slices"
	"time"

	"github.com/spf13/pflag"

	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/workers/devicelist"
	"github.com/spillway-ml/spillway/workers/graph"
	"github.com/spillway-ml/spillway/workers/partition"
)

// planFlags are the flags of `plan`.
type planFlags struct {
	devices, format, objective, svg string
	lambda                          float64
	microBatches, batch             int
	budget                          time.Duration // 0 is the usual
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
	set.Var(flag.Choice{Value: &f.format, Of: formats()}, "format",
		"the format of the graph; auto is by what the file holds")
	set.Var(flag.Choice{Value: &f.objective, Of: []string{"throughput", "step", "latency"}}, "objective",
		"the time to make small (default step for training, else throughput)")
	set.Var(flag.Weight{Value: &f.lambda, Least: 0}, "lambda",
		"how much idle memory counts: as many times the least possible time as the part of all memory that is idle "+
			"(default 0)")
	set.Var(flag.MicroBatches{Value: &f.microBatches}, "micro-batches",
		"into how many parts a step cuts the batch (default auto)")
	set.Var(flag.Count{Value: &f.batch, Least: 1}, "batch",
		"samples of a batch: the most micro-batches; a model is run with so many (default 32), and Piper's costs are "+
			"multiplied by it (default: its own)")
	set.Var(flag.Span{Value: &f.budget}, "budget",
		"how long to search for the best plan, counted in the work of a core of 2.5 GHz, and once more for those with "+
			"fewer devices (default 1s)")
	set.BoolVar(&f.training, "training", false, "plan for training (default where the graph has a backward pass)")
	set.BoolVar(&f.inference, "inference", false, "plan for inference: no backward pass, no gradients")
	set.Var(flag.Weight{Value: &f.weightBytes, Least: 1}, "weight-bytes",
		"bytes of one parameter in the graph, and of its gradient")
	set.Var(flag.Weight{Value: &f.optimizerBytes, Least: 0}, "optimizer-bytes",
		"bytes of optimizer state for each parameter (default 16 less weight and gradient: Adam)")
	set.Var(flag.ZeRO{Value: &f.zero}, "zero", "what replicas share out: 0 nothing, 1 the optimizer's state, 2 "+
		"gradients too, 3 weights too (default 0)")
	set.BoolVar(&f.recompute, "recompute", false,
		"allow stages to compute activations again before the backward pass where memory is short")
	set.BoolVar(&f.json, "json", false, "print everything as JSON; the units are in the names")
	set.Var(flag.Destination{Value: &f.svg}, "svg", "write a picture of the plan to this `FILE`")
	flag.AddSharedOut(set, &f.sharedOut, "--svg")
}

// check refuses flags that contradict each other.
func (f *planFlags) check() error {
	if f.devices == "" {
		return &fault.UsageError{
			Problem: "it needs --devices",
			Hint:    "give the file of the devices; `spillway plan --help` shows one",
		}
	}
	if err := flag.Exclusive([]string{"--training", "--inference"}, f.training, f.inference); err != nil {
		return err
	}
	if !f.inference {
		return nil
	}
	for _, name := range []string{"weight-bytes", "optimizer-bytes", "zero", "recompute"} {
		if f.set.Changed(name) {
			return &fault.UsageError{Problem: "--" + name + " is for training", Hint: "leave it or --inference out"}
		}
	}
	if f.objective == "step" {
		return &fault.UsageError{
			Problem: "--objective step is for training",
			Hint:    "write --objective throughput or latency, or leave --inference out",
		}
	}
	return nil
}

// problem is what is to be planned.
func (f *planFlags) problem(found graph.Recorded, list devicelist.List) (partition.Problem, error) {
	forward, backward := found.Graph.Passes()
	training := f.training || (!f.inference && backward)
	switch {
	case f.inference && !forward:
		return partition.Problem{}, &fault.UsageError{Problem: "the backward pass of this graph is made of " +
			"operations of its own", Hint: "leave --inference out, or record the forward pass only"}
	case f.training && !backward:
		return partition.Problem{}, &fault.UsageError{
			Problem: "this graph has no backward pass",
			Hint:    "record it while training, or leave --training out",
		}
	}
	p := partition.Problem{
		Graph: found.Graph, Devices: list.Devices, Links: list.Links, IdleWeight: f.lambda, MicroBatches: f.microBatches,
		MostMicroBatches: found.Samples, Budget: f.budget,
		Training: training && forward, // otherwise the operations hold all that already
		Memory: partition.Memory{
			Weight: f.weightBytes, Gradient: f.weightBytes, Optimizer: max(16-2*f.weightBytes, 0),
			ZeRO: f.zero, Recompute: f.recompute,
		},
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
			return p, &fault.UsageError{
				Problem: "--micro-batches is for training steps",
				Hint:    "write --objective step, or leave it out",
			}
		}
		return p, nil
	}
	if !training {
		return p, &fault.UsageError{
			Problem: "this graph has no backward pass",
			Hint:    "write --objective throughput or latency",
		}
	}
	p.Links.Between, p.Links.Pairs = p.Links.Slowest(), nil
	return p, nil
}
