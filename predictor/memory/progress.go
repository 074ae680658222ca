package memory

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/spillway-ml/spillway/predictor/fact"
)

// Progress is how far an attempt has come by its own word, and when that was first heard of.
type Progress struct {
	// Step is how much is done: the last step, or rows, or bytes.
	Step int          `json:"step"`
	At   fact.Instant `json:"at"`
	// Of is how much there is to do, as its last report says, and Once what the first one that did said; 0 where none has.
	Of   int `json:"of,omitempty"`
	Once int `json:"once,omitempty"`
	// From is what was heard first, and Since when: what it took to begin is in the time until then, and an attempt that
	// goes on from a checkpoint has not done that much itself. Whole says that it has, as first attempts have. Both are 0
	// of an attempt that an earlier build has followed so far.
	From  int          `json:"from,omitempty"`
	Since fact.Instant `json:"since,omitempty"`
	Whole bool         `json:"whole,omitempty"`
	// Seen is when the attempt was looked at last, whether it had come further or not, and Reports how often it had.
	Seen    fact.Instant `json:"seen,omitempty"`
	Reports int          `json:"reports,omitempty"`
	// Marks are the reports by which its pace is judged, Marked what was done at the last of them and MarkedAt when.
	// Paces is the sum, over the times between them, of the square of each in seconds divided by what was done in it.
	Marks    int          `json:"marks,omitempty"`
	Marked   int          `json:"marked,omitempty"`
	MarkedAt fact.Instant `json:"marked_at,omitempty"`
	Paces    float64      `json:"paces,omitempty"`
	// PerSecond is what it says that it does in a second, by what: samples, tokens; nil where it says nothing. Nothing is
	// predicted by that.
	PerSecond map[string]float64 `json:"per_second,omitempty"`
	// Task is the attempt's task and Number which of its attempts it is, for people; empty where an earlier build has
	// followed it.
	Task   string `json:"task,omitempty"`
	Number int    `json:"number,omitempty"`
}

// maxTask is how many bytes the name of a task may have that is kept with its progress.
const maxTask = 256

// Reporting is an attempt that runs and says how far it is.
type Reporting struct {
	Attempt
	Progress
}

// Reporting are all attempts that run and say how far they are, by key.
func (m *State) Reporting() []Reporting {
	found := make([]Reporting, 0, len(m.steps))
	for key, one := range m.steps {
		if running, known := m.Attempts[key]; known && running.Runs() {
			found = append(found, Reporting{Attempt: running, Progress: one})
		}
	}
	slices.SortFunc(found, func(a, b Reporting) int { return cmp.Compare(a.Key, b.Key) })
	return found
}

// What is thought of the pace before it is known: the time between two marks is a tenth more or less than the mean, two
// times in three, because of what else the hosts do, and that is worth two of them. A mark is made when the time since
// the one before is an eighth of all: so what changes slowly shows between them as well as what changes from step to
// step.
const (
	usualPace  = 0.1
	usualPaces = 2
	markedPart = 8
)

// mostByOneWord is how many times as much may be to do as is done for one word alone to say how long that takes, where
// no attempt has ended either: a script that imports for 16 s and then says 10 of 1,000 is done in two minutes, and not
// in 27 (TestTheFirstWordOfALongTrainingSaysNothingOfItsEnd).
const mostByOneWord = 10

// leastLeft is the part of its time that an attempt may have left when it should have ended by now.
const leastLeft = 0.02

// mostStepVariation is how far the numbers of steps may lie from each other, relative to their mean, for one that goes
// on to be expected to come to as many.
const mostStepVariation = 0.2

// total notes how much the attempt says that there is; nothing for a total below what is done.
func (p *Progress) total(of int) {
	if of <= 0 || of < p.Step {
		of = 0
	}
	p.Of, p.Once = of, cmp.Or(p.Once, of)
}

// progressed notes what an attempt reports. Less than before is passed over: reports of several workers may come in any
// order, and one that begins anew is one that comes no further for a while.
func (m *State) progressed(key uint64, e fact.Sampled) {
	now, told := m.steps[key]
	at := max(fact.At(e.At), m.Attempts[key].Started)
	if e.Step <= now.Step {
		if told {
			now.Seen = max(now.Seen, at)
			if e.Step == now.Step {
				now.total(e.Of)
				now.rates(e.Metrics)
			}
			m.steps[key] = now
		}
		return
	}
	if !told {
		now = Progress{From: e.Step, Since: at, Whole: e.Attempt <= 1, Marked: e.Step, MarkedAt: at}
	} else {
		now.Reports = min(now.Reports+1, maxTasks)
		began := cmp.Or(now.Since, m.Attempts[key].Started)
		since := at.Since(cmp.Or(now.MarkedAt, began))
		if since > 0 && markedPart*since >= at.Since(began) {
			now.Paces += since * since / float64(e.Step-now.Marked)
			now.Marks, now.Marked, now.MarkedAt = now.Marks+1, e.Step, at
		}
	}
	now.Step, now.At, now.Seen = e.Step, at, max(now.Seen, at)
	if len(e.Task) <= maxTask {
		now.Task, now.Number = e.Task, e.Attempt
	}
	now.total(e.Of)
	now.rates(e.Metrics)
	m.steps[key] = now
}

