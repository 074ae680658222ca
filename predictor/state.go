package predictor

import (
	"time"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/memory"
	"github.com/spillway-ml/spillway/predictor/outlook"
	"github.com/spillway-ml/spillway/predictor/plan"
)

// State is everything that Fold remembers of the past. The zero value remembers nothing and is ready to use.
//
// A State is a handle: Fold and Decide take it over, as append takes over a slice, and only the State they return may
// be used afterwards. It must not be used concurrently. To keep two, encode one as JSON and decode it again.
type State struct{ memory *memory.State }

// own returns the memory to be changed in place, made if there is none.
func (s State) own() *memory.State {
	if s.memory != nil {
		return s.memory
	}
	return memory.New()
}

// Fold remembers one event. It takes s over, as append does: use only the State it returns.
//
// No event can spoil the state: what is doubled, contradicts itself or belongs to no known run is ignored; numbers out
// of range are cut to it. Events may come in any order; those of one attempt and of one run usually come in theirs.
func Fold(s State, e fact.Event) State {
	m := s.own()
	switch e := e.(type) {
	case fact.Record:
		m.Fold(e)
		outlook.Tell(m, e)
		return State{m}
	case fact.RunEnded:
		outlook.Judge(m, e)
	}
	m.Fold(e)
	return State{m}
}

// Pass says that it is this time now: a minute in which nothing came at a stage is known to be one only once it is over
// (see [memory.State.Pass]). Decide says it too; whoever only folds calls it at least once a minute, and, while it
// takes in what happened before, with the time at which each event was stored. It takes s over, as Fold does.
func Pass(s State, now time.Time) State {
	m := s.own()
	m.Pass(fact.At(now))
	return State{m}
}

// Obey makes a state that only folds know what plan is in force, as if it had decided it: whoever answers questions
// besides the leader calls it with every plan. It takes s over, as Fold does. An older plan than the last is ignored;
// stages that the plan names and s has not heard of yet are remembered.
func Obey(s State, inForce plan.Plan) State {
	m := s.own()
	m.Obey(inForce)
	return State{m}
}

// Resume makes a state know what the plan in force gives to stages and runs, as if it had decided it. A leader calls it
// when its term begins: its state may be from before what the last leader decided, or may have been folded from events
// alone; what it does not know it would tell as new, or take back for want of the reason to keep it. Windows of runs
// and stages that the state does not know, and rows that make no sense, are ignored. It takes s over, as Fold does.
func Resume(s State, inForce plan.Plan) State {
	m := s.own()
	m.Resume(inForce)
	return State{m}
}

// Lighten forgets how tasks train; once nothing of that is known a quarter of what is forecast of arrivals, and then a
// quarter of what is known of stages that no run works on, each time those that were active longest ago, and returns of
// how many stages or tasks: a checkpoint of the rest is smaller. It takes s over, as Fold does.
func Lighten(s State) (lighter State, forgotten int) {
	m := s.own()
	forgotten = m.Lighten()
	return State{m}, forgotten
}

// Forecast says when a run ends and what it costs: see [outlook.ForecastOf].
func (s State) Forecast(run string, now time.Time) (forecast outlook.Forecast, known bool) {
	if s.memory == nil {
		return outlook.Forecast{}, false
	}
	return outlook.ForecastOf(s.memory, run, now)
}

// Progress is how far the attempts of these runs are that go on and say so, by run: see [outlook.ProgressOf].
func (s State) Progress(now time.Time, runs ...string) map[string][]outlook.Progress {
	if s.memory == nil || len(runs) == 0 {
		return nil
	}
	return outlook.ProgressOf(s.memory, fact.At(now), setOf(runs))
}

// Learn fits the learning curves of tasks that run and have told something new, at most 8 of them; see
// [memory.State.Learn]. Nothing is decided by it: who shows runs calls it once a second. It takes s over, as Fold does.
func Learn(s State, now time.Time) State {
	m := s.own()
	m.Learn(fact.At(now))
	return State{m}
}

// Learning is how the trainings of tasks of these runs go that say so, by run, as far as Learn has fitted them: see
// [outlook.LearningOf].
func (s State) Learning(runs ...string) map[string][]outlook.Learning { return s.learning(runs, false) }

// LearningAhead is Learning of one run, and how its trainings are expected to go on step by step.
func (s State) LearningAhead(run string) []outlook.Learning {
	return s.learning([]string{run}, true)[run]
}

func (s State) learning(runs []string, ahead bool) map[string][]outlook.Learning {
	if s.memory == nil || len(runs) == 0 {
		return nil
	}
	return outlook.LearningOf(s.memory, setOf(runs), ahead)
}

// setOf are these names as a set.
func setOf(names []string) map[string]bool {
	set := make(map[string]bool, len(names))
	for _, name := range names {
		set[name] = true
	}
	return set
}

// StateVersion is the version of what MarshalJSON writes; UnmarshalJSON reads it and earlier ones.
const StateVersion = memory.SavedVersion

// Arriving tells what comes at a stage, minute by minute, and what is forecast; false where that is not followed.
func (s State) Arriving(stage fact.StageID) (arriving memory.Arriving, followed bool) {
	if s.memory == nil {
		return memory.Arriving{}, false
	}
	return s.memory.Arriving(stage)
}

// MarshalJSON encodes the state for a checkpoint; equal states are equal bytes.
func (s State) MarshalJSON() ([]byte, error) { return s.own().MarshalJSON() }

// UnmarshalJSON decodes what MarshalJSON wrote. On an error s is left as it was: start from the zero State and fold the
// whole stream.
func (s *State) UnmarshalJSON(data []byte) error {
	m := memory.New()
	if err := m.UnmarshalJSON(data); err != nil {
		return err
	}
	s.memory = m
	return nil
}
