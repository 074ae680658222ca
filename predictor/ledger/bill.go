package ledger

import (
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Dimension is what a bill is divided by.
type Dimension string

// The dimensions of a bill.
const (
	ByRun      Dimension = "run"
	ByPipeline Dimension = "pipeline"
	ByStage    Dimension = "stage" // the stages of all builds and pipelines of an app: "digits/score"
	ByTeam     Dimension = "team"
	ByVenue    Dimension = "venue"
	ByHost     Dimension = "host"
)

// BillQuery selects what a bill is about. The zero query is all that is known, by stage.
type BillQuery struct {
	By Dimension
	// Since and Until bound the time; what lies across a bound is divided in proportion to time. A zero time is no bound.
	Since, Until time.Time
	// Run and Pipeline keep only what is theirs.
	Run, Pipeline string
	// Team keeps only what that team has spent, by the name that people know it by; empty is no filter.
	Team string
}

// Bill says who spent what. All its sums are exact: the lines' costs sum to Attempts, Idle and Total.
type Bill struct {
	By    Dimension `json:"by"`
	Since time.Time `json:"since"`
	Until time.Time `json:"until"`
	Lines []Line    `json:"lines"` // by total, the largest first, then by name
	// Attempts is what attempts held: Pool at hosts and Function at functions.
	Attempts quantity.Money `json:"attempts_picodollars"`
	Pool     quantity.Money `json:"pool_picodollars"`
	Function quantity.Money `json:"function_picodollars"`
	// Idle is what hosts cost while nobody held them; Unused the part of it in which no stage held anything, which nobody
	// caused.
	Idle   quantity.Money `json:"idle_picodollars"`
	Unused quantity.Money `json:"unused_picodollars"`
	// Total is Attempts and Idle.
	Total quantity.Money `json:"total_picodollars"`
	// Incomplete are the times within the bill of which something is not known, because what told of it is gone; oldest
	// first.
	Incomplete []Gap `json:"incomplete,omitempty"`
	// HoursSince says that the bill begins, or ends, before hours are known: with a whole day, in UTC, instead of the time
	// that was asked for. The zero time says that it does not.
	HoursSince time.Time `json:"hours_since,omitzero"`
}

// Gap is a time of which something is not known.
type Gap struct {
	// Since is the zero time where it is not known when it began.
	Since time.Time `json:"since,omitzero"`
	Until time.Time `json:"until"`
}

// Line is what one of a bill's dimension spent.
type Line struct {
	// Name is the run, the pipeline, the stage, the venue or the host; empty for what nobody caused.
	Name string `json:"name"`
	// Count is how many attempts ended, Tasks how many tasks were done, Reused how many results were taken from earlier
	// runs.
	Count  int `json:"attempts"`
	Tasks  int `json:"tasks"`
	Reused int `json:"reused,omitempty"`
	// Held is for how long attempts held their grants.
	Held time.Duration `json:"held_ns"`
	// Pool and Function are what the attempts cost at each venue, Idle the line's part of what hosts cost while nobody
	// held them.
	Pool     quantity.Money `json:"pool_picodollars"`
	Function quantity.Money `json:"function_picodollars"`
	Idle     quantity.Money `json:"idle_picodollars"`
	Total    quantity.Money `json:"total_picodollars"`
	// Wasted is the part of Pool and Function that went to attempts which did not succeed.
	Wasted quantity.Money `json:"wasted_picodollars"`
}

// Static is what a run would have cost, and how long it would have taken, at one static size for each stage and
// without functions.
type Static struct {
	// Actual is what it cost.
	Actual quantity.Money `json:"actual_picodollars"`
	// Cost is what the same attempts would have cost had each held the static size of its stage: what its code asks for,
	// or else the largest that any attempt of the stage was seen to need. Known is false when that cannot be said.
	Cost  quantity.Money `json:"cost_picodollars"`
	Known bool           `json:"known"`
	// Seconds is how long the run would have taken then, on the hosts on which it ran; 0 while it goes on, and where
	// that cannot be said. What it took is in RunActual.
	Seconds float64 `json:"seconds,omitempty"`
	// Short is how many attempts would have run out of memory at it.
	Short int `json:"short,omitempty"`
	// Sizes are the static sizes by stage.
	Sizes map[string]quantity.Size `json:"sizes,omitempty"`
}

// Diff compares two runs.
type Diff struct {
	A RunView `json:"a"`
	B RunView `json:"b"`
	// SameInput, SameBuild and SameGoal say what is equal; an input that is not known is equal to none.
	SameInput bool        `json:"same_input"`
	SameBuild bool        `json:"same_build"`
	SameGoal  bool        `json:"same_goal"`
	Stages    []StageDiff `json:"stages"` // those of A in order, then those that only B has
}

// StageDiff is one stage of two runs; a stage that a run does not have is nil.
type StageDiff struct {
	Name string     `json:"name"`
	A    *StageView `json:"a,omitempty"`
	B    *StageView `json:"b,omitempty"`
}

// Reuse is what a stage of a run did not need to do.
type Reuse struct {
	// Tasks is how many results were taken from earlier runs.
	Tasks int `json:"tasks"`
	// Saved is what they cost when they were made, and Seconds for how long their attempts ran.
	Saved   quantity.Money `json:"saved_picodollars"`
	Seconds float64        `json:"saved_seconds"`
	// From is the run of which the latest one came.
	From string `json:"from"`
}
