package runs

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/search"
)

// TuneWorkflow is the name of the child workflow that runs a part of a tuning. app.Main registers it. Its ID is that of
// the run, "/", the name of the tuning and "-tune"; the tunings of that name after the first end in "-1", "-2" and on.
const TuneWorkflow = "spillway.tune"

// TuningID is the workflow ID of the tuning of a name in a run: the first, from 0 on, or a later one.
func TuningID(run, name string, number int) string {
	if number == 0 {
		return fmt.Sprintf("%s/%s-tune", run, name)
	}
	return fmt.Sprintf("%s/%s-tune-%d", run, name, number)
}

// TuningQuery is answered by a tuning's child workflow, while it runs and after: it takes a TuningPage and returns a
// Tuning.
const TuningQuery = "spillway.tuning"

// TuneRequest says what is tuned, and how. Stage, Space, Options, Input and Objective are required.
type TuneRequest struct {
	Stage wire.Stage `json:"stage"`
	// Name is what the tuning is called, a name as stages have; empty means that of the stage.
	Name  string       `json:"name,omitempty"`
	Space search.Space `json:"space"`
	// Options say how the space is searched; a trial is given from Least to Most in the unit that the stage counts in.
	Options search.Options `json:"options"`
	// Input is what all trials are given. Of a function it is its encoded input, an object, into which the values of a
	// configuration are set by name, and the field "trial" (Turn). Of a command (Command) it is an encoded wire.Command
	// whose arguments and environment hold placeholders: {NAME} of each parameter, and {trial}, {rung}, {from} and {to}
	// (Turn); "{{" is a brace itself.
	Input   json.RawMessage `json:"input"`
	Command bool            `json:"command,omitempty"`
	// Turns says that the input of a function takes the field "trial". A command is told its turn where a placeholder asks
	// for it. Who is told of no turn does the same in every rung, so that the search has one: Random, which is the
	// algorithm then where Options name none.
	Turns bool `json:"turns,omitempty"`
	// Objective is the field of a function's output that is minimised, or maximised where Options say so, with dots into
	// objects. Of a command it is one of the values that it reports, or else one of the metrics of its last progress.
	Objective string `json:"objective"`
	// Time is how long the tuning takes from the start of its first job: no job is begun that is expected to take longer,
	// and what runs then is stopped; 0 means no limit.
	Time time.Duration `json:"time_ns,omitempty"`
	// Money is what its jobs may cost together; 0 means no limit but the run's.
	Money quantity.Money `json:"money_picodollars,omitempty"`
}

// Turn is what a job is told of itself: the stage trains from From to To, in the unit that the search counts in, and
// saves a checkpoint there, from which the trial's next job goes on. From is 0 where there is none.
type Turn struct {
	Number int     `json:"number"` // of the trial, from 0
	Rung   int     `json:"rung"`   // from 0
	From   float64 `json:"from"`
	To     float64 `json:"to"`
}

// TuningPage says which trials a query is about, since the answer of a query is bounded. The zero value asks for the
// first ones.
type TuningPage struct {
	// First is the number of the first trial that is wanted.
	First int `json:"first,omitempty"`
	// Trials is how many are wanted at most; 0 means MaxTrialsTold, which is the most.
	Trials int `json:"trials,omitempty"`
}

// MaxTrialsTold is how many trials a query returns at most.
const MaxTrialsTold = 2000

// MaxTrials is how many trials a tuning has at most, and MaxJobs how many jobs it can have: what passes from one part
// of it to the next is bounded.
const (
	MaxTrials = 5000
	MaxJobs   = 15000
)

// MaxInput is how many bytes the input of a tuning has at most: each task of it bears them, and each part of the tuning
// ends after so many bytes.
const MaxInput = 128 << 10

// Why a tuning has ended.
const (
	EndedDone     = "done"     // the search has no job left
	EndedTime     = "time"     // TuneRequest.Time has passed
	EndedDeadline = "deadline" // another job is expected to end after the run's deadline
	EndedMoney    = "money"    // no other job can be paid from TuneRequest.Money
	EndedBudget   = "budget"   // no other job can be paid from the run's budget
	// EndedFailed is that of a tuning none of whose trials told an objective, EndedCancelled of one that was cancelled.
	EndedFailed    = "failed"
	EndedCancelled = "cancelled"
)

// Tuning is how a tuning stands.
type Tuning struct {
	Stage     string         `json:"stage"`
	Name      string         `json:"name"`
	Space     search.Space   `json:"space"`
	Options   search.Options `json:"options"` // with the defaults filled in
	Objective string         `json:"objective"`
	Command   bool           `json:"command,omitempty"`
	// Begun is how many trials have begun; Trials are all of them, or those of the page that was asked for.
	Begun  int     `json:"begun"`
	Trials []Trial `json:"trials"`
	// Best is the number of the best trial so far; nil while none has told an objective.
	Best *int `json:"best,omitempty"`
	// Ended is why it has ended; empty while it goes on.
	Ended string `json:"ended,omitempty"`
	// Spent is what its jobs have cost that are over.
	Spent     quantity.Money `json:"spent_picodollars"`
	StartedAt time.Time      `json:"started_at,omitzero"` // of its first job
	EndedAt   time.Time      `json:"ended_at,omitzero"`
	// Counts are of all trials that have begun, by State.
	Counts map[TrialState]int `json:"counts,omitempty"`
}

// TrialState is what has become of a trial.
type TrialState string

// The states of trials.
const (
	TrialRunning  TrialState = "running"  // a job of it is under way
	TrialWaiting  TrialState = "waiting"  // it may go on, or not
	TrialStopped  TrialState = "stopped"  // it does not go on, for others were better or the tuning has ended
	TrialFinished TrialState = "finished" // it has had all there is
	TrialDiverged TrialState = "diverged" // its objective was no finite number
	TrialFailed   TrialState = "failed"   // a job of it failed for good
)

// Trial is one configuration, and how far it came.
type Trial struct {
	Number        int                  `json:"number"`
	Configuration search.Configuration `json:"configuration"`
	State         TrialState           `json:"state"`
	// Why says why it was stopped, diverged or failed: "rung 1: 7th of 9, the best 3 went on".
	Why  string     `json:"why,omitempty"`
	Jobs []TrialJob `json:"jobs"`
}

// TrialJob is one task of a trial: it brings it to the end of a rung.
type TrialJob struct {
	Rung int     `json:"rung"`
	From float64 `json:"from"` // 0 where there was no checkpoint to go on from
	To   float64 `json:"to"`
	Task string  `json:"task"` // its ID in the run, such as "train-17"
	// Objective is what it told; nil while it runs, where it failed, and where it told no finite number.
	Objective *float64       `json:"objective,omitempty"`
	Spent     quantity.Money `json:"spent_picodollars"`
	StartedAt time.Time      `json:"started_at,omitzero"` // when it was scheduled
	EndedAt   time.Time      `json:"ended_at,omitzero"`
	// Reused is the run that did it, of which this one is a retry: Task is none of this run's then. Empty where this run
	// did it.
	Reused string `json:"reused,omitempty"`
}
