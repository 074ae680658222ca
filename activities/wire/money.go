package wire

import (
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/pricing"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// BudgetError is the type of the application error about what a run's budget does not allow.
const BudgetError = "SpillwayBudget"

// RaiseBudget ends the message of every such error: it is the advice that helps, and tells them from others where only
// the message is kept.
const RaiseBudget = ": raise --budget"

// ReserveUpdate is the update by which an attempt asks the workflow that scheduled its task for more money. It takes
// a Reserve and returns a Reserved.
const ReserveUpdate = "spillway.reserve"

// Reserve asks for more money for a task in flight. Amounts are what all its attempts may cost together.
type Reserve struct {
	Task string `json:"task"`
	// Least is what is needed to go on, Want what is better.
	Least quantity.Money `json:"least_picodollars"`
	Want  quantity.Money `json:"want_picodollars"`
	// Waits says that the attempt does not run until it has it, so that its end makes no room for others.
	Waits bool `json:"waits,omitempty"`
	// Unlimited says that the attempt knows of no budget. It is answered at once, with what it has when there is one now.
	Unlimited bool `json:"unlimited,omitempty"`
}

// Reserved is what a task may cost now. It is less than what was asked for when the run has no more.
type Reserved struct {
	// Unlimited says that the run has no budget any more.
	Unlimited bool           `json:"unlimited,omitempty"`
	Amount    quantity.Money `json:"amount_picodollars"`
	// Budget and Spent are the run's, for what is said of it.
	Budget quantity.Money `json:"budget_picodollars,omitempty"`
	Spent  quantity.Money `json:"spent_picodollars,omitempty"`
}

// Prices are those in force where a run was started. The zero value is free.
type Prices struct {
	// HostPerHour is what a host of the pool costs, HostCapacity what it has.
	HostPerHour  quantity.Money `json:"host_per_hour_picodollars"`
	HostCapacity quantity.Size  `json:"host_capacity"`
	// FunctionPerGiBSecond and FunctionPerRequest are those of functions; 0 where there are none.
	FunctionPerGiBSecond quantity.Money `json:"function_per_gib_second_picodollars,omitempty"`
	FunctionPerRequest   quantity.Money `json:"function_per_request_picodollars,omitempty"`
}

// Most is what one attempt of the stage can cost at most: its declared size for the whole of its timeout, where that
// is dearest. It is 0 when the stage does not declare both, or nothing has a price.
func (p Prices) Most(stage Stage) quantity.Money {
	if stage.Timeout <= 0 || stage.Declared.CPU <= 0 || stage.Declared.Memory <= 0 {
		return 0
	}
	most := pricing.Host{PerHour: p.HostPerHour, Capacity: p.HostCapacity}.For(stage.Declared, stage.Timeout)
	if !stage.PoolOnly {
		venue := predictor.FunctionVenue{PerGiBSecond: p.FunctionPerGiBSecond, PerRequest: p.FunctionPerRequest}
		most = max(most, venue.Price(stage.Declared.Memory+predictor.FunctionOverhead, stage.Timeout))
	}
	return most
}