// rateSuffix ends the names of metrics that are rates, mostRates and mostRateName bound how many are kept, and of which
// names.
const (
	rateSuffix   = "_per_second"
	mostRates    = 4
	mostRateName = 64
)

// rates takes over what the metrics say of how much is done in a second; what was said before stays where they say
// nothing.
func (p *Progress) rates(metrics map[string]float64) {
	var told map[string]float64
	for _, name := range slices.Sorted(maps.Keys(metrics)) {
		of, isRate := strings.CutSuffix(name, rateSuffix)
		if !isRate || of == "" || len(of) > mostRateName || len(told) == mostRates ||
			!(metrics[name] >= 0 && metrics[name] <= math.MaxFloat64) {
			continue
		}
		if told == nil {
			told = map[string]float64{}
		}
		told[of] = metrics[name]
	}
	if told != nil {
		p.PerSecond = told
	}
}

// toDo is how much the attempt will have done when it ends, with how far that may be off: what it says itself, which
// is off by as much as it has moved so far, or what attempts of its stage had reported when they ended. 0 where neither
// tells, or those differ by more than a fifth.
func (p Progress) toDo(known *Model) (steps, off float64) {
	if p.Of > 0 {
		return float64(p.Of), math.Abs(float64(p.Of - p.Once))
	}
	steps, variation := known.Steps.Mean()
	if variation > mostStepVariation {
		return 0, 0
	}
	return steps, steps * variation
}

// ByProgress is when an attempt ends if it goes on as it has come to its last step, by how much there is to do; see
// toDo. known is false where it reports none.
//
// With S steps done in T seconds since it was first heard of, and D left, the mean is D T / S. The times between marks
// have a variance that grows with what is done in them, by f for each step, so that of the time left is
//
//	f D (1 + D / S),   f = (sum of t^2 / s between marks - T^2 / S) / (marks - 1)
//
// with what is thought of f before, of which the second part is that of the mean itself. Where no attempt of the stage
// has ended, its parts may differ besides; see firstDoubt. An attempt that is seen to come no further for longer than
// between its steps is as slow as if the next one came now.
func (m *State) ByProgress(running Attempt, now fact.Instant) (told Paced, known bool) {
	st, done := m.Stages[running.Stage()], m.steps[running.Key]
	if st == nil {
		return Paced{}, false
	}
	steps, off := done.toDo(st.Model)
	began := cmp.Or(done.Since, running.Started)
	took, did, least := done.At.Since(began), float64(done.Step-done.From), leastLeft
	if did == 0 && done.Whole { // one word: how much of it was to begin is not known
		took, did, least = done.At.Since(running.Started), float64(done.Step), 1
	}
	if did <= 0 || !(took > 0) || !(steps > 0) {
		return Paced{}, false
	}
	ahead, at := steps-float64(done.Step), done.At
	if ahead <= 0 {
		return Paced{}, false // what comes after its last step is not known
	}
	if done.Step == done.From && !st.Model.ended() && ahead > mostByOneWord*did {
		return Paced{}, false // its next word comes soon, and tells the pace without what it took to begin
	}
	stalled := done.Seen.Since(began) - took/float64(max(1, done.Reports))
	pace := took / did
	if stalled > took {
		pace, at = stalled/did, done.Seen
	}
	scatter := usualPaces * usualPace * usualPace * pace * took / float64(max(1, done.Marks))
	count := float64(usualPaces)
	if marked := float64(done.Marked - done.From); done.Marks > 1 && marked > 0 {
		all := done.MarkedAt.Since(began)
		scatter, count = scatter+max(0, done.Paces-all*all/marked), count+float64(done.Marks-1)
	}
	square := scatter / count * ahead * (1 + ahead/did)
	off *= pace // how many there will be is not certain either
	late := max(0, stalled-took) / did * ahead
	square += off*off + late*late
	if !st.Model.ended() {
		square += firstDoubt(pace, did, ahead)
	}
	whole := pace * ahead
	deviation := math.Sqrt(square)
	told.Then = Left{Mean: whole, Variation: max(deviation/whole, least)}
	told.Ago = min(max(0, now.Since(at)), m.Age(running, now))
	mean := max(whole-told.Ago, leastLeft*(took+whole))
	told.Now = Left{Mean: mean, Variation: max(deviation/mean, least)}
	return told, true
}
