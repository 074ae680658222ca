package frontier

import (
	"math"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Choice is what the tasks of a stage can be given: workers of a size, at a venue.
type Choice struct {
	// Seconds is how long one task takes with it, without start-up; at least 0.
	Seconds float64
	// Start is how many seconds pass before its first task can begin; at least 0.
	Start float64
	// Workers is how many a task is divided over; at least 1.
	Workers int
	// AtOnce is how many tasks there is room for at once, by an account's concurrency or by what is held; at least 1, or
	// the choice cannot be taken.
	AtOnce int
	// Price is that of one worker for a second.
	Price quantity.Money
	// Request is what each worker of each task costs besides.
	Request quantity.Money
	// Held says that workers are paid from their start until the stage ends, whether tasks have work for all of them or
	// not, and for at least MinimumSeconds, as hosts are. Otherwise each is paid while it starts or works, as functions
	// are.
	Held           bool
	MinimumSeconds float64
	// Spread, Doubt and Capacity are those of the Option.
	Spread, Doubt float64
	Capacity      int
}

// Option is what a stage of so many tasks takes and costs with this choice: as many tasks at once as there is room for,
// wave by wave (CE-scaling, IPDPS'23: a start, and the trials over the concurrency rounded up, each as long as its
// epochs take).
// Not possible where there is room for none.
func (c Choice) Option(tasks int) (o Option, possible bool) {
	if c.AtOnce < 1 || c.Workers < 1 || tasks < 1 {
		return Option{}, false
	}
	atOnce := min(c.AtOnce, tasks)
	waves := (tasks + atOnce - 1) / atOnce
	o = Option{Seconds: c.Start + float64(waves)*c.Seconds, Spread: c.Spread, Doubt: c.Doubt, Capacity: c.Capacity}
	started := float64(atOnce) * float64(c.Workers)
	if c.Held {
		o.Cost = c.Price.Times(started * math.Max(o.Seconds, c.MinimumSeconds))
	} else {
		o.Cost = c.Price.Times(started*c.Start + float64(tasks)*float64(c.Workers)*c.Seconds)
	}
	o.Cost = o.Cost.Plus(c.Request.Times(float64(tasks) * float64(c.Workers)))
	return o, true
}
