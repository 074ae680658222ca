package training

import (
	"math"
	"time"

	"github.com/spillway-ml/spillway/predictor"
)

const (
	// shortestInterval and longestInterval bound the time between checkpoints that are made as often as is worth it.
	// Below the one, steps of a small model would wait for the disk; above the other, people would miss what is lost.
	shortestInterval = 5 * time.Second
	longestInterval  = 10 * time.Minute
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
		timeToLoss = predictor.UsualTimeToLoss
	}
	best := math.Sqrt(2 * max(cost, 0).Seconds() * timeToLoss.Seconds())
	return time.Duration(min(max(best, shortestInterval.Seconds()), longestInterval.Seconds()) * float64(time.Second))
}

// costs follows what checkpoints cost a training: for how long each holds it up, while its state is copied and, where
// the disk or the processors are short, while it is written beside the steps that follow. That is what counts, and not
// how long the writing takes (N. H. Vaidya, Impact of checkpoint latency on overhead ratio of a checkpointing scheme,
// IEEE Transactions on Computers 46(8), 1997, https://doi.org/10.1109/12.609281). The zero value knows nothing.
type costs struct {
	step   time.Duration // a usual one; 0 while none was seen
	beside time.Duration // by how much those beside the checkpoint in the making were longer
	each   time.Duration // a checkpoint, the last ones above all; 0 while none was made
	// planned is what copying takes by the plan, which counts until a checkpoint was made.
	planned time.Duration
}

// stepped takes in a step, which began while a checkpoint was in the making or not.
func (c *costs) stepped(took time.Duration, saving bool) {
	switch {
	case saving && c.step > 0:
		c.beside += took - c.step
	case !saving && c.step == 0:
		c.step = took
	case !saving:
		c.step += (took - c.step) / 8
	}
}

// saved takes in a checkpoint: copying its state took so long, and all of it.
func (c *costs) saved(copying, all time.Duration) {
	cost := copying + min(max(c.beside, 0), max(all-copying, 0))
	if c.each > 0 {
		cost = (c.each + cost) / 2
	}
	c.each, c.beside = max(cost, 1), 0
}
