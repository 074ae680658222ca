package predictor

import (
	"slices"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// maxRunsKept is how many finished runs of one pipeline forecasts rest on: the latest, because pipelines change.
const maxRunsKept = 8

// past is what the latest runs of one pipeline took.
type past struct {
	Pipeline string    `json:"pipeline"` // app/pipeline
	Active   instant   `json:"active"`
	Runs     []pastRun `json:"runs"` // oldest first
}

// pastRun is one run that succeeded.
type pastRun struct {
	// Seconds are without those for which its first attempt waited, which say how busy others were.
	Seconds float64        `json:"seconds"`
	Cost    quantity.Money `json:"cost"`
	Stages  []pastStage    `json:"stages,omitempty"` // in order of first scheduling
}

// pastStage is what one stage took in a run.
type pastStage struct {
	Name   string         `json:"name"`
	Tasks  int            `json:"tasks"`
	Reused int            `json:"reused,omitempty"` // results of earlier runs that were taken instead
	End    float64        `json:"end"`              // when its last attempt ended, as Seconds are counted
	Cost   quantity.Money `json:"cost"`
}

// keepPast adds a run that succeeded to its pipeline's past.
func (m *memory) keepPast(r *run, now instant) {
	if !r.Known || now < r.Started || r.Started == 0 {
		return
	}
	key := r.pipeline()
	kept := m.pasts[key]
	if kept == nil {
		if len(m.pasts) >= maxPasts {
			delete(m.pasts, leastRecent(m.pasts, func(v *past) instant { return v.Active }))
		}
		kept = &past{Pipeline: key}
		m.pasts[key] = kept
	}
	began := min(r.Started+r.Waited, now)
	done := pastRun{Seconds: now.since(began), Cost: r.Spent}
	for _, id := range r.Stages {
		st := m.stages[id]
		if st == nil || st.Shares[r.ID] == nil {
			continue
		}
		part := st.Shares[r.ID]
		done.Stages = append(done.Stages, pastStage{
			Name: id.Name, Tasks: part.Scheduled, Reused: part.Reused, Cost: part.Cost,
			End: min(part.Last.since(began), done.Seconds),
		})
	}
	if len(kept.Runs) >= maxRunsKept {
		kept.Runs = slices.Delete(kept.Runs, 0, 1)
	}
	kept.Runs = append(kept.Runs, done)
	kept.Active = max(kept.Active, now)
}

// Forecast is what is expected of a run that goes on.
type Forecast struct {
	// Finish is in how many seconds from now it ends, and Cost what it will have cost altogether by then, in US dollars.
	Finish, Cost Interval
	// Runs is on how many earlier runs this rests, at least 1. Of one, the intervals are those of acrossRuns: a guess.
	Runs int
}

// Forecast compares the run with the earlier runs of its pipeline that called the same stages first, in the same
// order, and reused results of the same: what is left is what they took less the time that passed, but for the
// wait for the first attempt, and the interval is their spread. known is false
// for runs that are unknown or over, and when no earlier run is alike or this run already took longer than all that
// are.
func (s State) Forecast(run string, now time.Time) (forecast Forecast, known bool) {
	m := s.memory
	if m == nil || m.runs[run] == nil || !m.runs[run].Known {
		return Forecast{}, false
	}
	r := m.runs[run]
	elapsed := m.elapsed(r, at(now))
	var took, cost series
	for _, earlier := range m.alike(r) {
		if earlier.Seconds > elapsed {
			took.push(earlier.Seconds, maxRunsKept)
			cost.push(earlier.Cost.USD(), maxRunsKept)
		}
	}
	if len(took.Values) == 0 {
		return Forecast{}, false
	}
	return Forecast{
		Finish: took.acrossRuns().from(-elapsed).atLeast(0),
		Cost:   cost.acrossRuns().atLeast(r.Spent.USD()),
		Runs:   len(took.Values),
	}, true
}

// elapsed is how many seconds the run has gone on, but for those for which its first attempt waits or has waited.
func (m *memory) elapsed(r *run, now instant) float64 {
	if r.Begun {
		return now.since(r.Started + r.Waited)
	}
	for _, id := range r.Stages {
		if st := m.stages[id]; st != nil && st.Shares[r.ID] != nil && st.Shares[r.ID].Scheduled > 0 {
			return min(now, st.Shares[r.ID].First).since(r.Started)
		}
	}
	return now.since(r.Started)
}

// spreadOfOne is by what factor another run may take more or less than the only one that is known of its pipeline:
// one run tells nothing of how much runs differ. Two runs of the same input on the same machine have differed by 1.4
// because of what else ran there.
const spreadOfOne = 2

// acrossRuns is what another run takes of what these runs took. The interval of one value is no single number, which
// would promise what nobody knows: it reaches from half to twice.
func (s series) acrossRuns() Interval {
	i := s.interval()
	if len(s.Values) == 1 {
		i.Low, i.High = i.Mid/spreadOfOne, i.Mid*spreadOfOne
	}
	return i
}

// atLeast raises what is below the least.
func (i Interval) atLeast(least float64) Interval {
	return Interval{Low: max(i.Low, least), Mid: max(i.Mid, least), High: max(i.High, least)}
}

// alike returns the earlier runs of r's pipeline whose first stages are those that r has called so far, and that
// reused about as many results of earlier runs where r does. A run that has reused none so far is like none that did:
// it would have taken longer.
func (m *memory) alike(r *run) []pastRun {
	kept := m.pasts[r.pipeline()]
	if kept == nil {
		return nil
	}
	reuses := false
	called := make([]pastStage, len(r.Stages))
	for i, id := range r.Stages {
		called[i].Name = id.Name
		if st := m.stages[id]; st != nil && st.Shares[r.ID] != nil {
			part := st.Shares[r.ID]
			called[i].Reused, called[i].Tasks = part.Reused, part.Scheduled+part.Further
		}
		reuses = reuses || called[i].Reused > 0
	}
	var found []pastRun
	for _, earlier := range kept.Runs {
		if len(earlier.Stages) >= len(called) &&
			slices.EqualFunc(earlier.Stages[:len(called)], called, pastStage.alike) &&
			(reuses || !slices.ContainsFunc(earlier.Stages, pastStage.reuses)) {
			found = append(found, earlier)
		}
	}
	return found
}

func (s pastStage) reuses() bool { return s.Reused > 0 }

// ran is the part of the tasks that was not reused.
func (s pastStage) ran() float64 {
	return float64(s.Tasks) / max(1, float64(s.Tasks)+float64(s.Reused))
}

// alike reports whether two runs called the same stage in the same way: where they reuse results, what is left to run
// is at most twice as much in one as in the other. Of a hundred tasks, one takes another time than ninety-nine.
func (s pastStage) alike(other pastStage) bool {
	return s.Name == other.Name && s.reuses() == other.reuses() &&
		(!s.reuses() || s.ran() <= 2*other.ran() && other.ran() <= 2*s.ran())
}

// after is how many seconds of a run follow the end of a stage: the median over the earlier runs that are alike; 0 when
// there are none.
func (m *memory) after(r *run, stage string) float64 {
	return max(0, m.rests(r, stage).quantile(0.5))
}

// rests is how many seconds of each earlier run that is alike followed the end of a stage.
func (m *memory) rests(r *run, stage string) series {
	var rests series
	for _, earlier := range m.alike(r) {
		for _, st := range earlier.Stages {
			if st.Name == stage {
				rests.push(earlier.Seconds-st.End, maxRunsKept)
			}
		}
	}
	return rests
}

// laterCosts is what the stages that r has not called yet cost each earlier run that is alike, in US dollars.
func (m *memory) laterCosts(r *run) series {
	var costs series
	for _, earlier := range m.alike(r) {
		sum := quantity.Money(0)
		for _, st := range earlier.Stages[len(r.Stages):] {
			sum = min(maxCost, sum+min(st.Cost, maxCost))
		}
		costs.push(sum.USD(), maxRunsKept)
	}
	return costs
}
