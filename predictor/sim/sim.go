// Package sim runs the predictor in virtual time: what happens is folded at its own time, and every tick until then is
// decided as in production.
//
//	stack := sim.New(sim.Options{Start: start, Hosts: hosts})
//	err := stack.Tell(ctx, record)           // the ticks before it, then Fold
//	sizing, known := stack.Sizing(stage)     // by the plan of now
//
// An [Agenda] lets tasks arrive, start on the slots of the plan and end. Nothing reads a clock or draws a random
// number: the same events give the same plans.
package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spillway-ml/spillway/predictor"
)

// ErrPast means that something was to happen before the virtual time that it already is.
var ErrPast = errors.New("virtual time does not run backwards")

// Options say what is simulated.
type Options struct {
	// Start is the virtual time at first.
	Start time.Time
	// Hosts are those of the pool; their leases never end.
	Hosts []predictor.Host
	// Functions are what may be spilled to; the zero value is nothing.
	Functions predictor.FunctionVenue
	// KeepWarm is for how long an environment of a function that has nothing to do stays warm in an Agenda; 0 is for ever.
	KeepWarm time.Duration
	// Policy is that of the autoscaler; nil means DefaultPolicy.
	Policy *predictor.Policy
	// Tick is the longest time without a plan; 0 means LongestTick. What is longer slows the predictor's own clock, which
	// takes it for a time in which nobody led.
	Tick time.Duration
	// Gap is the least time between a plan and one that something that was told asks for; 0 is none. An engine has one,
	// so that a burst is not decided on event by event.
	Gap time.Duration
}

// LongestTick is the longest time between two plans that the predictor's clock follows.
const LongestTick = 5 * time.Second

// Simulation is a predictor with its own time. It must not be used concurrently.
type Simulation struct {
	state    predictor.State
	snapshot predictor.Snapshot // its Now is the virtual time
	tick     time.Duration
	gap      time.Duration

	plan    predictor.Plan
	sizings map[predictor.StageID]predictor.Sizing // of the plan
	due     time.Time                              // of the next tick
	news    bool                                   // something was folded since the plan
}

// New returns a simulation to which nothing has happened.
func New(options Options) *Simulation {
	policy := predictor.DefaultPolicy()
	if options.Policy != nil {
		policy = *options.Policy
	}
	return &Simulation{
		tick: cmp.Or(max(0, options.Tick), LongestTick), gap: options.Gap,
		snapshot: predictor.Snapshot{
			Now: options.Start, Term: 1, Hosts: options.Hosts, Functions: options.Functions, Policy: policy,
		},
		due: options.Start, sizings: map[predictor.StageID]predictor.Sizing{},
	}
}

// Now is the virtual time.
func (s *Simulation) Now() time.Time { return s.snapshot.Now }

// Advance moves the virtual time to the given one and decides at every tick before it. The error is ErrPast where that
// would be a step back; then nothing has changed. It is that of ctx where that ended on the way; then the time is that
// of the last tick.
func (s *Simulation) Advance(ctx context.Context, to time.Time) error {
	if to.Before(s.Now()) {
		return fmt.Errorf("advance from %s to %s: %w; tell events in the order of their times",
			s.Now().Format(time.RFC3339Nano), to.Format(time.RFC3339Nano), ErrPast)
	}
	if s.news && to.After(s.Now()) {
		s.follow()
	}
	for s.due.Before(to) {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("advance to %s: %w", to.Format(time.RFC3339Nano), err)
		}
		s.snapshot.Now = s.due
		s.decide()
	}
	s.snapshot.Now = to
	return nil
}

// Tell advances to the time of an event and folds it. The error is that of Advance.
func (s *Simulation) Tell(ctx context.Context, e predictor.Event) error {
	if err := s.Advance(ctx, e.When()); err != nil {
		return err
	}
	s.state = predictor.Fold(s.state, e)
	s.news = true
	return nil
}

// Plan is what is decided by all that was told until now.
func (s *Simulation) Plan() predictor.Plan {
	switch {
	case !s.due.After(s.Now()):
		s.decide()
	case s.news:
		s.follow()
	}
	return s.plan
}

// follow decides on what was told, now or as soon as the gap allows.
func (s *Simulation) follow() {
	if next := s.plan.At.Add(s.gap); next.After(s.Now()) {
		s.due = minTime(s.due, next)
		return
	}
	s.decide()
}

func minTime(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// Sizing is how attempts of a stage are sized by the plan of now; false while it has no row.
func (s *Simulation) Sizing(stage predictor.StageID) (predictor.Sizing, bool) {
	s.Plan()
	sizing, known := s.sizings[stage]
	return sizing, known
}

func (s *Simulation) decide() {
	s.plan, s.state = predictor.Decide(s.state, s.snapshot)
	s.news, s.due = false, s.Now().Add(s.tick)
	clear(s.sizings)
	for _, sizing := range s.plan.Sizings {
		s.sizings[sizing.Stage] = sizing
	}
}
