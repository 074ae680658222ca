package predictor_test

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/provision"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// busyHour is a state in which so many tasks of a second came in each of 90 minutes, and the time at its end.
func busyHour(tasks int) (predictor.State, float64) {
	state := learn(predictor.State{}, "score", 20, 1)
	const minutes = 90
	for minute := range minutes {
		at := float64(minute) * 60
		state = predictor.Pass(state, after(at))
		state = fold(state, hint("r", "score", tasks, at+1))
	}
	return predictor.Pass(state, after(minutes*60)), minutes*60 + 1
}

// coresAt is a laptop of eight cores at so many cents an hour for each.
func coresAt(now float64, cents int64) predictor.Snapshot {
	snap := laptop(now, 8)
	snap.Hosts[0].PricePerHour = 8 * quantity.Money(cents) * quantity.USD / 100
	return snap
}

// TestAdviceHoldsWhatIsBusy: 240 tasks of a second in each minute keep four cores busy, which are cheaper at 4 cents an
// hour than functions, and dearer at 40.
func TestAdviceHoldsWhatIsBusy(t *testing.T) {
	t.Parallel()
	state, now := busyHour(240)
	before := string(encode(t, state))
	cheap, known := state.Capacity(coresAt(now, 4))
	if !known || cheap.Held < 3 || cheap.Held > 5 || cheap.Now != 8 || cheap.Hosts != 1 {
		t.Fatalf("got %+v, %t; want about 4 of 8 cores", cheap, known)
	}
	if want := float64(cheap.Held) * 24 * 0.04; cheap.Day.Mean < want-1e-6 || cheap.Day.Mean > 1.5*want {
		t.Errorf("a day costs $%v, want a little more than $%v of the cores alone", cheap.Day.Mean, want)
	}
	if math.Abs(cheap.DayNow.Mean-8*24*0.04) > 0.2 || cheap.DayNow.Mean <= cheap.Day.Mean {
		t.Errorf("now it costs $%v, want the $7.68 of eight cores", cheap.DayNow.Mean)
	}
	if diff := cmp.Diff([]string{"app/score"}, cheap.Stages); diff != "" || len(cheap.Others) == 0 ||
		!strings.Contains(cheap.Summary, "held and the rest in functions would cost") {
		t.Errorf("stages, others, summary: %s %+v", diff, cheap)
	}
	dear, known := state.Capacity(coresAt(now, 40))
	if !known || dear.Held != 0 || dear.Busy < 1 {
		t.Errorf("cores at 40 cents: got %+v, %t; want none held", dear, known)
	}
	if string(encode(t, state)) != before {
		t.Error("asking has changed the state")
	}
}

func TestNoAdviceWithoutWhatItRestsOn(t *testing.T) {
	t.Parallel()
	state, now := busyHour(240)
	if _, known := state.Capacity(coresAt(now, 0)); known {
		t.Error("advice without a price of hosts")
	}
	off := coresAt(now, 4)
	off.Functions.Enabled = false
	if _, known := state.Capacity(off); known {
		t.Error("advice without functions")
	}
	if _, known := learn(predictor.State{}, "score", 20, 1).Capacity(coresAt(1, 4)); known {
		t.Error("advice without arrivals")
	}
	if _, known := (predictor.State{}).Capacity(coresAt(1, 4)); known {
		t.Error("advice from nothing")
	}
}

