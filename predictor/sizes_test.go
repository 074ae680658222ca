package predictor_test

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/usage"
)

// history folds one success for each peak (in MiB) and input (in MiB), at a rate of cores.
func history(state predictor.State, stage string, cores float64, peaks []int, inputs []int) predictor.State {
	for i, peak := range peaks {
		line := record("earlier", stage, i, -1000+float64(i), 2)
		line.Usage.PeakMemory = quantity.Bytes(peak) * quantity.MiB
		line.Usage.CPU = time.Duration(cores * float64(line.Usage.Wall))
		if inputs != nil {
			line.Usage.Input = quantity.Bytes(inputs[i]) * quantity.MiB
		}
		state = predictor.Fold(state, line)
	}
	return state
}

// sized decides once for a stage with one task waiting, and returns its sizing and its slot.
func sized(
	t *testing.T, state predictor.State, declared quantity.Size, input quantity.Bytes,
) (predictor.Sizing, quantity.Size, predictor.State) {
	t.Helper()
	scheduled := hint("r", "score", 1, 0)
	scheduled.Declared, scheduled.Input = declared, input
	state = fold(state, started("r", 0, predictor.Goal{}), scheduled)
	plan, state := predictor.Decide(state, laptop(1, 4))
	if len(plan.Sizings) != 1 || len(plan.Grants) == 0 {
		t.Fatalf("got %d sizings and %d grants, want one stage: %+v", len(plan.Sizings), len(plan.Grants), plan)
	}
	return plan.Sizings[0], plan.Grants[len(plan.Grants)-1].Size, state
}

func TestSizes(t *testing.T) {
	t.Parallel()
	declared := quantity.Size{CPU: 2 * quantity.Core, Memory: 700 * quantity.MiB}
	for _, c := range []struct {
		name     string
		cores    float64
		peaks    []int
		declared quantity.Size
		want     quantity.Size
		source   string
	}{
		{
			"declared sizes hold while little is known", 1,
			[]int{100, 100, 100, 100},
			declared, declared,
			"declared by the stage",
		},
		{
			"five attempts replace the declared size", 1,
			[]int{100, 100, 100, 100, 100},
			declared,
			quantity.Size{CPU: 1000, Memory: 111 * quantity.MiB},
			"5 attempts",
		},
		{
			"a stage nobody ran begins with what a process may take", 1, nil,
			quantity.Size{},
			quantity.Size{CPU: 1000, Memory: 32 * quantity.MiB},
			"no stage is known that is like it",
		},
		{
			"each attempt tells", 1,
			[]int{100, 100},
			quantity.Size{},
			quantity.Size{CPU: 1000, Memory: 129 * quantity.MiB},
			"2 attempts",
		},
		{
			"one attempt far above all others is left to be tried again", 1, append(repeat(100, 40), 400),
			quantity.Size{},
			quantity.Size{CPU: 1000, Memory: 101 * quantity.MiB},
			"41 attempts",
		},
		{
			"but not one a little above them", 1, append(repeat(100, 40), 130),
			quantity.Size{},
			quantity.Size{CPU: 1000, Memory: 145 * quantity.MiB},
			"41 attempts",
		},
		{
			"small attempts have half as much again as they take", 1, repeat(3, 10),
			quantity.Size{},
			quantity.Size{CPU: 1000, Memory: 5 * quantity.MiB},
			"10 attempts",
		},
		{
			"in whole MiB", 1, repeat(1, 10),
			quantity.Size{},
			quantity.Size{CPU: 1000, Memory: 2 * quantity.MiB},
			"10 attempts",
		},
		{
			"what takes more than a few MiB has 16 at least", 1, repeat(12, 10),
			quantity.Size{},
			quantity.Size{CPU: 1000, Memory: 16 * quantity.MiB},
			"10 attempts",
		},
		{
			"a stage that mostly waits holds little of a core", 0.12, repeat(100, 10),
			quantity.Size{},
			quantity.Size{CPU: 150, Memory: 104 * quantity.MiB},
			"10 attempts",
		},
		{
			"a stage that uses nearly one core gets one", 0.9, repeat(100, 10),
			quantity.Size{},
			quantity.Size{CPU: 1000, Memory: 104 * quantity.MiB},
			"10 attempts",
		},
		{
			"a stage that uses several cores gets them, up to the host's", 7.7, repeat(100, 10),
			quantity.Size{},
			quantity.Size{CPU: 4000, Memory: 104 * quantity.MiB},
			"10 attempts",
		},
		{
			"a peak beyond the host is cut to it", 1, repeat(40_000, 10),
			quantity.Size{},
			quantity.Size{CPU: 1000, Memory: 16 * quantity.GiB},
			"10 attempts",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			sizing, slot, _ := sized(t, history(predictor.State{}, "score", c.cores, c.peaks, nil), c.declared, 0)
			if slot != c.want {
				t.Errorf("a slot is %v, want %v", slot, c.want)
			}
			if !strings.Contains(sizing.Source, c.source) {
				t.Errorf("the source is %q, want %q in it", sizing.Source, c.source)
			}
		})
	}
}

