package workflows

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/search"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// Words of a tuning.
type (
	// Space is what a tuning searches: parameters, each after those that it depends on. See [NewSpace].
	Space = search.Space
	// Parameter is one of the values that a trial is given.
	Parameter = search.Parameter
	// Configuration is what a trial is given: the values of those parameters that exist for it, by name.
	Configuration = search.Configuration
	// Algorithm is how a tuning decides; the zero value is ASHA.
	Algorithm = search.Algorithm
	// Trial is what a job is told of itself, in the field "trial" of its input: it trains from From to To, saves a
	// Checkpoint there, and goes on from the one that Restore finds. From is 0 where there is none.
	Trial = runs.Turn
	// Tuning is all that a tuning did.
	Tuning = runs.Tuning
)

// The algorithms, and the states of trials by which Tuning counts them.
const (
	ASHA          = search.ASHA
	Random        = search.Random
	Halving       = search.Halving
	Hyperband     = search.Hyperband
	BOHB          = search.BOHB
	TrialFinished = runs.TrialFinished
	TrialStopped  = runs.TrialStopped
	TrialDiverged = runs.TrialDiverged
	TrialFailed   = runs.TrialFailed
)

// NewSpace returns a space as people write it, one text for each parameter:
//
//	spillway.NewSpace("lr=log:1e-4..1e-1", "layers=2..8", "optimizer=adam|sgd", "momentum=0.5..0.99 if optimizer=sgd")
//
// It panics when a text is wrong: that is a mistake of the program that calls it. [search.Parse] says what texts mean.
func NewSpace(texts ...string) Space {
	space := make(Space, len(texts))
	for i, text := range texts {
		parameter, err := search.Parse(text)
		if err != nil {
			panic(fmt.Sprintf("spillway: %v", err))
		}
		space[i] = parameter
	}
	if err := space.Check(); err != nil {
		panic(fmt.Sprintf("spillway: %v", err))
	}
	return space
}

// Search says what a tuning tries, for what, and how much it may take. Space, Loss and Trials are required, and Most
// unless the algorithm is Random.
type Search[In, Out any] struct {
	// Name is what the tuning is called, beside others of the same stage; empty means the name of the stage.
	Name string
	// Space are the parameters. Each is a JSON field of In, at its top.
	Space Space
	// Input is what trials have in common, 128 KiB at most when it is encoded: what is larger is an artifact. A parameter
	// that does not exist for a configuration leaves its field as it is here.
	Input In
	// Loss is the JSON field of Out that is minimised, with dots into objects: "loss", "metrics.validation". Where it is
	// no finite number, the trial has diverged, which is a result, and the worst. Maximise says that larger is better.
	Loss     string
	Maximise bool
	// Trials is how many configurations are tried, at most 5,000; by BOHB fewer, 1,154 with three parameters.
	Trials int
	// Most is what a trial is given in all, and Least in its first rung, in the unit in which the stage counts: epochs,
	// steps, rows. Rungs end at whole numbers where Most is one. Least is Most over Eta three times where it is 0, and 1
	// at least. How far a job trains stands in the field "trial" of its input (Trial); a stage whose In has none is tried
	// by Random, which has one rung.
	Most, Least float64
	// Algorithm is ASHA where it is empty.
	Algorithm Algorithm
	// Eta is the factor between rungs, and one over the part of the trials that go on; 3 where it is 0.
	Eta int
	// GoOn says that ASHA, where it would be done, goes on with the next best trial while there is time and money.
	GoOn bool
	// Seed is that from which configurations are drawn.
	Seed uint64
	// Time is how long the tuning takes, from the start of its first job; 0 means no limit. Money is what its jobs may
	// cost together; 0 means no limit but the run's budget. Where either ends, the best so far is the result.
	Time  time.Duration
	Money quantity.Money
}

// Tuned is the result of a tuning: the best trial of those that came the furthest.
type Tuned[Out any] struct {
	// Trial is its number and Configuration what it was given.
	Trial         int
	Configuration Configuration
	// Output is that of its last job, Objective what that told.
	Output    Out
	Objective float64
	// Tuning is all that was done, trial by trial, with what it cost and why it ended.
	Tuning Tuning
}

