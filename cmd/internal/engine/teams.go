package engine

import (
	"context"

	"github.com/spillway-ml/spillway/cmd/internal/web"
)

// permit refuses who may not start runs of a pipeline, as it is another team's own.
func (f *front) permit(ctx context.Context, pipeline string) error {
	return web.OwnPipeline(ctx, f.config.Teams.Now(), pipeline)
}
