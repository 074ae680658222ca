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
			if err := s.Report(jobs[step.Job].Trial, step.Objective); err != nil {
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

// GoesOn reports whether a trial that has no job under way may be given another, as far as is decided: it has not had
// all there is, has not diverged, and those that it competes with have not gone on without it.
func (s *Search) GoesOn(trial int) bool {
	t := s.trials[trial]
	if t.rung == s.Rungs()-1 || len(t.objective) == 0 || math.IsInf(t.objective[len(t.objective)-1], 1) || s.Done() {
		return false
	}
	switch s.options.Algorithm {
	case Halving, Hyperband, BOHB:
		waits := s.bracket.members
		if t.rung < s.bracket.rung {
			waits = s.bracket.waiting
		}
		return slices.Contains(waits, trial)
	default:
		return true
	}
}

// Place is the standing of a trial at the end of its last rung.
type Place struct {
	// Rung is that rung, Place the trial's place in it from 1 on, among Of that came as far, and Promoted how many of
	// these have gone on.
	Rung, Place, Of, Promoted int
}

// Place returns the standing of a trial; false where it has come to the end of no rung.
func (s *Search) Place(trial int) (Place, bool) {
	t := s.trials[trial]
	if len(t.objective) == 0 {
		return Place{}, false
	}
	rung := t.first + len(t.objective) - 1
	place := Place{Rung: rung, Place: slices.Index(s.ended[rung], trial) + 1, Of: len(s.ended[rung])}
	for _, i := range s.ended[rung] {
		if s.trials[i].rung > rung {
			place.Promoted++
		}
	}
	return place, true
}