func repeat(value, n int) []int {
	values := make([]int, n)
	for i := range values {
		values[i] = value
	}
	return values
}

func TestMemoryFollowsTheInputWhereItDoes(t *testing.T) {
	t.Parallel()
	// Peaks are 50 MiB and three times the input, but for one outlier.
	inputs, peaks := []int{10, 20, 30, 40, 45, 50, 60, 70, 80}, []int{80, 110, 140, 170, 400, 200, 230, 260, 290}
	sizing, _, _ := sized(t, history(predictor.State{}, "score", 1, peaks, inputs), quantity.Size{}, 0)
	if got := sizing.Expected.Term.PerUnit; got < 2.9 || got > 3.1 {
		t.Errorf("memory grows by %.2f bytes for each byte of input, want 3", got)
	}
	capacity := laptop(0, 4).Hosts[0].Capacity
	_, small, _ := sizing.For(predictor.Need{Input: 10 * quantity.MiB}, capacity)
	_, large, _ := sizing.For(predictor.Need{Input: 70 * quantity.MiB}, capacity)
	if got, want := quantity.Bytes(large.Memory.Mid-small.Memory.Mid),
		180*quantity.MiB; got < want-quantity.MiB || got > want+quantity.MiB {
		t.Errorf("60 MiB more of input are expected to take %v more, want %v", got, want)
	}
	if mid := quantity.Bytes(small.Memory.Mid); mid < 79*quantity.MiB || mid > 81*quantity.MiB {
		t.Errorf("an input of 10 MiB is expected to take %v, want 80 MiB", mid)
	}
	for i, input := range inputs {
		size, _, _ := sizing.For(predictor.Need{Input: quantity.Bytes(input) * quantity.MiB}, capacity)
		if peak := quantity.Bytes(peaks[i]) * quantity.MiB; size.Memory < peak {
			t.Errorf("an input of %d MiB took %v and is given %v", input, peak, size.Memory)
		}
	}
}

func TestASizeHoldsUntilItMovesByATenthOrMustGrow(t *testing.T) {
	t.Parallel()
	_, before, state := sized(t, history(predictor.State{}, "score", 1, repeat(100, 60), nil), quantity.Size{}, 0)
	grow := func(task, peak int) (quantity.Size, []string) {
		line := record("r", "score", task, 1, 2)
		line.Usage.PeakMemory = quantity.Bytes(peak) * quantity.MiB
		state = fold(state, hint("r", "score", 1, 1), line)
		var plan predictor.Plan
		plan, state = predictor.Decide(state, laptop(2, 4))
		return plan.Grants[len(plan.Grants)-1].Size, reasons(plan)
	}
	if slot, told := grow(1000, 98); slot != before || len(told) > 0 {
		t.Errorf("a peak of 98 MiB below the usual 100 changed the slot of %v to %v: %v", before.Memory, slot.Memory, told)
	}
	slot, told := grow(1001, 115)
	if slot.Memory != 130*quantity.MiB || !strings.Contains(strings.Join(told, "\n"), "62 attempts") {
		t.Errorf("a peak of 115 MiB made the slot %v (%v), want 130 MiB because of 62 attempts", slot.Memory, told)
	}
}

