package memory

import (
	"cmp"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/forecast"
)

const (
	// arrivalMinute is how long the buckets are in which arrivals are counted.
	arrivalMinute = fact.Instant(60e9)
	// arrivalHorizon is how many minutes ahead is forecast: longer than a child is kept by default, and what a person
	// looks ahead.
	arrivalHorizon = 30
	// maxArrivals is of how many stages arrivals are followed: one takes 22 KB, and 35 KB as JSON.
	maxArrivals = 256
	// maxCame is how many of the latest minutes are remembered with what had been said of them.
	maxCame = 60
	// quietMinutes is how many minutes may pass at once in which nothing came; when more do, nobody was there to see
	// what came. Where no ticker tells, as when the past is read, hosts tell about once a minute that they are there.
	quietMinutes = 3
	// backMinutes is how far the time may go back without being another time: two clocks tell it, which differ.
	backMinutes = 5
	// silentMinutes is for how long nothing has to have come at a stage before another one may be followed instead, while
	// there is no room. Where thousands take turns, each would else be forgotten before anything was learned of it.
	silentMinutes = 60
	// growMinutes is after how many minutes one stage more is tried where not all had room in a checkpoint.
	growMinutes = 24 * 60
)

// series are the tasks that came at one stage, whatever its build, minute by minute, and what is forecast.
type series struct {
	// Name is that of the stage's model.
	Name string `json:"name"`
	// Last is the minute since 1970 in which something came last.
	Last int64 `json:"last_minute"`
	// Count is how many tasks came in the minute that goes on.
	Count int `json:"count,omitempty"`
	// Came are the latest minutes that are over, the newest last, at most maxCame of them.
	Came []Came `json:"came,omitempty"`
	// Forecaster knows all minutes that are over. It changes with every minute.
	Forecaster *forecast.Forecaster `json:"forecaster"`

	coming []float64 // what was said in a minute of those to come, see Coming
	said   int64     // that minute
}

// Came is how many tasks came in a minute beside what was said of it a minute before.
type Came struct {
	// Minute is the minute since 1970.
	Minute int64 `json:"minute"`
	Tasks  int   `json:"tasks"`
	// Low, Mid and High are the quantiles at 10, 50 and 90 percent; 0 where nothing was known, and Known is false.
	Low   float32 `json:"low,omitempty"`
	Mid   float32 `json:"mid,omitempty"`
	High  float32 `json:"high,omitempty"`
	Known bool    `json:"known,omitempty"`
}

// arrivals is what is known of those at all stages. Its zero value knows nothing.
type arrivals struct {
	// minute is the one that goes on, since 1970; 0 before any time was told.
	minute int64
	stages map[string]*series // by the name of the model
	// most is how many stages are followed at most where less than maxArrivals had room in a checkpoint; 0 for as many. It
	// grows by one a day, and whoever goes on from a checkpoint begins with all.
	most int
	// crowded is the last minute in which a stage found no room.
	crowded int64
	// still says that no time passes: this is a copy that shares what it knows.
	still bool
}

// Pass says that it is this time now: the minute that went on before is over where this is another one, and where
// nothing came in it, that is known too. Whoever folds calls it again and again, and tells one clock; where that goes
// back by at most five minutes, it stands still, and by more, what comes is counted anew from there. The forecasts
// take in none of it until the clock is as far as it was, so that what they learned in weeks is not lost to a clock
// that is soon set right; after an hour of it they begin anew (see [forecast.Forecaster.Observe]).
//
// It takes about 5 microseconds for each stage that is followed when a minute is over, and nothing else.
func (m *State) Pass(now fact.Instant) {
	m.passed = max(0, now)
	m.arrivals.pass(int64(now / arrivalMinute))
}

func (a *arrivals) pass(minute int64) {
	passed := minute - a.minute
	switch {
	case a.still || minute <= 0 || passed == 0 || passed < 0 && passed >= -backMinutes:
		return
	case a.minute == 0:
		a.minute = minute
		return
	}
	for _, stage := range a.stages {
		if passed > 0 {
			stage.over(a.minute)
		}
		stage.Count = 0
		for quiet := a.minute + 1; quiet < minute && passed <= quietMinutes; quiet++ {
			stage.over(quiet)
		}
		if passed < 0 {
			stage.Last, stage.coming = min(stage.Last, minute), nil
			stage.Came = slices.DeleteFunc(stage.Came, func(came Came) bool { return came.Minute >= minute })
		}
	}
	if a.most > 0 && minute/growMinutes > a.minute/growMinutes {
		a.most = min(a.most+1, maxArrivals)
	}
	a.minute = minute
}

// over closes a minute.
func (s *series) over(minute int64) {
	at := fact.Instant(minute) * arrivalMinute
	came := Came{Minute: minute, Tasks: s.Count}
	if said := s.Forecaster.At(at.Time()); said.Known() {
		came.Known = true
		came.Low, came.Mid = float32(said.Quantile(0.1)), float32(said.Quantile(0.5))
		came.High = float32(said.Quantile(0.9))
	}
	if !s.Forecaster.Observe(at.Time(), float64(s.Count)) {
		return
	}
	if len(s.Came) == maxCame {
		copy(s.Came, s.Came[1:])
		s.Came = s.Came[:maxCame-1]
	}
	s.Came = append(s.Came, came)
}

