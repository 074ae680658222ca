package web

import (
	"math"
	"net/http"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/alerting"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/timeline"
)

// outcomes are how an attempt can have ended, and that it has not.
var outcomes = []predictor.Outcome{
	ledger.Running, predictor.Succeeded, predictor.Failed, predictor.OutOfMemory, predictor.TimedOut, predictor.Cancelled,
	predictor.Lost, predictor.Refused,
}

// The parameters of what is told about a run.
var (
	marksParameter = whole("marks", "about how many marks there are room for; above it attempts are counted in bins",
		10, 20_000, 2000)
	pointsParameter   = whole("points", "about how many points in time", 10, 2000, 300)
	attemptsParameter = whole("limit", "the most attempts to answer", 1, 10_000, 1000)
	offsetParameter   = whole("offset", "how many attempts to leave out", 0, math.MaxInt32, 0)
	outcomeParameter  = choice("outcome", "keeps only attempts that ended so, or that go on", outcomes...)
	stageParameter    = words("stage", "keeps only what is of this stage")
	alertsParameter   = whole("limit", "the most alerts to answer", 1, 1000, 100)
	firstParameter    = words("a", "the first of the runs to compare").must()
	secondParameter   = words("b", "the second of the runs to compare").must()
)

// timeline answers GET /api/v1/runs/{run}/timeline.
func (s *Server) timeline(r *http.Request) (view timeline.View, err error) {
	marks, err := marksParameter.number(r)
	if err != nil {
		return view, err
	}
	if _, err := s.knownRun(r.Context(), r.PathValue("run")); err != nil {
		return view, err
	}
	view, err = s.engine.Timeline(r.Context(), r.PathValue("run"), int(marks))
	view.Lanes = notNil(view.Lanes)
	return view, err
}

type attemptsAnswer struct {
	Attempts []timeline.Attempt `json:"attempts"`
}

// attempts answers GET /api/v1/runs/{run}/attempts.
func (s *Server) attempts(r *http.Request) (answer attemptsAnswer, err error) {
	query := AttemptQuery{Run: r.PathValue("run"), Stage: r.FormValue("stage")}
	if query.Outcome, err = outcomeParameter.text(r); err != nil {
		return answer, err
	}
	limit, err := attemptsParameter.number(r)
	if err != nil {
		return answer, err
	}
	offset, err := offsetParameter.number(r)
	if err != nil {
		return answer, err
	}
	query.Limit, query.Offset = int(limit), int(offset)
	view, err := s.knownRun(r.Context(), query.Run)
	if err == nil && query.Stage != "" {
		err = s.knownStage(r.Context(), view, query.Stage)
	}
	if err != nil {
		return answer, err
	}
	found, err := s.engine.Attempts(r.Context(), query)
	return attemptsAnswer{notNil(found)}, err
}

type allocationAnswer struct {
	Stages []timeline.Allocation `json:"stages"`
}

// allocation answers GET /api/v1/runs/{run}/allocation.
func (s *Server) allocation(r *http.Request) (answer allocationAnswer, err error) {
	points, err := pointsParameter.number(r)
	if err != nil {
		return answer, err
	}
	if _, err := s.knownRun(r.Context(), r.PathValue("run")); err != nil {
		return answer, err
	}
	found, err := s.engine.Allocation(r.Context(), r.PathValue("run"), int(points))
	return allocationAnswer{notNil(found)}, err
}

// breakdown answers GET /api/v1/runs/{run}/breakdown.
func (s *Server) breakdown(r *http.Request) (breakdown timeline.Breakdown, err error) {
	if _, err := s.knownRun(r.Context(), r.PathValue("run")); err != nil {
		return breakdown, err
	}
	return s.engine.Breakdown(r.Context(), r.PathValue("run"))
}

type curvesAnswer struct {
	Curves []timeline.Curve `json:"curves"`
	// Learning is how the trainings of tasks that run go, and are expected to go on.
	Learning []predictor.Learning `json:"learning"`
}

// curves answers GET /api/v1/runs/{run}/curves.
func (s *Server) curves(r *http.Request) (answer curvesAnswer, err error) {
	if _, err := s.knownRun(r.Context(), r.PathValue("run")); err != nil {
		return answer, err
	}
	found, err := s.engine.Curves(r.Context(), r.PathValue("run"))
	if err != nil {
		return answer, err
	}
	learning, err := s.engine.Learning(r.Context(), r.PathValue("run"))
	return curvesAnswer{notNil(found), notNil(learning)}, err
}

type arrivalsAnswer struct {
	Stages []predictor.Arriving `json:"stages"`
	// Pool is how much of the pool would be held for what arrives at all stages; nil where nobody knows.
	Pool *predictor.Capacity `json:"pool,omitempty"`
}

// arrivals answers GET /api/v1/runs/{run}/arrivals.
func (s *Server) arrivals(r *http.Request) (answer arrivalsAnswer, err error) {
	if _, err := s.knownRun(r.Context(), r.PathValue("run")); err != nil {
		return answer, err
	}
	found, err := s.engine.Arrivals(r.Context(), r.PathValue("run"))
	if err != nil {
		return answer, err
	}
	pool, err := s.engine.Capacity(r.Context())
	return arrivalsAnswer{notNil(found), pool}, err
}

// measuredParameter is that of GET /api/v1/stages/measured.
var measuredParameter = words("stage",
	"the name of the stage, or app/stage where several apps have one of the name").must()

// measured answers GET /api/v1/stages/measured?stage=.
func (s *Server) measured(r *http.Request) (predictor.Measured, error) {
	stage, err := measuredParameter.text(r)
	if err != nil {
		return predictor.Measured{}, err
	}
	return s.engine.Measured(r.Context(), stage)
}

type trainingsAnswer struct {
	Trainings []ledger.TrainingView `json:"trainings"`
}

// trainings answers GET /api/v1/runs/{run}/trainings.
func (s *Server) trainings(r *http.Request) (answer trainingsAnswer, err error) {
	if _, err := s.knownRun(r.Context(), r.PathValue("run")); err != nil {
		return answer, err
	}
	found, err := s.engine.Trainings(r.Context(), r.PathValue("run"))
	return trainingsAnswer{notNil(found)}, err
}

// diff answers GET /api/v1/diff.
func (s *Server) diff(r *http.Request) (diff ledger.Diff, err error) {
	a, b := r.FormValue("a"), r.FormValue("b")
	for _, run := range []string{a, b} {
		if _, err := s.knownRun(r.Context(), run); err != nil {
			return diff, err
		}
	}
	diff, err = s.engine.Diff(r.Context(), a, b)
	diff.Stages = notNil(diff.Stages)
	return diff, err
}

type alertsAnswer struct {
	Alerts []alerting.Alert `json:"alerts"`
}

// alerts answers GET /api/v1/alerts.
func (s *Server) alerts(r *http.Request) (answer alertsAnswer, err error) {
	limit, err := alertsParameter.number(r)
	if err != nil {
		return answer, err
	}
	found, err := s.engine.Alerts(r.Context(), int(limit))
	return alertsAnswer{notNil(found)}, err
}
