package appraisal

import "github.com/spillway-ml/spillway/predictor/quantity"

// Report is everything that `spillway plan` tells: how a model would be divided among devices, and what that comes to.
type Report struct {
	Graph Graph `json:"graph"`
	// Objective is what is made small: "throughput", "step" or "latency".
	Objective string `json:"objective"`
	Training  bool   `json:"training"`
	// Plan is the one that was chosen; nil when nothing fits.
	Plan *Plan `json:"plan"`
	// Front are the plans that no other one beats in both time and idle memory, fastest first.
	Front []Choice `json:"front"`
	// Baselines are what simpler ways come to.
	Baselines []Baseline `json:"baselines"`
	// Infeasible says why nothing fits; nil when something does.
	Infeasible *Infeasibility `json:"infeasible,omitempty"`
	// Notes say what the figures leave out.
	Notes []string `json:"notes"`
}

// Graph is the op graph in a few numbers.
type Graph struct {
	Name            string         `json:"name"`
	Format          string         `json:"format"`
	Ops             int            `json:"ops"`
	Edges           int            `json:"edges"`
	BackwardOps     int            `json:"backward_ops"`
	ParameterBytes  quantity.Bytes `json:"parameter_bytes"`
	ActivationBytes quantity.Bytes `json:"activation_bytes"`
	WorkspaceBytes  quantity.Bytes `json:"workspace_bytes"`
	// TransfersMeasured says that the graph has times for its edges, and no sizes.
	TransfersMeasured bool `json:"transfers_measured"`
	// TotalSeconds is the time of all operations, forward and backward, by device class; a class that cannot run them all
	// is absent.
	TotalSeconds map[string]float64 `json:"total_seconds"`
}

// Plan is one way to divide a graph.
type Plan struct {
	// Seconds is what the objective measures.
	Seconds float64 `json:"seconds"`
	// LowerBoundSeconds is a time that no plan beats.
	LowerBoundSeconds float64 `json:"lower_bound_seconds"`
	Optimal           bool    `json:"optimal"`
	MicroBatches      int     `json:"micro_batches"`
	// MostReplicas is that of the stage with most.
	MostReplicas       int            `json:"most_replicas"`
	IdleBytes          quantity.Bytes `json:"idle_bytes"`
	PicodollarsPerHour quantity.Money `json:"picodollars_per_hour"`
	Reason             string         `json:"reason"`
	// Stages are those of a pipeline in order; empty when the plan is none.
	Stages []Stage `json:"stages"`
	// Devices are all that were given, in their order.
	Devices []Device `json:"devices"`
	// Schedule is what each stage does when; nil for plans that are no pipeline.
	Schedule *Schedule `json:"schedule,omitempty"`
}

// Stage is a part of a pipeline. Times are of one micro-batch.
type Stage struct {
	Devices          []string `json:"devices"`
	Ops              []string `json:"ops"`
	ForwardSeconds   float64  `json:"forward_seconds"`
	BackwardSeconds  float64  `json:"backward_seconds"`
	SendSeconds      float64  `json:"send_seconds"`
	AllReduceSeconds float64  `json:"all_reduce_seconds"`
	InFlight         int      `json:"micro_batches_in_flight"`
	Recompute        bool     `json:"recompute"`
}

// Device is a device and what it is given.
type Device struct {
	ID    string `json:"id"`
	Class string `json:"class"`
	// Stage counts from 1; 0 when the device is not used or the plan is no pipeline.
	Stage int `json:"stage"`
	// Ops are the IDs of the operations; empty when the device is not used.
	Ops         []string       `json:"ops"`
	LoadSeconds float64        `json:"load_seconds"`
	PeakBytes   quantity.Bytes `json:"peak_bytes"`
	MemoryBytes quantity.Bytes `json:"memory_bytes"`
	SentBytes   quantity.Bytes `json:"sent_bytes"`
}

// Schedule is a simulated run of the pipeline's schedule.
type Schedule struct {
	// Name is that of the kind of schedule: "1f1b", or "stream" for batches that follow each other without end.
	Name string `json:"name"`
	// Seconds is from the first instruction to the last.
	Seconds float64 `json:"seconds"`
	// Bubble is the part of the stages' time in which they do not compute, from 0 to 1.
	Bubble float64 `json:"bubble"`
	// Spans are sorted by stage, then time; empty where there are too many to show.
	Spans []Span `json:"spans"`
}

// Span is a time in which a stage is busy with one thing.
type Span struct {
	// Stage counts from 1.
	Stage int `json:"stage"`
	// Kind is "forward", "backward", "all-reduce" or "batch".
	Kind string `json:"kind"`
	// MicroBatch counts from 1.
	MicroBatch   int     `json:"micro_batch"`
	StartSeconds float64 `json:"start_seconds"`
	EndSeconds   float64 `json:"end_seconds"`
}

// Choice is a plan of the front in a line.
type Choice struct {
	Chosen             bool           `json:"chosen"`
	Seconds            float64        `json:"seconds"`
	IdleBytes          quantity.Bytes `json:"idle_bytes"`
	Devices            int            `json:"devices"`
	Stages             int            `json:"stages"`
	MicroBatches       int            `json:"micro_batches"`
	PicodollarsPerHour quantity.Money `json:"picodollars_per_hour"`
}

// Baseline is what a simpler way comes to.
type Baseline struct {
	Name string `json:"name"`
	// Seconds is 0 when it does not fit or cannot be.
	Seconds float64 `json:"seconds"`
	// ShortDevice lacks ShortBytes; empty when it fits.
	ShortDevice string         `json:"short_device,omitempty"`
	ShortBytes  quantity.Bytes `json:"short_bytes,omitempty"`
	// Problem says why there is no figure.
	Problem string `json:"problem,omitempty"`
}

// Infeasibility says why nothing fits and what would help.
type Infeasibility struct {
	Reason string `json:"reason"`
	// ShortDevice lacks ShortBytes in the plan that is short of the least; empty where more memory alone does not help.
	ShortDevice string         `json:"short_device"`
	ShortBytes  quantity.Bytes `json:"short_bytes"`
	Remedies    []Remedy       `json:"remedies"`
}

// Remedy is a change after which a plan was found.
type Remedy struct {
	Change  string  `json:"change"`
	Seconds float64 `json:"seconds"`
}
