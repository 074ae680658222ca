package web

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/cmd/internal/teams"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
)

// everybody reports whether who makes the request that ctx is of may change and see what is any team's: an admin.
func everybody(ctx context.Context) bool { return access.CallerOf(ctx) == access.Owner }

// foreign is the refusal of what is another team's.
func foreign(ctx context.Context, what, team string) error {
	return &Error{
		Status: http.StatusForbidden,
		Message: fmt.Sprintf("%s is of team %s, and the token of team %s", what, predictor.TeamName(team),
			predictor.TeamName(access.TeamOf(ctx))),
		Hint: "ask with a token of that team, or with an admin's",
	}
}

// OwnPipeline refuses who may not start and steer a pipeline: one that is a team's own is that team's and the admins',
// and any other everybody's who may start something. A context that no guard has looked at is the engine's own.
func OwnPipeline(ctx context.Context, declared teams.Teams, pipeline string) error {
	owner, owned := declared.Owner(pipeline)
	if !owned || everybody(ctx) || access.CallerOf(ctx) == access.Anyone || owner == access.TeamOf(ctx) {
		return nil
	}
	return foreign(ctx, "pipeline "+pipeline, owner)
}

// ownPipeline is OwnPipeline by the teams of this server.
func (s *Server) ownPipeline(r *http.Request, pipeline string) error {
	return OwnPipeline(r.Context(), s.teams.Now(), pipeline)
}

// sees reports whether who asks is told of the runs of a team.
func (s *Server) sees(ctx context.Context, team string) bool {
	return everybody(ctx) || team == access.TeamOf(ctx) || !s.teams.Now().Private(team)
}

// visible leaves the runs out that who asks is not told of.
func (s *Server) visible(ctx context.Context, runs []ledger.RunView) []ledger.RunView {
	return slices.DeleteFunc(runs, func(run ledger.RunView) bool { return !s.sees(ctx, run.Team) })
}

// ofTeams keeps requests about a run from who may not make them: only its team and admins steer it, and see it where
// the team is private. What there is not, the handler says itself.
func (s *Server) ofTeams(t route) http.HandlerFunc {
	next := t.handler
	return func(w http.ResponseWriter, r *http.Request) {
		run := r.PathValue("run")
		if run == "" || everybody(r.Context()) {
			next(w, r)
			return
		}
		team, err := s.teamOf(r.Context(), run, t.steers)
		if refused, is := errors.AsType[*Error](err); is && refused.Status == http.StatusNotFound {
			next(w, r)
			return
		}
		switch {
		case err != nil:
		case !s.sees(r.Context(), team):
			err = NoRun(run)
		case t.steers && team != access.TeamOf(r.Context()):
			err = foreign(r.Context(), "run "+run, team)
		}
		if err != nil {
			s.refuse(w, r, err)
			return
		}
		next(w, r)
	}
}

// teamOf is whose a run is. What a build tells of that is enough to show its run to somebody, and neither to let them
// steer it nor to hide it from its own team.
func (s *Server) teamOf(ctx context.Context, run string, steers bool) (string, error) {
	if steers {
		return s.engine.TeamOf(ctx, run)
	}
	view, err := s.engine.Run(ctx, run)
	if err == nil && !s.sees(ctx, view.Team) {
		if team, err := s.engine.TeamOf(ctx, run); err == nil {
			return team, nil
		}
	}
	return view.Team, err
}

// ownLetters refuses to publish dead letters again of pipelines that are another team's own.
func (s *Server) ownLetters(r *http.Request, body replayBody) error {
	letters, err := s.engine.Dead(r.Context(), int(deadParameter.most))
	if err != nil {
		return err
	}
	for _, letter := range letters {
		if !body.All && letter.Sequence != body.Sequence {
			continue
		}
		if err := s.ownPipeline(r, letter.Pipeline); err != nil {
			return err
		}
	}
	return nil
}

// TeamStatus is how a team stands.
type TeamStatus struct {
	predictor.TeamRow
	// Pipelines are patterns of those that are its own, and Private says that its runs are seen by it and admins alone.
	Pipelines []string `json:"pipelines,omitempty"`
	Private   bool     `json:"private,omitempty"`
}

// teamsAnswer is the answer of GET /api/v1/teams.
type teamsAnswer struct {
	// Teams are sorted by name; none where none was declared.
	Teams []TeamStatus `json:"teams"`
}

// howTeamsStand answers GET /api/v1/teams: by the plan in force, and as declared where that does not say yet.
func (s *Server) howTeamsStand(r *http.Request) (answer teamsAnswer, err error) {
	inForce, err := s.engine.Plan(r.Context())
	if err != nil {
		return answer, err
	}
	answer.Teams = []TeamStatus{}
	declared := s.teams.Now()
	if len(declared) == 0 {
		return answer, nil
	}
	known := map[string]*TeamStatus{}
	for _, row := range inForce.Teams {
		known[row.Name] = &TeamStatus{TeamRow: row}
	}
	for _, one := range declared {
		if known[one.Name] == nil {
			known[one.Name] = &TeamStatus{}
		}
		status := known[one.Name]
		status.Team, status.Pipelines, status.Private = one.Team, one.Pipelines, one.Private
	}
	for _, name := range slices.Sorted(maps.Keys(known)) {
		answer.Teams = append(answer.Teams, *known[name])
	}
	return answer, nil
}
