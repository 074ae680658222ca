package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
)

// inputLimit bounds an input: events travel as messages of at most 8 MiB, headers included.
const inputLimit = 7 << 20

// eventFlags say what to start a run with.
type eventFlags struct {
	id       string
	input    string
	cache    bool
	goal     predictor.Goal
	minimise string
}

func (f *eventFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.id, "id", "", "`ID` of the event; equal IDs start one run (default a new one)")
	flags.StringVar(&f.input, "input", "", "input of the pipeline: `JSON`, the name of a file, or - for standard input (default {})")
	flags.BoolVar(&f.cache, "cache", false, "take what other runs of the same code have made of the same input, of every stage")
	f.addGoal(flags)
}

func (f *eventFlags) addGoal(flags *pflag.FlagSet) {
	flags.Var(span{value: &f.goal.Deadline}, "deadline", "how long after its start the run shall end, such as 90s or 10m (default none)")
	flags.Var(dollars{value: &f.goal.Budget, positive: true}, "budget", "the most that the run may cost, in US dollars (default no limit)")
	flags.Var(choice{value: &f.minimise, of: []string{string(predictor.Cost), string(predictor.Latency)}}, "minimise",
		"what to minimise within deadline and budget (default: buy time while an hour of it costs less than --value-of-time)")
}

// goalOrNil returns the goal that the flags say, or nil when they say none.
func (f *eventFlags) goalOrNil() *predictor.Goal {
	goal := f.goal
	goal.Minimise = predictor.Objective(f.minimise)
	if goal == (predictor.Goal{}) {
		return nil
	}
	return &goal
}

// event returns the event that starts a run of the pipeline as the flags say.
func (f *eventFlags) event(pipeline string, input json.RawMessage) web.Event {
	return web.Event{Pipeline: pipeline, ID: f.id, Input: input, Goal: f.goalOrNil(), Cache: f.cache}
}

// readInput returns the input that the flag says, checked to be JSON. What begins as JSON does ({, [, " or a digit, true, false, null)
// is JSON itself; all else is a file's name.
func readInput(flag string, stdin io.Reader) (json.RawMessage, error) {
	name, text := "--input", []byte(flag)
	switch {
	case flag == "":
		return nil, nil
	case flag == "-":
		name = "standard input"
		read, err := io.ReadAll(io.LimitReader(stdin, inputLimit+1))
		if err != nil {
			return nil, &usage{problem: "--input -: " + err.Error(), hint: "give a file or the JSON itself"}
		}
		text = read
	case !looksLikeJSON(flag):
		name = flag
		read, err := readFile(flag)
		if err != nil {
			return nil, err
		}
		text = read
	}
	if len(text) > inputLimit {
		return nil, &usage{
			problem: fmt.Sprintf("the input is larger than %d MiB", inputLimit>>20),
			hint:    "put large data where the pipeline can read it and pass its name",
		}
	}
	if err := checkJSON(name, text); err != nil {
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

func readFile(name string) ([]byte, error) {
	file, err := openNamed(name)
	if err == nil {
		var text []byte
		text, err = io.ReadAll(io.LimitReader(file, inputLimit+1))
		if err := errors.Join(err, file.Close()); err == nil {
			return text, nil
		}
	}
	return nil, &usage{problem: fmt.Sprintf("--input %s: %v", name, unwrapPath(err)), hint: "give a readable file, the JSON itself, or - for standard input"}
}

func unwrapPath(err error) error {
	if pathError, ok := errors.AsType[*os.PathError](err); ok {
		return pathError.Err
	}
	return err
}

// checkJSON returns an error that says in which line and column text stops being one JSON value.
func checkJSON(name string, text []byte) error {
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
	return &usage{
		problem: fmt.Sprintf("%s is not JSON%s: %v", name, where, err),
		hint:    `write a JSON value, such as {"shards": 64}; keys and strings need double quotes`,
	}
}

// position returns the line and the column, both from 1, of the byte before offset; columns count characters.
func position(text []byte, offset int64) (line, column int) {
	before := string(text[:min(max(offset-1, 0), int64(len(text)))])
	line = strings.Count(before, "\n") + 1
	lastLine := before[strings.LastIndexByte(before, '\n')+1:]
	return line, len([]rune(lastLine)) + 1
}
