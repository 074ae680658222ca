package memory

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/size"
	"github.com/spillway-ml/spillway/predictor/usage"
)

// maxCores is how many stages that wanted more slots than they had are remembered, of whatever pipeline.
const maxCores = 32

// MaxRunsKept is how many finished runs of one pipeline forecasts rest on: the latest, because pipelines change.
const MaxRunsKept = 8

// Past is what the latest runs of one pipeline took.
type Past struct {
	Pipeline string       `json:"pipeline"` // app/pipeline
	Active   fact.Instant `json:"active"`
	Runs     []PastRun    `json:"runs"` // oldest first
}

// PastRun is one run that succeeded.
type PastRun struct {
	// Seconds are without those for which its first attempt waited, which say how busy others were.
	Seconds float64        `json:"seconds"`
	Cost    quantity.Money `json:"cost"`
	Input   quantity.Bytes `json:"input,omitempty"` // of the run, with the artifacts that it names; 0 when not known
	// Features are those of its input, few of them; nil where that is not known.
	Features map[string]float64 `json:"features,omitempty"`
	Stages   []PastStage        `json:"stages,omitempty"` // in order of first scheduling
}

// PastStage is what one stage took in a run.
type PastStage struct {
	Name   string         `json:"name"`
	Tasks  int            `json:"tasks"`
	Reused int            `json:"reused,omitempty"` // results of earlier runs that were taken instead
	Start  float64        `json:"start,omitempty"`  // when the run called it, as Seconds are counted
	End    float64        `json:"end"`              // when its last attempt ended
	Cost   quantity.Money `json:"cost"`
	Load   Load           `json:"load,omitzero"` // the zero value in runs that an earlier build kept
}

// Load is what the tasks of one run and stage came to.
type Load struct {
	Done    int     `json:"done,omitempty"`            // tasks whose run time is known
	Busy    float64 `json:"busy_seconds,omitempty"`    // what these took together
	Longest float64 `json:"longest_seconds,omitempty"` // and the longest of them
	// Logs is the mean of the logarithms of these run times, Scatter the sum of the squares of how far they lie from it.
	Logs    float64 `json:"logs,omitempty"`
	Scatter float64 `json:"scatter,omitempty"`
	Input   float64 `json:"input_bytes,omitempty"` // of all tasks that were scheduled, together
	// Fed are the inputs of the tasks that are counted in Done, Inputs those of all of them; of tasks without an input
	// neither tells.
	Fed    Inputs `json:"fed,omitzero"`
	Inputs Inputs `json:"inputs,omitzero"`
	// Most is how many ran at once.
	Most int `json:"most,omitempty"`
}

// Inputs sum up the inputs of tasks, in bytes. The zero value is those of none.
type Inputs struct {
	Tasks int     `json:"tasks,omitempty"`
	Bytes float64 `json:"bytes,omitempty"`
	// Logs is the sum of their logarithms, Squares that of the squares of these.
	Logs    float64 `json:"logs,omitempty"`
	Squares float64 `json:"squares,omitempty"`
}

// add adds tasks, each with so large an input.
func (i *Inputs) add(tasks int, input quantity.Bytes) {
	if tasks <= 0 || input <= 0 {
		return
	}
	n, bytes := float64(tasks), float64(min(input, fact.MaxPeakMemory))
	log := math.Log(bytes)
	i.Tasks = min(i.Tasks+tasks, maxTasks)
	i.Bytes, i.Logs, i.Squares = i.Bytes+n*bytes, microseconds(i.Logs+n*log), microseconds(i.Squares+n*log*log)
}

// InputsOf are those of tasks, each with so large an input.
func InputsOf(tasks int, input quantity.Bytes) (inputs Inputs) {
	inputs.add(tasks, input)
	return inputs
}

// With are those of i and the others.
func (i Inputs) With(others Inputs) Inputs {
	return Inputs{
		Tasks: min(i.Tasks+others.Tasks, maxTasks), Bytes: i.Bytes + others.Bytes, Logs: i.Logs + others.Logs,
		Squares: i.Squares + others.Squares,
	}
}

// leastPart is the part of tasks below which those that are left are taken to be as all were: they would be the
// difference of two sums fifty times as large, and what is told of an input when it is scheduled is not quite what a
// host finds.
const leastPart = 0.02