// Tune tries configurations of a stage and returns the best. Each job is a task of the stage, which is sized, paid and
// run like all its tasks; as many go on at a time as the run's window allows. A trial begins with little and goes on,
// at any venue, from the [Checkpoint] of its last job, as long as it is among the best: without one it begins anew. A
// job that fails for good ends its trial and not the tuning, which fails where its first five do, or none tells an
// objective. It runs in child workflows.
//
//	best, err := spillway.Tune(ctx, Train, spillway.Search[TrainInput, Model]{
//		Space: spillway.NewSpace("learning_rate=log:1e-4..1e-1"), Input: TrainInput{Data: data},
//		Loss: "loss", Trials: 27, Most: 27,
//	})
func Tune[In, Out any](ctx workflow.Context, stage Stage[In, Out], s Search[In, Out]) (best Tuned[Out], err error) {
	request, err := s.request(stage)
	if err != nil {
		return best, temporal.NewNonRetryableApplicationError(
			fmt.Sprintf("tuning of stage %s: %v", stage.name, err), runs.InputError, err)
	}
	tuning, output, err := runs.Tune(ctx, request)
	if err != nil {
		return best, err
	}
	best.Trial, best.Tuning = *tuning.Best, tuning
	trial := tuning.Trials[best.Trial]
	best.Configuration = trial.Configuration
	for _, job := range trial.Jobs {
		if job.Objective != nil {
			best.Objective = *job.Objective
		}
	}
	if err := json.Unmarshal(output, &best.Output); err != nil {
		return best, fmt.Errorf("tuning of stage %s: decode output of trial %d into %T: %w", stage.name, best.Trial,
			best.Output, err)
	}
	return best, nil
}

// request is the tuning as it is run, or what is wrong with it.
func (s Search[In, Out]) request(stage Stage[In, Out]) (runs.TuneRequest, error) {
	input, err := json.Marshal(s.Input)
	if err != nil {
		return runs.TuneRequest{}, fmt.Errorf("encode input %T: %w", s.Input, err)
	}
	request := runs.TuneRequest{
		Stage: stage.Describe(), Name: s.Name, Space: s.Space,
		Options: search.Options{
			Algorithm: s.Algorithm, Trials: s.Trials, Least: s.Least, Most: s.Most, Eta: s.Eta,
			Maximise: s.Maximise, GoOn: s.GoOn, Seed: s.Seed,
		},
		Input: input, Objective: s.Loss, Time: s.Time, Money: s.Money, Turns: true,
	}
	err = decodes[In](request)
	if err != nil && strings.Contains(err.Error(), `unknown field "trial"`) {
		request.Turns = false
		err = decodes[In](request)
	}
	request = request.WithDefaults()
	if err := errors.Join(request.Check(), err); err != nil {
		return runs.TuneRequest{}, err
	}
	return request, hasField[Out](s.Loss)
}

// decodes returns why a trial's input is none of the stage's.
func decodes[In any](request runs.TuneRequest) error {
	sample, err := request.Sample()
	if err != nil {
		return nil //nolint:nilerr // Check says it
	}
	var in In
	decoder := json.NewDecoder(bytes.NewReader(sample))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&in); err != nil {
		return fmt.Errorf("a trial's values do not fit input %T: %w", in, err)
	}
	return nil
}

// hasField returns an error when Out, encoded, never has a field. Of an Out that encodes itself nobody knows.
func hasField[Out any](path string) error {
	schema, err := jsonschema.For[Out](nil)
	if err != nil {
		return nil // its trials will tell
	}
	for name := range strings.SplitSeq(path, ".") {
		if len(schema.Properties) == 0 {
			return nil
		}
		field := schema.Properties[name]
		if field == nil {
			return fmt.Errorf("output %T has no field %q, which is to be %q: its fields are %s", *new(Out), name, path,
				strings.Join(workflow.DeterministicKeys(schema.Properties), ", "))
		}
		schema = field
	}
	return nil
}
