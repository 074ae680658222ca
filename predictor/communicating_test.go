package predictor_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// training16 is one in two parts, of 600 steps of a second each and 16 MiB of parameters.
func training16() *predictor.Training {
	told := training(1)
	told.Steps, told.TotalSteps, told.ModelBytes = 600, 600, 16*quantity.MiB
	return told
}

// decideOnTrainings is what is decided at a stage that trains, of which eight tasks wait behind one slot of a host at a
// price per hour, for a run that wants them as soon as can be.
func decideOnTrainings(t *testing.T, told *predictor.Training, host, functions quantity.Money) (
	int, predictor.Decision,
) {
	t.Helper()
	var state predictor.State
	for i := range 3 {
		e := record("earlier", "train", i, -5000+float64(i), 600)
		e.Training = told
		state = predictor.Fold(state, e)
	}
	state = fold(state, started("r", 0, predictor.Goal{Minimise: predictor.Latency}), hint("r", "train", 8, 0))
	snap := laptop(1, 1)
	snap.Hosts[0].PricePerHour = host
	snap.Functions.PerGiBSecond *= functions
	plan, _ := predictor.Decide(state, snap)
	for _, d := range plan.Decisions {
		if d.Venue == predictor.Function && d.What == "slots" {
			return slots(plan, "train", predictor.Function), d
		}
	}
	t.Fatalf("nothing is said of functions: %q", reasons(plan))
	return 0, predictor.Decision{}
}

// TestATrainingGoesWhereItCostsLess: a host at 50 cents an hour for its core is dearer than functions, which cost 10;
// at ten times their price it is not.
func TestATrainingGoesWhereItCostsLess(t *testing.T) {
	t.Parallel()
	const half = quantity.USD / 2
	spilled, why := decideOnTrainings(t, training16(), half, 1)
	if spilled == 0 {
		t.Errorf("functions cost less, and none is asked for: %s", why.Reason)
	}
	pool := false
	for _, other := range why.Rejected {
		pool = pool || other.Venue == predictor.Pool && other.Price > 0 && other.Seconds > 0
	}
	if !pool {
		t.Errorf("the pool's price is not among what was rejected: %+v", why.Rejected)
	}
	spilled, why = decideOnTrainings(t, training16(), half, 10)
	if spilled > 0 {
		t.Errorf("functions cost ten times as much, and %d are asked for: %s", spilled, why.Reason)
	}
	if !strings.Contains(why.Reason, "one function is no cheaper") || len(why.Rejected) != 2 {
		t.Errorf("what was rejected is not told: %s, %+v", why.Reason, why.Rejected)
	}
	for _, other := range why.Rejected {
		if other.Venue != predictor.Function || other.Price <= 0 || other.Seconds <= 0 {
			t.Errorf("an alternative without its price or time: %+v", other)
		}
	}
}

// TestATrainingIsNotSpilledToBeSooner: the run minimises latency, and what does not train is spilled for it at the
// same prices.
func TestATrainingIsNotSpilledToBeSooner(t *testing.T) {
	t.Parallel()
	const usual = quantity.USD / 22 // of a core of c7i
	if spilled, why := decideOnTrainings(t, training16(), usual, 1); spilled > 0 {
		t.Errorf("the pool does it for less, and %d functions are asked for: %s", spilled, why.Reason)
	}
	if spilled, why := decideOnTrainings(t, nil, usual, 1); spilled == 0 {
		t.Errorf("what does not train is not spilled either: %s", why.Reason)
	}
	if spilled, why := decideOnTrainings(t, training16(), 0, 1); spilled > 0 {
		t.Errorf("a host that costs nothing does it for less, and %d functions are asked for: %s", spilled, why.Reason)
	}
}

// TestATrainingByWorkersIsPricedTogether: two tasks train a model together. Functions of AWS exchange it through a
// store of objects, which takes much of a short step, and are refused with that reason; where steps are long they are
// not.
func TestATrainingByWorkersIsPricedTogether(t *testing.T) {
	t.Parallel()
	told := training16()
	told.Parts = told.Parts[:1]
	told.Workers, told.ExchangeSeconds = 2, 0.05
	told.StepSeconds, told.TotalSteps, told.Steps = 0.3, 2000, 2000
	const fifth = quantity.USD / 5
	spilled, why := decideOnTrainings(t, told, fifth, 1)
	if spilled > 0 || !strings.Contains(why.Reason, "by 2 workers") ||
		!strings.Contains(why.Reason, "2 functions of") || !strings.Contains(why.Reason, "% of a step") {
		t.Errorf("%d functions: %s", spilled, why.Reason)
	}
	others := 0
	for _, other := range why.Rejected {
		if strings.Contains(other.What, "1 worker on") || strings.Contains(other.What, "4 workers on") {
			others++
		}
	}
	if others == 0 {
		t.Errorf("other numbers of workers are not told: %+v", why.Rejected)
	}
	told.StepSeconds, told.TotalSteps, told.Steps = 20, 30, 30
	if spilled, why = decideOnTrainings(t, told, fifth, 1); spilled == 0 {
		t.Errorf("functions cost less, and none is asked for: %s", why.Reason)
	}
	if strings.Contains(why.Reason, "of a step)") {
		t.Errorf("steps that mostly compute are said to exchange: %s", why.Reason)
	}
}

