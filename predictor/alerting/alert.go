package alerting

import (
	"time"

	"github.com/spillway-ml/spillway/predictor/fact"
)

// Kind is what an alert is about.
type Kind string

// The kinds of alerts.
const (
	// KindDeadlineAtRisk says that a run is expected to end after its deadline, or is past it.
	KindDeadlineAtRisk Kind = "deadline_at_risk"
	// KindBudgetAtRisk says that a run is expected to cost more than its budget, or has.
	KindBudgetAtRisk Kind = "budget_at_risk"
	// KindGoalImpossible says that no plan that is known meets the goal of a run with the probability that it asks for,
	// and what could be met. It is told when the run starts or its goal changes.
	KindGoalImpossible Kind = "goal_impossible"
	// KindRecovered says that an earlier alert of the run holds no more.
	KindRecovered Kind = "recovered"
	// KindStreamsLost says that streams of NATS were gone, with all that was in them. It is about no run, and nothing
	// recovers it.
	KindStreamsLost Kind = "streams_lost"
	// KindLedgerFailing says that the ledger of costs cannot be kept, or was damaged and is made anew; runs go on. It is
	// about no run, and nothing recovers it.
	KindLedgerFailing Kind = "ledger_failing"
	// KindDiskScarce says that the disk of the state directory is nearly full, so that new artifacts are refused. It is
	// about no run.
	KindDiskScarce Kind = "disk_scarce"
)

// Alert says that the goal of a run is going to be missed, or no longer; or, without a run and a pipeline, what the
// engine has lost.
type Alert struct {
	// ID is the same whenever the same alert is sent again.
	ID       string `json:"id"`
	Run      string `json:"run"`
	Pipeline string `json:"pipeline"`
	Kind     Kind   `json:"kind"`
	// Recovers is, for KindRecovered, the kind of the alert that holds no more; empty for the others.
	Recovers Kind      `json:"recovers,omitempty"`
	At       time.Time `json:"at"`
	Goal     fact.Goal `json:"goal"`
	// FinishSeconds is when the run is expected to end, from its start, CostUSD what it is expected to cost altogether, in
	// US dollars.
	FinishSeconds fact.Interval `json:"finish_seconds"`
	CostUSD       fact.Interval `json:"cost_usd"`
	// Message is one sentence with the numbers, for people.
	Message string `json:"message"`
}