// Less are those of i that are not among the others.
func (i Inputs) Less(others Inputs) Inputs {
	left := Inputs{Tasks: max(0, i.Tasks-others.Tasks)}
	if left.Tasks == 0 {
		return left
	}
	n, part := float64(left.Tasks), float64(left.Tasks)/float64(i.Tasks)
	left.Logs, left.Squares = i.Logs-others.Logs, i.Squares-others.Squares
	if part < leastPart || !(left.Logs > 0) {
		left.Bytes, left.Logs, left.Squares = part*i.Bytes, part*i.Logs, part*i.Squares
		return left
	}
	// No sum of numbers is below that of their geometric mean, and no mean of squares below the square of the mean.
	left.Bytes = max(i.Bytes-others.Bytes, n*math.Exp(min(left.Logs/n, math.Log(float64(fact.MaxPeakMemory)))))
	left.Squares = max(left.Squares, left.Logs*left.Logs/n)
	return left
}

// Mean is that of the inputs in bytes, 0 of none.
func (i Inputs) Mean() float64 { return i.Bytes / max(1, float64(i.Tasks)) }

// Variance is the mean of the squares of how far the logarithms lie from their mean; 0 of none.
func (i Inputs) Variance() float64 {
	n := max(1, float64(i.Tasks))
	return max(0, i.Squares/n-i.Logs/n*i.Logs/n)
}

// Slots is on how many slots the tasks ran in the mean, and whether more would have been of use: list scheduling of
// tasks that take Busy together takes about
//
//	span = Busy / slots + (1 - 1 / slots) mean / 2
//
// seconds, the last of them being half done in the mean when the others are.
func (s PastStage) Slots() (slots float64, limited bool) {
	most := float64(max(1, s.Load.Most))
	if s.Load.Done == 0 || s.Tasks <= s.Load.Most {
		return most, false
	}
	half := s.Load.Busy / float64(s.Load.Done) / 2
	span := s.End - s.Start
	if span-half <= (s.Load.Busy-half)/most {
		return most, true
	}
	return (s.Load.Busy - half) / (span - half), true
}

// keepPast adds a run that succeeded to its pipeline's past.
func (m *State) keepPast(r *Run, now fact.Instant) {
	if !r.Known || now < r.Started || r.Started == 0 {
		return
	}
	key := r.Key()
	kept := m.Pasts[key]
	if kept == nil {
		if len(m.Pasts) >= maxPasts {
			delete(m.Pasts, leastRecent(m.Pasts, func(v *Past) fact.Instant { return v.Active }))
		}
		kept = &Past{Pipeline: key}
		m.Pasts[key] = kept
	}
	began := min(r.Started+r.Waited, now)
	done := PastRun{Seconds: now.Since(began), Cost: r.Spent, Input: r.Input, Features: r.Features}
	for _, id := range r.Stages {
		st := m.Stages[id]
		if st == nil || st.Shares[r.ID] == nil {
			continue
		}
		part := st.Shares[r.ID]
		stage := PastStage{
			Name: id.Name, Tasks: part.Scheduled, Reused: part.Reused, Cost: part.Cost,
			Start: min(part.First.Since(began), done.Seconds), End: min(part.Last.Since(began), done.Seconds),
			Load: part.Load,
		}
		done.Stages = append(done.Stages, stage)
		if slots, limited := stage.Slots(); limited {
			m.Cores.Push(slots*max(st.Slot.CPU, size.LeastCPU).Cores(), maxCores)
		}
	}
	if len(kept.Runs) >= MaxRunsKept {
		kept.Runs = slices.Delete(kept.Runs, 0, 1)
	}
	kept.Runs = append(kept.Runs, done)
	kept.Active = max(kept.Active, now)
}

// Elapsed is how many seconds the run has gone on, but for those for which its first attempt waits or has waited.
func (m *State) Elapsed(r *Run, now fact.Instant) float64 {
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
	if kept := m.Pasts[r.Key()]; kept != nil {
		return m.alike(r, kept)
	}
	return nil
}

