package account

import "github.com/spillway-ml/spillway/predictor/quantity"

// margin is how much more than the costliest task of its stage so far a task is expected to cost at most.
const margin = 1.5

// probeShare is the part of the free money that the first task of a stage is given whose price nobody knows.
const probeShare = 4

// Price is what is known of the price of a stage's tasks. The zero Price is unknown, which is not the same as free.
type Price struct {
	// Known says that a task of the stage has ended.
	Known bool `json:"known,omitempty"`
	// Highest is what the costliest task so far cost.
	Highest quantity.Money `json:"highest_picodollars,omitempty"`
}

// upper is what a task is expected to cost at most.
func (p Price) upper() quantity.Money { return p.Highest.Times(margin) }

// with returns what is known when other is known as well.
func (p Price) with(other Price) Price {
	return Price{Known: p.Known || other.Known, Highest: max(p.Highest, other.Highest)}
}

// Carried is what outlives the workflow of a run that continues as new. The zero Carried is a run's beginning.
type Carried struct {
	Spent  quantity.Money   `json:"spent_picodollars,omitempty"`
	Prices map[string]Price `json:"prices,omitempty"`
}
