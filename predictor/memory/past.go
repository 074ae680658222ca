package memory

import (
	"slices"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/usage"
)

// MaxRunsKept is how many finished runs of one pipeline forecasts rest on: the latest, because pipelines change.
const MaxRunsKept = 8

// Past is what the latest runs of one pipeline took.
type Past struct {
	Pipeline string    `json:"pipeline"` // app/pipeline
	Active   Instant   `json:"active"`
	Runs     []PastRun `json:"runs"` // oldest first
}

// PastRun is one run that succeeded.
type PastRun struct {
	// Seconds are without those for which its first attempt waited, which say how busy others were.
	Seconds float64        `json:"seconds"`
	Cost    quantity.Money `json:"cost"`
	Stages  []PastStage    `json:"stages,omitempty"` // in order of first scheduling
}

// PastStage is what one stage took in a run.
type PastStage struct {
	Name   string         `json:"name"`
	Tasks  int            `json:"tasks"`
	Reused int            `json:"reused,omitempty"` // results of earlier runs that were taken instead
	End    float64        `json:"end"`              // when its last attempt ended, as Seconds are counted
	Cost   quantity.Money `json:"cost"`
}

// keepPast adds a run that succeeded to its pipeline's past.
func (m *State) keepPast(r *Run, now Instant) {
	if !r.Known || now < r.Started || r.Started == 0 {
		return
	}
	key := r.Key()
	kept := m.Pasts[key]
	if kept == nil {
		if len(m.Pasts) >= maxPasts {
			delete(m.Pasts, leastRecent(m.Pasts, func(v *Past) Instant { return v.Active }))
		}
		kept = &Past{Pipeline: key}
		m.Pasts[key] = kept
	}
	began := min(r.Started+r.Waited, now)
	done := PastRun{Seconds: now.Since(began), Cost: r.Spent}
	for _, id := range r.Stages {
		st := m.Stages[id]
		if st == nil || st.Shares[r.ID] == nil {
			continue
		}
		part := st.Shares[r.ID]
		done.Stages = append(done.Stages, PastStage{
			Name: id.Name, Tasks: part.Scheduled, Reused: part.Reused, Cost: part.Cost,
			End: min(part.Last.Since(began), done.Seconds),
		})
	}
	if len(kept.Runs) >= MaxRunsKept {
		kept.Runs = slices.Delete(kept.Runs, 0, 1)
	}
	kept.Runs = append(kept.Runs, done)
	kept.Active = max(kept.Active, now)
}

// Elapsed is how many seconds the run has gone on, but for those for which its first attempt waits or has waited.
func (m *State) Elapsed(r *Run, now Instant) float64 {
	if r.Begun {
		return now.Since(r.Started + r.Waited)
	}
	for _, id := range r.Stages {
		if st := m.Stages[id]; st != nil && st.Shares[r.ID] != nil && st.Shares[r.ID].Scheduled > 0 {
			return min(now, st.Shares[r.ID].First).Since(r.Started)
		}
	}
	return now.Since(r.Started)
}

// Alike returns the earlier runs of r's pipeline whose first stages are those that r has called so far, and that
// reused about as many results of earlier runs where r does. A run that has reused none so far is like none that did:
// it would have taken longer.
func (m *State) Alike(r *Run) []PastRun {
	kept := m.Pasts[r.Key()]
	if kept == nil {
		return nil
	}
	reuses := false
	called := make([]PastStage, len(r.Stages))
	for i, id := range r.Stages {
		called[i].Name = id.Name
		if st := m.Stages[id]; st != nil && st.Shares[r.ID] != nil {
			part := st.Shares[r.ID]
			called[i].Reused, called[i].Tasks = part.Reused, part.Scheduled+part.Further
		}
		reuses = reuses || called[i].Reused > 0
	}
	var found []PastRun
	for _, earlier := range kept.Runs {
		if len(earlier.Stages) >= len(called) &&
			slices.EqualFunc(earlier.Stages[:len(called)], called, PastStage.alike) &&
			(reuses || !slices.ContainsFunc(earlier.Stages, PastStage.reuses)) {
			found = append(found, earlier)
		}
	}
	return found
}

func (s PastStage) reuses() bool { return s.Reused > 0 }

// ran is the part of the tasks that was not reused.
func (s PastStage) ran() float64 {
	return float64(s.Tasks) / max(1, float64(s.Tasks)+float64(s.Reused))
}

// alike reports whether two runs called the same stage in the same way: where they reuse results, what is left to run
// is at most twice as much in one as in the other. Of a hundred tasks, one takes another time than ninety-nine.
func (s PastStage) alike(other PastStage) bool {
	return s.Name == other.Name && s.reuses() == other.reuses() &&
		(!s.reuses() || s.ran() <= 2*other.ran() && other.ran() <= 2*s.ran())
}

// After is how many seconds of a run follow the end of a stage: the median over the earlier runs that are alike; 0 when
// there are none.
func (m *State) After(r *Run, stage string) float64 {
	return max(0, m.Rests(r, stage).Quantile(0.5))
}

// Rests is how many seconds of each earlier run that is alike followed the end of a stage.
func (m *State) Rests(r *Run, stage string) usage.Series {
	var rests usage.Series
	for _, earlier := range m.Alike(r) {
		for _, st := range earlier.Stages {
			if st.Name == stage {
				rests.Push(earlier.Seconds-st.End, MaxRunsKept)
			}
		}
	}
	return rests
}

// LaterCosts is what the stages that r has not called yet cost each earlier run that is alike, in US dollars.
func (m *State) LaterCosts(r *Run) usage.Series {
	var costs usage.Series
	for _, earlier := range m.Alike(r) {
		sum := quantity.Money(0)
		for _, st := range earlier.Stages[len(r.Stages):] {
			sum = min(fact.MaxCost, sum+min(st.Cost, fact.MaxCost))
		}
		costs.Push(sum.USD(), MaxRunsKept)
	}
	return costs
}