// arrived counts tasks that came at the stages of a model.
func (a *arrivals) arrived(name string, tasks int) {
	if tasks <= 0 || a.still {
		return
	}
	stage := a.stages[name]
	if stage == nil {
		if stage = a.follow(name); stage == nil {
			return
		}
	}
	stage.Count, stage.Last = min(stage.Count+tasks, maxTasks), a.minute
}

// follow begins to count what comes at a stage; nil where there is no room for another one.
func (a *arrivals) follow(name string) *series {
	most := cmp.Or(a.most, maxArrivals)
	if len(a.stages) >= most {
		if a.crowded == a.minute {
			return nil
		}
		silent := a.silent()
		if silent == nil || a.minute-silent.Last < silentMinutes {
			a.crowded = a.minute
			return nil
		}
		delete(a.stages, silent.Name)
	}
	forecaster, err := forecast.New(forecast.Options{Horizon: arrivalHorizon})
	if err != nil {
		panic("a forecast of arrivals: " + err.Error()) // the options are constant
	}
	if a.stages == nil {
		a.stages = map[string]*series{}
	}
	fresh := &series{Name: name, Last: a.minute, Forecaster: forecaster}
	a.stages[name] = fresh
	return fresh
}

// silent is the stage at which nothing has come for the longest, the smaller name among equals; nil for none.
func (a *arrivals) silent() *series {
	var longest *series
	for _, stage := range a.stages {
		if longest == nil || cmp.Or(cmp.Compare(stage.Last, longest.Last), strings.Compare(stage.Name, longest.Name)) < 0 {
			longest = stage
		}
	}
	return longest
}

// lighten forgets a quarter of the stages, those at which nothing has come for the longest, follows no more than the
// others at first, and returns how many it forgot.
func (a *arrivals) lighten() (forgotten int) {
	if len(a.stages) == 0 {
		return 0
	}
	forgotten = (len(a.stages) + 3) / 4
	for range forgotten {
		delete(a.stages, a.silent().Name)
	}
	a.most = max(1, len(a.stages))
	return forgotten
}

// enoughMinutes is how many minutes must be known before a forecast of them is acted on: of fewer, what is thought
// before anything was seen says as much.
const enoughMinutes = 30

// Coming is the chance that anything comes at the stages of a model in the minute that goes on, if nothing has yet, and
// in each of the next; nil where less is known than enough to act on. It is not to be changed.
func (m *State) Coming(model string) []float64 {
	stage, now := m.arrivals.stages[model], m.arrivals.minute
	if stage == nil || stage.Forecaster.Seen() < enoughMinutes {
		return nil
	}
	if stage.said == now && stage.coming != nil {
		return stage.coming
	}
	coming := make([]float64, 0, arrivalHorizon)
	for i := range int64(arrivalHorizon) {
		said := stage.Forecaster.At((fact.Instant(now+i) * arrivalMinute).Time())
		if !said.Known() { // the time went back
			return nil
		}
		coming = append(coming, said.Exceeds(0))
	}
	if !m.arrivals.still { // what a copy shares is not the copy's to change
		stage.coming, stage.said = coming, now
	}
	return coming
}

// savedArrivals is the JSON form of what arrives.
type savedArrivals struct {
	Minute int64         `json:"minute"`
	Stages []savedSeries `json:"series,omitempty"`
}

// savedSeries is one stage: what cannot be read of one is forgotten, and nothing else is.
type savedSeries struct{ *series }

// UnmarshalJSON implements json.Unmarshaler. A forecast of another version leaves the stage nil.
func (s *savedSeries) UnmarshalJSON(data []byte) error {
	var read series
	if err := json.Unmarshal(data, &read); err != nil || read.Forecaster == nil || read.Name == "" {
		return nil //nolint:nilerr // what is forecast is learned again, and the rest of the state is not to be lost for it
	}
	read.Came = read.Came[max(0, len(read.Came)-maxCame):]
	read.Count = min(max(0, read.Count), maxTasks)
	s.series = &read
	return nil
}

func (a *arrivals) save() *savedArrivals {
	if a.minute == 0 && len(a.stages) == 0 {
		return nil
	}
	saved := &savedArrivals{Minute: a.minute}
	for _, name := range slices.Sorted(maps.Keys(a.stages)) {
		saved.Stages = append(saved.Stages, savedSeries{a.stages[name]})
	}
	return saved
}

func (s *savedArrivals) read() (a arrivals) {
	if s == nil {
		return arrivals{}
	}
	a.minute = max(0, s.Minute)
	a.stages = make(map[string]*series, len(s.Stages))
	for _, stage := range s.Stages {
		if stage.series != nil && len(a.stages) < maxArrivals {
			a.stages[stage.Name] = stage.series
		}
	}
	return a
}

