package slot

import (
	"context"
	"log/slog"
	"time"

	"github.com/spillway-ml/spillway/activities/wait"
	"github.com/spillway-ml/spillway/predictor"
)

// startedTimeout bounds a try to tell that a supervisor has started; startedPause and longestStartedPause space the
// tries.
const (
	startedTimeout      = 5 * time.Second
	startedPause        = 100 * time.Millisecond
	longestStartedPause = 5 * time.Second
)

// TellStarted tells that a supervisor has started anew, trying until tell has taken it or ctx has ended. A nil tell is
// not told.
func TellStarted(
	ctx context.Context, tell func(context.Context, predictor.HostStarted) error, started predictor.HostStarted,
	logger *slog.Logger,
) {
	for pause := startedPause; tell != nil && ctx.Err() == nil; pause = min(2*pause, longestStartedPause) {
		try, cancel := context.WithTimeout(ctx, startedTimeout)
		err := tell(try, started)
		cancel()
		if err == nil {
			return
		}
		logger.WarnContext(ctx, "no task is taken until it is known that the supervisor has started; trying again", "venue",
			started.Venue, "error", err)
		wait.For(ctx, pause)
	}
}
