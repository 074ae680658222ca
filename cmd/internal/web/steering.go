package web

import (
	"math"
	"net/http"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/whatif"
)

// The parameters of GET /api/v1/runs/{run}/outlook. Without any the goal in force is asked about.
var (
	deadlineParameter = whole("deadline_ns", "the deadline to ask about, in nanoseconds from the run's start; 0 is none",
		0, math.MaxInt64, -1)
	confidenceParameter = within("confidence", "the probability with which to meet it; 0.9 where it is not given",
		predictor.LeastConfidence, predictor.MostConfidence)
	budgetParameter = whole("budget_picodollars", "the budget to ask about, in 10^-12 US dollars; 0 is no limit", 0,
		math.MaxInt64, -1)
	minimiseParameter = choice("minimise", "what to minimise within deadline and budget", predictor.Cost,
		predictor.Latency)
)

// outlook answers GET /api/v1/runs/{run}/outlook.
func (s *Server) outlook(r *http.Request) (outlook predictor.Outlook, err error) {
	goal, err := goalOf(r)
	if err != nil {
		return outlook, err
	}
	view, err := s.knownRun(r.Context(), r.PathValue("run"))
	if err != nil {
		return outlook, err
	}
	if len(r.URL.Query()) == 0 {
		goal = view.Goal
	}
	outlook, err = s.engine.Outlook(r.Context(), view.Run, goal)
	outlook.Alternatives = notNil(outlook.Alternatives)
	return outlook, err
}

// frontier answers GET /api/v1/runs/{run}/frontier.
func (s *Server) frontier(r *http.Request) (answer whatif.Answer, err error) {
	goal, err := goalOf(r)
	if err != nil {
		return answer, err
	}
	view, err := s.knownRun(r.Context(), r.PathValue("run"))
	if err != nil {
		return answer, err
	}
	if len(r.URL.Query()) == 0 {
		goal = view.Goal
	}
	return s.engine.Frontier(r.Context(), view.Run, goal)
}

// pipelineFrontier answers POST /api/v1/pipelines/{pipeline}/frontier, which changes nothing: an input may be too long
// for an address.
func (s *Server) pipelineFrontier(r *http.Request) (answer whatif.Answer, err error) {
	var coming Coming
	if err := decodeBody(r, &coming); err != nil {
		return answer, err
	}
	if err := checkGoal(coming.Goal); err != nil {
		return answer, err
	}
	if err := s.knownPipeline(r.Context(), r.PathValue("pipeline")); err != nil {
		return answer, err
	}
	return s.engine.PipelineFrontier(r.Context(), r.PathValue("pipeline"), coming.Input, coming.Goal)
}

func goalOf(r *http.Request) (goal predictor.Goal, err error) {
	deadline, err := deadlineParameter.number(r)
	if err != nil {
		return goal, err
	}
	budget, err := budgetParameter.number(r)
	if err != nil {
		return goal, err
	}
	confidence, err := confidenceParameter.part(r)
	if err != nil {
		return goal, err
	}
	minimise, err := minimiseParameter.text(r)
	return predictor.Goal{
		Deadline: time.Duration(deadline), Confidence: confidence, Budget: quantity.Money(budget),
		Minimise: predictor.Objective(minimise),
	}, err
}

// setGoal answers POST /api/v1/runs/{run}/goal.
func (s *Server) setGoal(r *http.Request) (outlook predictor.Outlook, err error) {
	var goal predictor.Goal
	if err := decodeBody(r, &goal); err != nil {
		return outlook, err
	}
	if err := checkGoal(goal); err != nil {
		return outlook, err
	}
	view, err := s.knownRun(r.Context(), r.PathValue("run"))
	if err != nil {
		return outlook, err
	}
	if view.State != predictor.RunRunning {
		return outlook, Conflict("`spillway retry "+view.Run+" --deadline 10m` starts it again with another goal",
			"run %q has %s already: its goal can no longer change", view.Run, view.State)
	}
	outlook, err = s.engine.SetGoal(r.Context(), view.Run, goal)
	outlook.Alternatives = notNil(outlook.Alternatives)
	return outlook, err
}

// retry answers POST /api/v1/runs/{run}/retry.
func (s *Server) retry(r *http.Request) (retried Retried, err error) {
	var request Retry
	if err := decodeBody(r, &request); err != nil {
		return retried, err
	}
	view, err := s.knownRun(r.Context(), r.PathValue("run"))
	if err != nil {
		return retried, err
	}
	if view.State == predictor.RunRunning {
		return retried, Conflict("wait for its end, or cancel it first",
			"run %q goes on: only a run that has ended can be retried", view.Run)
	}
	if request.From != "" {
		if err := s.knownStage(r.Context(), view, request.From); err != nil {
			return retried, err
		}
	}
	if retried, err = s.engine.Retry(r.Context(), view.Run, request); err == nil {
		s.accepted.add(retried.Run, time.Now())
	}
	retried.Stages = notNil(retried.Stages)
	return retried, err
}
