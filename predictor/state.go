// Package predictor decides how much of every venue each stage holds, purely: Fold remembers what happened, Decide says
// what to do.
//
//	state = predictor.Fold(state, event)                  // once per event of the loop's stream
//	plan, state = predictor.Decide(state, snapshot)       // once per tick
//
// The steps are packages through which data falls once: what is told (fact) and remembered (memory), what an attempt
// takes (usage) and is given (size), what is asked and answered at a tick (plan), who gets the room of hosts (share),
// when functions pay (spill), what a run comes to (outlook), and could come to (whatif). Their vocabulary has its names
// here, too: who uses the predictor imports one package.
//
// Neither function reads a clock, does I/O or draws global randomness, so the same two functions run in production, in
// replays of recorded data and in tests, and a state can always be rebuilt from a checkpoint and the events after it.
package predictor

import (
	"time"

	"github.com/spillway-ml/spillway/predictor/curve"
	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/memory"
	"github.com/spillway-ml/spillway/predictor/outlook"
	"github.com/spillway-ml/spillway/predictor/plan"
	"github.com/spillway-ml/spillway/predictor/provision"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/size"
	"github.com/spillway-ml/spillway/predictor/spill"
	"github.com/spillway-ml/spillway/predictor/usage"
	"github.com/spillway-ml/spillway/predictor/venue"
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
		if m.Record(e) {
			outlook.Tell(m, e)
		}
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

// The types of [fact].
type (
	// StageID names one stage of one build of an app.
	StageID = fact.StageID
	// Curve is how one metric of a training went in an attempt.
	Curve = fact.Curve
	// Venue is where attempts execute.
	Venue = fact.Venue
	// Objective is what a run without a deadline and without a budget minimises.
	Objective = fact.Objective
	// Goal is what a run is to achieve.
	Goal = fact.Goal
	// Event is one fact that Fold remembers.
	Event = fact.Event
	// RunStarted says that a run began.
	RunStarted = fact.RunStarted
	// GoalChanged says that the goal of a run going on is another from now on.
	GoalChanged = fact.GoalChanged
	// RunState is how a run stands.
	RunState = fact.RunState
	// RunEnded says that a run is over.
	RunEnded = fact.RunEnded
	// Scheduled is the hint that tasks were put on a stage's queue.
	Scheduled = fact.Scheduled
	// Reused says that a run took results of earlier runs instead of running tasks.
	Reused = fact.Reused
	// HostShare is what another host than an attempt's own holds for it, where it runs on several.
	HostShare = fact.HostShare
	// HostHeld says that a host of the pool was there, held or not, from From to At.
	HostHeld = fact.HostHeld
	// BacklogObserved is what the queue itself said.
	BacklogObserved = fact.BacklogObserved
	// AttemptStarted says that a venue took a task from the queue and that user code is about to run.
	AttemptStarted = fact.AttemptStarted
	// HostStarted says that the process which supervises the attempts of a venue on a host has started anew.
	HostStarted = fact.HostStarted
	// Sampled is one look at a running attempt.
	Sampled = fact.Sampled
	// GPUSample is one look at the GPUs of a running attempt.
	GPUSample = fact.GPUSample
	// Outcome is how an attempt ended.
	Outcome = fact.Outcome
	// Next is what becomes of a task after an attempt that came to nothing.
	Next = fact.Next
	// Cause is what made an attempt end otherwise than well.
	Cause = fact.Cause
	// Record is the durable line about one finished attempt.
	Record = fact.Record
	// Prediction is what was expected of an attempt when it was admitted.
	Prediction = fact.Prediction
	// Interval is a prediction with its spread, in the unit of the field that holds it.
	Interval = fact.Interval
	// Training is what the plan of a split training said beside what came.
	Training = fact.Training
	// TrainingPart is one part of a split.
	TrainingPart = fact.TrainingPart
	// TrainingHost is a host on which ranks of a training run.
	TrainingHost = fact.TrainingHost
	// TrainingAlternative is a plan that was considered.
	TrainingAlternative = fact.TrainingAlternative
)

// The constants of [fact].
const (
	Pool               = fact.Pool
	Function           = fact.Function
	Cost               = fact.Cost
	Latency            = fact.Latency
	LeastConfidence    = fact.LeastConfidence
	MostConfidence     = fact.MostConfidence
	RunRunning         = fact.RunRunning
	RunSucceeded       = fact.RunSucceeded
	RunFailed          = fact.RunFailed
	RunCancelled       = fact.RunCancelled
	Succeeded          = fact.Succeeded
	Failed             = fact.Failed
	OutOfMemory        = fact.OutOfMemory
	TimedOut           = fact.TimedOut
	Cancelled          = fact.Cancelled
	Lost               = fact.Lost
	Refused            = fact.Refused
	NextNothing        = fact.NextNothing
	NextPool           = fact.NextPool
	CauseMemoryLimit   = fact.CauseMemoryLimit
	CauseMemoryRefused = fact.CauseMemoryRefused
	CannotRun          = fact.CannotRun
	CauseHostMemory    = fact.CauseHostMemory
	CauseDeviceMemory  = fact.CauseDeviceMemory
	CauseDisk          = fact.CauseDisk
	CauseTimeout       = fact.CauseTimeout
	CauseError         = fact.CauseError
	CausePanic         = fact.CausePanic
	CauseExit          = fact.CauseExit
	CauseSignal        = fact.CauseSignal
	CauseStart         = fact.CauseStart
	CauseImpossible    = fact.CauseImpossible
	CauseNoGPU         = fact.CauseNoGPU
	CauseNoMemory      = fact.CauseNoMemory
	CauseCancelled     = fact.CauseCancelled
	CauseHostLost      = fact.CauseHostLost
	CauseBudget        = fact.CauseBudget
	CauseVenue         = fact.CauseVenue
	CauseThrottled     = fact.CauseThrottled
	CausePayload       = fact.CausePayload
	PastTrainings      = fact.PastTrainings
)

// The types of [size].
type (
	// Sizing is how attempts of one stage are sized when they are admitted.
	Sizing = size.Sizing
	// Need is what is known about an attempt before it runs.
	Need = size.Need
)

// GrowAfterOutOfMemory is [size.GrowAfterOutOfMemory].
const GrowAfterOutOfMemory = size.GrowAfterOutOfMemory

// MaxPayload is [spill.MaxPayload].
const MaxPayload = spill.MaxPayload

// FunctionOverhead is [spill.FunctionOverhead].
const FunctionOverhead = spill.FunctionOverhead

// The types of [plan].
type (
	// Snapshot is everything Decide is told besides the State.
	Snapshot = plan.Snapshot
	// Host is one machine of the pool, as its agent describes it.
	Host = plan.Host
	// Lack is a build of which a host cannot run stages, and why.
	Lack = plan.Lack
	// GPU is one of its devices.
	GPU = plan.GPU
	// Equipment is which of them one host has.
	Equipment = plan.Equipment
	// HostKind is what hosts of a kind have for attempts.
	HostKind = plan.HostKind
	// GPUHolder is the attempt that has it.
	GPUHolder = plan.GPUHolder
	// GPUProcess is a process that computes on it.
	GPUProcess = plan.GPUProcess
	// Policy is the configuration of the autoscaler.
	Policy = plan.Policy
	// Team is what one team may have.
	Team = plan.Team
	// TeamRow is how a team stands at a tick.
	TeamRow = plan.TeamRow
	// Plan is what every venue holds from now on.
	Plan = plan.Plan
	// Grant is the room of one stage at one venue.
	Grant = plan.Grant
	// Batch says how tasks share an invoke of a function.
	Batch = plan.Batch
	// Placement is the part of a pool grant that one host carries.
	Placement = plan.Placement
	// Window bounds how many tasks of one run and stage are in flight.
	Window = plan.Window
	// PastTraining is how earlier split trainings of a stage went.
	PastTraining = plan.PastTraining
	// TimeToLoss is how long an attempt on devices of a class goes on in the mean before it is lost with its host.
	TimeToLoss = plan.TimeToLoss
	// Decision is one changed row of a plan and why it changed.
	Decision = plan.Decision
	// Rejected is a way that a decision did not choose.
	Rejected = plan.Rejected
)

// The constants of [plan].
const (
	TuningWindow    = plan.TuningWindow
	UsualTimeToLoss = plan.UsualTimeToLoss
	MostOthers      = plan.MostOthers
)

// Trail is how one metric of a training has gone, from the reports of its steps.
type Trail = curve.Trail

// Stretch is the part of a training that a task does.
type Stretch = curve.Stretch

// Prospect is what a task's curve says of the end of the training.
type Prospect = curve.Prospect

// MostTrail is [curve.MostTrail].
const MostTrail = curve.MostTrail

// FunctionVenue is what Lambda-style functions offer and cost.
type FunctionVenue = venue.Functions

// Daily is what a day of a pool costs.
type Daily = provision.Daily

// Arriving is how many tasks come at a stage, minute by minute, and are forecast.
type Arriving = memory.Arriving

// The types of [outlook].
type (
	// Forecast is what is expected of a run that goes on.
	Forecast = outlook.Forecast
	// Outlook is what is expected of a run under a goal, and what else could be had.
	Outlook = outlook.Outlook
	// Alternative is one way to finish a run.
	Alternative = outlook.Alternative
	// Progress is how far a running attempt is by its own word.
	Progress = outlook.Progress
	// Learning is how the training of a running task goes, and is expected to go on.
	Learning = outlook.Learning
)

// RelativeError is [usage.RelativeError].
func RelativeError(predicted, actual float64) float64 { return usage.RelativeError(predicted, actual) }

// FirstSizing is [size.FirstSizing].
func FirstSizing(stage StageID, declared quantity.Size, input quantity.Bytes, free, capacity quantity.Size) Sizing {
	return size.FirstSizing(stage, declared, input, free, capacity)
}

// Relief is [size.Relief].
func Relief(held, admitted, expected, used, free quantity.Bytes) quantity.Bytes {
	return size.Relief(held, admitted, expected, used, free)
}

// ClassCores is [size.ClassCores].
func ClassCores(class quantity.Bytes) float64 { return size.ClassCores(class) }

// GoProgram is [fact.GoProgram].
const GoProgram = fact.GoProgram

// Follow is [size.Follow].
func Follow(held, peak, free quantity.Bytes) quantity.Bytes { return size.Follow(held, peak, free) }

// DefaultPolicy is [plan.DefaultPolicy].
func DefaultPolicy() Policy { return plan.DefaultPolicy() }