func TestRunningOutOfMemoryRaisesTheSizeOfTheNextTasks(t *testing.T) {
	t.Parallel()
	state := history(predictor.State{}, "score", 1, repeat(100, 10), nil)
	killed := record("earlier", "score", 500, -1, 1)
	killed.Outcome, killed.Grant = predictor.OutOfMemory, quantity.Size{CPU: 1000, Memory: 115 * quantity.MiB}
	_, slot, state := sized(t, predictor.Fold(state, killed), quantity.Size{}, 0)
	if slot.Memory < 173*quantity.MiB || slot.Memory > 230*quantity.MiB {
		t.Errorf("after running out of memory at 115 MiB a slot has %v, want half as much again with head-room", slot.Memory)
	}
	grown := record("earlier", "score", 500, 0, 1)
	grown.Attempt, grown.Usage.PeakMemory = 2, 130*quantity.MiB
	state = fold(state, grown)
	var plan predictor.Plan
	for now := 2.0; now <= 130; now += 2 { // a smaller size settles first
		plan, state = predictor.Decide(fold(state, hint("r", "score", 1, now)), laptop(now, 4))
	}
	if got := plan.Grants[len(plan.Grants)-1].Size.Memory; got < 130*quantity.MiB || got > 152*quantity.MiB {
		t.Errorf("once a success took 130 MiB a slot has %v, want just above that", got)
	}
}

// TestPredictionsOfOneQuantityThatAreFarOffSpoilNoneOfTheOther: each falls back, and comes back, by itself.
func TestPredictionsOfOneQuantityThatAreFarOffSpoilNoneOfTheOther(t *testing.T) {
	t.Parallel()
	declared := quantity.Size{CPU: 2000, Memory: quantity.GiB}
	for _, c := range []struct {
		name       string
		off, exact predictor.Prediction
		static     bool    // the size is the declared one meanwhile
		longest    float64 // seconds that are predicted meanwhile
		told       string
	}{
		{
			"run times",
			predictor.Prediction{Wall: predictor.Interval{Mid: 2}},
			predictor.Prediction{Wall: predictor.Interval{Mid: 20}},
			false, 40, "predictions of the run time were off by 900 percent in the median of the last 20 attempts, more than " +
				"the bound of 200 percent",
		},
		{
			"peaks",
			predictor.Prediction{Memory: predictor.Interval{Mid: float64(quantity.GiB)}},
			predictor.Prediction{Memory: predictor.Interval{Mid: float64(100 * quantity.MiB)}},
			true, 20, "predictions of the peak memory were off by 924 percent in the median of the last 20 attempts, more " +
				"than the bound of 200 percent",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			state := history(predictor.State{}, "score", 1, repeat(100, 20), nil)
			sizing, _, state := sized(t, state, declared, 0)
			if !sizing.Learned {
				t.Fatalf("twenty attempts taught nothing: %+v", sizing)
			}
			task := 1000
			tick := func(predicted predictor.Prediction) (predictor.Sizing, string) {
				for i := range 20 {
					took := 20.0
					if i == 0 {
						took = 40
					}
					line := record("r", "score", task, 1, took)
					line.Predicted = predicted
					scheduled := hint("r", "score", 1, 1)
					scheduled.Declared = declared
					state = fold(state, scheduled, line)
					task++
				}
				scheduled := hint("r", "score", 1, 1)
				scheduled.Declared = declared
				state = fold(state, scheduled)
				var plan predictor.Plan
				plan, state = predictor.Decide(state, laptop(2, 4))
				return plan.Sizings[0], strings.Join(reasons(plan), "\n")
			}
			tick(predictor.Prediction{})
			sizing, told := tick(c.off)
			if sizing.Learned == c.static || sizing.Static != c.static || (sizing.Base.Memory == declared.Memory) != c.static ||
				sizing.Wall.High != c.longest || !strings.Contains(told, c.told) {
				t.Errorf("after predictions ten times off: %+v\n%s\nwant a static size: %v, up to %v s, and %q",
					sizing, told, c.static, c.longest, c.told)
			}
			sizing, told = tick(c.exact)
			if !sizing.Learned || sizing.Static || sizing.Wall.High != 20 || told == "" {
				t.Errorf("after predictions that were exact: %+v\n%s\nwant the learned size and time again, and that it is told",
					sizing, told)
			}
		})
	}
}

func TestAStageThatFunctionsCannotHoldIsToldOnce(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		peak   int
		wall   float64
		reason string
	}{
		{"too large", 12_000, 1, "functions cannot run this stage: it needs 12.2 GiB, more than the largest function has"},
		{"too long", 100, 800, "functions cannot run this stage: a task may take 13m20s, too close to the limit of 15m0s"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var state predictor.State
			for i := range 10 {
				line := record("earlier", "score", i, -1, c.wall)
				line.Usage.PeakMemory = quantity.Bytes(c.peak) * quantity.MiB
				state = predictor.Fold(state, line)
			}
			state = fold(state, started("r", 0, predictor.Goal{}), hint("r", "score", 50, 0))
			told := 0
			for tick := range 3 {
				var plan predictor.Plan
				plan, state = predictor.Decide(state, laptop(float64(tick), 4))
				told += strings.Count(strings.Join(reasons(plan), "\n"), c.reason)
			}
			if told != 1 {
				t.Errorf("%q was told %d times, want once", c.reason, told)
			}
		})
	}
}