// TestATrainingIsKnownBeforeItHasEnded: what a running attempt tells of its plan is enough to keep the next one off
// functions.
func TestATrainingIsKnownBeforeItHasEnded(t *testing.T) {
	t.Parallel()
	decide := func(told *predictor.Training) int {
		state := learn(predictor.State{}, "train", 3, 600) // by an engine that did not tell
		state = fold(state, started("r", 0, predictor.Goal{Minimise: predictor.Latency}), hint("r", "train", 8, 0),
			start("r", "train", 0, 1), predictor.Sampled{
				Run: "r", Stage: stageNamed("train"), Task: "train-0", Attempt: 1, Venue: predictor.Pool, Host: "laptop",
				Training: told, At: after(2),
			})
		snap := laptop(3, 1)
		snap.Hosts[0].PricePerHour = quantity.USD / 22
		encoded := encode(t, state) // and it is not forgotten with the leader
		var read predictor.State
		if err := read.UnmarshalJSON(encoded); err != nil {
			t.Fatal(err)
		}
		plan, _ := predictor.Decide(read, snap)
		return slots(plan, "train", predictor.Function)
	}
	planned := training16()
	planned.StepSeconds = 0
	if got := decide(planned); got > 0 {
		t.Errorf("%d functions are asked for a training that is planned", got)
	}
	planned.PredictedStepSeconds = 0
	if decide(planned) == 0 {
		t.Error("a training whose steps nobody knows the time of costs nothing at the pool")
	}
	if decide(nil) == 0 {
		t.Error("without a training none is asked for either")
	}
}

// TestADecisionTellsWhatItRejected: how many functions a deadline takes is chosen among numbers whose price and chance
// stand beside it.
func TestADecisionTellsWhatItRejected(t *testing.T) {
	t.Parallel()
	state := learn(predictor.State{}, "score", 20, 10)
	state = fold(state, started("r", 0, predictor.Goal{Deadline: 60e9}), hint("r", "score", 20, 0))
	plan, _ := predictor.Decide(state, laptop(1, 1))
	chosen := slots(plan, "score", predictor.Function)
	for _, d := range plan.Decisions {
		if d.Venue != predictor.Function {
			continue
		}
		if chosen < 2 || len(d.Rejected) < 2 {
			t.Fatalf("%d slots, rejected: %+v", chosen, d.Rejected)
		}
		none, fewer := d.Rejected[0], d.Rejected[1]
		if none.What != "0 slots" || none.Chance < 0 || none.Chance > 0.5 || none.Price != 0 || none.Seconds < 100 {
			t.Errorf("without functions: %+v", none)
		}
		if fewer.Chance < 0 || fewer.Chance >= 0.9 || fewer.Price <= 0 {
			t.Errorf("a slot less, which misses what is asked: %+v", fewer)
		}
		return
	}
	t.Errorf("nothing is said of functions: %q", reasons(plan))
}

// TestAStageThatTrainsNoLongerIsNotPricedAsATraining: a few attempts in a row that succeed at the pool and tell of no
// training end it, also over a checkpoint; one that tells of one again begins it anew, and what it corrects by is kept.
// Functions never tell.
func TestAStageThatTrainsNoLongerIsNotPricedAsATraining(t *testing.T) {
	t.Parallel()
	const usual = quantity.USD / 22 // of a core of c7i
	for name, tt := range map[string]struct {
		since []*predictor.Training // of the attempts since
		lost  bool                  // and these were lost
		venue predictor.Venue       // of these; the pool where it is empty
		asked bool                  // whether functions are
	}{
		"it trains":                    {asked: false},
		"two tell of none":             {since: make([]*predictor.Training, 2), asked: false},
		"three tell of none":           {since: make([]*predictor.Training, 3), asked: true},
		"three are lost":               {since: make([]*predictor.Training, 3), lost: true, asked: false},
		"three are at functions":       {since: make([]*predictor.Training, 3), venue: predictor.Function, asked: false},
		"one between tells":            {since: []*predictor.Training{nil, nil, training16(), nil, nil}, asked: false},
		"one tells of it again":        {since: []*predictor.Training{nil, nil, nil, training16()}, asked: false},
		"it tells, but measured none":  {since: []*predictor.Training{nil, nil, planned16(), nil, nil}, asked: false},
		"three more, after one, do so": {since: []*predictor.Training{nil, training16(), nil, nil, nil}, asked: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var state predictor.State
			for i, told := range append([]*predictor.Training{training16(), training16(), training16()}, tt.since...) {
				e := record("earlier", "train", i, -9000+float64(i), 600)
				if e.Training = told; tt.lost && told == nil {
					e.Outcome = predictor.Lost
				}
				if i >= 3 && tt.venue != "" {
					e.Venue = tt.venue
				}
				state = predictor.Fold(state, e)
			}
			saved := encode(t, state)
			state = predictor.State{}
			if err := json.Unmarshal(saved, &state); err != nil {
				t.Fatal(err)
			}
			state = fold(state, started("r", 0, predictor.Goal{Minimise: predictor.Latency}), hint("r", "train", 8, 0))
			snap := laptop(1, 1)
			snap.Hosts[0].PricePerHour = usual
			plan, _ := predictor.Decide(state, snap)
			if got := slots(plan, "train", predictor.Function) > 0; got != tt.asked {
				t.Errorf("functions are asked: %t, want %t: %q", got, tt.asked, reasons(plan))
			}
			if len(past(plan, "train")) < 3 {
				t.Errorf("past trainings: got %v, want what another training corrects by", past(plan, "train"))
			}
		})
	}
}

