package flag

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/pflag"

	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
)

// inputLimit bounds an input: events travel as messages of at most 8 MiB, headers included.
const inputLimit = 7 << 20

// Event say what to start a run with.
type Event struct {
	id       string
	Input    string
	Cache    bool
	goal     predictor.Goal
	minimise string
}

// Add adds the flags to a command that starts a run.
func (f *Event) Add(flags *pflag.FlagSet) {
	f.AddID(flags)
	flags.StringVar(&f.Input, "input", "", "input of the pipeline: `JSON`, the name of a file, or - for standard input "+
		"(default {})")
	flags.BoolVar(&f.Cache, "cache", false, "take what other runs of the same code have made of the same input, of "+
		"every stage")
	f.AddGoal(flags)
}

// AddID adds the flag that names the event only.
func (f *Event) AddID(flags *pflag.FlagSet) {
	flags.StringVar(&f.id, "id", "", "`ID` of the event; equal IDs start one run (default a new one)")
}

// AddGoal adds the flags of the goal only.
func (f *Event) AddGoal(flags *pflag.FlagSet) {
	flags.Var(Span{Value: &f.goal.Deadline}, "deadline",
		"how long after its start the run shall end, such as 90s or 10m (default none)")
	flags.Var(confidence{value: &f.goal.Confidence}, "confidence",
		"the probability with which the deadline is to be met, 0.5 to 0.999 (default 0.9)")
	flags.Var(dollars{value: &f.goal.Budget, positive: true}, "budget",
		"the most that the run may cost, in US dollars (default no limit)")
	flags.Var(Choice{Value: &f.minimise, Of: []string{string(predictor.Cost), string(predictor.Latency)}}, "minimise",
		"what to minimise within deadline and budget (default: buy time while an hour of it costs less than --value-of-time)")
}

// GoalOrNil returns the goal that the flags say, or nil when they say none.
func (f *Event) GoalOrNil() *predictor.Goal {
	goal := f.goal
	goal.Minimise = predictor.Objective(f.minimise)
	if goal == (predictor.Goal{}) {
		return nil
	}
	return &goal
}

// GoalOver returns the goal that the flags make of one in force, or of none where that one is forgotten, and whether
// they say anything.
func (f *Event) GoalOver(inForce predictor.Goal, forgotten bool) (goal predictor.Goal, said bool) {
	if !forgotten {
		goal = inForce
	}
	given := f.GoalOrNil()
	if given == nil {
		return goal, forgotten
	}
	if given.Deadline > 0 {
		goal.Deadline = given.Deadline
	}
	if given.Confidence > 0 {
		goal.Confidence = given.Confidence
	}
	if given.Budget > 0 {
		goal.Budget = given.Budget
	}
	if given.Minimise != "" {
		goal.Minimise = given.Minimise
	}
	return goal, true
}

// Event returns the event that starts a run of the pipeline as the flags say.
func (f *Event) Event(pipeline string, input json.RawMessage) web.Event {
	return web.Event{Pipeline: pipeline, ID: f.id, Input: input, Goal: f.GoalOrNil(), Cache: f.Cache}
}

// ReadInput returns the input that the flag says, checked to be JSON. What begins as JSON does ({, [, " or a digit,
// true, false, null) is JSON itself; all else is a file's name.
func ReadInput(flag string, stdin io.Reader) (json.RawMessage, error) {
	name, text := "--input", []byte(flag)
	switch {
	case flag == "":
		return nil, nil
	case flag == "-":
		name = "standard input"
		read, err := io.ReadAll(io.LimitReader(stdin, inputLimit+1))
		if err != nil {
			return nil, &fault.UsageError{Problem: "--input -: " + err.Error(), Hint: "give a file or the JSON itself"}
		}
		text = read
	case !looksLikeJSON(flag):
		name = flag
		read, err := readInputFile(flag)
		if err != nil {
			return nil, err
		}
		text = read
	}
	if len(text) > inputLimit {
		return nil, &fault.UsageError{
			Problem: fmt.Sprintf("the input is larger than %d MiB", inputLimit>>20),
			Hint:    "put large data where the pipeline can read it and pass its name",
		}
	}
	if err := CheckJSON(name, text); err != nil {
		return nil, err
	}
	return text, nil
}

func looksLikeJSON(text string) bool {
	trimmed := strings.TrimSpace(text)
	if trimmed == "" || strings.ContainsRune(`{["`, rune(trimmed[0])) {
		return true
	}
	return json.Valid([]byte(trimmed))
}

func readInputFile(name string) ([]byte, error) {
	file, err := OpenFile(name)
	if err == nil {
		var text []byte
		text, err = io.ReadAll(io.LimitReader(file, inputLimit+1))
		if err := errors.Join(err, file.Close()); err == nil {
			return text, nil
		}
	}
	return nil, &fault.UsageError{
		Problem: fmt.Sprintf("--input %s: %v", name, fault.WithoutPath(err)),
		Hint:    "give a readable file, the JSON itself, or - for standard input",
	}
}

// CheckJSON returns an error that says in which line and column text stops being one JSON value.
func CheckJSON(name string, text []byte) error {
	var value any
	err := json.Unmarshal(text, &value)
	if err == nil {
		return nil
	}
	where := ""
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		line, column := position(text, syntax.Offset)
		where = fmt.Sprintf(" at line %d, column %d", line, column)
	}
	return &fault.UsageError{
		Problem: fmt.Sprintf("%s is not JSON%s: %v", name, where, err),
		Hint:    `write a JSON value, such as {"shards": 64}; keys and strings need double quotes`,
	}
}

// position returns the line and the column, both from 1, of the byte before offset; columns count characters.
func position(text []byte, offset int64) (line, column int) {
	before := string(text[:min(max(offset-1, 0), int64(len(text)))])
	line = strings.Count(before, "\n") + 1
	lastLine := before[strings.LastIndexByte(before, '\n')+1:]
	return line, len([]rune(lastLine)) + 1
}
