package runs

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"

	"go.temporal.io/sdk/workflow"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor/search"
)

// turnField is the field of a function's input that holds its Turn.
const turnField = "trial"

// WithDefaults returns the request with what it means in the place of zeros. Rungs end at whole numbers where Most is
// one: they count steps or epochs then.
func (q TuneRequest) WithDefaults() TuneRequest {
	q.Name = cmp.Or(q.Name, q.Stage.Name)
	if told, err := q.told(); err == nil && !told {
		q.Options.Algorithm = cmp.Or(q.Options.Algorithm, search.Random)
		if q.Options.Most == 0 && q.Options.Least == 0 {
			q.Options.Most = 1
		}
	}
	if isWhole(q.Options.Most) && q.Options.Most > 0 && (q.Options.Least == 0 || q.Options.Least >= 1) {
		q.Options.Whole = true
	}
	q.Options = q.Options.WithDefaults()
	return q
}

// told reports whether a trial is told how far to train.
func (q TuneRequest) told() (bool, error) {
	if !q.Command {
		return q.Turns, nil
	}
	var command wire.Command
	if err := json.Unmarshal(q.Input, &command); err != nil {
		return false, fmt.Errorf("decode the command: %w", err)
	}
	return checkTemplate(command, q.Space)
}

// Check reports everything that is wrong with a request.
func (q TuneRequest) Check() error {
	q = q.WithDefaults()
	wrong := []error{CheckName(q.Name), q.Space.Check()}
	told, err := q.told()
	optionsErr := q.Options.Check()
	wrong = append(wrong, err, optionsErr)
	if q.Objective == "" {
		wrong = append(wrong, errors.New("it has no objective: name the loss, or the score, that a trial tells"))
	}
	if q.Time < 0 || q.Money < 0 {
		wrong = append(wrong, fmt.Errorf("its time of %s or its money of %s is negative", q.Time, q.Money))
	}
	if optionsErr == nil {
		rungs := q.Options.Rungs()
		if err == nil && !told && rungs > 1 {
			how := `give its input a field "trial" of type Trial`
			if q.Command {
				how = "use {to} for how far it trains, and {from} where it needs to know"
			}
			wrong = append(wrong, fmt.Errorf("%s has %d rungs, and a trial is not told how far to train: %s, or use "+
				"algorithm random", q.Options.Algorithm, rungs, how))
		}
		if q.Options.Trials > MaxTrials {
			wrong = append(wrong, fmt.Errorf("%d trials: a tuning has at most %d", q.Options.Trials, MaxTrials))
		} else if jobs := q.Options.Trials * rungs; q.Options.GoOn && jobs > MaxJobs {
			wrong = append(wrong, fmt.Errorf("%d trials that all go on to the last of %d rungs are %d jobs: a tuning has at "+
				"most %d", q.Options.Trials, rungs, jobs, MaxJobs))
		}
		if most := mostDrawn(len(q.Space)); q.Options.Algorithm == search.BOHB && q.Options.Trials > most {
			wrong = append(wrong, fmt.Errorf("%d trials by bohb: with %d parameters it has at most %d, for each is drawn by "+
				"all before it: use asha or hyperband", q.Options.Trials, len(q.Space), most))
		}
	}
	if len(q.Input) > MaxInput {
		wrong = append(wrong, fmt.Errorf("its input of %d bytes is borne by each of its trials, and has at most %d: pass "+
			"what is large as an artifact", len(q.Input), MaxInput))
	}
	if !q.Command {
		wrong = append(wrong, q.checkInput())
	}
	return errors.Join(wrong...)
}

// mostDrawn is how many trials BOHB has at most with so many parameters: a search is made again in one go, within what
// a workflow may take without a pause, and what that takes grows with their square. 4e6 take 3 s of a busy core.
func mostDrawn(parameters int) int { return int(math.Sqrt(4e6 / float64(max(parameters, 1)))) }

// checkInput refuses what values cannot be set in.
func (q TuneRequest) checkInput() error {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(q.Input, &fields); err != nil || fields == nil {
		return errors.New("its input is no JSON object, in which the values of a trial are set")
	}
	for _, p := range q.Space {
		if strings.EqualFold(p.Name, turnField) {
			return fmt.Errorf("parameter %q: the field is the trial's own: give the parameter another name", p.Name)
		}
		if _, found := fields[p.Name]; found {
			continue
		}
		// encoding/json takes either for the same field, and the last of them counts: the value might never be seen.
		for _, field := range workflow.DeterministicKeys(fields) {
			if strings.EqualFold(field, p.Name) {
				return fmt.Errorf("parameter %q: the field of the input is called %q: write it so", p.Name, field)
			}
		}
	}
	return nil
}

// Sample is an input as trials are given it, with a value for each parameter of the space, also where no configuration
// has them all: for who checks that it decodes.
func (q TuneRequest) Sample() (json.RawMessage, error) {
	configuration := search.Configuration{}
	for _, p := range q.Space {
		value := search.Value{Number: p.Low}
		switch {
		case p.Kind == search.Choice && len(p.Choices) > 0:
			value = search.Value{Text: p.Choices[0]}
		case p.Kind == search.Float: // no whole number where there is another
			value.Number += (p.High - p.Low) / math.Pi
		}
		configuration[p.Name] = value
	}
	return q.input(configuration, Turn{To: q.Options.Most})
}

// input is that of a job.
func (q TuneRequest) input(configuration search.Configuration, turn Turn) (json.RawMessage, error) {
	if q.Command {
		var command wire.Command
		if err := json.Unmarshal(q.Input, &command); err != nil {
			return nil, err
		}
		return json.Marshal(fill(command, configuration, turn))
	}
	var fields map[string]any
	var base map[string]json.RawMessage
	if err := json.Unmarshal(q.Input, &base); err != nil {
		return nil, err
	}
	fields = make(map[string]any, len(base)+len(configuration)+1)
	//workflowcheck:ignore the order changes nothing
	for name, value := range base {
		fields[name] = value
	}
	//workflowcheck:ignore the order changes nothing
	for name, value := range configuration {
		fields[name] = value
	}
	if q.Turns {
		fields[turnField] = turn
	}
	return json.Marshal(fields)
}
