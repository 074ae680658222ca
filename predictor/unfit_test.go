package predictor_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor"
)

// TestWhatFunctionsLackKeepsAStageOffThem has 50 tasks of 10 s wait at one slot, which spill where nothing is against
// it, and looks what is decided when something is, what is told of it, and how often.
func TestWhatFunctionsLackKeepsAStageOffThem(t *testing.T) {
	t.Parallel()
	refusal := func(at float64) predictor.Record {
		line := record("earlier", "score", 99, at, 0.1)
		line.Venue, line.Outcome, line.Cause = predictor.Function, predictor.Refused, predictor.CauseStart
		line.Error = predictor.CannotRun + "no torch\nand more of it"
		return line
	}
	second := func(at float64, cause predictor.Cause) predictor.Record {
		line := refusal(at)
		line.Task, line.Cause = "score-98", cause
		return line
	}
	unasked := func(at float64, task int) predictor.Record {
		line := refusal(at)
		line.Task, line.Host = fmt.Sprintf("score-%d", task), ""
		return line
	}
	succeeded := second(-1.5, "")
	succeeded.Task, succeeded.Outcome, succeeded.Error = "score-97", predictor.Succeeded, ""
	throttled := refusal(-1)
	throttled.Cause = predictor.CauseThrottled
	command := hint("r", "score", 50, 0)
	command.Program = "python3"
	image := command
	image.PoolOnly, image.Unfit = true, "it runs in the container image x"
	ownWord := command
	ownWord.PoolOnly = true
	without := func(s predictor.Snapshot) predictor.Snapshot {
		s.Functions.NoCommands = "functions run no commands"
		return s
	}
	same := func(s predictor.Snapshot) predictor.Snapshot { return s }
	plain := hint("r", "score", 50, 0)
	plain.Program = predictor.GoProgram
	for name, c := range map[string]struct {
		events []predictor.Event
		at     func(predictor.Snapshot) predictor.Snapshot
		spills bool
		told   string // empty for nothing
	}{
		"nothing": {[]predictor.Event{command}, same, true, ""},
		"a function lacked a module": {
			[]predictor.Event{refusal(-2), second(-1, predictor.CauseStart), command}, same, false, "no torch",
		},
		"more than an hour ago": {
			[]predictor.Event{refusal(-3602), second(-3601, predictor.CauseStart), command}, same, true, "",
		},
		"one task lacked it": {[]predictor.Event{refusal(-1), command}, same, true, ""},
		"one did, and another not": {
			[]predictor.Event{refusal(-2), succeeded, second(-1, predictor.CauseStart), command}, same, true, "",
		},
		"none was asked": {[]predictor.Event{unasked(-2, 99), unasked(-1, 98), command}, same, true, ""},
		"tasks had files too large": {
			[]predictor.Event{second(-2, predictor.CauseDisk), second(-1, predictor.CauseDisk), command}, same, true, "",
		},
		"a function was throttled":     {[]predictor.Event{throttled, command}, same, true, ""},
		"what it is":                   {[]predictor.Event{image}, same, false, "it runs in the container image x"},
		"what its author says":         {[]predictor.Event{ownWord}, same, false, ""},
		"functions run no command":     {[]predictor.Event{command}, without, false, "functions run no commands"},
		"and run functions of a build": {[]predictor.Event{plain}, without, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			state := learn(predictor.State{}, "score", 10, 10)
			for early, ok := c.events[0].(predictor.Record); ok; early, ok = c.events[0].(predictor.Record) { // stored, it stays
				state = predictor.Fold(state, early)
				var read predictor.State
				if err := json.Unmarshal(encode(t, state), &read); err != nil {
					t.Fatal(err)
				}
				state = read
				c.events = c.events[1:]
			}
			state = fold(state, append([]predictor.Event{started("r", 0, predictor.Goal{Deadline: time.Minute})},
				c.events...)...)
			told, spills := 0, false
			for tick := range 3 {
				var plan predictor.Plan
				plan, state = predictor.Decide(state, c.at(laptop(float64(tick), 1)))
				all := strings.Join(reasons(plan), "\n")
				if c.told != "" {
					told += strings.Count(all, "functions cannot run this stage: "+c.told)
				} else {
					told += strings.Count(all, "functions cannot run this stage")
				}
				spills = spills || slots(plan, "score", predictor.Function) > 0
			}
			want := 0
			if c.told != "" {
				want = 1
			}
			if spills != c.spills || told != want {
				t.Errorf("it spills: %t, told %d times; want %t and %d times %q", spills, told, c.spills, want, c.told)
			}
		})
	}
}
