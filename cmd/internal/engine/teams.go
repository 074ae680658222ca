package engine

import (
	"context"
	"errors"

	"go.temporal.io/api/serviceerror"

	"github.com/spillway-ml/spillway/cmd/internal/temporalproxy"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
)

// permit refuses who may not start runs of a pipeline, as it is another team's own.
func (f *front) permit(ctx context.Context, pipeline string) error {
	return web.OwnPipeline(ctx, f.config.Teams.Now(), pipeline)
}

// TeamOf is whose a run is. What the loop tells of that is the word of the run's build, so it counts only where
// Temporal has the run no more, which then can be looked at, and not steered.
func (e *Engine) TeamOf(ctx context.Context, run string) (string, error) {
	team, err := temporalproxy.TeamOf(ctx, e.temporal.WorkflowService(), e.servers.Namespace(), run)
	if _, gone := errors.AsType[*serviceerror.NotFound](err); gone {
		view, err := e.Run(ctx, run)
		return view.Team, err
	}
	if errors.Is(err, temporalproxy.ErrParentGone) {
		return "", web.Gone("have an admin cancel it, and start a new run with the same input", "run %q: %v", run, err)
	}
	return team, err
}

// withTeam is the start of a run, of which a memo or a build has told, with whose the run is by its history. Where
// Temporal does not say, it stays as told: whoever acts on it asks TeamOf.
func (e *Engine) withTeam(ctx context.Context, started predictor.RunStarted) predictor.RunStarted {
	team, err := temporalproxy.TeamOf(ctx, e.temporal.WorkflowService(), e.servers.Namespace(), started.Run)
	if err == nil {
		started.Team = team
	}
	return started
}
