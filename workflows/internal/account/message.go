package account

import "github.com/spillway-ml/spillway/predictor/quantity"

// Block is what a run tells one of its parts of the part's money. The newest counts, by Seq.
type Block struct {
	Seq int `json:"seq"`
	// Part is which part it is for, where several have the same address one after another; empty means the one that
	// reads it.
	Part string `json:"part,omitempty"`
	// Unlimited says that the run has no budget: the part takes what it needs, and keeps count.
	Unlimited bool `json:"unlimited,omitempty"`
	// Blind asks for a Report: the run has had no budget meanwhile, and does not know what the part has taken.
	Blind bool `json:"blind,omitempty"`
	// Granted is all that the part was ever given.
	Granted quantity.Money `json:"granted_picodollars,omitempty"`
	// Probe says that nobody knows the stage's price, and that this part finds it out: one task may have all that is
	// unused.
	Probe bool `json:"probe,omitempty"`
	// Lack asks for what is unused, once it is so much; 0 asks for nothing.
	Lack quantity.Money `json:"lack_picodollars,omitempty"`
	// Denied is the Seq of the Report whose need will never be met.
	Denied int `json:"denied,omitempty"`
	// Price is what the run knows of the price of the part's stage.
	Price Price `json:"price"`
	// Limit and Spent are the run's, for what a refusal says.
	Limit quantity.Money `json:"limit_picodollars,omitempty"`
	Spent quantity.Money `json:"spent_picodollars,omitempty"`
}

// Report is what a part tells its run. The newest counts, by Seq.
type Report struct {
	Seq int `json:"seq"`
	// Seen and Granted are the Seq and the Granted of the newest Block that the part had when it reported.
	Seen    int            `json:"seen"`
	Granted quantity.Money `json:"granted_picodollars,omitempty"`
	// Taken is all that it took without asking while the run had no budget, Returned all that it gave back, Spent
	// what its tasks cost.
	Taken    quantity.Money `json:"taken_picodollars,omitempty"`
	Returned quantity.Money `json:"returned_picodollars,omitempty"`
	Spent    quantity.Money `json:"spent_picodollars,omitempty"`
	// Least is how much more it needs to go on with a task that waits, Want how much more it could use; 0 is none.
	Least quantity.Money `json:"least_picodollars,omitempty"`
	Want  quantity.Money `json:"want_picodollars,omitempty"`
	// Starts says that a task waits for its start, Grows that one in flight needs more than was reserved.
	Starts bool `json:"starts,omitempty"`
	Grows  bool `json:"grows,omitempty"`
	// Tasks is how many are still to be started.
	Tasks int `json:"tasks,omitempty"`
	// Stuck says that nothing runs whose end could help the task that waits.
	Stuck bool `json:"stuck,omitempty"`
	// Price is what the part knows of its stage's price.
	Price Price `json:"price"`
}

// Refusal is why a task gets no money.
type Refusal struct {
	// Needs is what it was to be given; 0 when its price is not known.
	Needs quantity.Money
	// Limit is the run's budget, Spent what is spent of it as far as it is known here.
	Limit, Spent quantity.Money
}
