package account

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// world is a run with its parts as the simulation knows them: what was really spent and reserved, whatever the
// accounts believe.
type world struct {
	rand     *rand.Rand
	run      *Account
	limit    quantity.Money // 0 is none
	allowed  quantity.Money // what may be spent and reserved: the limit, or what was handed out before it was lowered
	overshot quantity.Money // what stopping cost, and what parts took before they heard of a limit
	spent    quantity.Money
	works    []*work // all tasks that are not over
	parts    map[string]*piece
	flying   []func() // messages on their way
	next     int
	refused  int
	prices   map[string]quantity.Money // the usual cost of a stage
	most     int                       // tasks in flight at a time
	sum      int                       // of tasks in flight over all ends
	ends     int
	calm     bool // nothing fails and nothing is changed
}

// piece is one part of a Map.
type piece struct {
	id        string
	stage     string
	account   *Account
	left      int // tasks to ask for
	window    int
	cancelled bool
	dead      bool
}

// work is one task.
type work struct {
	id, stage string
	part      *piece // nil for one of the run's own
	cost      quantity.Money
	waits     bool // it looks whether its reservation is enough before it runs
	counted   quantity.Money
	running   bool
	fresh     bool // it has just started, perhaps with what a refusal has left
	bounded   bool // it started within a limit
}

func newWorld(seed uint64, calm bool) *world {
	return &world{
		rand: rand.New(rand.NewPCG(seed, 1)), parts: map[string]*piece{}, prices: map[string]quantity.Money{},
		calm: calm,
	}
}

func (w *world) account(t *work) *Account {
	if t.part != nil {
		return t.part.account
	}
	return w.run
}

// reserved is what is really reserved.
func (w *world) reserved() (total quantity.Money) {
	for _, t := range w.works {
		total += t.counted
	}
	return total
}

// exposed is what is spent, reserved, or handed out and not used, also on its way.
func (w *world) exposed() quantity.Money {
	total := w.spent + w.reserved()
	for _, p := range w.parts {
		granted := w.run.parts[p.id].granted - p.account.share.granted // on its way there
		unused := max(p.account.free(), 0)
		returning := p.account.share.returned - w.run.parts[p.id].report.Returned
		total += granted + unused + returning
	}
	return total
}

// check compares what started and grew since the last look with the rule.
func (w *world) check() error {
	for _, t := range w.works {
		a := w.account(t)
		now := a.Reserved(t.id)
		t.fresh = false
		started := !t.running && a.Started(t.id)
		if started {
			t.running, t.bounded, t.fresh = true, a.Limited(), true
		}
		grown := now - t.counted
		t.counted = now
		if !started && grown <= 0 || w.limit == 0 {
			continue
		}
		if !a.Limited() { // the part has not heard of the limit yet
			w.overshot += grown
			w.allowed += grown
			continue
		}
		if total := w.spent + w.reserved(); total > w.allowed+w.overshot {
			return fmt.Errorf("%s started or grew by %d: %d spent and reserved, %d allowed, %d overshot, limit %d", t.id, grown,
				total, w.allowed, w.overshot, w.limit)
		}
	}
	if w.limit == 0 {
		return nil
	}
	return w.checkRefusals()
}

// checkRefusals looks at what the run turns away: only what nothing in flight could make room for.
func (w *world) checkRefusals() error {
	for _, id := range sorted(w.run.tasks) {
		t := w.run.tasks[id]
		if t.refused == nil || t.refused.Limit < 0 {
			continue
		}
		t.refused.Limit = -1 // seen
		if err := w.justified(id, t.refused.Needs); err != nil {
			return err
		}
	}
	for _, id := range sorted(w.parts) {
		if p := w.run.parts[id]; p.denied > 0 {
			if err := w.justified(id, w.run.needsOf(p)); err != nil {
				return err
			}
		}
	}
	return nil
}

// needsOf is what a part that is refused would have needed at least.
func (a *Account) needsOf(p *part) quantity.Money {
	price := a.prices[p.stage]
	if !price.Known {
		return 1
	}
	return max(price.upper(), 1)
}

func (w *world) justified(id string, needs quantity.Money) error {
	if w.limit-w.spent < max(needs, 1) {
		return nil // whatever ends, there is no room for it
	}
	for _, t := range w.works {
		if t.running && !t.fresh && t.counted > 0 && !w.isWaiting(t) && w.account(t).Refused(t.id) == nil {
			return fmt.Errorf("%s is refused while %s runs with %d reserved", id, t.id, t.counted)
		}
	}
	if left := w.limit - w.exposed(); left >= max(needs, 1) && w.overshot == 0 {
		return fmt.Errorf("%s is refused %d while %d of %d are left", id, needs, left, w.limit)
	}
	return nil
}

