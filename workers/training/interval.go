package training

import (
	"math"
	"time"
)

const (
	// shortestInterval and longestInterval bound the time between checkpoints that are made as often as is worth it.
	// Below the one, steps of a small model would wait for the disk; above the other, people would miss what is lost.
	shortestInterval = 5 * time.Second
	longestInterval  = 10 * time.Minute
	// usualTimeToLoss is how long an attempt goes on in the mean before it is lost, where nobody has told: a host that
	// is started anew each day.
	usualTimeToLoss = 24 * time.Hour
)

// Interval is the time between two checkpoints of which each takes cost, where attempts are lost after timeToLoss in
// the mean:
//
//	interval = sqrt(2 cost timeToLoss)
//
// It makes the part of the time that is wasted, cost/interval for checkpoints and interval/(2 timeToLoss) for what is
// done again, the least: a loss comes half-way between two in the mean. It is the first-order optimum of J. W. Young, A
// first order approximation to the optimum checkpoint interval, Communications of the ACM 17(9), 1974,
// https://doi.org/10.1145/361147.361115. The terms that J. T. Daly adds, A higher order estimate of the optimum
// checkpoint interval for restart dumps, Future Generation Computer Systems 22(3), 2006,
// https://doi.org/10.1016/j.future.2004.11.016, change it by less than a tenth while a checkpoint takes less than a
// tenth of the time to a loss.
//
// It is at least 5 s and at most 10 minutes; what is not positive is nothing to go by: a cost that is not known makes
// it the shortest, a time that is not that of a host which is started anew each day.
func Interval(cost, timeToLoss time.Duration) time.Duration {
	if timeToLoss <= 0 {
		timeToLoss = usualTimeToLoss
	}
	best := math.Sqrt(2 * max(cost, 0).Seconds() * timeToLoss.Seconds())
	return time.Duration(min(max(best, shortestInterval.Seconds()), longestInterval.Seconds()) * float64(time.Second))
}
