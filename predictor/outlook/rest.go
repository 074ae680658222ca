package outlook

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/spill"
	"github.com/spillway-ml/spillway/predictor/words"
)

// Rest is what is known of the rest of a run.
type Rest struct {
	Elapsed float64 // seconds since its start
	Spent   quantity.Money
	Courses []Course // of the stages that go on
	// Finish, Total and Later are what earlier runs say: in how many seconds the run ends, what it will have cost, and
	// what the stages cost that it has not called yet, in US dollars. They are zero where unknown.
	Finish, Total, Later fact.Interval
	Runs                 int    // how many earlier runs say it
	ByHistory            bool   // no stage has a choice: Finish and Total say all
	Missing              string // what is not known; empty when enough is
	// Unpriced are stages with tasks that nothing says the cost of.
	Unpriced []string
	Fits     func(slots []int) bool
}

// Tell writes what is known into out.
func (r Rest) Tell(out *Outlook) {
	out.Known, out.Why = r.Missing == "", r.Missing
	if out.Known {
		out.Runs = r.Runs
	}
	present, chosen := make([]int, len(r.Courses)), make([]int, len(r.Courses))
	stages := make([][]option, len(r.Courses))
	for i, c := range r.Courses {
		present[i], chosen[i] = c.Held, c.Chosen
		stages[i] = c.options()
	}
	out.Present, out.Chosen = r.alternative(present), r.alternative(chosen)
	if out.Known {
		out.Unpriced = r.Unpriced
	}
	switch {
	case !out.Known:
	case r.ByHistory || len(r.Courses) == 0:
		out.Alternatives = append(out.Alternatives, out.Chosen)
	default:
		best := thin(merge(stages, r.Fits), func(o option) bool {
			return slices.Equal(o.slots, present) || slices.Equal(o.slots, chosen)
		})
		for _, o := range best {
			out.Alternatives = append(out.Alternatives, r.alternative(o.slots))
		}
	}
}

// alternative is what the run takes and costs with so many function slots per course.
func (r Rest) alternative(slots []int) Alternative {
	a := Alternative{Name: named(r.Courses, slots)}
	for i, c := range r.Courses {
		if slots[i] > 0 {
			if a.Functions == nil {
				a.Functions = map[string]int{}
			}
			a.Functions[c.Stage.Name] = slots[i]
		}
	}
	if r.Missing != "" {
		return a
	}
	if r.ByHistory {
		a.FinishSeconds, a.CostUSD = r.Finish.From(r.Elapsed), r.Total
		return a
	}
	var finish, cost fact.Interval
	for i, c := range r.Courses {
		finish = finish.Latest(c.finish(slots[i]))
		cost = cost.Plus(spill.Spread(c.cost(slots[i]).USD(), c.Variation, c.spilled(slots[i])))
		if slots[i] == 0 {
			cost.High += c.Undecided.USD()
		}
	}
	a.FinishSeconds, a.CostUSD = finish.From(r.Elapsed), cost.Plus(r.Later).From(r.Spent.USD())
	return a
}

func named(courses []Course, slots []int) string {
	var parts []string
	for i, c := range courses {
		switch {
		case slots[i] == 0:
		case len(parts) == 0:
			parts = append(parts, words.Count(slots[i], "function")+" for "+c.Stage.Name)
		default:
			parts = append(parts, fmt.Sprintf("%d for %s", slots[i], c.Stage.Name))
		}
	}
	if len(parts) == 0 {
		return "pool only"
	}
	return strings.Join(parts, ", ")
}

// usd is an amount that was computed as a ratio.
func usd(amount float64) string {
	if math.IsNaN(amount) {
		amount = 0
	}
	return quantity.USD.Times(amount).String()
}
