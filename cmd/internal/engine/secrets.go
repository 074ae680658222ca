package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"

	loopwire "github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/build"
	"github.com/spillway-ml/spillway/cmd/internal/secrets"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workers/slot"
)

// secretsOf returns the secrets of a stage: those that it names in the descriptor of its build or chain, which is
// stored for as long as runs of it go on. What a task says of its stage is a workflow's word.
func (s *stores) secretsOf(ctx context.Context, stage predictor.StageID) (map[string]string, error) {
	declared, err := s.declaredStages(ctx, stage)
	if err != nil {
		return nil, fmt.Errorf("find out which secrets stage %s has: %w", stage, err)
	}
	at := slices.IndexFunc(declared, func(one loopwire.Stage) bool { return one.Name == stage.Name })
	if at < 0 {
		return nil, fmt.Errorf("%w: app %s has no stage %s", slot.ErrNoSecret, stage.App, stage.Name)
	}
	values, err := s.config.Secrets.Read(stage.App, declared[at].Secrets)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", slot.ErrNoSecret, err)
	}
	return values, nil
}

// declaredStages are the stages of the build or chain that a stage is of.
func (s *stores) declaredStages(ctx context.Context, stage predictor.StageID) ([]loopwire.Stage, error) {
	c, err := s.chains.Get(stage.App, stage.Build)
	if err == nil {
		return c.App().Stages, nil
	}
	if !errors.Is(err, build.ErrUnknownBuild) {
		return nil, err
	}
	app, err := s.builds.Get(ctx, stage.App, stage.Build)
	return app.Descriptor.Stages, err
}

// taskSecrets is secretsOf for a task of this process's venues.
func (s *stores) taskSecrets(ctx context.Context, task loopwire.Task, _ int) (map[string]string, error) {
	return s.secretsOf(ctx, task.Stage)
}

// checkSecrets refuses an app of which a stage names a secret that is not there: its runs would fail when they come to
// it.
func checkSecrets(from secrets.Directory, app loopwire.App) error {
	for _, stage := range app.Stages {
		if err := from.Check(app.Name, stage.Secrets); err != nil {
			return web.Conflict("put each secret into a file of mode 0600 with its name, in the directory that "+
				"--secrets-dir of the server names", "stage %s of %s: %v", stage.Name, app.Name, err)
		}
	}
	return nil
}
