package account

import (
	"maps"
	"slices"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Account is the money of a run, or of one part of it. Make one with New or NewPart. It has one owner; methods are
// not to be called concurrently. IDs of tasks and of parts are different from each other.
type Account struct {
	limited  bool
	limit    quantity.Money // of the run; of a part, what it has been given and not given back
	spent    quantity.Money
	reserved quantity.Money
	prices   map[string]Price
	tasks    map[string]*task
	queue    []string         // the tasks and parts that wait for money, in the order in which they asked
	parts    map[string]*part // of a run
	share    *share           // of a part
}

// task is one that waits for its start or is in flight.
type task struct {
	stage    string
	quote    quantity.Money
	started  bool
	reserved quantity.Money
	more     *more
	refused  *Refusal
}

// more is what a task in flight asks for, as totals of its reservation.
type more struct {
	least, want quantity.Money
	waits       bool // it does not run until it has it
}

// New returns the account of a run. Limit is its budget; 0 is none.
func New(limit quantity.Money, carried Carried) *Account {
	a := &Account{
		limited: limit > 0, limit: limit, spent: carried.Spent, prices: map[string]Price{},
		tasks: map[string]*task{}, parts: map[string]*part{},
	}
	maps.Copy(a.prices, carried.Prices)
	return a
}

// Carry returns what a run that continues as new takes along. Nothing may be in flight.
func (a *Account) Carry() Carried { return Carried{Spent: a.spent, Prices: maps.Clone(a.prices)} }

// Parted reports whether parts are open, whose money is not known for good.
func (a *Account) Parted() bool { return len(a.parts) > 0 }

// Spent is what is known to be spent, by the parts as well.
func (a *Account) Spent() quantity.Money {
	spent := a.spent
	//workflowcheck:ignore the order changes nothing
	for _, p := range a.parts {
		spent = spent.Plus(p.report.Spent)
	}
	return spent
}

// Limit is the budget in force; 0 is none.
func (a *Account) Limit() quantity.Money {
	if !a.limited {
		return 0
	}
	return a.limit
}

// Ask has a task wait for its start. Quote is what it can cost at most as far as its stage declares it; 0 when that
// is not known.
func (a *Account) Ask(id, stage string, quote quantity.Money) {
	a.tasks[id] = &task{stage: stage, quote: max(quote, 0)}
	a.queue = append(a.queue, id)
	a.serve()
}

// Started reports whether the task may run, or runs.
func (a *Account) Started(id string) bool { t := a.tasks[id]; return t != nil && t.started }

// Refused tells why the task gets no money; nil when it is not refused. Settle it then.
func (a *Account) Refused(id string) *Refusal {
	if t := a.tasks[id]; t != nil {
		return t.refused
	}
	return nil
}

// Reserved is what is held for a task; 0 for one that is not known.
func (a *Account) Reserved(id string) quantity.Money {
	if t := a.tasks[id]; t != nil {
		return t.reserved
	}
	return 0
}

// Limited reports whether there is a budget.
func (a *Account) Limited() bool { return a.limited }

// Grow asks for more for a task in flight: its reservation shall be least at least, and want at best. Waits says that
// the task does not run until it has it.
func (a *Account) Grow(id string, least, want quantity.Money, waits bool) {
	t := a.tasks[id]
	if t == nil || !t.started || least <= t.reserved {
		return
	}
	if t.more == nil {
		a.queue = append(a.queue, id)
	}
	t.more, t.refused = &more{least: least, want: max(least, want), waits: waits}, nil
	a.serve()
}

// Withdraw takes back what a task in flight asks for: it goes on where it needs less.
func (a *Account) Withdraw(id string) {
	if t := a.tasks[id]; t != nil && t.more != nil {
		t.more = nil
		a.leave(id)
		a.serve()
	}
}

// Growing reports whether the task's wish for more is open.
func (a *Account) Growing(id string) bool { t := a.tasks[id]; return t != nil && t.more != nil }

// Settle ends a task, also one that waits: it cost so much. Ran says that it ran to an end of its own, so that its
// cost is a price.
func (a *Account) Settle(id string, cost quantity.Money, ran bool) {
	t := a.tasks[id]
	if t == nil {
		return
	}
	delete(a.tasks, id)
	a.leave(id)
	a.reserved -= t.reserved
	cost = max(cost, 0)
	a.spent = a.spent.Plus(cost)
	if ran || cost > 0 {
		a.learn(t.stage, Price{Known: true, Highest: cost})
	}
	a.serve()
}

// learn takes over what is known of a price.
func (a *Account) learn(stage string, price Price) {
	if known := a.prices[stage].with(price); known != a.prices[stage] {
		a.prices[stage] = known
	}
}

// leave takes id out of the line.
func (a *Account) leave(id string) {
	a.queue = slices.DeleteFunc(a.queue, func(waiting string) bool { return waiting == id })
}

// free is what is neither spent nor reserved nor handed out. It is negative when a limit was lowered below that, and
// never more than 0 while parts that ran without a limit have not said what they took.
func (a *Account) free() quantity.Money {
	left := a.limit - a.spent - a.reserved
	blind := false
	//workflowcheck:ignore the order changes nothing
	for _, p := range a.parts {
		left -= p.report.Spent + p.held()
		blind = blind || p.blind > 0
	}
	if blind {
		return min(left, 0)
	}
	return left
}

// hold reserves so much more for a task.
func (a *Account) hold(t *task, amount quantity.Money) {
	if a.share != nil && !a.limited {
		a.share.take(a, amount)
	}
	t.reserved = t.reserved.Plus(amount)
	a.reserved = a.reserved.Plus(amount)
}