func (w *world) isWaiting(t *work) bool {
	own := w.account(t).tasks[t.id]
	return own != nil && own.more != nil && own.more.waits
}

func (w *world) stage() string { return []string{"a", "b", "c"}[w.rand.IntN(3)] }

func (w *world) cost(stage string) quantity.Money {
	usual := w.prices[stage]
	switch w.rand.IntN(10) {
	case 0:
		return usual * 5
	case 1:
		return 0
	default:
		return usual/2 + quantity.Money(w.rand.Int64N(int64(usual)+1))
	}
}

func (w *world) begin(part *piece, stage string) {
	w.next++
	t := &work{id: fmt.Sprintf("t%d", w.next), stage: stage, part: part, cost: w.cost(stage), waits: w.rand.IntN(4) == 0}
	w.works = append(w.works, t)
	w.account(t).Ask(t.id, stage, w.quote(stage))
}

// quote is what a task can cost at most as far as its stage declares it: only b does.
func (w *world) quote(stage string) quantity.Money {
	if stage == "b" {
		return 6 * w.prices[stage]
	}
	return 0
}

func (w *world) open(stage string, tasks, window int) {
	w.next++
	p := &piece{id: fmt.Sprintf("p%d", w.next), stage: stage, left: tasks, window: window}
	block := w.run.Open(p.id, stage, tasks, w.quote(stage))
	p.account = NewPart(stage, tasks, block)
	w.parts[p.id] = p
	w.fill(p)
}

// fill asks for as many of a part's tasks as its window has room for.
func (w *world) fill(p *piece) {
	if p.cancelled {
		return
	}
	open := 0
	for _, t := range w.works {
		if t.part == p {
			open++
		}
	}
	for ; open < p.window && p.left > 0; open++ {
		p.left--
		w.begin(p, p.stage)
	}
}

// over ends a task.
func (w *world) over(t *work, cost quantity.Money, ran bool) {
	w.works = slices.DeleteFunc(w.works, func(other *work) bool { return other == t })
	if t.running { // what began without a limit may cost anything
		w.overshot += max(cost-t.counted, 0)
	}
	w.spent += cost
	w.account(t).Settle(t.id, cost, ran)
	if p := t.part; p != nil {
		w.fill(p)
		w.closeIfOver(p)
	}
}

func (w *world) closeIfOver(p *piece) {
	if p.dead || !p.cancelled && p.left > 0 || slices.ContainsFunc(w.works, func(t *work) bool { return t.part == p }) {
		return
	}
	p.dead = true
	spent, price := p.account.spent, p.account.Price()
	w.flying = append(w.flying, func() { // its money counts until the run has heard
		w.run.Close(p.id, spent, price, true)
		delete(w.parts, p.id)
	})
}

// act lets one task in flight go on: it ends, asks for more, or is stopped.
func (w *world) act(t *work) {
	a := w.account(t)
	switch {
	case a.Refused(t.id) != nil && !t.running:
		w.refused++
		w.over(t, 0, false)
		if t.part != nil {
			w.cancel(t.part)
		}
	case !t.running:
		return
	case w.isWaiting(t):
		return
	case a.Refused(t.id) != nil: // it had waited for more before it ran
		w.refused++
		w.over(t, 0, false)
	case !t.bounded || t.cost <= t.counted:
		w.end(t)
	case a.Growing(t.id):
		if w.rand.IntN(4) == 0 { // it has used up what it has
			w.refused++
			w.over(t, t.counted+quantity.Money(w.rand.IntN(3)), false)
		}
	case a.Limited():
		a.Grow(t.id, min(t.cost, 2*t.counted+1), 2*t.counted+2, t.waits)
		t.waits = false
	default:
		w.end(t)
	}
}

func (w *world) end(t *work) {
	flight := 0
	for _, other := range w.works {
		if other.running {
			flight++
		}
	}
	w.most, w.sum, w.ends = max(w.most, flight), w.sum+flight, w.ends+1
	switch {
	case w.calm || w.rand.IntN(12) > 0:
		w.over(t, t.cost, true)
	case w.rand.IntN(2) == 0 && t.part != nil: // it fails for good, and its part with it
		p := t.part
		w.over(t, t.cost/2, false)
		w.cancel(p)
	default: // it is lost or cancelled before it ran
		w.over(t, 0, false)
	}
}

// cancel stops a part: what waits goes, what runs is stopped with what it has cost.
func (w *world) cancel(p *piece) {
	p.cancelled = true
	for _, t := range slices.Clone(w.works) {
		if t.part == p {
			w.over(t, min(t.cost, t.counted)/2, false)
		}
	}
	w.closeIfOver(p)
}

