package search

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// Step is one thing that happened to a search: a job was taken, or one was reported. The zero value is a job taken.
type Step struct {
	// Reported says that a job was reported: Job counts from 0 in the order in which jobs were taken.
	Reported  bool
	Job       int
	Objective float64
	// Ahead is what was expected of its trial then; nil where nothing was.
	Ahead *Ahead
}

// ErrSteps says that the steps of a search are not those of this one.
var ErrSteps = errors.New("the steps do not fit the search")

// Restore begins a search and takes steps again, in their order: it is then the search that took them first, and does
// all that follows as that one would have. Calls of Next that found no job are no steps. The jobs that were taken are
// returned in their order. Errors wrap ErrSpace, ErrOptions or ErrSteps.
func Restore(space Space, options Options, steps []Step) (*Search, []Job, error) {
	s, err := New(space, options)
	if err != nil {
		return nil, nil, err
	}
	var jobs []Job
	for i, step := range steps {
		if step.Reported {
			if step.Job < 0 || step.Job >= len(jobs) {
				return nil, nil, fmt.Errorf("%w: step %d reports job %d of %d", ErrSteps, i, step.Job, len(jobs))
			}
			trial := jobs[step.Job].Trial
			err := s.Report(trial, step.Objective)
			if err == nil && step.Ahead != nil {
				err = s.Expect(trial, *step.Ahead)
			}
			if err != nil {
				return nil, nil, fmt.Errorf("%w: step %d: %w", ErrSteps, i, err)
			}
			continue
		}
		job, found := s.Next()
		if !found {
			return nil, nil, fmt.Errorf("%w: step %d takes a job where there is none", ErrSteps, i)
		}
		jobs = append(jobs, job)
	}
	return s, jobs, nil
}

// Place is how a trial stands that has no job under way.
type Place struct {
	// Rung is the last one that it has come to the end of, Place its place in it from 1 on, among Of that came as far, and
	// Promoted how many of these have gone on. All are 0 where it has come to the end of none.
	Rung, Place, Of, Promoted int
	// GoesOn says that it may be given another job, as far as is decided: it has not had all there is, has not diverged,
	// and those that it competes with have not gone on without it.
	GoesOn bool
	// Out says that it does not go on, though it is among the best part of its rung, because of its curve, where
	// Options.GoOn does not ask for all: it would end worse than Beyond, the best objective that was told further on.
	Out    bool
	Beyond float64
}

// Places returns how all trials stand that were begun, by number.
func (s *Search) Places() []Place {
	places := make([]Place, len(s.trials))
	for rung, ended := range s.ended {
		promoted := 0
		for _, i := range ended {
			if s.trials[i].rung > rung {
				promoted++
			}
		}
		for place, i := range ended { // of a trial the highest rung counts
			places[i] = Place{Rung: rung, Place: place + 1, Of: len(ended), Promoted: promoted}
		}
	}
	done := s.Done()
	for i, t := range s.trials {
		told := len(t.objective) > 0 && !math.IsInf(t.objective[len(t.objective)-1], 1)
		promoted := places[i].Place <= places[i].Of/s.options.Eta
		if !t.running && promoted && !s.options.GoOn && s.out(i) {
			best, _ := s.bestAbove(t.rung)
			if s.options.Maximise {
				best = -best
			}
			places[i].Out, places[i].Beyond = true, best
		}
		places[i].GoesOn = !done && !places[i].Out && told && s.waits(i)
	}
	return places
}

// waits reports whether those that a trial competes with have not gone on without it.
func (s *Search) waits(i int) bool {
	t := s.trials[i]
	switch {
	case t.rung == s.Rungs()-1:
		return false
	case s.options.Algorithm != Halving && s.options.Algorithm != Hyperband && s.options.Algorithm != BOHB:
		return true
	case t.rung < s.bracket.rung:
		return slices.Contains(s.bracket.waiting, i)
	}
	return slices.Contains(s.bracket.members, i)
}
