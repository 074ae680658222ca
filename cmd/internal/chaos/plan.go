package chaos

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// kind says what an action does.
type kind string

const (
	killEngine   kind = "kill the engine"
	killChild    kind = "kill a child"
	killFunction kind = "kill a function"
	fillDisk     kind = "fill the disk"
	skewClocks   kind = "skew the clocks"
)

// action is one disturbance.
type action struct {
	kind kind
	// pause is the time before it, from the end of the action before or, for an engine that was started anew, from when it
	// was ready.
	pause time.Duration
	// early counts the pause from the start of the engine's process instead, so that it is killed while it starts.
	early bool
	// engine and host are what a skew adds to the clock of the engine and of hosts; hosts obey from their next start on.
	engine, host time.Duration
	// pick chooses among the processes there are, from 0 to 1.
	pick float64
}

// Each hand of kills is this one, shuffled; every so many kills there is an action that kills nothing.
var hand = []action{
	{kind: killEngine},
	{kind: killEngine},
	{kind: killEngine},
	{kind: killEngine, early: true},
	{kind: killChild},
	{kind: killChild},
	{kind: killFunction},
	{kind: killFunction},
}

const (
	skewEvery    = 12
	fillEvery    = 40
	longestPause = 3 * time.Second
)

// schedule returns the actions for so many kills. The last one kills the engine. The same seed gives the same actions.
func schedule(seed uint64, kills int) []action {
	r := rand.New(rand.NewPCG(seed, 1))
	pause := func() time.Duration { return time.Duration(r.Int64N(int64(longestPause))) }
	dealt := slices.Clone(hand)
	var actions []action
	for n := range kills {
		order := n % len(hand)
		if order == 0 {
			r.Shuffle(len(dealt), func(i, j int) { dealt[i], dealt[j] = dealt[j], dealt[i] })
		}
		a := dealt[order]
		a.pause, a.pick = pause(), r.Float64()
		if n == kills-1 {
			a.kind, a.early = killEngine, false
		}
		actions = append(actions, a)
		if n%skewEvery == skewEvery/4 {
			engine := []time.Duration{-time.Hour, -10 * time.Minute, 0}[r.IntN(3)]
			actions = append(actions, action{
				kind: skewClocks, engine: engine,
				host: []time.Duration{time.Hour, -time.Hour, 0}[r.IntN(3)],
			})
		}
		if n%fillEvery == fillEvery/8 {
			actions = append(actions, action{kind: fillDisk, pause: pause()})
		}
	}
	return actions
}

// millisecond is how many rounds of work take about one on a core of today.
const millisecond = 10_000

// event is one run and what must become of it.
type event struct {
	ID       string
	Pipeline string
	Input    input
	Goal     *predictor.Goal
	// state and failure are how the run ends; failure is a part of its error.
	state   predictor.RunState
	failure string
}

// input is that of the app's pipelines, and of the chain.
type input struct {
	Shards int    `json:"shards,omitempty"`
	Rounds int    `json:"rounds,omitempty"`
	Salt   string `json:"salt"`
}

// result is that of the app's pipelines.
type result struct {
	Shards int   `json:"shards"`
	Sum    int64 `json:"sum"`
	Wrong  int   `json:"wrong"`
}

// wanted is the result of a run over so many shards.
func wanted(shards int) result {
	return result{Shards: shards, Sum: int64(shards) * int64(shards-1) / 2}
}

// chainName is the chain's pipeline, and chainTasks how many tasks its widest stage has.
const (
	chainName  = "ladder"
	chainTasks = 6
)

// Budgets of runs, and what the work of such a run takes of it: a core of the pool costs about 12 millionths of a
// dollar in a second.
const (
	wideBudget   = 50_000 * microDollar
	narrowBudget = 40 * microDollar
	microDollar  = quantity.Money(1_000_000)
)

// load returns the n-th event of a seed. All kinds come in turn.
func load(seed uint64, n int) event {
	r := rand.New(rand.NewPCG(seed, 1000+uint64(n)))
	e := event{ID: fmt.Sprintf("e%d", n), state: predictor.RunSucceeded}
	e.Input = input{Shards: 10 + r.IntN(30), Rounds: (40 + r.IntN(80)) * millisecond, Salt: fmt.Sprintf("%d-%d", seed, n)}
	switch n % 10 {
	case 0, 4:
		e.Pipeline = "fan"
	case 1:
		e.Pipeline = "relay"
	case 2:
		e.Pipeline = "count"
	case 3:
		e.Pipeline, e.Input.Shards = "trip", 9
	case 5:
		e.Pipeline, e.Input = chainName, input{Salt: e.Input.Salt}
	case 6:
		e.Pipeline, e.Input.Shards, e.state, e.failure = "doomed", 1, predictor.RunFailed, "it never works"
	case 7:
		e.Pipeline, e.Goal = "fan", &predictor.Goal{Budget: wideBudget}
	case 8:
		e.Pipeline, e.Input.Shards, e.Input.Rounds = "fan", 80, 120*millisecond
		e.Goal, e.state, e.failure = &predictor.Goal{Budget: narrowBudget}, predictor.RunFailed, "budget"
	case 9:
		e.Pipeline, e.Input.Shards, e.Input.Rounds = "fan", 600+r.IntN(200), 2*millisecond // more than one chunk of a Map
	}
	return e
}

// wave returns runs that are work enough for cores processors for so long.
func wave(seed uint64, first int, cores int, left time.Duration) []event {
	r := rand.New(rand.NewPCG(seed, 2))
	work := int(left/time.Millisecond) * cores
	var events []event
	for n := first; work > 0; n++ {
		e := event{ID: fmt.Sprintf("w%d", n), Pipeline: "fan", state: predictor.RunSucceeded}
		each := 80 + r.IntN(120)
		e.Input = input{Shards: 60 + r.IntN(60), Rounds: each * millisecond, Salt: fmt.Sprintf("%d-w%d", seed, n)}
		if n%4 == 3 {
			e.Pipeline = "relay"
		}
		events, work = append(events, e), work-each*e.Input.Shards
	}
	return events
}
