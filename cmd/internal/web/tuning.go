package web

import (
	"cmp"
	"context"
	"net/http"
	"slices"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// Tunings says how the tunings of runs stand.
type Tunings interface {
	// Tunings returns how the tunings of a run stand, or how they have ended, with all of their trials, in the order in
	// which they began; none for a run that tunes nothing. For a run that there is not, it answers as Run does.
	Tunings(ctx context.Context, run string) ([]runs.Tuning, error)
}

// Tuning is how a tuning stands, and what each of its rungs came to.
type Tuning struct {
	runs.Tuning

	// Rungs are those in which a trial was, from the first one on.
	Rungs []TuningRung `json:"rungs"`
}

// TuningRung is what the jobs of one rung of a tuning came to, together.
type TuningRung struct {
	// Rung counts from 0; To is what a trial has had at its end, in the unit of the search.
	Rung int     `json:"rung"`
	To   float64 `json:"to"`
	// Begun are the trials that came into it, Told those of them that told an objective at its end.
	Begun int `json:"begun"`
	Told  int `json:"told"`
	// Best is the best of those objectives; nil where none was told.
	Best *float64 `json:"best,omitempty"`
	// Seconds is how long its jobs took that are over, from when each was scheduled, and Spent what they cost.
	Seconds float64        `json:"seconds"`
	Spent   quantity.Money `json:"spent_picodollars"`
}

// ViewTuning adds up what each rung of a tuning came to.
func ViewTuning(t runs.Tuning) Tuning {
	of := map[int]*TuningRung{}
	for _, trial := range t.Trials {
		for _, job := range trial.Jobs {
			rung := of[job.Rung]
			if rung == nil {
				rung = &TuningRung{Rung: job.Rung, To: job.To}
				of[job.Rung] = rung
			}
			rung.take(job, t.Options.Maximise)
		}
	}
	view := Tuning{Tuning: t, Rungs: make([]TuningRung, 0, len(of))}
	view.Trials = notNil(view.Trials)
	for _, rung := range of {
		view.Rungs = append(view.Rungs, *rung)
	}
	slices.SortFunc(view.Rungs, func(a, b TuningRung) int { return cmp.Compare(a.Rung, b.Rung) })
	return view
}

func (r *TuningRung) take(job runs.TrialJob, maximise bool) {
	r.Begun++
	r.Spent += job.Spent
	if !job.StartedAt.IsZero() && job.EndedAt.After(job.StartedAt) {
		r.Seconds += job.EndedAt.Sub(job.StartedAt).Seconds()
	}
	if job.Objective == nil {
		return
	}
	r.Told++
	if r.Best == nil || better(*job.Objective, *r.Best, maximise) {
		r.Best = job.Objective
	}
}

// better reports whether one objective is better than another.
func better(a, b float64, maximise bool) bool {
	if maximise {
		return a > b
	}
	return a < b
}

type tuningAnswer struct {
	Tunings []Tuning `json:"tunings"`
}

// tunings answers GET /api/v1/runs/{run}/tuning.
func (s *Server) tunings(r *http.Request) (answer tuningAnswer, err error) {
	if _, err := s.knownRun(r.Context(), r.PathValue("run")); err != nil {
		return answer, err
	}
	found, err := s.engine.Tunings(r.Context(), r.PathValue("run"))
	answer.Tunings = make([]Tuning, len(found))
	for i, one := range found {
		answer.Tunings[i] = ViewTuning(one)
	}
	return answer, err
}