// Arriving is how many tasks come at a stage, whatever its build and of all runs, minute by minute.
type Arriving struct {
	// Stage is the stage's own name.
	Stage string `json:"stage"`
	// Known is how many minutes were observed; a forecast is acted on from Enough on.
	Known  int64 `json:"known_minutes"`
	Enough int64 `json:"enough_minutes"`
	// Now is the beginning of the minute that goes on, and Count how many tasks came in it until now.
	Now   time.Time `json:"now"`
	Count int       `json:"count"`
	// Came are the latest minutes that are over, oldest first, at most an hour of them; those that nobody saw are missing.
	Came []ArrivedMinute `json:"came"`
	// Next are the minute that goes on and those that follow it, half an hour of them.
	Next []ComingMinute `json:"next"`
}

// ArrivedMinute is one that is over.
type ArrivedMinute struct {
	// At is its beginning.
	At    time.Time `json:"at"`
	Tasks int       `json:"tasks"`
	// Predicted is what was said of it a minute before: of eight in ten minutes the count is within. Nil where nothing was
	// known.
	Predicted *fact.Interval `json:"predicted_tasks,omitempty"`
}

// ComingMinute is one that is to come.
type ComingMinute struct {
	// At is its beginning.
	At time.Time `json:"at"`
	// Predicted is how many tasks are forecast, Chance how likely any comes at all, from 0 to 1.
	Predicted fact.Interval `json:"predicted_tasks"`
	Chance    float64       `json:"chance"`
}

// Arriving tells what comes at a stage; false where that is not followed.
func (m *State) Arriving(stage fact.StageID) (arriving Arriving, followed bool) {
	known := m.arrivals.stages[stage.Model()]
	if known == nil {
		return Arriving{}, false
	}
	beginning := func(minute int64) time.Time { return (fact.Instant(minute) * arrivalMinute).Time() }
	arriving = Arriving{
		Stage: stage.Name, Known: known.Forecaster.Seen(), Enough: enoughMinutes,
		Now: beginning(m.arrivals.minute), Count: known.Count,
		Came: make([]ArrivedMinute, 0, len(known.Came)), Next: make([]ComingMinute, 0, arrivalHorizon),
	}
	for _, came := range known.Came {
		minute := ArrivedMinute{At: beginning(came.Minute), Tasks: came.Tasks}
		if came.Known {
			minute.Predicted = &fact.Interval{Low: tenths(came.Low), Mid: tenths(came.Mid), High: tenths(came.High)}
		}
		arriving.Came = append(arriving.Came, minute)
	}
	for i := range int64(arrivalHorizon) {
		at := beginning(m.arrivals.minute + i)
		said := known.Forecaster.At(at)
		if !said.Known() {
			break
		}
		arriving.Next = append(arriving.Next, ComingMinute{At: at, Chance: milli(said.Exceeds(0)), Predicted: fact.Interval{
			Low: tenths(said.Quantile(0.1)), Mid: tenths(said.Quantile(0.5)), High: tenths(said.Quantile(0.9)),
		}})
	}
	return arriving, true
}

// tenths rounds a count of tasks to what says enough.
func tenths[F float32 | float64](count F) float64 { return math.Round(10*float64(count)) / 10 }

// Followed are the names of the models of which enough is known of what arrives to act on, sorted.
func (m *State) Followed() (names []string) {
	for name, stage := range m.arrivals.stages {
		if stage.Forecaster.Seen() >= enoughMinutes {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Fan is how many tasks are forecast for a model in the minutes that follow the one that goes on, each at these levels;
// nil where nothing is known.
func (m *State) Fan(model string, levels []float64, now fact.Instant) (minutes [][]float64) {
	a := m.arrivals.stages[model]
	if a == nil {
		return nil
	}
	for i := range int64(arrivalHorizon - 1) {
		said := a.Forecaster.At((now + fact.Instant(i+1)*arrivalMinute).Time())
		if !said.Known() {
			return nil
		}
		row := make([]float64, len(levels))
		for k, level := range levels {
			row[k] = said.Quantile(level)
			if k > 0 {
				row[k] = max(row[k], row[k-1])
			}
		}
		minutes = append(minutes, row)
	}
	return minutes
}

// Rate is how many tasks of a model came in a second of the latest minutes; 0 where none is known.
func (m *State) Rate(model string) float64 {
	tasks, minutes := m.Lately(model)
	return float64(tasks) / max(60*float64(minutes), 1)
}

// Lately is how many tasks of a stage came in how many of the latest minutes, which is what Rate rests on; 0 in 0 where
// nothing is known of it.
func (m *State) Lately(model string) (tasks, minutes int) {
	a := m.arrivals.stages[model]
	if a == nil {
		return 0, 0
	}
	for _, came := range a.Came {
		tasks += came.Tasks
	}
	return tasks, len(a.Came)
}
