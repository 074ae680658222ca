package outlook

import (
	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/memory"
	"github.com/spillway-ml/spillway/predictor/usage"
)

// Tell remembers what is expected of a run when the first task of a stage is done, once for each run, for Judge. Which
// of its stages that is differs from run to run, so that forecasts of every part of a run are judged, and one forecast
// is all that folding a run takes. When a stage is called it is too early: its tasks are told of, and begin, one by
// one. The time is by the clock by which runs end, not by that of the host.
func Tell(m *memory.State, ended fact.Record) {
	r, st := m.Runs[ended.Run], m.Stages[ended.Stage]
	if r == nil || !r.Known || r.Told.At != 0 || st == nil {
		return
	}
	part := st.Shares[r.ID]
	if part == nil || part.Done != 1 || ended.Outcome != fact.Succeeded || r.Stages[len(r.Stages)-1] != st.ID {
		return
	}
	earlier := m.Alike(r)
	if len(earlier) == 0 {
		return
	}
	stages := len(earlier[len(earlier)-1].Stages)
	if stages > 0 && len(r.Stages)-1 != int(seedOf(r.ID)%uint64(stages)) {
		return
	}
	at := fact.At(ended.Ended())
	r.Told = memory.Told{At: at} // also where nothing is known: asking again for every Record would take long
	if forecast, known := ForecastOf(m, r.ID, ended.Ended()); known {
		r.Told = memory.Told{At: at, Finish: forecast.Finish, Cost: forecast.Cost}
	}
}

// Judge widens or narrows later forecasts by whether a run that has ended well ended when it was told to, and cost what
// it was told to; see [usage.Widened]. It is called before the run is forgotten.
func Judge(m *memory.State, ended fact.RunEnded) {
	r := m.Runs[ended.Run]
	if r == nil || ended.State != fact.RunSucceeded || !(r.Told.Finish.High > 0) {
		return
	}
	m.RunWidth = usage.Widened(m.RunWidth, r.Told.Finish, fact.At(ended.At).Since(r.Told.At))
	if r.Told.Cost.High > 0 { // else nothing costs anything, or an earlier build has told it
		m.CostWidth = usage.Widened(m.CostWidth, r.Told.Cost, r.Spent.USD())
	}
}
