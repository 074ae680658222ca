package predictor

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/memory"
	"github.com/spillway-ml/spillway/predictor/plan"
	"github.com/spillway-ml/spillway/predictor/pricing"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/share"
	"github.com/spillway-ml/spillway/predictor/spill"
	"github.com/spillway-ml/spillway/predictor/words"
)

const (
	// upperPrice is how much more than the longest attempt of its stage so far one is expected to take at most, as the
	// account of a run has it for what tasks cost.
	upperPrice = 1.5
	// overdue is how much more than it has taken by now one takes at most that goes on for longer than that.
	overdue = 1.1
	// untold is for how many seconds a slot may go on before a plan that was decided on what it spent is obeyed.
	untold = 5.0
)

// teamWork is a team at a tick. What of its money is left is that of the day in UTC, without what has ended today, what
// those that run cost at most, and what may begin in the slots that it is given: so what is spent and reserved never
// passes what the day has, but for an attempt that takes longer than upperPrice says.
type teamWork struct {
	plan.Team
	spent, left quantity.Money
	row         plan.TeamRow
	bound       share.Bound
	unknown     bool           // nobody knows what an attempt costs that runs
	next        quantity.Money // what a task that waits would have to reserve; 0 where nobody knows
}

// limits reports whether money bounds it.
func (t *teamWork) limits() bool { return t.PerDay > 0 }

// called is the name that people know it by.
func (t *teamWork) called() string { return TeamName(t.Name) }

// DefaultTeam is what the default team is called, whose name is empty.
const DefaultTeam = "default"

// TeamName is what a team is called.
func TeamName(team string) string {
	if team == "" {
		return DefaultTeam
	}
	return team
}

// openTeams finds out what each team has left. Teams that nobody has declared have no bounds.
func (d *decider) openTeams(snap plan.Snapshot) {
	if len(snap.Teams) == 0 {
		return
	}
	d.memory.Count()
	known := map[string]*teamWork{}
	for _, one := range snap.Teams {
		known[one.Name] = &teamWork{Team: one}
	}
	for _, w := range d.works {
		if name := w.stage.ID.Team; known[name] == nil {
			known[name] = &teamWork{Team: plan.Team{Name: name}}
		}
	}
	for _, t := range known {
		t.spent = d.memory.SpentBy(t.Name, d.now)
		t.left = t.PerDay - t.spent
		d.teams = append(d.teams, t)
	}
	slices.SortFunc(d.teams, func(a, b *teamWork) int { return strings.Compare(a.Name, b.Name) })
	prices := map[string]pricing.Host{}
	for _, host := range snap.Hosts { // also the drained: what runs there goes on
		prices[host.ID] = pricing.Host{PerHour: host.PricePerHour, Capacity: plan.SaneRoom(host.Capacity)}
	}
	for key, running := range d.memory.Attempts {
		t, st := known[running.Stage().Team], d.memory.Stages[running.Stage()]
		if t == nil || st == nil || !running.Runs() {
			continue
		}
		t.row.Running++
		if !t.limits() {
			continue
		}
		price, told := d.priceOf(key, running, st, prices[running.Host])
		t.left = t.left.Plus(-price)
		t.unknown = t.unknown || !told
	}
	for _, t := range d.teams {
		if t.unknown { // as nobody knows what one that runs will cost, it has all that is left
			t.left = min(t.left, 0)
		}
	}
}

// priceOf is what an attempt that runs costs at most; told is false where no attempt of its stage has ended that would
// tell.
func (d *decider) priceOf(key uint64, running memory.Attempt, st *memory.Stage, host pricing.Host) (
	price quantity.Money, told bool,
) {
	age := d.memory.Age(running, d.now) * overdue
	if running.Venue == fact.Function {
		return d.functions.Price(st.Class, spill.Span(max(longestAtFunction(st)*upperPrice, age))), true
	}
	held := d.memory.Grants[key].Size
	if held.IsZero() {
		held = st.Slot
	}
	times := st.Model.Times(fact.Pool, held.CPU.Cores())
	lasts := spill.Span(max(times.Largest()*upperPrice, age))
	others := d.memory.Grants[key].Others
	price = host.For(held, lasts).Plus(others.Times(lasts.Hours()))
	return price, len(times.Values) > 0 || host.PerHour <= 0 && others <= 0
}

