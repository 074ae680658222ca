package wire

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// WorkflowQueue is the task queue of the workflows of one build, so that a run is always replayed by the code that
// started it.
func WorkflowQueue(app, build string) string { return app + "@" + build }

// ParseWorkflowQueue is the inverse of WorkflowQueue; ok is false when the queue is not one of workflows.
func ParseWorkflowQueue(queue string) (app, build string, ok bool) {
	app, build, ok = strings.Cut(queue, "@")
	return app, build, ok && app != "" && build != "" && !strings.Contains(build, "/")
}

// StoppedWithRun is why an attempt was stopped whose run was cancelled, or has ended without its task.
const StoppedWithRun = "the run was cancelled, or ended without this task"

// Task is the first argument of every stage activity: what the engine must know to run it. The second is the user's
// input, which the engine never decodes.
type Task struct {
	Version  int               `json:"v"`
	Run      string            `json:"run"`
	Pipeline string            `json:"pipeline"`
	Stage    predictor.StageID `json:"stage"`
	// ID is unique within the run and the same at every attempt: "score-17".
	ID string `json:"id"`
	// Input is the size of the encoded input and of the artifacts that it names.
	Input quantity.Bytes `json:"input_bytes"`
	// Declared is the stage's hint; the zero Size when it has none.
	Declared quantity.Size `json:"declared"`
	// MaxAttempts is how many attempts may fail by the user's code or by running out of time; at least 1. What runs out of
	// memory is tried again with more, beyond it.
	MaxAttempts int `json:"max_attempts"`
	// Timeout bounds one attempt; 0 means none.
	Timeout time.Duration `json:"timeout_ns,omitempty"`
	// PoolOnly says that the task is on the queue that functions do not poll.
	PoolOnly bool `json:"pool_only,omitempty"`
	// Command says that the input is a Command and the output a CommandResult, and that the host runs it itself.
	Command bool `json:"command,omitempty"`
	// Traceparent is the trace context that came with the run's event; empty for none.
	Traceparent string `json:"traceparent,omitempty"`
	// CacheVersion is that of the stage's results; empty for none.
	CacheVersion string `json:"cache_version,omitempty"`
	// Recommends says that the app is asked for the size of each attempt.
	Recommends bool `json:"recommends,omitempty"`
	// Budgeted says that the task may cost no more than Reserved, all attempts together, unless ReserveUpdate is given
	// more.
	Budgeted bool           `json:"budgeted,omitempty"`
	Reserved quantity.Money `json:"reserved_picodollars,omitempty"`
	// Batches says that the functions of the task's build take several tasks with one invoke; those of earlier builds
	// take one.
	Batches bool `json:"batches,omitempty"`
	// Asks says that the run answers ReserveUpdate also while it has no budget, so that a long task hears of one that
	// comes later.
	Asks bool `json:"asks,omitempty"`
	// Resume is the checkpoint of a venue that gave the task up, of the task before it of the same trial of a tuning, or
	// of the same task in the run that this one tries again, from which the first attempt here goes on; the zero Ref when
	// there is none.
	Resume activities.Ref `json:"resume,omitzero"`
	// Tells asks for Checkpoint, Metrics and Took in the Result.
	Tells bool `json:"tells,omitempty"`
	// Secrets says that the stage names secrets, for which whoever runs the task asks. It is no right to any.
	Secrets bool `json:"secrets,omitempty"`
	// Stretch is which part of a training the task does; it asks for Prospect in the Result.
	Stretch *predictor.Stretch `json:"stretch,omitempty"`
}

// Result is what every stage activity returns.
type Result struct {
	// Output is the user's output, encoded.
	Output json.RawMessage `json:"output"`
	// Venue says where the attempt ran that succeeded.
	Venue predictor.Venue `json:"venue"`
	// Cost is what all attempts of the task cost together.
	Cost quantity.Money `json:"cost_picodollars"`
	// Checkpoint is the task's newest checkpoint, which is Task.Resume where it has made none, Metrics are those of its
	// last progress and NotFinite those, by name, that were NaN or infinite there. Took is how long the attempt took that
	// succeeded, from when it had its slot. They are there where Task.Tells asks for them.
	Checkpoint activities.Ref     `json:"checkpoint,omitzero"`
	Metrics    map[string]float64 `json:"metrics,omitempty"`
	NotFinite  []string           `json:"not_finite,omitempty"`
	Took       time.Duration      `json:"took_ns,omitempty"`
	// Prospect is what the metric of the training has to be expected to come to at its end; nil where Task.Stretch does
	// not ask for it, or nobody can tell.
	Prospect *predictor.Prospect `json:"prospect,omitempty"`
}

// Heartbeat is the detail that an attempt leaves for the next one of the same task.
type Heartbeat struct {
	// Failures counts attempts that ended as Failed or TimedOut, and those that ran out of memory where no more could be
	// given.
	Failures int `json:"failures,omitempty"`
	// OutOfMemory counts those that ran out of memory; LargestFailed is the largest memory grant at which one did.
	OutOfMemory   int            `json:"out_of_memory,omitempty"`
	LargestFailed quantity.Bytes `json:"largest_failed_bytes,omitempty"`
	// LargestFailedGPU is the same for device memory.
	LargestFailedGPU quantity.Bytes `json:"largest_failed_gpu_bytes,omitempty"`
	// HostWait is for how long the attempts that ended last, one after another, waited on hosts that had no GPU, or too
	// little memory, for them. Its JSON name is from when GPUs alone were waited for.
	HostWait time.Duration `json:"gpu_wait_ns,omitempty"`
	// Spent is what earlier attempts cost, Running what this one has cost so far: if it is lost, that is what it is taken
	// to have cost.
	Spent   quantity.Money `json:"spent_picodollars,omitempty"`
	Running quantity.Money `json:"running_picodollars,omitempty"`
	// Reserved is what the run has reserved for the task since it was scheduled, where that is more than before. Budgeted
	// says that the run was given a budget since.
	Reserved quantity.Money `json:"reserved_picodollars,omitempty"`
	Budgeted bool           `json:"budgeted,omitempty"`
	// Checkpoint is the newest checkpoint; the zero Ref when there is none.
	Checkpoint activities.Ref `json:"checkpoint"`
	// Step, Of and Metrics are the newest progress.
	Step    int                `json:"step,omitempty"`
	Of      int                `json:"of,omitempty"`
	Metrics map[string]float64 `json:"metrics,omitempty"`
	// NotFinite are the metrics of that, by name, that were NaN or infinite.
	NotFinite []string `json:"not_finite,omitempty"`
}

// Types of application errors that cross Temporal.
const (
	// RefusedError says that a venue cannot run a task; the SDK schedules it again on the pool's own queue.
	RefusedError = "SpillwayVenueRefused"
	// StageError says that the user's code failed.
	StageError = "SpillwayStageFailed"
	// MemoryError says that an attempt ran out of memory.
	MemoryError = "SpillwayOutOfMemory"
	// LostError says that an attempt's host went away, or could not go on with it. It counts against nothing and is always
	// retried.
	LostError = "SpillwayAttemptLost"
	// TimeoutError says that an attempt ran past its timeout.
	TimeoutError = "SpillwayTimedOut"
)
