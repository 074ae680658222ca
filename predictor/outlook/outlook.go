package outlook

import (
	"time"

	"github.com/spillway-ml/spillway/predictor/fact"
)

// Outlook is what is expected of a run under a goal, and what else could be had.
type Outlook struct {
	// Run and Goal say what was asked.
	Run  string    `json:"run"`
	Goal fact.Goal `json:"goal"`
	// At is the time of the answer; Elapsed is how long the run has gone on then, in seconds, and Spent what it has cost,
	// in US dollars.
	At      time.Time `json:"at"`
	Elapsed float64   `json:"elapsed_seconds"`
	Spent   float64   `json:"spent_usd"`
	// Known is false when nothing is known of what is left of the run; Why then says what is missing.
	Known bool   `json:"known"`
	Why   string `json:"why,omitempty"`
	// Runs is how many earlier runs say what follows the stages that go on; 0 when nothing is known. What one run says
	// is a guess.
	Runs int `json:"earlier_runs,omitempty"`
	// Chosen is what would be done under the goal, Present what is being done now.
	Chosen  Alternative `json:"chosen"`
	Present Alternative `json:"present"`
	// Alternatives are those on the frontier, by FinishSeconds: of no two does one finish earlier and cost no more.
	Alternatives []Alternative `json:"alternatives"`
	// Unpriced are stages with tasks to come whose cost Chosen leaves out, because whether functions take them is not
	// decided or never was: only the high end of its cost has them.
	Unpriced []string `json:"-"`
	// Feasible says that Chosen meets the goal. Summary is one sentence about it, for people: what happens under the goal,
	// or why it cannot be met and what could be.
	Feasible bool   `json:"feasible"`
	Summary  string `json:"summary"`
}

// Alternative is one way to finish a run.
type Alternative struct {
	// Name says it in a few words: "pool only", "4 functions for score".
	Name string `json:"name"`
	// Functions is how many function slots each stage would have.
	Functions map[string]int `json:"functions,omitempty"`
	// FinishSeconds is the time from the run's start to its end, CostUSD what the run costs altogether, in US dollars.
	FinishSeconds fact.Interval `json:"finish_seconds"`
	CostUSD       fact.Interval `json:"cost_usd"`
}
