package predictor

import (
	"time"

	"github.com/spillway-ml/spillway/predictor/fact"
)

// AlertKind is what an alert is about.
type AlertKind string

// The kinds of alerts.
const (
	// DeadlineAtRisk says that a run is expected to end after its deadline, or is past it.
	DeadlineAtRisk AlertKind = "deadline_at_risk"
	// BudgetAtRisk says that a run is expected to cost more than its budget, or has.
	BudgetAtRisk AlertKind = "budget_at_risk"
	// Recovered says that an earlier alert of the run holds no more.
	Recovered AlertKind = "recovered"
	// StreamsLost says that streams of NATS were gone, with all that was in them. It is about no run, and nothing recovers
	// it.
	StreamsLost AlertKind = "streams_lost"
	// LedgerFailing says that the ledger of costs cannot be kept, or was damaged and is made anew; runs go on. It is about
	// no run, and nothing recovers it.
	LedgerFailing AlertKind = "ledger_failing"
	// DiskScarce says that the disk of the state directory is nearly full, so that new artifacts are refused. It is about
	// no run.
	DiskScarce AlertKind = "disk_scarce"
)

// Alert says that the goal of a run is going to be missed, or no longer; or, without a run and a pipeline, what the
// engine has lost.
type Alert struct {
	// ID is the same whenever the same alert is sent again.
	ID       string    `json:"id"`
	Run      string    `json:"run"`
	Pipeline string    `json:"pipeline"`
	Kind     AlertKind `json:"kind"`
	// Recovers is, for Recovered, the kind of the alert that holds no more; empty for the others.
	Recovers AlertKind `json:"recovers,omitempty"`
	At       time.Time `json:"at"`
	Goal     fact.Goal `json:"goal"`
	// FinishSeconds is when the run is expected to end, from its start, CostUSD what it is expected to cost altogether, in
	// US dollars.
	FinishSeconds fact.Interval `json:"finish_seconds"`
	CostUSD       fact.Interval `json:"cost_usd"`
	// Message is one sentence with the numbers, for people.
	Message string `json:"message"`
}
