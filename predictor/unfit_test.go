package predictor_test

import (
	"encoding/json"
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
		"nothing":                      {[]predictor.Event{command}, same, true, ""},
		"a function lacked a module":   {[]predictor.Event{refusal(-1), command}, same, false, "no torch"},
		"more than an hour ago":        {[]predictor.Event{refusal(-3601), command}, same, true, ""},
		"a function was throttled":     {[]predictor.Event{throttled, command}, same, true, ""},
		"what it is":                   {[]predictor.Event{image}, same, false, "it runs in the container image x"},
		"what its author says":         {[]predictor.Event{ownWord}, same, false, ""},
		"functions run no command":     {[]predictor.Event{command}, without, false, "functions run no commands"},
		"and run functions of a build": {[]predictor.Event{plain}, without, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			state := learn(predictor.State{}, "score", 10, 10)
			if early, ok := c.events[0].(predictor.Record); ok { // a state that is stored keeps it
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
