package child

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
)

const (
	// maxAnswers is what the answers of an invoke may come to: what a function returns, less what surrounds them.
	maxAnswers = int(predictor.MaxPayload) - 1<<10
	// spare is how many times as long as the longest so far the next attempt must have before the environment ends.
	spare = 2
	// timeoutGrace is how long code that is told to stop at its timeout has to do so.
	timeoutGrace = 500 * time.Millisecond
)

// Batch returns the handler of an invoke that carries several attempts: they run one after another, each as [Function]
// runs it, and each has an answer of its own. One is begun only where its answer, if it is no larger than those before,
// and twice the time of the longest still fit; the first always is. Marks go to printed, where what code prints goes.
func Batch(
	stages Stages, store activities.Store, logger *slog.Logger, printed io.Writer,
) func(context.Context, wire.Invoke) (wire.Answers, error) {
	single := Function(stages, store, logger)
	return func(ctx context.Context, invoke wire.Invoke) (wire.Answers, error) {
		answers := wire.Answers{Version: wire.Version}
		starts := append([]wire.StartAttempt{invoke.Start}, invoke.More...)
		size, largest, longest := 0, 0, time.Duration(0)
		for i, start := range starts {
			if i > 0 && (size+largest > maxAnswers || !lasts(ctx, spare*longest)) {
				break
			}
			_, _ = fmt.Fprintln(printed, wire.BatchMark(i+1, len(starts), start.Task.ID)) // what is lost tells less
			began := time.Now()
			answer, err := timed(ctx, start.Task.Timeout, func(ctx context.Context) (wire.Answer, error) {
				return single(ctx, wire.Invoke{Version: invoke.Version, Start: start})
			})
			if err != nil {
				return wire.Answers{}, err
			}
			longest = max(longest, time.Since(began))
			encoded, err := json.Marshal(answer)
			if err != nil {
				return wire.Answers{}, fmt.Errorf("encode the answer of %s: %w", start.Task.ID, err)
			}
			if i > 0 && size+len(encoded) > maxAnswers {
				answers.Answers = append(answers.Answers, crowded(answer))
				break
			}
			answers.Answers = append(answers.Answers, answer)
			size, largest = size+len(encoded), max(largest, len(encoded))
		}
		return answers, nil
	}
}

// lasts reports whether the environment has so much time left.
func lasts(ctx context.Context, needed time.Duration) bool {
	deadline, limited := ctx.Deadline()
	return !limited || time.Until(deadline) >= needed
}

// crowded is what is returned of an answer for whose output there is no room.
func crowded(answer wire.Answer) wire.Answer {
	answer.Output, answer.Progress, answer.Curve = nil, nil, nil
	answer.Error = &wire.StageFailure{
		Message: "its output does not fit into one answer with those of the tasks before it", Crowded: true,
	}
	return answer
}

// errTimeout is why the context of code ends that has run for as long as its stage allows.
var errTimeout = errors.New("the attempt has run for as long as its stage's timeout")

// timed ends the context of run at its stage's timeout, where there is one. Code that does not stop then ends with its
// environment: the tasks behind it would wait for it.
func timed(
	ctx context.Context, timeout time.Duration, run func(context.Context) (wire.Answer, error),
) (wire.Answer, error) {
	if timeout <= 0 {
		return run(ctx)
	}
	return within(ctx, limits{
		stop: timeout, end: timeout + timeoutGrace, cause: errTimeout, says: wire.TimeoutPassed,
		note: func(failure *wire.StageFailure) { failure.TimedOut = true },
	}, run)
}
