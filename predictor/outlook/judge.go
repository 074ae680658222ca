package outlook

import (
	"time"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/memory"
	"github.com/spillway-ml/spillway/predictor/usage"
)

// Tell remembers what is expected of a run that has just called a stage, once for each run, for Judge. Which of its
// stages that is differs from run to run, so that forecasts of every part of a run are judged, and one forecast is all
// that folding a run takes.
func Tell(m *memory.State, run string, now time.Time) {
	r := m.Runs[run]
	if r == nil || !r.Known || r.Told.At != 0 {
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
	if forecast, known := ForecastOf(m, run, now); known {
		r.Told = memory.Told{At: fact.At(now), Finish: forecast.Finish}
	}
}

// Judge widens or narrows later forecasts by whether a run that has ended well ended when it was told to; see
// [usage.Widened]. It is called before the run is forgotten.
func Judge(m *memory.State, ended fact.RunEnded) {
	r := m.Runs[ended.Run]
	if r == nil || ended.State != fact.RunSucceeded || r.Told.At == 0 {
		return
	}
	m.RunWidth = usage.Widened(m.RunWidth, r.Told.Finish, fact.At(ended.At).Since(r.Told.At))
}
