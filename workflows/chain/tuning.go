package chain

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/search"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// Tuning says how the command of a Single is tuned: each of its trials runs the command with other values. See
// runs.TuneRequest for which placeholders the command has, and what they mean.
type Tuning struct {
	Space search.Space `json:"space"`
	// Options say how the space is searched. A command without {to} is run whole by every trial.
	Options search.Options `json:"options"`
	// Objective is a value that the command reports, or else a metric of its last progress.
	Objective string `json:"objective"`
	// Time and Money bound the tuning; 0 means no bound but those of the run.
	Time  time.Duration  `json:"time_ns,omitempty"`
	Money quantity.Money `json:"money_picodollars,omitempty"`
}

// Tuned is what a tuning has found.
type Tuned struct {
	// Trial is the number of the best trial, Objective what it told last.
	Trial         int                  `json:"trial"`
	Configuration search.Configuration `json:"configuration"`
	Objective     float64              `json:"objective"`
	// Arguments are those of the command with the best configuration, trained from the beginning to the end.
	Arguments []string `json:"arguments"`
	// Trials is how many have begun, by what has become of them.
	Trials map[runs.TrialState]int `json:"trials"`
	// Ended is why the tuning has ended, one of runs.EndedDone and its like.
	Ended string `json:"ended"`
}

// longestChoice bounds a choice of a tuned command, in bytes: what a trial is given is known again by its categories
// (runs.TuneRequest.Permits), and longer texts have none.
const longestChoice = 64

// request is what is asked of the runtime.
func (in SingleInput) request(name string) (runs.TuneRequest, error) {
	input, err := json.Marshal(in.Command)
	if err != nil {
		return runs.TuneRequest{}, fmt.Errorf("encode the command: %w", err)
	}
	return runs.TuneRequest{
		Stage: in.stage(name).described(), Space: in.Tuning.Space, Options: in.Tuning.Options, Input: input,
		Command: true, Objective: in.Tuning.Objective, Time: in.Tuning.Time, Money: in.Tuning.Money,
	}, nil
}

// validateTuning refuses what cannot be tuned so.
func (in SingleInput) validateTuning() error {
	const anyName = "tuned" // is not known yet, and says nothing
	if in.Command.InPlace != "" {
		return errors.New("the trials of a tuning run at the same time, and in place they would write over each other's " +
			"files: let them run in copies of the directory")
	}
	for _, p := range in.Tuning.Space {
		for _, choice := range p.Choices {
			if len(choice) > longestChoice {
				return fmt.Errorf("parameter %q: a choice is at most %d bytes, and %.20q has %d", p.Name,
					longestChoice, choice, len(choice))
			}
		}
	}
	request, err := in.request(anyName)
	if err != nil {
		return err
	}
	return request.Check()
}

// tune is the workflow of a Single whose command is tuned: its result is what the best trial left.
func (c Chain) tune(ctx workflow.Context, in SingleInput) (Result, error) {
	request, err := in.request(c.d.Name)
	if err != nil {
		return Result{}, err
	}
	tuning, output, err := runs.Tune(ctx, request)
	if err != nil {
		return Result{}, err
	}
	var best wire.CommandResult
	if err := json.Unmarshal(output, &best); err != nil {
		return Result{}, fmt.Errorf("stage %s: decode what the best trial left: %w", c.d.Name, err)
	}
	result := c.d.left(best)
	if result.Tuned, err = in.tuned(tuning); err != nil {
		return Result{}, fmt.Errorf("stage %s: %w", c.d.Name, err)
	}
	return result, nil
}

// tuned is what a tuning that has ended well has found.
func (in SingleInput) tuned(t runs.Tuning) (*Tuned, error) {
	best := t.Trials[*t.Best]
	job, told := best.Told()
	if !told {
		return nil, fmt.Errorf("trial %d is the best of its tuning, and has told no %q", best.Number, in.Tuning.Objective)
	}
	return &Tuned{
		Trial: best.Number, Configuration: best.Configuration, Objective: *job.Objective,
		Arguments: in.Best(t).Arguments, Trials: t.Counts, Ended: t.Ended,
	}, nil
}

// Best is the command with the best configuration of its tuning, which trains from the beginning to the end; without
// arguments while no trial is the best.
func (in SingleInput) Best(t runs.Tuning) wire.Command {
	for _, trial := range t.Trials {
		if t.Best != nil && trial.Number == *t.Best {
			turn := runs.Turn{Number: trial.Number, To: t.Options.Most}
			return runs.FillCommand(in.Command, trial.Configuration, turn)
		}
	}
	return wire.Command{}
}
