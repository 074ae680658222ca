package runs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/cli/follow"
	"github.com/spillway-ml/spillway/cmd/internal/cli/session"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/words"
)

func showCommand(t *tool.Tool) *cobra.Command {
	var asJSON, live, history, why bool
	var forecast bool
	var sizes sizesFlags
	trials := display.UsualTrials
	command := &cobra.Command{
		Use:   "show RUN [FLAGS]",
		Short: "Show a run: stages, what was predicted and what came, every decision and its reason",
		Long: `Show one run: time, cost and accuracy, predicted and actual; what each stage queued, ran, used and
cost; and every decision about it with the reason. With --follow a run that goes on is shown live
until its end; one whose event was just taken is waited for, a minute at most.

With --why it explains the run: where its time went, row by row, so that the rows sum to its time
and what nobody can tell is a row of its own; what static sizes would have cost; what was reused of
earlier runs, and which runs try each other again; for each stage what was predicted and what came,
what it holds, and the latest decision about its size and its slots with the reason; and the latest
attempts that failed, with their cause and their last words.

Of a run that tunes, it lists the trials, the best first: their values, how far they came, what they
told, and why each ended. --trials says how many.

With --sizes it sets what was predicted of the attempts of each stage beside what came: peaks of
memory, with the limits granted and how many were killed at theirs, and run times, over what was
known before and explains them best. "of 40" counts the attempts that had a prediction. With --svg
the same is written as a picture, to the terminal's output or to the file that --out names.

With --forecast it says how many tasks came at each of its stages in the latest minutes, of all
runs, beside what had been predicted of each a minute before, and how many are predicted of the
next. By that a stage without work keeps its last slot for longer or shorter than a start is worth.

The exit code is 0 when the run was shown, 2 when there is none, and with --follow that of run.`,
		Example: `  spillway show digits-7f3a9c
  spillway show digits-7f3a9c --why
  spillway show digits-7f3a9c --sizes --svg --out sizes.svg
  spillway show digits-7f3a9c --forecast
  spillway show train-dd2jk36nuyno --trials 100
  spillway show digits-7f3a9c --json | jq .stages
  spillway show digits-7f3a9c --history > testdata/first.json`,
		Args:              flag.Positional("the name of a run"),
		ValidArgsFunction: session.Complete(t, session.RunNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			shown := []string{"--history", "--follow", "--why", "--sizes", "--forecast"}
			if err := flag.Exclusive(shown, history, live, why, sizes.on, forecast); err != nil {
				return err
			}
			if err := sizes.check(asJSON); err != nil {
				return err
			}
			if err := flag.Exclusive([]string{"--history", "--json"}, history, asJSON); err != nil {
				return err
			}
			switch {
			case history:
				return showHistory(cmd.Context(), t, args[0])
			case sizes.on:
				return showSizes(cmd.Context(), t, args[0], asJSON, sizes)
			case forecast:
				return showForecast(cmd.Context(), t, args[0], asJSON)
			case why:
				return explain(cmd.Context(), t, args[0], asJSON)
			default:
				return show(cmd.Context(), t, args[0], asJSON, live, trials)
			}
		},
	}
	command.Flags().BoolVar(&why, "why", false, "explain what it holds, and where its time and money went")
	command.Flags().BoolVar(&asJSON, "json", false, "print the report as JSON")
	command.Flags().BoolVar(&live, "follow", false, "show it live until it has ended; the exit code is then that of run")
	command.Flags().BoolVar(&history, "history", false,
		"print the run's recorded history as JSON, for the replay test of its pipeline")
	command.Flags().BoolVar(&forecast, "forecast", false, "say what comes at its stages, and is predicted to come")
	command.Flags().Var(flag.Count{Value: &trials, Least: 1}, "trials",
		"how many trials of a tuning are listed, the best first")
	sizes.add(command.Flags())
	return command
}

// showForecast says what comes at the stages of a run, and what is forecast.
func showForecast(ctx context.Context, t *tool.Tool, run string, asJSON bool) error {
	s, err := session.Connect(ctx, t)
	if err != nil {
		return err
	}
	defer s.Client.Close()
	stages, pool, err := s.Client.Arrivals(ctx, run)
	if err != nil {
		return session.WithNearRuns(ctx, s, err, run)
	}
	if asJSON {
		return t.WriteJSON(map[string]any{"run": run, "stages": stages, "pool": pool})
	}
	style, _ := t.StyleOf(t.Out)
	for _, line := range append(display.Arrivals(run, stages, style), display.Capacity(pool, style)...) {
		t.Say("%s\n", display.Own(line))
	}
	return nil
}

func showHistory(ctx context.Context, t *tool.Tool, run string) error {
	s, err := session.Connect(ctx, t)
	if err != nil {
		return err
	}
	defer s.Client.Close()
	history, err := s.Client.History(ctx, run)
	if err != nil {
		return session.WithNearRuns(ctx, s, err, run)
	}
	t.Say("%s\n", display.CleanJSON(history))
	return nil
}

