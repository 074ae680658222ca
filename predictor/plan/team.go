package plan

import "github.com/spillway-ml/spillway/predictor/quantity"

// Team is what one team may have. The zero value is the default team without bounds.
type Team struct {
	// Name is that of the team; empty is the default team.
	Name string `json:"name"`
	// Weight is its share of the pool where others want more than there is, in proportion to theirs; 0 is 1.
	Weight float64 `json:"weight,omitempty"`
	// Slots is how many of the pool its stages have together at most, running attempts among them; 0 is no bound.
	Slots int `json:"slots,omitempty"`
	// PerDay is what its attempts may cost on one day in UTC, at the pool and at functions; 0 is no bound.
	PerDay quantity.Money `json:"per_day_picodollars,omitempty"`
}

// TeamRow is how a team stands at a tick.
type TeamRow struct {
	Team
	// Held is how many slots its stages have at the pool, with attempts that go on although their slots were taken away,
	// Functions how many at functions.
	Held      int `json:"held"`
	Functions int `json:"functions,omitempty"`
	// Waiting are its tasks that wait in queues, Running its attempts that run.
	Waiting int `json:"waiting"`
	Running int `json:"running"`
	// Share is what part of the pool its slots are, by the resource of which they are the most; 0 to 1, or more while
	// more runs than there is room for.
	Share float64 `json:"share"`
	// Spent is what its attempts cost that ended today, in UTC, and Reserved what those that run and those that slots may
	// still begin cost at most.
	Spent    quantity.Money `json:"spent_picodollars"`
	Reserved quantity.Money `json:"reserved_picodollars,omitempty"`
	// Why says what its tasks wait for where that is a bound of the team; empty where it is none.
	Why string `json:"why,omitempty"`
}
