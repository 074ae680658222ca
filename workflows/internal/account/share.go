package account

import (
	"maps"
	"slices"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// share is what the account of a part knows besides, of its run's money.
type share struct {
	stage                    string
	tasks                    int // still to be started
	granted, taken, returned quantity.Money
	block                    quantity.Money // the size of the last block
	probe                    bool
	lack                     quantity.Money
	seen                     int // Seq of the newest Block
	limit, spent             quantity.Money
	seq                      int   // of the newest Report
	price                    Price // that the run knows
	due                      bool  // a Report is to be sent
	asked, urgent, toldStuck bool  // what the newest Report said that still stands
}

// NewPart returns the account of a part of a run that begins with this Block and will run so many tasks of stage.
func NewPart(stage string, tasks int, first Block) *Account {
	a := &Account{
		prices: map[string]Price{}, tasks: map[string]*task{}, parts: map[string]*part{},
		share: &share{stage: stage, tasks: tasks},
	}
	a.Told(first)
	a.share.due = false
	return a
}

// Price is what the part knows of its stage's price.
func (a *Account) Price() Price { return a.prices[a.share.stage] }

// Told takes over what the run tells a part.
func (a *Account) Told(block Block) {
	s := a.share
	if more := block.Granted - s.granted; more > 0 {
		s.granted, s.block = block.Granted, more
		a.limit += more
		s.asked, s.urgent = false, false
	}
	newest := block.Seq > s.seen
	if newest {
		bounded := s.seen > 0 && !a.limited && !block.Unlimited
		if bounded {
			s.take(a, 0)
		}
		// the run must know what is in flight, also where this part has never heard that there was no budget
		if bounded || block.Blind {
			s.due, s.asked, s.urgent = true, false, false
		}
		a.limited = !block.Unlimited
		s.seen, s.probe, s.lack, s.toldStuck = block.Seq, block.Probe, block.Lack, false
		s.limit, s.spent, s.price = block.Limit, block.Spent, block.Price
		a.learn(s.stage, block.Price)
	}
	a.serve()
	if newest && block.Denied > 0 && block.Denied == s.seq {
		s.asked, s.urgent = false, false
		if a.hand() != "" && !a.busy() {
			s.turnAllAway(a)
		}
	}
}

// turnAllAway refuses all that wait: they are of one stage, and wait for the same.
func (s *share) turnAllAway(a *Account) {
	for _, id := range a.queue {
		a.turnAway(a.tasks[id], s.limit, s.spent)
	}
	a.queue = nil
}

// take notes what a part needs beyond what it has, while its run has no budget.
func (s *share) take(a *Account, amount quantity.Money) {
	if short := amount - a.free(); short > 0 {
		s.taken = s.taken.Plus(short)
		a.limit = a.limit.Plus(short)
	}
}

// review gives back what is called back or of no use here, and decides whether the run must be told something. Head
// is the first that lacks money; empty when nobody does.
func (s *share) review(a *Account, head string) {
	if !a.limited {
		s.due = false
		return
	}
	stuck := head != "" && !a.busy()
	if free := a.free(); free > 0 && (stuck || s.lack > 0 && free >= s.lack) {
		s.returned += free
		a.limit -= free
		s.lack, s.due = 0, true
	}
	price := a.prices[s.stage]
	low := price.Known && s.want(a) > 0 && a.free() < s.block/2
	if stuck && !s.toldStuck || head != "" && !s.urgent || low && !s.asked || price.Known && !s.price.Known {
		s.due = true
	}
}

// want is how much more the part could use.
func (s *share) want(a *Account) quantity.Money {
	price := a.prices[s.stage]
	return max(price.upper().Times(float64(s.tasks))-a.free(), 0)
}

// ReportDue reports whether Report has something new for the run.
func (a *Account) ReportDue() bool { return a.share.due }

// Report returns the Report to send to the run now.
func (a *Account) Report() Report {
	s := a.share
	head := a.hand()
	s.seq++
	report := Report{
		Seq: s.seq, Seen: s.seen, Granted: s.granted, Taken: s.taken, Returned: s.returned, Spent: a.spent,
		Want: s.want(a), Tasks: s.tasks, Stuck: head != "" && !a.busy(), Price: a.prices[s.stage],
	}
	if t := a.tasks[head]; t != nil {
		report.Starts, report.Grows = !t.started, t.started
		report.Least = max(a.needs(t)-a.free(), 0)
	}
	s.due, s.asked, s.urgent, s.toldStuck, s.price = false, report.Want > 0, head != "", report.Stuck, report.Price
	return report
}

// needs is what a task that waits is to be given; 0 when nobody knows.
func (a *Account) needs(t *task) quantity.Money {
	switch price := a.prices[t.stage]; {
	case t.more != nil:
		return t.more.least - t.reserved
	case price.Known:
		return price.upper()
	default:
		return t.quote
	}
}

// sorted returns the keys in a fixed order: workflows repeat what they did.
func sorted[V any](all map[string]V) []string {
	//workflowcheck:ignore they are sorted
	return slices.Sorted(maps.Keys(all))
}