func show(ctx context.Context, t *tool.Tool, run string, asJSON, live bool, trials int) error {
	s, err := session.Connect(ctx, t)
	if err != nil {
		return err
	}
	defer s.Client.Close()
	if live {
		if err := s.AwaitRun(ctx, t, run); err != nil {
			return session.WithNearRuns(ctx, s, err, run)
		}
	}
	model, err := follow.Fetch(ctx, s, run, display.Model{})
	if err != nil {
		return session.WithNearRuns(ctx, s, err, run)
	}
	if live {
		reading, stop := t.WhileRead(ctx)
		defer stop()
		viewer := follow.NewViewer(t, s, follow.Output(t, asJSON))
		model, err = follow.ToEnd(reading, t, s, web.Published{Run: run}, viewer, follow.Leave)
		if t.Unread() {
			return nil
		}
		if err != nil {
			return err
		}
		return follow.Conclude(t, model, s.Stack, asJSON, viewer)
	}
	breakdown, err := s.Client.Breakdown(ctx, run)
	switch {
	case gone(err): // an engine of another version does not tell it
	case err != nil:
		return err
	default:
		model.Breakdown = &breakdown
	}
	tunings, err := s.Client.Tunings(ctx, run)
	if err != nil && !untold(err) {
		return err
	}
	if asJSON {
		report := display.NewReport(model, s.Stack.PoolCPUs, s.Stack.FunctionCPUs)
		report.Tunings = tunings
		return t.WriteJSON(report)
	}
	trainings, err := s.Client.Trainings(ctx, run)
	if err != nil && !gone(err) {
		return err
	}
	waits, err := teamWaits(ctx, s, model.Run)
	if err != nil {
		return err
	}
	style, _ := t.StyleOf(t.Out)
	for _, line := range slices.Concat(display.Summary(model, style), waits, trainingLines(trainings),
		display.Tunings(tunings, trials, style), display.Decisions(model)) {
		t.Say("%s\n", display.Own(line))
	}
	return nil
}

// teamWaits says what the tasks of a run that goes on wait for where its team may have no more now.
func teamWaits(ctx context.Context, s *session.Session, run ledger.RunView) ([]string, error) {
	if run.State != predictor.RunRunning {
		return nil, nil
	}
	teams, err := s.Client.Teams(ctx)
	if err != nil && !untold(err) {
		return nil, err
	}
	for _, team := range teams {
		if team.Name == run.Team && team.Why != "" {
			return []string{fmt.Sprintf("  team      %s: %s of its runs: %s", display.CleanLine(predictor.TeamName(run.Team)),
				words.Waiting(team.Waiting), display.CleanLine(team.Why))}, nil
		}
	}
	return nil, nil
}

// untold reports whether nobody can say how the tunings of a run went: the engine is of an earlier version, or the
// build of the run is gone.
func untold(err error) bool {
	refused, ok := errors.AsType[*web.Error](err)
	return ok && (refused.Status == http.StatusNotFound || refused.Status == http.StatusGone)
}

// trainingLines tell of each stage that trains how its latest attempt goes: of a split model what the plan said beside
// what came, with the peak of the fullest part; of several workers what their exchange takes.
func trainingLines(trainings []ledger.TrainingView) (lines []string) {
	latest := map[string]predictor.Training{}
	for _, view := range trainings { // in the order in which they were first heard of
		latest[view.Stage] = view.Training
	}
	for _, stage := range slices.Sorted(maps.Keys(latest)) {
		training := latest[stage]
		if training.Workers > 1 {
			lines = append(lines, togetherLine(stage, training))
			continue
		}
		var predicted, peak quantity.Bytes
		for _, part := range training.Parts {
			predicted, peak = max(predicted, part.PredictedPeakBytes), max(peak, part.PeakBytes)
		}
		parts := fmt.Sprintf("%d parts", len(training.Parts))
		if len(training.Parts) == 1 {
			parts = "1 part"
		}
		if on := display.TrainingHosts(training); on != "" {
			parts = fmt.Sprintf("%d replicas of %s %s", max(training.Replicas, 1), parts, display.CleanLine(on))
		}
		lines = append(lines, fmt.Sprintf("  training  %s: %s, %s, step %d/%d; a step takes %s; the fullest part holds %s",
			display.CleanLine(stage), parts, display.CleanLine(training.Schedule),
			training.Steps, training.TotalSteps, besides(training.PredictedStepSeconds, training.StepSeconds, stepTime),
			besides(float64(predicted), float64(peak), func(bytes float64) string { return quantity.Bytes(bytes).String() })))
	}
	return lines
}

// togetherLine tells of a training by several workers, each of which has the whole model.
func togetherLine(stage string, training predictor.Training) string {
	line := fmt.Sprintf("  training  %s: %d workers, step %d/%d; a step takes %s, %s of it to exchange",
		display.CleanLine(stage), training.Workers, training.Steps, training.TotalSteps, stepTime(training.StepSeconds),
		stepTime(training.ExchangeSeconds))
	if training.ModelBytes > 0 {
		line += " " + training.ModelBytes.String() + " from each"
	}
	return line
}

// besides writes what came beside what was predicted, and by how much it differs.
func besides(predicted, came float64, write func(float64) string) string {
	switch {
	case came <= 0:
		return write(predicted) + " as predicted, not measured yet"
	case predicted <= 0:
		return write(came) + ", not predicted"
	default:
		return fmt.Sprintf("%s, predicted %s (%+.0f%%)", write(came), write(predicted), 100*(came/predicted-1))
	}
}

// stepTime writes the time of a step with three digits: "8.25 ms", "0.82 s".
func stepTime(seconds float64) string {
	if seconds < 0.1 {
		return strconv.FormatFloat(1000*seconds, 'g', 3, 64) + " ms"
	}
	return strconv.FormatFloat(seconds, 'g', 3, 64) + " s"
}
