package runs

import (
	"cmp"
	"slices"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/search"
)

// margin is how much more than the dearest job so far, for as much training, a job is expected to cost at most.
const margin = 1.5

// purse is what the jobs of one tuning may cost and how long they may take, besides what the run's account allows: what
// is spent and held never exceeds the limit. It is a value with one owner.
type purse struct {
	limit quantity.Money // 0 means none
	spent quantity.Money
	held  map[string]quantity.Money // by task: what it may cost in all
	// growing are the jobs under way that ask for more; true where they do not run until they have it.
	growing map[string]bool
	refused map[string]bool // by task: whether it was the limit that refused what it asked for last
	seen    []seenJobs      // by units
}

// seenJobs are the jobs that trained so many units: what they cost and how long they took at most.
type seenJobs struct {
	units float64
	cost  quantity.Money
	took  time.Duration // 0 where none ended well
}

func newPurse(limit quantity.Money) *purse {
	return &purse{
		limit: limit, held: map[string]quantity.Money{}, growing: map[string]bool{}, refused: map[string]bool{},
	}
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

// like returns the jobs by which one that trains so many units is judged, and by how much it is larger: those that
// trained as much, else the next smaller, of which it is that part, else the next larger, since what all jobs have in
// common, such as their start, does not shrink with them.
func (p *purse) like(units float64) (seen seenJobs, larger float64, found bool) {
	for _, one := range p.seen {
		if one.units > units && found {
			break
		}
		seen, larger, found = one, max(units/one.units, 1), true
	}
	return seen, larger, found
}

// price is what a job is expected to cost at most; 0 where none has ended.
func (p *purse) price(units float64) quantity.Money {
	seen, larger, _ := p.like(units)
	return seen.cost.Times(larger * margin)
}

// takes is how long a job is expected to take at most; 0 where none has ended. It has no margin: one that takes longer
// is stopped.
func (p *purse) takes(units float64) time.Duration {
	seen, larger, _ := p.like(units)
	return time.Duration(float64(seen.took) * larger)
}

// pays reports whether another job can be paid, and what is held for it. Before any job has ended nobody knows what one
// costs: then the first goes alone, with all there is. Jobs under way that need more come first.
func (p *purse) pays(units float64) (amount quantity.Money, can bool) {
	_, _, known := p.like(units)
	switch {
	case p.limit == 0:
		return 0, true
	case len(p.growing) > 0:
		return 0, false
	case !known:
		return p.free(), len(p.held) == 0 && p.free() > 0
	}
	return p.price(units), p.price(units) <= p.free()
}

// hold holds what a job may cost, and reports whether it can be paid.
func (p *purse) hold(task string, units float64) bool {
	amount, can := p.pays(units)
	if can && p.limit > 0 {
		p.held[task] = amount
	}
	return can
}

// allows reports whether a job under way may cost so much.
func (p *purse) allows(task string, least quantity.Money) bool {
	held, runs := p.held[task]
	return runs && least <= held+p.free()
}

// busyBeside reports whether a job runs beside this one, which runs itself or waits: its end may free money.
func (p *purse) busyBeside(task string) bool {
	if _, runs := p.held[task]; !runs {
		return false
	}
	//workflowcheck:ignore the order changes nothing
	for other := range p.held {
		if other != task && !p.growing[other] {
			return true
		}
	}
	return false
}

// grow lets a job under way cost least at least and want at best, as far as there is so much, and returns what it may
// cost now; less than least where there is not enough, and nothing where the job is over.
func (p *purse) grow(task string, least, want quantity.Money) quantity.Money {
	if p.allows(task, least) {
		p.held[task] = max(p.held[task], min(want, p.held[task]+p.free()))
	}
	return p.held[task]
}

// settle ends a job that cost so much, and trained so many units in a time. What failed tells nothing of how long one
// takes.
func (p *purse) settle(task string, cost quantity.Money, units float64, took time.Duration, ran bool) {
	delete(p.held, task)
	delete(p.growing, task)
	cost = max(cost, 0)
	p.spent = p.spent.Plus(cost)
	if units <= 0 || !ran && cost == 0 {
		return
	}
	if !ran {
		took = 0
	}
	at, found := slices.BinarySearchFunc(p.seen, units, func(one seenJobs, units float64) int {
		return cmp.Compare(one.units, units)
	})
	if !found {
		p.seen = slices.Insert(p.seen, at, seenJobs{units: units})
	}
	p.seen[at].cost, p.seen[at].took = max(p.seen[at].cost, cost), max(p.seen[at].took, took)
}

// units is how much a job trains, where its trial goes on from a place.
func units(job search.Job, from float64) float64 { return job.To - from }
