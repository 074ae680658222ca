package frontier

import "math"

// Rest is a stage under way, of one task that goes on unit by unit, such as a training by epochs: at the end of each it
// may go on with another allocation.
type Rest struct {
	// Units is how many are left in the middle, the one that begins now included; above 0.
	Units float64
	// Spread is the standard deviation of their logarithm.
	Spread float64
	// Choices are what it can be given, with the Seconds of one unit each, paid while they work. Their AtOnce and Held do
	// not count.
	Choices []Choice
	// Running is the choice that it runs with; -1 where it has not begun.
	Running int
}

// Options are what the rest takes and costs with each choice. Another choice than the running one is started while one
// more unit runs with that (delayed restart, CE-scaling, IPDPS'23): its start is paid, and takes no time but what that
// unit leaves of it. So where one unit is left there is no other choice than the running one, and each option is it.
func (r Rest) Options() []Option {
	options := make([]Option, len(r.Choices))
	for i, c := range r.Choices {
		if r.Running < 0 {
			options[i] = r.with(c, r.Units, c.Start)
			continue
		}
		now := r.Choices[r.Running]
		options[i] = r.with(now, r.Units, 0)
		if i == r.Running || r.Units <= 1 {
			continue
		}
		first, then := r.with(now, 1, 0), r.with(c, r.Units-1, 0)
		options[i] = Option{
			Seconds: math.Max(first.Seconds, c.Start) + then.Seconds,
			Cost:    first.Cost.Plus(then.Cost).Plus(c.Price.Times(float64(c.Workers) * c.Start)),
			Spread:  then.Spread, Doubt: then.Doubt, Capacity: then.Capacity,
		}
	}
	return options
}

// with is so many units with a choice, after a start.
func (r Rest) with(c Choice, units, start float64) Option {
	workers := float64(c.Workers)
	return Option{
		Seconds: start + units*c.Seconds,
		Cost:    c.Price.Times(workers * (start + units*c.Seconds)).Plus(c.Request.Times(workers)),
		Spread:  math.Hypot(r.Spread, c.Spread), Doubt: c.Doubt, Capacity: c.Capacity,
	}
}
