package memory

import (
	"slices"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Division is how what a run has left of its deadline and its budget was divided over its stages last. The zero value
// is that of a run of which that was never done; one without Parts says that it could not be.
type Division struct {
	// At is by the clock.
	At fact.Instant `json:"at,omitempty"`
	// Told is when the run had told of something last.
	Told fact.Instant `json:"told,omitempty"`
	// Goal is what was divided, Called and Ended how many stages the run had called by then, and been done with.
	Goal   fact.Goal `json:"goal,omitzero"`
	Called int       `json:"called,omitempty"`
	Ended  int       `json:"ended,omitempty"`
	// InTime and InBudget are the probabilities of the plan that it is of, as it was made.
	InTime   float64 `json:"in_time,omitempty"`
	InBudget float64 `json:"in_budget,omitempty"`
	Parts    []Part  `json:"parts,omitempty"`
}

// Part is what one stage has of it.
type Part struct {
	Stage string `json:"stage"`
	// Functions is how many function slots the plan gives it, of the memory class, and Seconds how long it takes then.
	Functions int            `json:"functions,omitempty"`
	Class     quantity.Bytes `json:"class_bytes,omitempty"`
	Seconds   float64        `json:"seconds"`
	// After is for how many seconds the run goes on by the plan once the stage is done.
	After float64 `json:"after"`
	// Hastened is for how many it does where what follows is as fast as it can be.
	Hastened float64 `json:"hastened,omitempty"`
	// Rest is for how many seconds it goes on then, and Costs what the stages that follow cost, in US dollars, four times
	// in five; After has a margin.
	Rest  fact.Interval `json:"rest_seconds,omitzero"`
	Costs fact.Interval `json:"costs_usd,omitzero"`
	// Reserved is what its functions must leave of the budget: for what its own tasks take of the pool, and for the stages
	// after it.
	Reserved quantity.Money `json:"reserved,omitempty"`
}

// Part is what the run's division has for a stage, where that is of the goal that it has now.
func (r *Run) Part(stage string) (part Part, divided bool) {
	if r.Division.Of(r.Goal) == 0 {
		return Part{}, false
	}
	i := slices.IndexFunc(r.Division.Parts, func(p Part) bool { return p.Stage == stage })
	if i < 0 {
		return Part{}, false
	}
	return r.Division.Parts[i], true
}

// Of is when the goal was divided last; 0 where it was not.
func (d Division) Of(goal fact.Goal) fact.Instant {
	if d.Goal != goal {
		return 0
	}
	return d.At
}

// Called is how many stages r has called, and with how many of these it is done.
func (m *State) Called(r *Run) (called, ended int) {
	for _, id := range r.Stages {
		if st := m.Stages[id]; st == nil || st.Shares[r.ID] == nil || !st.Shares[r.ID].Works() {
			ended++
		}
	}
	return len(r.Stages), ended
}