// teamOf is the team of a stage; nil where none was declared.
func (d *decider) teamOf(w *work) (t *teamWork, place int) {
	if len(d.teams) == 0 {
		return nil, 0
	}
	place, _ = slices.BinarySearchFunc(d.teams, w.stage.ID.Team, func(t *teamWork, name string) int {
		return strings.Compare(t.Name, name)
	})
	return d.teams[place], place
}

// sharing is what hosts are shared by; nil where no team was declared.
func (d *decider) sharing() []share.Team {
	var teams []share.Team
	for _, t := range d.teams {
		teams = append(teams, share.Team{Weight: t.Weight, Slots: t.Slots, Limited: t.limits(), Money: max(t.left, 0)})
	}
	return teams
}

// claimFor adds to a claim what teams share by.
func (d *decider) claimFor(w *work, claim *share.Claim) {
	t, place := d.teamOf(w)
	if t == nil {
		return
	}
	claim.Team, claim.Since = place, w.stage.Turn
	claim.Holds = w.stage.Slots > 0 && d.memory.Clock-w.stage.Turn < share.Turn
	if !t.limits() {
		return
	}
	times := w.stage.Model.Times(fact.Pool, w.size.CPU.Cores())
	longest := times.Largest()*upperPrice + untold
	claim.Next = d.gangPrice(claim.Size, claim.Unfit, max(w.stage.Hosts, 1), spill.Span(longest))
	if claim.Lone = len(times.Values) == 0 && claim.Next > 0; !claim.Lone && w.demand() > w.running[fact.Pool] {
		t.next = max(t.next, claim.Next)
	}
}

// gangPrice is what an attempt costs at most that holds a size for a time: on the dearest host that can run it, and
// where it runs on up to so many hosts on the dearest beside that of those that take part in gangs.
func (d *decider) gangPrice(size quantity.Size, unfit map[string]bool, hosts int, lasts time.Duration) (
	most quantity.Money,
) {
	price := func(host plan.Host) quantity.Money {
		return pricing.Host{PerHour: host.PricePerHour, Capacity: host.Capacity}.For(size, lasts)
	}
	first := ""
	for _, host := range d.hosts {
		if one := price(host); !unfit[host.ID] && one > most {
			most, first = one, host.ID
		}
	}
	if hosts < 2 {
		return most
	}
	var others []quantity.Money
	for _, host := range d.hosts {
		if host.ID != first && host.TrainingAddress != "" {
			others = append(others, price(host))
		}
	}
	slices.SortFunc(others, func(a, b quantity.Money) int { return cmp.Compare(b, a) })
	for _, one := range others[:min(len(others), hosts-1)] {
		most = most.Plus(one)
	}
	return most
}

// took notes the slots that a stage was given.
func (d *decider) took(w *work, claim share.Claim) {
	t, _ := d.teamOf(w)
	if t == nil {
		return
	}
	if w.slots > 0 && !claim.Holds {
		w.stage.Turn = max(1, d.memory.Clock)
	}
	t.row.Held += max(w.slots, w.running[fact.Pool])
	t.row.Waiting += w.queued[0] + w.queued[1]
	if w.bound != share.Unbounded {
		t.bound = max(t.bound, w.bound)
	}
	for range w.slots {
		if claim.Lone {
			t.left = min(t.left, 0)
		} else if t.limits() {
			t.left = t.left.Plus(-claim.Next)
		}
	}
}

