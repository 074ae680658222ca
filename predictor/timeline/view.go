package timeline

import (
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// View is a run's attempts in as many marks as can be drawn.
type View struct {
	// From and To are the times at the edges: the run's event or start, and its end or now.
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
	// Lanes are the stages in the order in which they were first scheduled.
	Lanes []Lane `json:"lanes"`
}

// Lane is one stage. Either Attempts or Bins is empty.
type Lane struct {
	Stage string `json:"stage"`
	// Count is how many attempts there are.
	Count int `json:"count"`
	// Attempts are all of them by ScheduledAt, when they are few enough to be drawn one by one.
	Attempts []Attempt `json:"attempts,omitempty"`
	// Bins are equal parts of the time from From to To, when they are not.
	Bins []Bin `json:"bins,omitempty"`
}

// Bin is a part of time in a lane.
type Bin struct {
	// Queued, Starting and Pool and Function running are the mean numbers of attempts in each state over the bin.
	Queued   float64 `json:"queued"`
	Starting float64 `json:"starting"`
	Pool     float64 `json:"pool"`
	Function float64 `json:"function"`
	// Ended counts the attempts that ended within it, Failed those of them that did not succeed, OutOfMemory those that
	// ran out of memory.
	Ended       int `json:"ended"`
	Failed      int `json:"failed"`
	OutOfMemory int `json:"out_of_memory"`
}

// Allocation is what one stage held and used over time.
type Allocation struct {
	Stage string `json:"stage"`
	// Points are at equal distances in time from From on, each the mean over the Step that follows it.
	From   time.Time     `json:"from"`
	Step   time.Duration `json:"step_ns"`
	Points []Held        `json:"points"`
}

// Held is what the attempts of a stage held and used at a time, together.
type Held struct {
	// Pool and Function are attempts by venue.
	Pool     float64 `json:"pool"`
	Function float64 `json:"function"`
	// GrantedCPU and UsedCPU are cores, GrantedMemory and UsedMemory bytes.
	GrantedCPU    float64 `json:"granted_cpu_cores"`
	UsedCPU       float64 `json:"used_cpu_cores"`
	GrantedMemory float64 `json:"granted_memory_bytes"`
	UsedMemory    float64 `json:"used_memory_bytes"`
	// GPUs is how many they held, BusyGPUs how many of them computed, as far as that is told, UsedGPUMemory the bytes of
	// their memory that were taken. What nobody looked at counts as nothing.
	GPUs          float64 `json:"gpus,omitempty"`
	BusyGPUs      float64 `json:"busy_gpus,omitempty"`
	UsedGPUMemory float64 `json:"used_gpu_memory_bytes,omitempty"`
}

// Look is one sample of an attempt that was running.
type Look struct {
	Stage   string
	Task    string
	Attempt int
	Venue   predictor.Venue
	At      time.Time
	CPU     quantity.Milli // mean share of cores since the look before
	Memory  quantity.Bytes
	Grant   quantity.Size
	// GPUMemory is what it holds of its GPUs, GPUBusy how many of them compute; GPUBusy is negative where nobody tells.
	GPUMemory quantity.Bytes
	GPUBusy   quantity.Milli
}

// Breakdown says where a run's time went. Its rows sum to Wall exactly.
//
// At every moment of the run one row is charged: of what its attempts were doing at that moment, the most useful one
// (compute before fetch before publish before start before queue); where no attempt was under way, the engine that was
// deciding what is next.
type Breakdown struct {
	// Wall is from the event that started the run, or from its start when there was none, to its end.
	Wall time.Duration `json:"wall_ns"`
	// Broker is from the event's publication to the run's start.
	Broker time.Duration `json:"broker_ns"`
	// Engine is when nothing was on a queue or running: the workflow was deciding what is next, or its end was being told.
	Engine time.Duration `json:"engine_ns"`
	// Queue is when tasks waited for a slot, for admission or for the next attempt, and none was further.
	Queue time.Duration `json:"queue_ns"`
	// Start is when processes or environments were started, and none was further.
	Start time.Duration `json:"start_ns"`
	// Fetch, Compute and Publish are when the user's code read artifacts, computed, and wrote artifacts or had its result
	// handed over.
	Fetch   time.Duration `json:"fetch_ns"`
	Compute time.Duration `json:"compute_ns"`
	Publish time.Duration `json:"publish_ns"`
	// Unattributed is when an attempt was under way and nothing tells what it was doing.
	Unattributed time.Duration `json:"unattributed_ns"`
}

// Curve is one metric of a task that reports progress.
type Curve struct {
	Stage  string `json:"stage"`
	Task   string `json:"task"`
	Metric string `json:"metric"`
	// Points are in the order of their steps; when there are more than can be kept, every second one was dropped.
	Points []CurvePoint `json:"points"`
}

// CurvePoint is what a task reported at a step.
type CurvePoint struct {
	Step  int       `json:"step"`
	Value float64   `json:"value"`
	At    time.Time `json:"at"`
}
