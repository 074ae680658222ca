package timeline

import (
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Attempt is one attempt of a task as it lies in time:
//
//	ScheduledAt ── queue ── AdmittedAt ── start ── StartedAt ── fetch, compute, publish ── EndedAt
//
// A time that is not known yet, or that nobody told, is zero.
type Attempt struct {
	Stage string `json:"stage"`
	Task  string `json:"task"`
	// Number counts the attempts of a task from 1.
	Number int             `json:"attempt"`
	Venue  predictor.Venue `json:"venue"`
	// Host is the host of the pool; empty for functions that do not tell.
	Host string `json:"host,omitempty"`
	// Outcome is how it ended; empty while it goes on. Cause and Error say why it did not succeed.
	Outcome predictor.Outcome `json:"outcome,omitempty"`
	Cause   predictor.Cause   `json:"cause,omitempty"`
	Error   string            `json:"error,omitempty"`

	// ScheduledAt is when the run put the task on its queue; for a later attempt, when it was put there again.
	ScheduledAt time.Time `json:"scheduled_at,omitzero"`
	// AdmittedAt is when a slot had taken it and its grant was held.
	AdmittedAt time.Time `json:"admitted_at,omitzero"`
	// StartedAt is when the user's code began.
	StartedAt time.Time `json:"started_at,omitzero"`
	// EndedAt is when it was over and its grant given back; the zero time while it goes on.
	EndedAt time.Time `json:"ended_at,omitzero"`
	// Wall is for how long the user's code ran; Fetch and Publish are the parts of it that it spent on reading and on
	// writing artifacts.
	Wall    time.Duration `json:"wall_ns,omitempty"`
	Fetch   time.Duration `json:"fetch_ns,omitempty"`
	Publish time.Duration `json:"publish_ns,omitempty"`

	// Settle is the time after Wall in which the result was handed over.
	Settle time.Duration `json:"settle_ns,omitempty"`

	// Cold says that a process or an environment was started for it.
	Cold bool `json:"cold,omitempty"`
	// Grant is what it held last.
	Grant quantity.Size `json:"grant"`
	// CPU and PeakMemory are what it took.
	CPU        time.Duration  `json:"cpu_ns,omitempty"`
	PeakMemory quantity.Bytes `json:"peak_memory_bytes,omitempty"`
	// GPUs are those that it had, by UUID, and GPUPeakMemory the most that it was seen to hold of their memory together; 0
	// where nobody saw it, as while it goes on.
	GPUs          []string       `json:"gpus,omitempty"`
	GPUPeakMemory quantity.Bytes `json:"gpu_peak_memory_bytes,omitempty"`
	// PredictedWall, in seconds, and PredictedMemory, in bytes, are what was expected of it; 0 when nothing was.
	PredictedWall   float64        `json:"predicted_wall_seconds,omitempty"`
	PredictedMemory quantity.Bytes `json:"predicted_memory_bytes,omitempty"`
	// Cost is what it cost.
	Cost quantity.Money `json:"cost_picodollars,omitempty"`
}

// Run is what a run's times are laid out against.
type Run struct {
	// EventAt is when the event that started the run was published; the zero time when none was, or nobody told.
	EventAt time.Time
	// StartedAt is when the run began, EndedAt when it was over; a run that goes on ends now.
	StartedAt, EndedAt time.Time
}