// AlikeAnywhere is Alike, or, where no run of the pipeline is, how runs of another pipeline of the same app went on
// from the same stages, of the one that ran last. It returns the pipeline as app/pipeline, and nothing for a run that
// has called no stage and whose pipeline has not run.
func (m *State) AlikeAnywhere(r *Run) (found []PastRun, pipeline string) {
	if found = m.Alike(r); len(found) > 0 || len(r.Stages) == 0 {
		return found, r.Key()
	}
	var latest *Past
	for _, kept := range m.Pasts {
		if !strings.HasPrefix(kept.Pipeline, r.App+"/") || latest != nil &&
			cmp.Or(cmp.Compare(kept.Active, latest.Active), strings.Compare(kept.Pipeline, latest.Pipeline)) < 0 {
			continue
		}
		from := Past{Pipeline: kept.Pipeline}
		for _, earlier := range kept.Runs {
			if rest, called := earlier.from(r.Stages[0].Name); called {
				from.Runs = append(from.Runs, rest)
			}
		}
		if those := m.alike(r, &from); len(those) > 0 {
			found, latest = those, kept
		}
	}
	if latest == nil {
		return nil, ""
	}
	return found, latest.Pipeline
}

// from is a run as if it had begun when it called a stage. What its input was then is not known.
func (p PastRun) from(stage string) (rest PastRun, called bool) {
	i := slices.IndexFunc(p.Stages, func(s PastStage) bool { return s.Name == stage })
	if i < 0 {
		return PastRun{}, false
	}
	began := p.Stages[i].Start
	rest = PastRun{Seconds: max(0, p.Seconds-began), Stages: slices.Clone(p.Stages[i:])}
	for k := range rest.Stages {
		later := &rest.Stages[k]
		later.Start, later.End = max(0, later.Start-began), max(0, later.End-began)
		rest.Cost = min(fact.MaxCost, rest.Cost+min(later.Cost, fact.MaxCost))
	}
	return rest, true
}

// alike returns the runs of one pipeline that are alike.
func (m *State) alike(r *Run, kept *Past) []PastRun {
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

// After is how many seconds of a run follow the end of a stage: the median over the earlier runs that are alike, for
// the input of this one; 0 when there are none.
func (m *State) After(r *Run, stage string) float64 {
	return max(0, m.Rests(r, stage).Quantile(0.5))
}

// Rests is how many seconds of each earlier run that is alike followed the end of a stage, for the input of this one.
func (m *State) Rests(r *Run, stage string) usage.Series {
	return m.forInput(r, func(earlier PastRun) (rest float64, known bool) {
		for _, st := range earlier.Stages {
			if st.Name == stage {
				rest, known = earlier.Seconds-st.End, true
			}
		}
		return rest, known
	})
}

// LaterCosts is what the stages that r has not called yet cost each earlier run that is alike, in US dollars, for the
// input of this one.
func (m *State) LaterCosts(r *Run) usage.Series {
	return m.forInput(r, func(earlier PastRun) (dollars float64, known bool) {
		sum := quantity.Money(0)
		for _, st := range earlier.Stages[len(r.Stages):] {
			sum = min(fact.MaxCost, sum+min(st.Cost, fact.MaxCost))
		}
		return sum.USD(), true
	})
}

// forInput is a quantity of each earlier run that is alike, as much more or less as the input of r lets expect; as it
// was where inputs are not known, or it was nothing in one of the runs.
func (m *State) forInput(r *Run, of func(PastRun) (value float64, known bool)) usage.Series {
	const input = "input"
	var seen []usage.Grown
	grows := r.Input > 0
	for _, earlier := range m.Alike(r) {
		if value, known := of(earlier); known {
			seen = append(seen, usage.Grown{Value: value, With: map[string]float64{input: float64(earlier.Input)}})
			grows = grows && value > 0 && earlier.Input > 0
		}
	}
	var values usage.Series
	var growth usage.Growth
	if grows {
		growth = usage.LearnGrowth(seen, usage.Thought{Slope: 0.5, Give: 0.5, Spread: 0.1})
	}
	for _, g := range seen {
		if growth.Known() {
			g.Value *= growth.Expected(map[string]float64{input: float64(r.Input)}) / growth.Expected(g.With)
		}
		values.Push(g.Value, MaxRunsKept)
	}
	return values
}
