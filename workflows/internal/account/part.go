package account

import (
	"slices"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// part is one part of a run, as the run's account sees it.
type part struct {
	stage   string
	quote   quantity.Money
	granted quantity.Money // since the beginning
	probe   bool
	lack    quantity.Money // what is called back, and was not returned yet
	denied  int            // Seq of the Report whose need is refused, until that is told
	seq     int            // of the newest Block that was sent
	due     bool           // a Block is to be sent
	blind   int            // Seq of the Block before whose answer nobody knows what the part has taken; 0 when it is known
	report  Report
}

// held is what the part may still spend: blocks on their way to it included, money on its way back as well.
func (p *part) held() quantity.Money {
	return max(p.granted+p.report.Taken-p.report.Returned-p.report.Spent, 0)
}

// isFresh reports whether the part has told how it stands since it was last told anything.
func (p *part) isFresh() bool { return !p.due && p.report.Seen == p.seq }

// isBusy reports whether the part may give money back, or learn a price, without being given any.
func (p *part) isBusy() bool {
	if p.isFresh() {
		return p.held() > 0 && !p.report.Stuck
	}
	return p.held() > 0 || p.seq > 1 || p.due
}

// forget drops what the part has asked for.
func (p *part) forget() {
	p.report.Least, p.report.Want, p.report.Starts, p.report.Grows = 0, 0, false, false
}

// Open adds a part of a run, which will run so many tasks of a stage, and returns the Block with which it begins.
func (a *Account) Open(id, stage string, tasks int, quote quantity.Money) Block {
	p := &part{stage: stage, quote: max(quote, 0), report: Report{Tasks: tasks}}
	a.parts[id] = p
	if a.limited && len(a.queue) == 0 {
		price, fair := a.prices[stage], a.fair()
		each, known := p.each(price, a.free())
		switch {
		case known && fair >= each:
			p.granted = min(fair, each.Times(float64(tasks)))
		case !known && !a.isTried(stage) && a.free() > 0:
			p.granted, p.probe = max(a.free()/probeShare, 1), true
		}
	}
	return a.Tell(id)
}

// each is what one task of the part is given; known is false when it has to be found out.
func (p *part) each(price Price, free quantity.Money) (each quantity.Money, known bool) {
	if price.Known {
		return price.upper(), true
	}
	return p.quote, p.quote > 0 && p.quote <= free
}

// fair is what one part may have of what is free.
func (a *Account) fair() quantity.Money { return a.free() / quantity.Money(len(a.parts)+1) }

// Due reports whether Tell has something new for the part.
func (a *Account) Due(id string) bool { p := a.parts[id]; return p != nil && p.due }

// Tell returns the Block to send to the part now.
func (a *Account) Tell(id string) Block {
	p := a.parts[id]
	denied := p.denied
	p.seq++
	p.due, p.denied = false, 0 // a refusal that is overtaken is asked for again
	return Block{
		Seq: p.seq, Unlimited: !a.limited, Blind: a.limited && p.blind > 0, Granted: p.granted, Probe: p.probe, Lack: p.lack,
		Denied: denied, Price: a.prices[p.stage],
		Limit: a.Limit(), Spent: a.Spent(),
	}
}

// Reported takes over what a part tells; one that is over, or has told something newer, is not listened to.
func (a *Account) Reported(id string, report Report) {
	p := a.parts[id]
	if p == nil || report.Seq <= p.report.Seq {
		return
	}
	if report.Returned > p.report.Returned || report.Stuck {
		p.lack = 0
	}
	onItsWay := p.granted - report.Granted
	p.report = report
	p.report.Least, p.report.Want = max(report.Least-onItsWay, 0), max(report.Want-onItsWay, 0)
	if onItsWay > 0 && p.report.Least == 0 {
		p.report.Starts, p.report.Grows = false, false
	}
	if report.Seen >= p.blind {
		p.blind = 0
	}
	a.learn(p.stage, report.Price)
	needs := p.report.Least > 0 || p.report.Starts || p.report.Grows
	switch isWaiting := slices.Contains(a.queue, id); {
	case needs && !isWaiting && a.limited:
		a.queue = append(a.queue, id)
	case !needs && isWaiting:
		a.leave(id)
	}
	a.serve()
}

// Close ends a part that spent so much; price is what it knew of its stage's. Told is false when it went away without
// a word: then it is taken to have spent all that it held, because spending must never be understated.
func (a *Account) Close(id string, spent quantity.Money, price Price, told bool) {
	p := a.parts[id]
	if p == nil {
		return
	}
	if !told {
		spent = p.report.Spent.Plus(p.held())
	}
	delete(a.parts, id)
	a.leave(id)
	a.spent = a.spent.Plus(max(spent, 0))
	a.learn(p.stage, price)
	a.serve()
}

// lend gives a part what it needs to go on, and as much more as is fair.
func (a *Account) lend(p *part, behind bool) outcome {
	price, free := a.prices[p.stage], a.free()
	each, known := p.each(price, free)
	least := p.report.Least
	if p.report.Starts && !p.report.Grows && known {
		least = max(least, each)
	}
	switch {
	case !known && !p.report.Grows && a.isTried(p.stage):
		return waits
	case !known && !p.report.Grows && (free <= 0 || behind):
		return lacks
	case !known && !p.report.Grows:
		p.grant(max(free/probeShare, 1), true)
	case least > 0 && (least > free || behind), free < 0:
		return lacks
	default:
		want := max(p.report.Want, each.Times(float64(p.report.Tasks)))
		p.grant(max(least, min(a.fair(), want)), false)
	}
	return served
}

// lendAhead gives parts that will soon need money what is fair, while nobody lacks any.
func (a *Account) lendAhead() {
	if !a.limited {
		return
	}
	for _, id := range sorted(a.parts) {
		p := a.parts[id]
		price := a.prices[p.stage]
		if p.report.Want <= 0 || !price.Known || p.report.Starts {
			continue
		}
		if fair := a.fair(); fair > 0 && fair >= price.upper() {
			p.grant(min(fair, p.report.Want), false)
		}
	}
}

// grant hands the part so much more. A grant of nothing still tells it the price.
func (p *part) grant(amount quantity.Money, probe bool) {
	p.granted += amount
	p.probe, p.lack, p.due = probe, 0, true
	p.forget()
}

// recall calls back what other parts do not use, for the one who lacks money.
func (a *Account) recall(head string) {
	var asked []*part
	for _, id := range sorted(a.parts) {
		p := a.parts[id]
		if id != head && p.held() > 0 && p.lack == 0 && (!p.isFresh() || !p.report.Stuck) {
			asked = append(asked, p)
		}
	}
	for _, p := range asked {
		p.lack, p.due = max(a.lackOf(head)/quantity.Money(len(asked)), 1), true
	}
}

// lackOf is how much more than what is free one who waits needs.
func (a *Account) lackOf(id string) quantity.Money {
	var needs quantity.Money
	if t := a.tasks[id]; t == nil {
		p := a.parts[id]
		each, _ := p.each(a.prices[p.stage], a.free())
		needs = max(p.report.Least, each)
	} else {
		needs = a.needs(t)
	}
	return max(needs-max(a.free(), 0), 1)
}
