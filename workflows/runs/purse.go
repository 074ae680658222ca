package runs

import (
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/search"
)

// margin is how much more than the dearest job so far, for as much training, a job is expected to cost at most, and how
// much longer it may take.
const margin = 1.5

// purse is what the jobs of one tuning may cost and how long they may take, besides what the run's account allows: what
// is spent and held never exceeds the limit. It is a value with one owner.
type purse struct {
	limit quantity.Money // 0 means none
	spent quantity.Money
	held  map[string]quantity.Money // by task: what it may cost in all
	// rate is the most that a job has cost for each unit that it trained, pace the longest that one took.
	rate, pace float64
	known      bool // a job has ended
}

func newPurse(limit quantity.Money) *purse {
	return &purse{limit: limit, held: map[string]quantity.Money{}}
}

// free is what is neither spent nor held.
func (p *purse) free() quantity.Money {
	free := p.limit - p.spent
	//workflowcheck:ignore the order changes nothing
	for _, held := range p.held {
		free -= held
	}
	return free
}

// price is what a job is expected to cost at most: as the dearest before it did for each unit. A job that goes on from
// nothing trains all that its trial has had.
func (p *purse) price(units float64) quantity.Money { return quantity.Money(p.rate * units * margin) }

// takes is how long a job is expected to take at most; 0 where none has ended.
func (p *purse) takes(units float64) time.Duration { return time.Duration(p.pace * units * margin) }

// hold holds what a job may cost, and reports whether it can be paid. Before any job has ended nobody knows what one
// costs: then the first goes alone, with all there is.
func (p *purse) hold(task string, units float64) bool {
	switch {
	case p.limit == 0:
		return true
	case !p.known && len(p.held) == 0 && p.free() > 0:
		p.held[task] = p.free()
		return true
	case p.known && p.price(units) <= p.free():
		p.held[task] = p.price(units)
		return true
	}
	return false
}

// grow lets a job cost least at least and want at best, as far as there is so much, and returns what it may cost now;
// less than least where there is not enough.
func (p *purse) grow(task string, least, want quantity.Money) quantity.Money {
	most := p.held[task] + p.free()
	if least <= most {
		p.held[task] = max(p.held[task], min(want, most))
	}
	return p.held[task]
}

// settle ends a job that cost so much, and trained so many units in a time. What failed tells nothing of how long one
// takes.
func (p *purse) settle(task string, cost quantity.Money, units float64, took time.Duration, ran bool) {
	delete(p.held, task)
	p.spent = p.spent.Plus(max(cost, 0))
	if units <= 0 {
		return
	}
	if ran || cost > 0 {
		p.rate, p.known = max(p.rate, float64(max(cost, 0))/units), true
	}
	if ran {
		p.pace = max(p.pace, float64(took)/units)
	}
}

// units is how much a job trains, where its trial goes on from a place.
func units(job search.Job, from float64) float64 { return job.To - from }