func TestWhatAStageShowedIsMeasured(t *testing.T) {
	t.Parallel()
	state, now := busyHour(240)
	for i := range 4 {
		e := record("r", "score", 100+i, now, 3)
		e.Venue, e.Host, e.Grant.Memory = predictor.Function, "", 1769*quantity.MiB
		e.Cold, e.Start = true, 2e9
		state = predictor.Fold(state, e)
	}
	got, names, found := state.Measured("score", coresAt(now, 4))
	if !found || got.Stage != "app/score" || got.AtPool != 20 || got.AtFunctions != 4 || got.Slots != 8 {
		t.Fatalf("got %+v, %v, %t", got, names, found)
	}
	if math.Abs(got.Cold-2) > 1e-9 || math.Abs(got.Rate-4) > 0.1 || got.Class == 0 || got.Slower <= 0 {
		t.Errorf("cold %v, rate %v, class %v, slower %v; want 2, 4, some", got.Cold, got.Rate, got.Class, got.Slower)
	}
	if _, _, found := state.Measured("app/score", coresAt(now, 4)); !found {
		t.Error("not found by app and stage")
	}
	if _, names, found := state.Measured("scoer", coresAt(now, 4)); found || len(names) != 1 {
		t.Errorf("a stage that is not: %v, %t", names, found)
	}
	other := record("r", "score", 1, now, 1)
	other.Stage.App = "another"
	if _, names, found := predictor.Fold(state, other).Measured("score", coresAt(now, 4)); found || len(names) != 2 {
		t.Errorf("a stage of two apps: %v, %t", names, found)
	}
}

// TestWhatFunctionsDoNotRunHasNoClassOfThem: neither a comparison nor advice counts on functions for what they refuse.
func TestWhatFunctionsDoNotRunHasNoClassOfThem(t *testing.T) {
	t.Parallel()
	command := hint("r", "score", 1, 5400)
	command.Program = "python3"
	image := command
	image.PoolOnly, image.Unfit = true, "it runs in the container image x"
	lacking := func(task int) predictor.Record {
		e := record("r", "score", task, 5400, 1)
		e.Venue, e.Outcome, e.Cause = predictor.Function, predictor.Refused, predictor.CauseStart
		e.Error = predictor.CannotRun + "no torch"
		return e
	}
	for name, tt := range map[string]struct {
		events []predictor.Event
		venue  string // why it runs no commands
		want   string
	}{
		"a command":                      {events: []predictor.Event{command}},
		"a command, and none runs there": {[]predictor.Event{command}, "they run none", "they run none"},
		"an image":                       {events: []predictor.Event{image}, want: image.Unfit},
		"functions lacked what it needs": {events: []predictor.Event{lacking(98), lacking(99)}, want: "no torch"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			state, now := busyHour(240)
			state = fold(state, tt.events...)
			snap := coresAt(now, 4)
			snap.Functions.NoCommands = tt.venue
			got, _, found := state.Measured("score", snap)
			if !found || got.Refusal != tt.want || (got.Class == 0) != (tt.want != "") {
				t.Errorf("class %v, refusal %q, want %q", got.Class, got.Refusal, tt.want)
			}
			if advice, known := state.Capacity(snap); !known || (len(advice.Fixed) == 1) != (tt.want != "") {
				t.Errorf("fixed: %v, %t", advice.Fixed, known)
			}
		})
	}
}

// besideFixed is a state in which 240 tasks of a second of score came in each of 90 minutes, as many of image, which
// functions do not run, and on demand as many of cuda, which needs a GPU.
func besideFixed(t *testing.T, gpu bool) (predictor.State, float64) {
	t.Helper()
	stages := []string{"score", "image"}
	if gpu {
		stages = append(stages, "cuda")
	}
	var state predictor.State
	for _, stage := range stages {
		state = learn(state, stage, 20, 1)
	}
	for minute := range 90 {
		at := float64(minute) * 60
		state = predictor.Pass(state, after(at))
		for _, stage := range stages {
			told := hint("r", stage, 240, at+1)
			if stage == "image" {
				told.PoolOnly, told.Unfit = true, "it runs in the container image x"
			}
			if stage == "cuda" {
				told.Declared.GPU, told.Declared.DeviceClass = quantity.Core, "a100"
			}
			state = fold(state, told)
		}
	}
	const now = 5401
	_, state = predictor.Decide(predictor.Pass(state, after(now-1)), coresAt(now, 4)) // stages have their sizes
	return state, now
}

