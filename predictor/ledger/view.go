package ledger

import (
	"encoding/json"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// RunView is one run as it stands.
type RunView struct {
	// Run is the run's ID; Pipeline, App and Build say what runs. All but Run are empty while the run's start was not
	// seen.
	Run      string `json:"run"`
	Pipeline string `json:"pipeline"`
	App      string `json:"app"`
	Build    string `json:"build"`
	// State is how the run stands; RunRunning until its end was seen.
	State predictor.RunState `json:"state"`
	// Goal is the goal in force.
	Goal predictor.Goal `json:"goal"`
	// StartedAt is the start, or the first event of the run while its start was not seen.
	StartedAt time.Time `json:"started_at"`
	// EndedAt is the end; the zero time while the run goes on.
	EndedAt time.Time `json:"ended_at,omitzero"`
	// Error says why the run failed; empty otherwise.
	Error string `json:"error,omitempty"`
	// Notice is what somebody should know of a run that goes on: that it is blocked and why, or that its history is nearly
	// full. Empty otherwise.
	Notice string `json:"notice,omitempty"`
	// Result is the encoded result, cut to 4 KiB; a JSON string when what was left is not JSON.
	Result json.RawMessage `json:"result,omitempty"`
	// Event is the ID of the event that triggered the run; empty when none did.
	Event string `json:"event,omitempty"`
	// EventAt is when that event was published; the zero time when nobody told.
	EventAt time.Time `json:"event_at,omitzero"`
	// RetryOf is the run that this one tries again; empty for none.
	RetryOf string `json:"retry_of,omitempty"`
	// Team is whose it is; empty is the default team.
	Team string `json:"team,omitempty"`
	// Input is the SHA-256 of the encoded input, in hexadecimal; empty when it is not known, as of an input of more
	// than 1 KiB.
	Input string `json:"input_digest,omitempty"`
	// Stages are in the order in which the run first scheduled them.
	Stages []StageView `json:"stages"`
	// Progress is how far its running attempts are by their own word, those that end last first, 64 at most: of a run that
	// goes on, where an engine shows it, and in no ledger.
	Progress []predictor.Progress `json:"progress,omitempty"`
	// Learning is how the trainings of its running tasks go by their metrics, those that have diverged first, then those
	// that have plateaued, 64 at most: of a run that goes on, where an engine shows it, and in no ledger.
	Learning []predictor.Learning `json:"learning,omitempty"`
	// Totals are sums over all stages.
	Totals Totals `json:"totals"`
	// Decisions is how many decisions concerned the run: its windows, or the stages of its build while it ran.
	Decisions int `json:"decisions"`
	// Predicted is what was expected of the run when a forecast was first known; the zero value when none was.
	Predicted RunPrediction `json:"predicted"`
	// Latest is what is expected of the run now; of a run that has ended, what was expected last.
	Latest RunPrediction `json:"latest"`
	// Static is what the run would have cost at static sizes.
	Static Static `json:"static"`
	// Reused is what the run took from earlier runs, over all stages.
	Reused Reuse `json:"reused"`
	// Actual is what the run has taken up to its end, or to its last event while it goes on.
	Actual RunActual `json:"actual"`
}

// RunPrediction is what was expected of a run.
type RunPrediction struct {
	// FinishSeconds is the time from the run's start to its end.
	FinishSeconds predictor.Interval `json:"finish_seconds"`
	// Cost is what the run costs altogether, in US dollars.
	Cost predictor.Interval `json:"cost_usd"`
	// Runs is on how many earlier runs of the pipeline this rests. One says little: then the intervals are wide. 0 when
	// nothing was expected, when it is a guess from another pipeline, or when an engine told it that did not count.
	Runs int `json:"runs,omitempty"`
	// Basis says in a few words what this rests on; empty when nothing was expected, or when an engine told it that did
	// not say so.
	Basis string `json:"basis,omitempty"`
	// Late is how probable it was that the run ends after the deadline of the goal that it had then, and Dear that it
	// costs more than the budget, from 0 to 1; 0 without such a limit.
	Late float64 `json:"late_probability,omitempty"`
	Dear float64 `json:"dear_probability,omitempty"`
	// At is when this became known; the zero time when it never did.
	At time.Time `json:"at,omitzero"`
}

// RunActual is what a run has taken.
type RunActual struct {
	// Seconds is the time since the run's start.
	Seconds float64 `json:"seconds"`
	// Cost is what its attempts cost.
	Cost quantity.Money `json:"cost_picodollars"`
}

// Totals are sums over the attempts of all stages of a run.
type Totals struct {
	// QueueSeconds is the time spent waiting for a slot and for admission, StartSeconds for children and environments to
	// start, RunSeconds in users' code, and CPUSeconds on processors.
	QueueSeconds float64 `json:"queue_seconds"`
	StartSeconds float64 `json:"start_seconds"`
	RunSeconds   float64 `json:"run_seconds"`
	CPUSeconds   float64 `json:"cpu_seconds"`
	// Tasks counts finished tasks by venue; both venues are always present.
	Tasks map[predictor.Venue]int `json:"tasks"`
	// Attempts counts attempts that ended, Failures those that count against a stage's attempts, OutOfMemory those of them
	// that ran out of memory.
	Attempts    int `json:"attempts"`
	Failures    int `json:"failures"`
	OutOfMemory int `json:"out_of_memory"`
	// Cost is what the attempts cost.
	Cost quantity.Money `json:"cost_picodollars"`
}

// StageView is one stage of a run as it stands.
type StageView struct {
	// Name is the stage's own name.
	Name string `json:"name"`
	// Declared is the size that the stage's code asks for; the zero Size when it does not.
	Declared quantity.Size `json:"declared"`
	// Expected is how many tasks the run is known to have of this stage, scheduled or not yet; 0 when it did not say.
	Expected int `json:"expected"`
	// Scheduled, Running and Done count tasks put on the queue, attempts going on, and tasks finished.
	Scheduled int `json:"scheduled"`
	Running   int `json:"running"`
	Done      int `json:"done"`
	// Attempts counts attempts that ended. Failed counts those of them that count against the stage's attempts,
	// OutOfMemory the part of these that ran out of memory, Lost those whose host went away, Refused those that the venue
	// could not run.
	Attempts    int `json:"attempts"`
	Failed      int `json:"failed"`
	OutOfMemory int `json:"out_of_memory"`
	Lost        int `json:"lost"`
	Refused     int `json:"refused"`
	// Tasks counts finished tasks by venue; both venues are always present.
	Tasks map[predictor.Venue]int `json:"tasks"`
	// QueueSeconds, StartSeconds, RunSeconds and CPUSeconds are as in Totals.
	QueueSeconds float64 `json:"queue_seconds"`
	StartSeconds float64 `json:"start_seconds"`
	RunSeconds   float64 `json:"run_seconds"`
	CPUSeconds   float64 `json:"cpu_seconds"`
	// Wait is what one attempt waited; QueueSeconds is the sum over all.
	Wait Wait `json:"wait"`
	// PeakMemory is the highest memory of any attempt, in bytes.
	PeakMemory quantity.Bytes `json:"peak_memory_bytes"`
	// Memory is the peak beside the grant, by venue; empty before the first attempt.
	Memory map[predictor.Venue]Memory `json:"memory,omitempty"`
	// Grant is the size of the latest attempt.
	Grant quantity.Size `json:"grant"`
	// Slots is what the latest plan grants the stage by venue; both venues are always present, 0 once the run has ended.
	Slots map[predictor.Venue]int `json:"slots"`
	// PredictedWall is the mean of what was expected of attempts before they ran, in seconds, and ActualWall the mean of
	// what those that succeeded took. A zero Interval means that nothing was expected.
	PredictedWall predictor.Interval `json:"predicted_wall_seconds"`
	ActualWall    float64            `json:"actual_wall_seconds"`
	// PredictedMemory is the highest memory that was expected of any attempt at the pool, in bytes, to be compared with
	// the peak there.
	PredictedMemory predictor.Interval `json:"predicted_memory_bytes"`
	// WallError and MemoryError are the medians of predictor.RelativeError over attempts that were predicted and
	// succeeded, of memory at the pool: 0 is exact, 1 is twice as much or half. WallErrors and MemoryErrors say over how
	// many, the latest at most.
	WallError    float64 `json:"wall_error"`
	MemoryError  float64 `json:"memory_error"`
	WallErrors   int     `json:"wall_errors"`
	MemoryErrors int     `json:"memory_errors"`
	// GPU is what its attempts had and took of GPUs; zero without any.
	GPU StageGPU `json:"gpu,omitzero"`
	// Cost is what the attempts cost.
	Cost quantity.Money `json:"cost_picodollars"`
	// Reused is what the stage took from earlier runs.
	Reused Reuse `json:"reused"`
	// Step and Metrics are the latest that an attempt reported by Progress, Of how many steps, rows or bytes it said that
	// there are; 0 and empty when none did.
	Step    int                `json:"step,omitempty"`
	Of      int                `json:"of,omitempty"`
	Metrics map[string]float64 `json:"metrics,omitempty"`
}

// StageGPU is what the attempts of a stage had and took of GPUs.
type StageGPU struct {
	// Count is how many the latest attempt had, Class which.
	Count int    `json:"count"`
	Class string `json:"class,omitempty"`
	// Peak is the most memory that any attempt was seen to hold of all its GPUs together, 0 where nobody saw it; Grant is
	// what the latest attempt could have had.
	Peak  quantity.Bytes `json:"peak_bytes,omitempty"`
	Grant quantity.Bytes `json:"grant_bytes,omitempty"`
	// HeldSeconds is for how long attempts that ended had them, BusySeconds the part of it in which they computed, both
	// added up over GPUs. BusySeconds is 0 where nobody told.
	HeldSeconds float64 `json:"held_seconds,omitempty"`
	BusySeconds float64 `json:"busy_seconds,omitempty"`
}

func bothVenues(pool, function int) map[predictor.Venue]int {
	return map[predictor.Venue]int{predictor.Pool: pool, predictor.Function: function}
}
