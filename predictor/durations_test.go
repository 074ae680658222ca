package predictor_test

import (
	"encoding/json"
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/usage"
)

// timed folds attempts of a stage at the pool, of which nothing was expected.
func timed(state predictor.State, attempts int, of func(i int) (input, rows int, seconds float64)) predictor.State {
	for i := range attempts {
		input, rows, seconds := of(i)
		line := record("earlier", "score", i, -1000+float64(i), seconds)
		line.Usage.Input = quantity.Bytes(input) * quantity.MiB
		line.Features = map[string]float64{"rows": float64(rows)}
		state = predictor.Fold(state, line)
	}
	return state
}

func TestAnAttemptIsExpectedToTakeWhatItsInputTakes(t *testing.T) {
	t.Parallel()
	state := timed(predictor.State{}, 20, func(i int) (int, int, float64) {
		return 7 + i%3, 10 * (1 + i), 2 + float64(1+i)
	})
	// What failed or ran elsewhere tells nothing of a run time at the pool.
	for i, line := range []predictor.Record{
		record("earlier", "score", 100, -1, 900), record("earlier", "score", 101, -1, 900),
	} {
		line.Features = map[string]float64{"rows": 50}
		if line.Outcome = predictor.Failed; i == 1 {
			line.Outcome, line.Venue = predictor.Succeeded, predictor.Function
		}
		state = predictor.Fold(state, line)
	}
	var read predictor.State
	if err := json.Unmarshal(encode(t, state), &read); err != nil {
		t.Fatal(err)
	}
	first, _, _ := sized(t, state, quantity.Size{}, 0)
	again, _, _ := sized(t, read, quantity.Size{}, 0)
	if diff := cmp.Diff(first, again); diff != "" {
		t.Errorf("after a restart (-before +after):\n%s", diff)
	}
	capacity := laptop(0, 4).Hosts[0].Capacity
	for _, rows := range []float64{10, 55, 200} {
		_, expected, _ := first.For(predictor.Need{
			Input: 8 * quantity.MiB, Features: map[string]float64{"rows": rows},
		}, capacity)
		want := 2 + rows/10
		if got := expected.Wall; math.Abs(got.Mid-want) > 0.02*want || got.Low > want || got.High < want {
			t.Errorf("%v rows: %+v, want %v s", rows, got, want)
		}
	}
	if _, expected, _ := first.For(predictor.Need{Input: 8 * quantity.MiB}, capacity); expected.Wall != first.Wall {
		t.Errorf("an attempt whose rows are not known: %+v, want the middle of all, %+v", expected.Wall, first.Wall)
	}
}

// A prediction that is far off falls from use by its own error: every attempt is then told all that came.
func TestRunTimesThatInputsDoNotTellFallFromUse(t *testing.T) {
	t.Parallel()
	state := timed(predictor.State{}, 32, func(i int) (int, int, float64) { return 1 + i, 1, 1 + float64(i) })
	for i := range 20 {
		line := record("earlier", "score", 200+i, -10, 1+float64(i))
		line.Usage.Input = quantity.Bytes(1+i) * quantity.MiB
		line.Predicted.Wall = predictor.Interval{Low: 900, Mid: 1000, High: 1100}
		state = predictor.Fold(state, line)
	}
	sizing, _, _ := sized(t, state, quantity.Size{}, 0)
	_, expected, _ := sizing.For(predictor.Need{Input: 5 * quantity.MiB}, laptop(0, 4).Hosts[0].Capacity)
	if !sizing.WallFallen || expected.Wall != sizing.Wall || expected.Wall.Low != 1 || expected.Wall.High != 32 {
		t.Errorf("fallen is %t, expected %+v, want from 1 to 32 s", sizing.WallFallen, expected.Wall)
	}
}

// Intervals are as wide as what attempts took shows that they must be, also where the errors of a curve do not tell.
func TestAnIntervalThatMissesBecomesWider(t *testing.T) {
	t.Parallel()
	width := func(missed bool) float64 {
		state := timed(predictor.State{}, 32, func(i int) (int, int, float64) { return 1, 1, 10 + float64(i%3) })
		for i := range 12 {
			line := record("earlier", "score", 200+i, -10, 10+float64(i%3))
			line.Usage.Input = quantity.MiB
			line.Predicted.Wall = predictor.Interval{Low: 9, Mid: 11, High: 13}
			if missed {
				line.Predicted.Wall = predictor.Interval{Low: 8.8, Mid: 8.9, High: 9}
			}
			state = predictor.Fold(state, line)
		}
		sizing, _, _ := sized(t, state, quantity.Size{}, 0)
		_, expected, _ := sizing.For(predictor.Need{Input: quantity.MiB}, laptop(0, 4).Hosts[0].Capacity)
		return math.Log(expected.Wall.High / expected.Wall.Low)
	}
	if hit, missed := width(false), width(true); missed < 2*hit {
		t.Errorf("after twelve misses the interval spans %.3f, after twelve hits %.3f", missed, hit)
	}
}