// TestAdviceBesideWhatFunctionsCannotRun by hand: what is forecast of either stage in nine of ten minutes is a little
// above four cores, so five are for image in any case, and four more pay for score at 4 cents an hour. With two cores
// in all, a day costs these, and functions for all of score.
func TestAdviceBesideWhatFunctionsCannotRun(t *testing.T) {
	t.Parallel()
	state, now := besideFixed(t, false)
	got, known := state.Capacity(coresAt(now, 4))
	if !known || got.Held != 9 || got.Now != 8 || strings.Join(got.Fixed, " ") != "app/image" {
		t.Fatalf("got %+v, %t; want 9 cores for the 8 that there are, 5 of them for image", got, known)
	}
	const core = 24 * 0.04 // a day of one
	told := map[string]provision.AdvisedOther{}
	for _, other := range got.Others {
		told[other.What] = other
	}
	all, found := told["functions for all that they can run"]
	if !found || all.Held != 5 || told["one less"].Held != 8 {
		t.Fatalf("others: %+v, want what functions take beside five cores, and eight", got.Others)
	}
	if math.Abs(got.DayNow.Mean-told["one less"].Day.Mean) > 1e-6 {
		t.Errorf("now it costs $%v, want the $%v of eight cores", got.DayNow.Mean, told["one less"].Day.Mean)
	}
	two := coresAt(now, 4)
	two.Hosts[0].Capacity.CPU, two.Hosts[0].PricePerHour = 2*quantity.Core, two.Hosts[0].PricePerHour/4
	few, known := state.Capacity(two)
	if want := all.Day.Mean - 3*core; !known || few.Now != 2 || math.Abs(few.DayNow.Mean-want) > 1e-6*want {
		t.Errorf("with two cores: %d now, for $%v; want $%v", few.Now, few.DayNow.Mean, want)
	}
}

// TestAdviceOnWhatFunctionsCannotRunAlone has no price of functions to give a reason by.
func TestAdviceOnWhatFunctionsCannotRunAlone(t *testing.T) {
	t.Parallel()
	state, now := busyHour(240)
	snap := coresAt(now, 4)
	snap.Functions.MaxMemory = quantity.MiB
	got, known := state.Capacity(snap)
	if !known || got.Held != 5 || got.Reason != "functions can run none of these stages" {
		t.Errorf("got %+v, %t; want five cores, as functions can run none", got, known)
	}
}

// TestAdviceOnCoresLeavesOutWhatNeedsGPUs: no core of the cheapest host does its work.
func TestAdviceOnCoresLeavesOutWhatNeedsGPUs(t *testing.T) {
	t.Parallel()
	state, now := besideFixed(t, true)
	got, known := state.Capacity(coresAt(now, 4))
	if !known || got.Held != 9 || strings.Join(got.Stages, " ") != "app/image app/score" {
		t.Errorf("got %+v, %t; want 9 cores for score and image", got, known)
	}
}

// TestAStageIsComparedOnAHostThatHasItsGPUs, though another with GPUs costs less.
func TestAStageIsComparedOnAHostThatHasItsGPUs(t *testing.T) {
	t.Parallel()
	state, now := besideFixed(t, true)
	snap := coresAt(now, 4)
	for i, class := range []string{"t4", "a100"} {
		host := snap.Hosts[0]
		host.ID, host.Capacity.GPU, host.Capacity.DeviceClass = class, 8*quantity.Core, class
		host.PricePerHour *= quantity.Money(10 * (i + 1))
		snap.Hosts = append(snap.Hosts, host)
	}
	got, _, found := state.Measured("cuda", snap)
	if !found || got.Host.ID != "a100" || got.Slots != 8 {
		t.Errorf("got %d slots on %q, want 8 on a100", got.Slots, got.Host.ID)
	}
}