func TestALimitOfCPUThatHoldsAttemptsBackIsRaised(t *testing.T) {
	t.Parallel()
	run := func(state predictor.State, from, n int, cores float64, grant quantity.Milli,
		throttled float64,
	) predictor.State {
		for i := range n {
			line := record("earlier", "score", from+i, -1000+float64(from+i), 2)
			line.Usage.CPU = time.Duration(cores * float64(line.Usage.Wall))
			line.Usage.Throttled = time.Duration(throttled * float64(line.Usage.Wall))
			line.Grant.CPU = grant
			state = predictor.Fold(state, line)
		}
		return state
	}
	state := run(predictor.State{}, 0, 10, 0.4, 400, 0.3)
	_, slot, state := sized(t, state, quantity.Size{}, 0)
	// With a core it would take 0.7 of the time and use 0.57 cores.
	if slot.CPU < 600 || slot.CPU > quantity.Core {
		t.Errorf("held back at 0.4 cores, a slot has %s, want 0.6 to 1", slot.CPU)
	}
	state = run(state, 100, 60, 0.4, slot.CPU, 0.01)
	plan, _ := predictor.Decide(fold(state, hint("r", "score", 1, 2)), laptop(2, 4))
	if got := plan.Grants[len(plan.Grants)-1].Size.CPU; got != slot.CPU {
		t.Errorf("no longer held back, it has %s, want %s still: with 0.4 it would be again", got, slot.CPU)
	}
}

func TestARunningAttemptThatIsHeldBackIsGivenMoreWhileItRuns(t *testing.T) {
	t.Parallel()
	state := fold(predictor.State{}, started("r", 0, predictor.Goal{}), hint("r", "train", 1, 0),
		start("r", "train", 0, 0))
	plan, state := predictor.Decide(state, laptop(1, 4))
	if got := plan.Sizings[0].Base.CPU; got != quantity.Core {
		t.Fatalf("at first it has %s cores, want 1", got)
	}
	for second := range 12 {
		state = predictor.Fold(state, predictor.Sampled{
			Run: "r", Stage: stageNamed("train"), Task: "train-0", Attempt: 1, Venue: predictor.Pool, Host: "laptop",
			CPU: quantity.Core, Memory: quantity.MiB, Throttled: 0.5, Grant: quantity.Size{CPU: quantity.Core},
			At: after(float64(second)),
		})
	}
	plan, _ = predictor.Decide(state, laptop(13, 4))
	if got := plan.Sizings[0].Base.CPU; got <= quantity.Core {
		t.Errorf("after twelve samples in which one core held it back it has %s cores, want more", got)
	}
}

func TestASqueezeTeachesNoSmallerLimit(t *testing.T) {
	t.Parallel()
	// A program that would take 100 MiB makes do with 90 percent of its limit where that is less, and says so.
	var state predictor.State
	limit := 400 * quantity.MiB
	for i := range 400 {
		line := record("earlier", "score", i, -1000+float64(i), 2)
		line.Grant.Memory = limit
		line.Usage.PeakMemory = min(100*quantity.MiB, limit*9/10)
		line.Usage.Squeezed = line.Usage.PeakMemory < 100*quantity.MiB
		state = predictor.Fold(state, line)
		if i >= 5 {
			plan, next := predictor.Decide(fold(state, hint("r", "score", 1, 0)), laptop(1, 4))
			state = next
			limit = plan.Sizings[0].Base.Memory
		}
	}
	if limit < 95*quantity.MiB {
		t.Errorf("after 400 attempts the limit is %s, want one that hardly squeezes a program of 100 MiB", limit)
	}
}

