package provision

import (
	"fmt"
	"math"
	"slices"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// DefaultTrust bounds what is spent by three times what hindsight would have spent: a forecast of which nothing is
// known may be wrong in both directions, and at 1/2 the bound for one that is wrong is twice that for one that is
// right.
const DefaultTrust = 0.5

// Hedge follows forecasts of which nobody knows how good they are, and bounds what that can cost.
//
// Capacity is a stack of units, each a host of the type whose commitment costs least. Unit i serves what a step's
// load L has between i w and (i+1) w tasks, where w is what the host serves, and is a ski-rental instance of its own:
// while it is not held, functions cost it
//
//	d = price x min(max(L - i w, 0), w),  at most r = price x w, in a step
//
// and it can be held for h steps (Hold) at once for B (Committed), after a delay of D steps. With hindsight the first t
// steps would have cost it
//
//	O(t) = min( O(t-1) + d(t),  O(t-h) + B ),  O(t) = 0 for t <= 0
//
// Break-even holds the unit once functions have cost B within h steps while it was not held.
//
// Theorem 1. Break-even costs at most s O(t), s = 2 + (D+1) r/B, at every t.
//
// Proof. Let hindsight hold over an interval I of h steps. What functions cost break-even within I is of one stretch:
// two would have a whole hold of h steps between them, and only parts of I. It is below B + r when break-even buys,
// and D more steps of at most r pass until that serves; then it serves beyond I. So it is at most B + (D+1) r. Each
// purchase is charged to the B or more of its own stretch, in proportion. I is charged B at most, and what hindsight
// pays functions is charged as much again at most: 2 B + (D+1) r against B, and 2 against 1.
//
// A Hedge knows S, what was really spent and is committed, and follows the forecast in a step if then
//
//	S <= f O + credit,  f = max(1 + 1/Trust, s)
//
// with S and O summed over the units, also if break-even's purchases of this step were made instead; otherwise the pool
// holds what break-even holds, and what else may go is released.
//
// Theorem 2. Whatever is forecast and whatever comes, with n units that were ever wanted,
//
//	S <= f O + credit + n ((2 + s) B + 2 (D+1) r)
//
// at every t, and what is forecast decides whenever S is within f O + credit without what is added.
//
// Proof. While the forecast decides, S after a decision is within f O + credit, and one step adds n r at most. From the
// first step t0 in which it does not, S grows by what break-even pays, and by n (B + D r) to come to what break-even
// holds. That part of break-even costs at most s times what hindsight pays from t0 on alone, and n B for what functions
// cost before t0. Hindsight alone from t0 on costs at most O(t) - O(t0) + n B, for holds that began before. With s <= f
// the sum follows, for every such stretch anew, because each begins within f O + credit.
//
// With a single unit, a hold that does not end, no delay and no credit, this is the rule of R. Kumar, M. Purohit and
// Z. Svitkina ("Improving online algorithms via ML predictions", NeurIPS 2018, Theorem 2.2), with the steps so fine
// that r is nothing beside B: a forecast that says hold is followed once functions have cost Trust x B, one that says
// no until they have cost B / Trust, so that the cost is at most 1 + Trust times the optimum where the forecast is
// right, and 1 + 1/Trust times where it is not. Break-even, and its factor 2: A. Karlin et al., "Competitive snoopy
// caching", Algorithmica 3, 1988. Holds that end are the parking permits of A. Meyerson (FOCS 2005), here with one
// kind.
//
// O is of holds of h steps that begin at any time. Where a host may be kept for single steps after its first h, and
// the hosts of the pool stand in for each other, hindsight can do better: O is at most max(2, B/(h p)) times what it
// pays for hosts of the unit's type, p the price of a step (TestHindsightByUnitsIsNearThatOfThePool). For a pool that
// costs N launches and K steps of hosts cuts into at most N stretches of units and N + K/h holds.
//
// The zero Hedge has seen nothing, trusts by DefaultTrust and has no credit. It is a value: methods return the next
// one. Its accounts are of the terms that they were kept with; where those change, a new one begins.
type Hedge struct {
	// Trust is how far a forecast is followed before what came speaks for it, in (0, 1]; 0 means DefaultTrust. At 1,
	// nothing is lost to a wrong forecast that break-even would not lose; the less it is, the sooner one is followed.
	Trust float64
	// Credit is what may be spent before anything came that would have been worth it.
	Credit quantity.Money
	// Spent is what hosts and functions have cost, and hosts are committed to.
	Spent quantity.Money
	// Units are those that were ever wanted, from the lowest.
	Units []Unit
}

// Unit is what a Hedge remembers of one unit of capacity.
type Unit struct {
	// Hindsight is O after each of the last Hold steps, the newest last.
	Hindsight []quantity.Money
	// Rents are what functions cost break-even in each of the last steps, at most Hold, since it last held the unit.
	Rents []quantity.Money
	// Left is for how many steps break-even holds the unit, or waits for it; 0 when it does not.
	Left int
}

// mostUnits bounds what a Hedge remembers, and the loads for which the bound holds: what is above counts for no
// trust, and break-even leaves it to functions.
const mostUnits = 4096

// Unit is the type of host that a Hedge counts in: the one that commits to least.
func (t Terms) Unit() int {
	unit := 0
	for i := range t.Hosts {
		if t.Committed(i) < t.Committed(unit) {
			unit = i
		}
	}
	return unit
}

// BreakEven is s, by how much break-even is above hindsight at most.
func (t Terms) BreakEven() float64 {
	unit := t.Unit()
	rent := t.Function.Times(t.Hosts[unit].Tasks)
	return 2 + float64(t.Delay+1)*rent.USD()/t.Committed(unit).USD()
}

// Factor is f, by how much what is spent is above hindsight at most, in the long run.
func (h Hedge) Factor(terms Terms) float64 { return max(1+1/h.trust(), terms.BreakEven()) }

// Slack is what the bound adds to that once.
func (h Hedge) Slack(terms Terms) quantity.Money {
	unit := terms.Unit()
	rent := terms.Function.Times(terms.Hosts[unit].Tasks)
	each := terms.Committed(unit).Times(2 + terms.BreakEven()).Plus(rent.Times(2 * float64(terms.Delay+1)))
	return h.Credit.Plus(each.Times(float64(len(h.Units))))
}

// Hindsight is O, what the steps so far would have cost.
func (h Hedge) Hindsight() quantity.Money {
	sum := quantity.Money(0)
	for _, unit := range h.Units {
		sum = sum.Plus(unit.hindsight())
	}
	return sum
}

func (u Unit) hindsight() quantity.Money {
	if len(u.Hindsight) == 0 {
		return 0
	}
	return u.Hindsight[len(u.Hindsight)-1]
}

func (h Hedge) trust() float64 {
	if h.Trust == 0 {
		return DefaultTrust
	}
	return h.Trust
}

// Observe returns what is known after a step in which so many tasks arrived, of which functions took some for a price.
// The load is finite and not negative.
func (h Hedge) Observe(terms Terms, load float64, functions quantity.Money) Hedge {
	unit := terms.Unit()
	width, hold := terms.Hosts[unit].Tasks, terms.Committed(unit)
	h.Spent = h.Spent.Plus(functions)
	h.Units = slices.Clone(h.Units)
	for float64(len(h.Units))*width < load && len(h.Units) < mostUnits {
		h.Units = append(h.Units, Unit{})
	}
	for i := range h.Units {
		rent := terms.Function.Times(min(max(load-float64(i)*width, 0), width))
		h.Units[i] = h.Units[i].observe(terms, rent, hold)
	}
	return h
}

func (u Unit) observe(terms Terms, rent, hold quantity.Money) Unit {
	before := quantity.Money(0)
	if len(u.Hindsight) >= terms.Hold {
		before = u.Hindsight[len(u.Hindsight)-terms.Hold]
	}
	u.Hindsight = recent(u.Hindsight, min(u.hindsight().Plus(rent), before.Plus(hold)), terms.Hold)
	if u.Left > 0 {
		u.Left--
		return u
	}
	u.Rents = recent(u.Rents, rent, terms.Hold)
	paid := quantity.Money(0)
	for _, each := range u.Rents {
		paid = paid.Plus(each)
	}
	if paid >= hold {
		u.Rents, u.Left = nil, terms.Horizon()
	}
	return u
}

// recent is a copy of the last values, at most so many.
func recent(values []quantity.Money, next quantity.Money, most int) []quantity.Money {
	values = append(slices.Clone(values), next)
	return values[max(0, len(values)-most):]
}

// Decide is what [Decide] says, as long as that is within the bound; otherwise what break-even holds.
func (h Hedge) Decide(terms Terms, pool []Held, forecast Forecast) (Decision, Hedge, error) {
	if !(h.trust() > 0 && h.trust() <= 1) {
		return Decision{}, h, fmt.Errorf("a trust of %v in forecasts: %w; give one above 0 and at most 1", h.Trust, ErrTerms)
	}
	advised, err := Decide(terms, pool, forecast)
	if err != nil {
		return Decision{}, h, err
	}
	safe := h.breakEven(terms, pool)
	costs := terms.commits(pool, advised)
	bound := h.Hindsight().Times(h.Factor(terms)).Plus(h.Credit)
	if h.Spent.Plus(max(costs, terms.commits(pool, safe))) <= bound {
		h.Spent = h.Spent.Plus(costs)
		return advised, h, nil
	}
	safe.Reason = fmt.Sprintf("%s was spent, hindsight would have spent %s, and the forecast would spend %s more: more "+
		"than %.1f times as much; what is held is what functions would have cost by now", h.Spent, h.Hindsight(), costs,
		h.Factor(terms))
	for s := range terms.Horizon() {
		quantiles := forecast.Steps[s]
		top := quantiles[len(quantiles)-1]
		safe.Spilled += served(forecast.Levels, quantiles, top) - served(forecast.Levels, quantiles, safe.Capacity)
	}
	h.Spent = h.Spent.Plus(terms.commits(pool, safe))
	return safe, h, nil
}

// breakEven holds what break-even holds: the hosts that may not go yet, then the cheapest of those that may, then new
// ones.
func (h Hedge) breakEven(terms Terms, pool []Held) Decision {
	unit := terms.Unit()
	decision := Decision{Launch: make([]int, len(terms.Hosts))}
	wanted := 0.0
	for _, u := range h.Units {
		if u.Left > 0 {
			wanted += terms.Hosts[unit].Tasks
		}
	}
	var free []int
	for i, held := range pool {
		if held.Age < terms.Horizon() {
			decision.Capacity += terms.Hosts[held.Host].Tasks
		} else {
			free = append(free, i)
		}
	}
	slices.SortStableFunc(free, func(a, b int) int { return terms.dearer(pool[a].Host, pool[b].Host) })
	for _, i := range free {
		host := terms.Hosts[pool[i].Host]
		// Whole, and not above the price of units: that is what the bound counts on.
		if decision.Capacity+host.Tasks <= wanted*(1+1e-9) && !terms.above(pool[i].Host, unit) {
			decision.Capacity += host.Tasks
			continue
		}
		decision.Release = append(decision.Release, i)
	}
	slices.Sort(decision.Release)
	missing := math.Ceil((wanted - decision.Capacity) / terms.Hosts[unit].Tasks * (1 - 1e-9))
	decision.Launch[unit] = int(max(0, missing))
	decision.Capacity += float64(decision.Launch[unit]) * terms.Hosts[unit].Tasks
	return decision
}

// dearer orders types of hosts by what a task costs on them.
func (t Terms) dearer(a, b int) int {
	switch {
	case t.above(a, b):
		return 1
	case t.above(b, a):
		return -1
	}
	return 0
}

// above reports whether a task costs more on one type of host than on another.
func (t Terms) above(a, b int) bool {
	return t.Hosts[a].Step.USD()*t.Hosts[b].Tasks > t.Hosts[b].Step.USD()*t.Hosts[a].Tasks*(1+1e-9)
}

// commits is what a decision adds to what is spent: launches until they may be released, and a step of each host that
// is kept although it may go.
func (t Terms) commits(pool []Held, d Decision) quantity.Money {
	sum := quantity.Money(0)
	for host, n := range d.Launch {
		sum = sum.Plus(t.Committed(host).Times(float64(n)))
	}
	for i, held := range pool {
		if _, gone := slices.BinarySearch(d.Release, i); !gone && held.Age >= t.Horizon() {
			sum = sum.Plus(t.Hosts[held.Host].Step)
		}
	}
	return sum
}
