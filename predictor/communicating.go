package predictor

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/plan"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/spill"
	"github.com/spillway-ml/spillway/predictor/venue"
	"github.com/spillway-ml/spillway/predictor/words"
)

// dearer is why functions are not asked for a training that they could run.
const dearer spill.Refusal = "they cost more than the pool"

// training is what one task of a stage that trains a model costs at the pool, and in functions.
type training struct {
	work  venue.Work
	parts int
	pool  venue.Estimate
	// ways are the ways of functions that can be had, the cheapest first.
	ways []trainedBy
}

// trainedBy is a way to train in functions.
type trainedBy struct {
	venue.Estimate
	functions int
}

// trains weighs the newest training that a stage told of; nil where it trains nothing. A training is steady work that
// communicates: all that it takes is known beforehand but its speed, and its parts exchange after each step. So it goes
// where it costs less by the model of [venue.Choose], whatever an hour is worth: the pool's slot at the price of its
// host, against one function that does all of it and exchanges within itself, or as many as it has parts, which
// exchange through a store because functions do not reach each other.
func (d *decider) trains(w *work) *training {
	told, trains := w.stage.Model.Training()
	if !trains || !d.functions.Enabled {
		return nil
	}
	threads, cores := 0, max(w.size.CPU.Cores(), 0.001)
	for _, part := range told.Parts {
		threads += max(1, part.Threads)
	}
	used := min(cores, float64(threads))
	step := cmp.Or(told.StepSeconds, told.PredictedStepSeconds)
	t := &training{parts: len(told.Parts), work: venue.Work{
		Model: told.ModelBytes, Rounds: int(min(max(told.TotalSteps, told.Steps, 1), math.MaxInt32)),
		Compute: time.Duration(min(step*used, fact.MaxWall.Seconds()) * float64(time.Second)), MostCores: float64(threads),
	}}
	slot := venue.Hosts{Name: "the pool's slot", Cores: cores, Hour: d.slotPrice(w)}
	within := venue.Channel{BytesPerSecond: math.Inf(1)}
	cold := d.functions.ColdStart
	ways := venue.Ways{
		Store: venue.ObjectStore(), Channels: []venue.Channel{within},
		Starts: []venue.Start{{Workers: 1, Takes: cold}, {Workers: plan.MaxSlots, Takes: cold}},
	}
	t.pool = t.work.OnHosts(slot, 1)
	t.try(1, d.holding(d.functionMemory(w)), ways)
	if t.parts > 1 {
		ways.Channels = []venue.Channel{venue.ObjectStore()}
		t.try(t.parts, d.holding(d.functionMemory(w)/quantity.Bytes(t.parts)), ways)
	}
	slices.SortStableFunc(t.ways, func(a, b trainedBy) int { return int(min(1, max(-1, a.Cost-b.Cost))) })
	return t
}

// holding are the functions that hold so much.
func (d *decider) holding(memory quantity.Bytes) venue.Functions {
	functions := d.functions
	functions.Classes = slices.DeleteFunc(slices.Clone(functions.Classes), func(class quantity.Bytes) bool {
		return class < memory
	})
	return functions
}

// try notes what the training costs in so many functions, where it can be done so.
func (t *training) try(functions int, offered venue.Functions, ways venue.Ways) {
	work := t.work
	work.MostCores = math.Ceil(work.MostCores / float64(functions))
	held := venue.Hosts{Cores: 1} // what hosts cost is known
	choice, err := venue.Choose(work, functions, offered, ways, []venue.Hosts{held})
	if err == nil && choice.Possible {
		t.ways = append(t.ways, trainedBy{choice.Functions, functions})
	}
}

// dearer reports whether no way in functions costs less than the pool.
func (t *training) dearer() bool { return len(t.ways) == 0 || t.ways[0].Cost >= t.pool.Cost }

// reason says what was weighed.
func (t *training) reason() string {
	var text strings.Builder
	fmt.Fprintf(&text, "a training of %s in %s costs %s at the pool in %s", words.Count(t.work.Rounds, "step"),
		words.Count(t.parts, "part"), t.pool.Cost, words.Seconds(t.pool.Time.Seconds()))
	for _, way := range t.ways {
		fmt.Fprintf(&text, ", %s as %s in %s", way.Cost, t.described(way), words.Seconds(way.Time.Seconds()))
	}
	switch {
	case len(t.ways) == 0:
		return text.String() + ", and no function can do it"
	case t.dearer():
		return text.String() + ": functions are no cheaper"
	}
	return text.String()
}

func (t *training) described(way trainedBy) string {
	if way.functions == 1 {
		return "one function of " + way.Class.String()
	}
	exchange := "exchange"
	if t.work.Model > 0 {
		exchange += " " + t.work.Model.String()
	}
	return fmt.Sprintf("%d functions of %s that %s after each step through %s", way.functions, way.Class, exchange,
		way.Channel)
}

// rejected are the ways that were not taken.
func (t *training) rejected(spilled bool) (others []plan.Rejected) {
	if spilled {
		others = append(others, plan.Rejected{
			What: "a slot", Venue: fact.Pool, Price: t.pool.Cost, Seconds: t.pool.Time.Seconds(), Chance: -1,
		})
	}
	for _, way := range t.ways {
		if spilled && way.functions == 1 {
			continue // that is what spills
		}
		others = append(others, plan.Rejected{
			What: t.described(way), Venue: fact.Function, Price: way.Cost, Seconds: way.Time.Seconds(), Chance: -1,
		})
	}
	return others
}
