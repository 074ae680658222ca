package predictor

import "github.com/spillway-ml/spillway/predictor/quantity"

// Training is what the plan of a split training said beside what came. What is not measured yet is 0.
type Training struct {
	// Model is a digest of the names, shapes and types of its parameters; Executor is what ran it: "torch", "gomlx".
	Model    string `json:"model"`
	Executor string `json:"executor"`
	// Schedule is "gpipe" or "1f1b".
	Schedule string `json:"schedule"`
	// Batch is the number of samples of a step, MicroBatches into how many parts it is cut.
	Batch        int `json:"batch"`
	MicroBatches int `json:"micro_batches"`
	// Steps counts those that are done, TotalSteps those that are wanted.
	Steps      int64 `json:"steps"`
	TotalSteps int64 `json:"total_steps"`
	// PredictedStepSeconds and StepSeconds are the time of a step; the second is a median.
	PredictedStepSeconds float64 `json:"predicted_step_seconds"`
	StepSeconds          float64 `json:"step_seconds,omitempty"`
	// Bubble is the measured part of the parts' time in which they wait, from 0 to 1.
	Bubble float64 `json:"bubble,omitempty"`
	// Parts are in the order in which a sample passes them.
	Parts []TrainingPart `json:"parts"`
	// Alternatives are the plans that were not chosen.
	Alternatives []TrainingAlternative `json:"alternatives,omitempty"`
	// Reason says why this plan.
	Reason string `json:"reason,omitempty"`
}

// TrainingPart is one part of a split.
type TrainingPart struct {
	// Device is its ID, Kind "cpu" or "cuda".
	Device string `json:"device"`
	Kind   string `json:"kind"`
	// Threads is how many CPU threads it uses.
	Threads int `json:"threads,omitempty"`
	// Ops counts its operations; First and Last name them.
	Ops   int    `json:"ops"`
	First string `json:"first,omitempty"`
	Last  string `json:"last,omitempty"`
	// Recompute says that activations are computed again before the backward pass.
	Recompute bool `json:"recompute,omitempty"`
	// PredictedPeakBytes and PeakBytes are the most that it holds; CapacityBytes is what it may hold, 0 where nothing
	// bounds it.
	PredictedPeakBytes quantity.Bytes `json:"predicted_peak_bytes"`
	PeakBytes          quantity.Bytes `json:"peak_bytes,omitempty"`
	CapacityBytes      quantity.Bytes `json:"capacity_bytes,omitempty"`
	// PredictedBusySeconds and BusySeconds are how long it works in a step.
	PredictedBusySeconds float64 `json:"predicted_busy_seconds"`
	BusySeconds          float64 `json:"busy_seconds,omitempty"`
}

// TrainingAlternative is a plan that was considered.
type TrainingAlternative struct {
	Partitions   int     `json:"partitions"`
	MicroBatches int     `json:"micro_batches"`
	StepSeconds  float64 `json:"step_seconds"`
	// PeakBytes is the most that its fullest part holds.
	PeakBytes quantity.Bytes `json:"peak_bytes"`
	// Reason says why it was not chosen.
	Reason string `json:"reason,omitempty"`
}