// planned16 is training16 before its first step.
func planned16() *predictor.Training {
	told := training16()
	told.StepSeconds = 0
	return told
}

// TestWhatNoHostTakesIsNotKeptForThePool: without a host, or with none that ever has room, the pool has no price, and
// functions are not dearer than nothing.
func TestWhatNoHostTakesIsNotKeptForThePool(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*predictor.Snapshot){
		"no host": func(s *predictor.Snapshot) { s.Hosts = nil },
		// By less than what a slot is resized for.
		"a host that became too small": func(s *predictor.Snapshot) { s.Hosts[0].Capacity.CPU -= 10 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var state predictor.State
			for i := range 3 {
				e := record("earlier", "train", i, -5000+float64(i), 600)
				e.Training = training16()
				state = predictor.Fold(state, e)
			}
			state = fold(state, started("r", 0, predictor.Goal{Minimise: predictor.Latency}), hint("r", "train", 8, 0))
			snap := laptop(1, 1)
			snap.Hosts[0].PricePerHour = quantity.USD / 22
			plan, state := predictor.Decide(state, snap)
			if got := slots(plan, "train", predictor.Function); got > 0 {
				t.Fatalf("%d functions are asked for where the pool has a slot: %q", got, reasons(plan))
			}
			snap.Now = after(2)
			change(&snap)
			plan, _ = predictor.Decide(state, snap)
			if slots(plan, "train", predictor.Function) == 0 {
				t.Errorf("nobody runs the training: %q", reasons(plan))
			}
			for _, d := range plan.Decisions {
				for _, other := range d.Rejected {
					if other.Venue == predictor.Pool {
						t.Errorf("a slot that there is not was rejected: %+v", other)
					}
				}
			}
		})
	}
}

// TestATrainingIsSpilledForWhatOneFunctionCosts: two functions of 4 GiB each that exchange cost less than the pool, and
// one of 10 GiB, which is what would run it, does not.
func TestATrainingIsSpilledForWhatOneFunctionCosts(t *testing.T) {
	t.Parallel()
	told := training16()
	told.Steps, told.TotalSteps, told.StepSeconds, told.ModelBytes = 6, 6, 100, 0
	decide := func(hour quantity.Money) (int, predictor.Decision) {
		var state predictor.State
		for i := range 3 {
			e := record("earlier", "train", i, -5000+float64(i), 600)
			e.Training, e.Usage.PeakMemory = told, 4*quantity.GiB
			state = predictor.Fold(state, e)
		}
		state = fold(state, started("r", 0, predictor.Goal{Minimise: predictor.Latency}), hint("r", "train", 8, 0))
		snap := laptop(1, 4)
		snap.Hosts[0].PricePerHour = hour
		plan, _ := predictor.Decide(state, snap)
		for _, d := range plan.Decisions {
			if d.Venue == predictor.Function && d.What == "slots" {
				return slots(plan, "train", predictor.Function), d
			}
		}
		t.Fatalf("nothing is said of functions: %q", reasons(plan))
		return 0, predictor.Decision{}
	}
	if spilled, why := decide(90 * quantity.USD / 100); spilled > 0 {
		t.Errorf("at $0.045 one function costs more, and %d are asked for: %s", spilled, why.Reason)
	} else if !strings.Contains(why.Reason, "costs $0.04499 at the pool in 10m0s, $0.04040 as 2 functions") {
		t.Errorf("two functions do not cost less than the pool: %s", why.Reason)
	}
	if spilled, why := decide(110 * quantity.USD / 100); spilled == 0 {
		t.Errorf("at $0.055 one function costs less, and none is asked for: %s", why.Reason)
	}
}
