package runs

import (
	"context"
	"errors"
	"slices"

	"github.com/spillway-ml/spillway/activities/logs"
	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/cli/follow"
	"github.com/spillway-ml/spillway/cmd/internal/cli/session"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/cmd/internal/web/client"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
)

const (
	// shownFailures is how many failed attempts `show --why` tells of, and lastWords how many of their last lines.
	shownFailures = 10
	lastWords     = 3
	// mostRetries bounds how far a chain of retries is followed.
	mostRetries = 20
)

// explain says why a run holds what it holds, and where its time and money went.
func explain(ctx context.Context, t *tool.Tool, name string, asJSON bool) error {
	s, err := session.Connect(ctx, t)
	if err != nil {
		return err
	}
	defer s.Client.Close()
	model, err := follow.Fetch(ctx, s, name, display.Model{})
	if err != nil {
		return session.WithNearRuns(ctx, s, err, name)
	}
	run := model.Run
	explained := display.Explained{Run: run, Latest: display.LatestDecisions(model.Decisions)}
	if explained.Breakdown, err = s.Client.Breakdown(ctx, run.Run); err != nil {
		return err
	}
	if explained.Retries, err = retriesOf(ctx, s.Client, run); err != nil {
		return err
	}
	if explained.Failures, err = failuresOf(ctx, s.Client, run.Run); err != nil {
		return err
	}
	if asJSON {
		return t.WriteJSON(explained)
	}
	style, _ := t.StyleOf(t.Out)
	for _, line := range display.Why(explained, model, style) {
		t.Say("%s\n", display.Own(line))
	}
	return nil
}

// failuresOf returns the latest attempts that did not succeed, with their last words.
func failuresOf(ctx context.Context, calls *client.Client, run string) ([]display.Failure, error) {
	failures := []display.Failure{}
	for _, outcome := range []predictor.Outcome{
		predictor.Failed, predictor.OutOfMemory, predictor.TimedOut,
		predictor.Lost, predictor.Refused,
	} {
		attempts, err := calls.Attempts(ctx, web.AttemptQuery{Run: run, Outcome: string(outcome)})
		if err != nil {
			return nil, err
		}
		for _, attempt := range display.Latest(attempts, shownFailures) {
			failures = append(failures, display.Failure{Attempt: attempt, LastWords: []string{}})
		}
	}
	slices.SortStableFunc(failures, func(a, b display.Failure) int { return a.EndedAt.Compare(b.EndedAt) })
	failures = failures[max(0, len(failures)-shownFailures):]
	for i, failure := range failures {
		query := logs.Query{Run: run, Stage: failure.Stage, Task: failure.Task, Attempt: failure.Number, Tail: lastWords}
		err := calls.Logs(ctx, query, false, func(line logs.Line) error {
			failures[i].LastWords = append(failures[i].LastWords, display.CleanLine(line.Text))
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return failures, nil
}

// retriesOf returns the chain of runs that try each other again of which run is one, oldest first; empty when it is
// alone.
func retriesOf(ctx context.Context, calls *client.Client, run ledger.RunView) ([]string, error) {
	chain := []string{run.Run}
	for earlier := run.RetryOf; earlier != "" && len(chain) < mostRetries && !slices.Contains(chain, earlier); {
		chain = append([]string{earlier}, chain...)
		view, err := calls.Run(ctx, earlier)
		if refused, ok := errors.AsType[*web.Error](err); ok && refused.Status < 500 {
			break // the engine has forgotten it
		}
		if err != nil {
			return nil, err
		}
		earlier = view.RetryOf
	}
	others, err := calls.Runs(ctx, web.RunQuery{Pipeline: run.Pipeline, Limit: session.MostRuns})
	if err != nil {
		return nil, err
	}
	for last := run.Run; len(chain) < mostRetries; {
		i := slices.IndexFunc(others, func(other ledger.RunView) bool {
			return other.RetryOf == last && !slices.Contains(chain, other.Run)
		})
		if i < 0 {
			break
		}
		last = others[i].Run
		chain = append(chain, last)
	}
	if len(chain) == 1 {
		return []string{}, nil
	}
	return chain, nil
}