// payable is how many function slots, of so many, the money of the stage's team pays.
func (d *decider) payable(w *work, o spill.Offer, limit int) int {
	t, _ := d.teamOf(w)
	if t == nil || !t.limits() {
		return limit
	}
	price := d.slotAt(o)
	if price <= 0 {
		return limit
	}
	return min(limit, int(max(t.left, 0)/price))
}

// slotAt is what may begin in one function slot before the next plan is obeyed, at most.
func (d *decider) slotAt(o spill.Offer) quantity.Money {
	return d.functions.Price(o.Class, spill.Span(o.Highest*upperPrice+o.Cold+untold))
}

// unpaid says that the money of a stage's team pays no function; empty where that is not why there is none.
func (d *decider) unpaid(w *work, o spill.Offer) string {
	t, _ := d.teamOf(w)
	if t == nil || !t.limits() || d.slotAt(o) <= max(t.left, 0) {
		return ""
	}
	t.bound = max(t.bound, share.ByMoney)
	return t.spentReason(d.slotAt(o))
}

// pays takes what may begin in the stage's function slots off what its team has left.
func (d *decider) pays(w *work, o spill.Offer) {
	t, _ := d.teamOf(w)
	if t == nil {
		return
	}
	t.row.Functions += w.functions
	if t.limits() && w.functions > 0 {
		t.left = t.left.Plus(-d.slotAt(o).Times(float64(w.functions)))
	}
}

// spentReason says that a day's money is spent or reserved, and until when that waits.
func (t *teamWork) spentReason(next quantity.Money) string {
	if next > t.PerDay {
		return fmt.Sprintf("a task costs up to %s, which the %s that team %s may spend on a day never pay", next, t.PerDay,
			t.called())
	}
	said := fmt.Sprintf("team %s has spent %s of the %s of today", t.called(), t.spent, t.PerDay)
	if reserved := t.PerDay - t.spent - t.left; reserved > 0 && t.spent < t.PerDay {
		said += fmt.Sprintf(", %s is reserved for what runs", reserved)
	}
	if next > 0 {
		said += fmt.Sprintf(", and a task costs up to %s", next)
	}
	return said + ": it waits for 00:00 UTC, or for what runs to cost less"
}

// boundReason says why a stage has fewer slots than it could use where that is because of its team.
func (d *decider) boundReason(w *work) string {
	t, _ := d.teamOf(w)
	switch {
	case t == nil:
		return ""
	case w.bound == share.BySlots:
		return fmt.Sprintf("team %s has %s of %d", t.called(), words.Count(t.row.Held, "slot"), t.Slots)
	case w.bound == share.ByMoney:
		return t.spentReason(t.next)
	default:
		return fmt.Sprintf("team %s has its share of the hosts, and other teams want theirs", t.called())
	}
}

// teamRows are how teams stand.
func (d *decider) teamRows() (rows []plan.TeamRow) {
	var whole quantity.Size
	for _, host := range d.hosts {
		whole = whole.Plus(host.Capacity)
	}
	held := map[string]quantity.Size{}
	for _, w := range d.works {
		for range w.slots {
			held[w.stage.ID.Team] = held[w.stage.ID.Team].Plus(w.size)
		}
	}
	for _, t := range d.teams {
		row := t.row
		row.Team, row.Spent = t.Team, t.spent
		row.Share = math.Round(share.Dominant(held[t.Name], whole)*1000) / 1000
		if t.limits() {
			row.Reserved = max(0, t.PerDay-t.spent-t.left)
		}
		switch {
		case row.Waiting == 0:
		case t.bound == share.BySlots:
			row.Why = fmt.Sprintf("it has %s of %d", words.Count(row.Held, "slot"), t.Slots)
		case t.bound == share.ByMoney:
			row.Why = t.spentReason(t.next)
		case t.bound == share.ByOthers:
			row.Why = "it has its share of the hosts, and other teams want theirs"
		}
		rows = append(rows, row)
	}
	return rows
}