func TestFoldingAnAttemptWithFeaturesAllocatesNothing(t *testing.T) {
	state := fold(predictor.State{}, started("r", 0, predictor.Goal{}), hint("r", "score", 1_000_000, 0))
	features := map[string]float64{}
	for i := range 9 {
		features[strconv.Itoa(i)] = float64(i)
	}
	events := make([]predictor.Event, 60_000)
	for i := range events {
		line := record("r", "score", i, float64(i), 1+float64(i%7))
		line.Features, line.Predicted.Wall = features, predictor.Interval{Low: 1, Mid: 2, High: 3}
		line.At = epoch.Add(time.Duration(i) * time.Millisecond)
		events[i] = line
	}
	next := 0
	warm := func(n int) {
		for range n {
			state = predictor.Fold(state, events[next])
			next++
		}
	}
	warm(20_000)
	if got := testing.AllocsPerRun(1000, func() { warm(20) }); got > 0 {
		t.Errorf("folding the Records of twenty attempts allocates %v times, want 0", got)
	}
}

// Slots and functions are decided by the time of the tasks that wait, not by that of the tasks that have ended.
func TestTasksThatWaitAreExpectedToTakeWhatTheirInputsTake(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		input    int
		pool     float64
		function float64
	}{
		{"small inputs", 2, 2, 6},
		{"large inputs", 16, 16, 48},
		{"inputs of which nothing is known", 0, 8.5, 6},
		{"inputs far beyond all that were seen", 1000, 32, 96}, // twice the largest
	} {
		state := timed(predictor.State{}, 32, func(i int) (int, int, float64) { return 1 + i%16, 1, float64(1 + i%16) })
		for i := range usage.MaxTimes { // three times as slow, on small inputs only
			line := record("earlier", "score", 100+i, -10, 6)
			line.Usage.Input, line.Venue = 2*quantity.MiB, predictor.Function
			state = predictor.Fold(state, line)
		}
		state = fold(state, started("r", 0, predictor.Goal{}))
		for range 40 {
			waiting := hint("r", "score", 1, 0)
			waiting.Input = quantity.Bytes(c.input) * quantity.MiB
			state = fold(state, waiting)
		}
		plan, _ := predictor.Decide(state, laptop(1, 4))
		pool, function := 0.0, 0.0
		for _, d := range plan.Decisions {
			if d.What == "slots" && d.Venue == predictor.Pool {
				pool = d.Inputs["wall_seconds"]
			}
			if d.What == "slots" && d.Venue == predictor.Function {
				function = d.Inputs["function_wall_seconds"]
			}
		}
		if math.Abs(pool-c.pool) > 0.05*c.pool || math.Abs(function-c.function) > 0.1*c.function {
			t.Errorf("%s: %.1f s at the pool, %.1f s at functions, want %v and %v\n%v", c.name, pool, function, c.pool,
				c.function, reasons(plan))
		}
	}
}

// TestPeaksThatAreOffLeaveTheShareOfACoreAlone: each quantity is judged alone.
func TestPeaksThatAreOffLeaveTheShareOfACoreAlone(t *testing.T) {
	t.Parallel()
	sizing := func(wrong bool) predictor.Sizing {
		state := fold(predictor.State{}, started("r", 0, predictor.Goal{}))
		for i := range 30 {
			begun := hint("r", "score", 1, float64(i))
			begun.Declared = quantity.Size{CPU: 4 * quantity.Core, Memory: quantity.GiB}
			line := record("r", "score", i, float64(i)+0.5, 10)
			line.Grant = begun.Declared
			line.Predicted.Memory = predictor.Interval{Low: 90 << 20, Mid: 100 << 20, High: 110 << 20}
			if wrong {
				line.Predicted.Memory.Mid *= 50
			}
			state = fold(state, begun, line)
		}
		state = fold(state, hint("r", "score", 5, 40))
		plan, _ := predictor.Decide(state, laptop(41, 8))
		return plan.Sizings[0]
	}
	good, fallen := sizing(false), sizing(true)
	if !good.Learned || good.Static || !fallen.Static {
		t.Fatalf("learned %v, static %v and %v; want that wrong peaks alone fall from use", good.Learned, good.Static,
			fallen.Static)
	}
	if fallen.Base.CPU != good.Base.CPU {
		t.Errorf("%s cores where the peaks are off, %s otherwise: attempts of one core use as much", fallen.Base.CPU,
			good.Base.CPU)
	}
}