func (w *world) setLimit(limit quantity.Money) {
	before := w.exposed()
	w.limit = limit
	w.run.SetLimit(limit)
	w.allowed = max(limit, before)
}

// send puts what is due on its way.
func (w *world) send() {
	for _, id := range sorted(w.parts) {
		p := w.parts[id]
		if w.run.Due(id) {
			block := w.run.Tell(id)
			w.flying = append(w.flying, func() {
				if !p.dead {
					p.account.Told(block)
				}
			})
		}
		if !p.dead && p.account.ReportDue() {
			report := p.account.Report()
			w.flying = append(w.flying, func() { w.run.Reported(id, report) })
		}
	}
}

// deliver brings one message, not always the oldest.
func (w *world) deliver() {
	i := w.rand.IntN(min(len(w.flying), 4))
	message := w.flying[i]
	w.flying = slices.Delete(w.flying, i, i+1)
	message()
}

// step does one thing.
func (w *world) step() {
	switch n := w.rand.IntN(20); {
	case len(w.flying) > 0 && n < 8:
		w.deliver()
	case len(w.works) > 0:
		w.act(w.works[w.rand.IntN(len(w.works))])
	}
}

// live runs a random run and returns what broke the rule.
func live(seed uint64) (w *world, err error) {
	w = newWorld(seed, false)
	for _, stage := range []string{"a", "b", "c"} {
		w.prices[stage] = quantity.Money(w.rand.Int64N(1000))
	}
	w.prices["c"] *= quantity.Money(w.rand.IntN(2)) // often free
	if w.rand.IntN(4) > 0 {
		w.limit = quantity.Money(1 + w.rand.Int64N(90_000))
	}
	w.allowed = w.limit
	w.run = New(w.limit, Carried{})
	births := 3 + w.rand.IntN(12)
	for idle := 0; idle < 400; {
		if births > 0 && w.rand.IntN(8) == 0 {
			births--
			w.birth()
		} else {
			w.step()
		}
		w.send()
		if err := w.check(); err != nil {
			return w, err
		}
		switch {
		case births == 0 && len(w.works) == 0 && len(w.flying) == 0:
			return w, w.settled()
		case births == 0 && len(w.flying) == 0 && !w.anyRuns():
			idle++
		default:
			idle = 0
		}
	}
	return w, fmt.Errorf("it hangs: %d tasks wait, nothing runs and no message is on its way", len(w.works))
}

func (w *world) anyRuns() bool {
	return slices.ContainsFunc(w.works, func(t *work) bool {
		return t.running && !w.isWaiting(t) || w.account(t).Refused(t.id) != nil
	})
}

// settled compares the books with what was spent.
func (w *world) settled() error {
	if w.run.Spent() != w.spent || w.run.reserved != 0 || len(w.run.parts) != 0 || len(w.run.queue) != 0 {
		return fmt.Errorf("at the end: the books say %d spent, %d reserved, %d parts, %d waiting; %d was spent",
			w.run.Spent(), w.run.reserved, len(w.run.parts), len(w.run.queue), w.spent)
	}
	return nil
}

// birth lets something new happen: a task, a Map, another goal, a cancelled part.
func (w *world) birth() {
	switch w.rand.IntN(6) {
	case 0, 1:
		w.begin(nil, w.stage())
	case 2, 3:
		stage, window := w.stage(), 1+w.rand.IntN(5)
		for range 1 + w.rand.IntN(3) {
			w.open(stage, 1+w.rand.IntN(20), window)
		}
	case 4:
		switch w.rand.IntN(3) {
		case 0:
			w.setLimit(0)
		case 1:
			w.setLimit(w.spent + 1 + quantity.Money(w.rand.Int64N(2000)))
		default:
			w.setLimit(w.limit + 1 + quantity.Money(w.rand.Int64N(60_000)))
		}
	default:
		if ids := sorted(w.parts); len(ids) > 0 {
			if p := w.parts[ids[w.rand.IntN(len(ids))]]; !p.dead {
				w.cancel(p)
			}
		}
	}
}

// TestNoRunPassesItsBudgetAndNoneHangsWhileMoneyIsThere plays random runs: Maps at once, tasks beside them, failures,
// retries, cancelled parts, goals that change, tasks that outgrow what they have, messages that overtake each other.
func TestNoRunPassesItsBudgetAndNoneHangsWhileMoneyIsThere(t *testing.T) {
	t.Parallel()
	runs := uint64(4000)
	if os.Getenv("SPILLWAY_MEASURE") != "" {
		runs = 100_000
	}
	refused, most := 0, 0
	for seed := range runs {
		w, err := live(seed)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		refused, most = refused+w.refused, max(most, w.most)
	}
	t.Logf("%d runs: %d tasks refused, up to %d in flight", runs, refused, most)
}
