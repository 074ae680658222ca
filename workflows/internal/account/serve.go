package account

import (
	"slices"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// outcome is what became of one who waits for money.
type outcome int

const (
	served outcome = iota // or it needs nothing any more
	lacks                 // there is not enough: nobody behind it is given money before it
	waits                 // for its stage's price, which a task in flight will tell
)

// serve gives money to those who wait, as far as it goes, and refuses those whom nothing can help.
func (a *Account) serve() {
	if a.share != nil {
		a.share.review(a, a.hand())
		return
	}
	for head := a.hand(); head != ""; head = a.hand() {
		if a.busy() {
			a.recall(head)
			return
		}
		a.refuse(head)
	}
}

// hand goes along the line, tasks in flight first, and returns the first that lacks money; empty when nobody does.
func (a *Account) hand() (head string) {
	waiting := slices.Clone(a.queue)
	for _, inFlight := range []bool{true, false} {
		for _, id := range waiting {
			if a.isInFlight(id) != inFlight {
				continue
			}
			switch a.try(id, head != "") {
			case served:
				a.leave(id)
			case lacks:
				if head == "" {
					head = id
				}
			case waits:
			}
		}
	}
	if head == "" {
		a.lendAhead()
	}
	return head
}

// isInFlight reports whether what waits is a task in flight that needs more, here or in a part.
func (a *Account) isInFlight(id string) bool {
	if t := a.tasks[id]; t != nil {
		return t.started
	}
	return a.parts[id].report.Grows
}

// try gives money to one who waits. Behind says that somebody before it lacks money: then only what costs nothing is
// served.
func (a *Account) try(id string, behind bool) outcome {
	t := a.tasks[id]
	switch {
	case t == nil:
		return a.lend(a.parts[id], behind)
	case t.more != nil:
		return a.grow(t, behind)
	default:
		return a.start(t, behind)
	}
}

// start lets a task start whose upper price is free.
func (a *Account) start(t *task, behind bool) outcome {
	price, free := a.prices[t.stage], a.free()
	begin := func(amount quantity.Money) outcome {
		a.hold(t, amount)
		t.started = true
		if a.share != nil {
			a.share.tasks--
		}
		return served
	}
	switch {
	case !a.limited && price.Known:
		return begin(price.upper())
	case !a.limited:
		return begin(t.quote)
	case price.Known && price.upper() <= free && (!behind || price.Highest == 0):
		return begin(price.upper())
	case price.Known:
		return lacks
	case t.quote > 0 && t.quote <= free && !behind:
		return begin(t.quote)
	case a.isTried(t.stage):
		return waits
	case free <= 0 || behind:
		return lacks
	case a.share == nil:
		return begin(max(free/probeShare, 1))
	case a.share.probe:
		return begin(free)
	default:
		return lacks
	}
}

// grow gives a task in flight the more that it asks for.
func (a *Account) grow(t *task, behind bool) outcome {
	free, least := a.free(), t.more.least-t.reserved
	switch {
	case !a.limited:
		a.hold(t, t.more.want-t.reserved)
	case least > free || behind:
		return lacks
	default:
		a.hold(t, min(t.more.want-t.reserved, max(least, free/2)))
	}
	t.more = nil
	return served
}

// isTried reports whether a task of the stage is in flight, which will tell its price.
func (a *Account) isTried(stage string) bool {
	//workflowcheck:ignore the order changes nothing
	for _, t := range a.tasks {
		if t.stage == stage && t.started {
			return true
		}
	}
	//workflowcheck:ignore the order changes nothing
	for _, p := range a.parts {
		if p.stage == stage && p.isBusy() {
			return true
		}
	}
	return false
}

// busy reports whether something runs whose end could make room.
func (a *Account) busy() bool {
	//workflowcheck:ignore the order changes nothing
	for _, t := range a.tasks {
		if t.started && (t.more == nil || !t.more.waits) {
			return true
		}
	}
	//workflowcheck:ignore the order changes nothing
	for _, p := range a.parts {
		if p.isBusy() {
			return true
		}
	}
	return false
}

// refuse turns away one whom nothing can help.
func (a *Account) refuse(id string) {
	a.leave(id)
	if p := a.parts[id]; p != nil {
		p.denied, p.due = p.report.Seq, true
		p.forget()
		return
	}
	a.turnAway(a.tasks[id], a.Limit(), a.Spent())
}

// turnAway refuses what a task waits for.
func (a *Account) turnAway(t *task, limit, spent quantity.Money) {
	needs := a.prices[t.stage].upper()
	if t.more != nil {
		needs = t.more.least
	}
	t.more, t.refused = nil, &Refusal{Needs: needs, Limit: limit, Spent: spent}
}

// SetLimit changes the budget of a run; 0 is none. What was reserved and handed out before stays so; what the parts
// do not use is called back.
func (a *Account) SetLimit(limit quantity.Money) {
	changed := a.limited != (limit > 0)
	a.limited, a.limit = limit > 0, limit
	for _, id := range sorted(a.parts) {
		p := a.parts[id]
		if changed {
			p.due, p.lack, p.blind = true, 0, p.seq+1
		}
		if a.limited && a.free() < 0 && p.lack == 0 {
			p.due, p.lack = true, 1
		}
		if !a.limited {
			p.forget()
		}
	}
	if !a.limited {
		for _, id := range sorted(a.parts) {
			a.leave(id)
		}
	}
	a.serve()
}