func TestABusyHostTeachesNoSmallerShareOfACore(t *testing.T) {
	t.Parallel()
	state := history(predictor.State{}, "score", 0.7, repeat(100, 40), nil)
	fast := record("earlier", "score", 500, -1, 2)
	fast.Usage.CPU = time.Duration(0.95 * float64(fast.Usage.Wall))
	if _, slot, _ := sized(t, predictor.Fold(state, fast), quantity.Size{}, 0); slot.CPU != quantity.Core {
		t.Errorf("one attempt used a core and the others were kept waiting: a slot has %s cores, want 1", slot.CPU)
	}
}

// An input whose keys are texts explains the peaks by names of any length; plans have each of them several times, and
// one that is larger than a message is never in force, whatever else is in it.
func TestNamesOfFeaturesOfAnyLengthMakeNoPlanLarger(t *testing.T) {
	t.Parallel()
	var state predictor.State
	text := strings.Repeat("a sentence that somebody labelled, ", 10_000)
	for i := range 12 {
		one := record("earlier", "train", i, -100+float64(i), float64(1+i))
		one.Usage.PeakMemory = quantity.Bytes(1+i) * quantity.GiB
		one.Features = map[string]float64{text: float64(1 + i)}
		state = fold(state, one)
	}
	plan, state := predictor.Decide(fold(state, hint("now", "train", 3, 0)), laptop(0, 8))
	if size := len(encode(t, plan)); size > 50_000 {
		t.Errorf("the plan of one stage has %d bytes", size)
	}
	if size := len(encode(t, state)); size > 50_000 {
		t.Errorf("the state of one stage has %d bytes", size)
	}
}

// A task says which model it is of, in a text of its input.
func TestMemoryFollowsATextOfTheInputWhereItDoes(t *testing.T) {
	t.Parallel()
	peaks := map[string]int{"small": 100, "large": 400}
	kinds := []string{"small", "large", "small", "small", "large", "small", "large", "small", "large", "small", "small"}
	features := func(kind string) map[string]float64 {
		return map[string]float64{"model=": usage.Category(kind), "run=": usage.Category("r")}
	}
	state := predictor.State{}
	for i, kind := range kinds {
		line := record("earlier", "score", i, -1000+float64(i), float64(peaks[kind])/10)
		line.Usage.PeakMemory = quantity.Bytes(peaks[kind])*quantity.MiB + quantity.Bytes(i)*quantity.KiB
		line.Features = features(kind)
		state = predictor.Fold(state, line)
	}
	sizing, slot, state := sized(t, state, quantity.Size{}, 0)
	capacity := laptop(0, 4).Hosts[0].Capacity
	for kind, peak := range peaks {
		size, expected, _ := sizing.For(predictor.Need{Features: features(kind)}, capacity)
		if want := quantity.Bytes(peak) * quantity.MiB; size.Memory < want || size.Memory > want*11/10 {
			t.Errorf("a %s one is granted %v, want %v and a little", kind, size.Memory, want)
		}
		if off := expected.Memory.Mid/float64(peak)/float64(quantity.MiB) - 1; math.Abs(off) > 0.01 {
			t.Errorf("a %s one is expected to take %.0f MiB, want %d", kind, expected.Memory.Mid/float64(quantity.MiB), peak)
		}
		if off := expected.Wall.Mid/(float64(peak)/10) - 1; math.Abs(off) > 0.01 {
			t.Errorf("a %s one is expected to run for %.1f s, want %.1f", kind, expected.Wall.Mid, float64(peak)/10)
		}
	}
	for name, features := range map[string]map[string]float64{"unseen": features("huge"), "unknown": nil} {
		if size, _, _ := sizing.For(predictor.Need{Features: features}, capacity); size.Memory < 400*quantity.MiB {
			t.Errorf("a task whose model is %s is granted %v, want what the largest takes", name, size.Memory)
		}
	}
	if slot.Memory < 400*quantity.MiB {
		t.Errorf("a slot is %v, want room for the largest", slot)
	}
	var earlier struct { // what a host of an earlier version reads
		Base quantity.Size `json:"base"`
	}
	if err := json.Unmarshal(encode(t, sizing), &earlier); err != nil || earlier.Base.Memory < 400*quantity.MiB {
		t.Errorf("an earlier host grants %v (%v), want room for the largest", earlier.Base, err)
	}
	var read predictor.State
	if err := json.Unmarshal(encode(t, state), &read); err != nil {
		t.Fatal(err)
	}
	if again, _, _ := sized(t, read, quantity.Size{}, 0); again.Levels != sizing.Levels {
		t.Errorf("a new leader learned %+v, want %+v", again.Levels, sizing.Levels)
	}
}
