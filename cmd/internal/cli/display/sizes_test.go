package display_test

import (
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/hindsight"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

func TestSizesAreTablesThatFitATerminal(t *testing.T) {
	t.Parallel()
	var attempts []hindsight.Attempt
	for i := range 40 {
		one := hindsight.Attempt{
			Stage: "train", Venue: predictor.Pool, Outcome: predictor.Succeeded, Names: []string{"input_bytes", "epochs"},
			Values: []float32{float32(20-i%20) * 1e6, float32(i % 4)},
			Peak:   quantity.Bytes(20-i%20) * 50 * quantity.MiB, Granted: quantity.GiB,
			Wall: float64(i%4)*30 + 0.05, PredictedWall: predictor.Interval{Low: 20, Mid: 31, High: 47},
		}
		memory := float64(one.Peak)
		one.PredictedMemory = predictor.Interval{Low: memory * 0.9, Mid: memory, High: memory * 1.2}
		if i == 20 {
			one.Outcome, one.Cause = predictor.OutOfMemory, predictor.CauseMemoryLimit
		}
		attempts = append(attempts, one)
	}
	attempts = append(attempts,
		hindsight.Attempt{Stage: "load", Venue: predictor.Pool, Outcome: predictor.Succeeded, Peak: 7, Wall: 0.4},
		hindsight.Attempt{Stage: "fail", Venue: predictor.Pool, Outcome: predictor.Failed})
	lines := display.Sizes("digits-1", hindsight.Of(attempts, 2000, nil), display.Style{Width: 80})
	for _, line := range lines {
		if len([]rune(line)) > 80 {
			t.Errorf("%d columns: %s", len([]rune(line)), line)
		}
	}
	golden(t, "sizes.golden", []byte(strings.Join(lines, "\n")+"\n"))
	ascii := display.Sizes("digits-1", hindsight.Of(attempts, 2000, nil), display.Style{Width: 80, ASCII: true})
	plain := strings.Join(ascii, "\n")
	if plain != strings.ReplaceAll(strings.Join(lines, "\n"), "–", "-") || !strings.Contains(plain, "90-120 MiB") {
		t.Errorf("in ASCII:\n%s", plain)
	}
	if got := display.Sizes("r", nil, display.Style{}); len(got) != 1 || got[0] != "r: no attempt has ended yet" {
		t.Errorf("of a run without attempts: %q", got)
	}
}

// What is expected of a peak is expected at the pool: beside what a function took, by another meter, it would be
// compared with what it says nothing of.
func TestWhyComparesPeaksWithinTheirVenue(t *testing.T) {
	t.Parallel()
	e, m := explained()
	e.Run.Stages = e.Run.Stages[2:]
	e.Run.Stages[0].PredictedMemory = predictor.Interval{Low: 20 << 20, Mid: 22 << 20, High: 25 << 20}
	text := strings.Join(display.Why(e, m, display.Style{Width: 120}), "\n")
	for _, want := range []string{
		"memory        22 MiB (20 MiB to 25 MiB)  23 MiB", "at functions  none                       11 GiB",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
}

func TestAnAttemptOfUnknownSizeIsNotSaidToHoldNothing(t *testing.T) {
	t.Parallel()
	e, m := explained()
	lost := &e.Failures[0].Attempt
	lost.Outcome, lost.Cause, lost.Grant, lost.Wall = predictor.Lost, predictor.CauseHostLost, quantity.Size{}, 0
	lost.StartedAt, lost.EndedAt = begin, begin.Add(9*time.Second)
	text := strings.Join(display.Why(e, m, display.Style{Width: 120}), "\n")
	if !strings.Contains(text, "after 9.0 s holding what nobody told: lost") || strings.Contains(text, "0 B") {
		t.Errorf("got\n%s", text)
	}
}

func TestNothingIsSaidOfASizeForARunOfWhichNothingRan(t *testing.T) {
	t.Parallel()
	e, m := explained()
	e.Run.Static = ledger.Static{Known: true, Actual: quantity.USD, Seconds: 0.03}
	if text := strings.Join(display.Why(e, m, display.Style{Width: 1000, Whole: true}), " "); strings.Contains(text,
		"one fixed size") {
		t.Errorf("got %s", text)
	}
}

func TestAnEstimateThatIsAsLongIsToldWithoutANumber(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		took, static float64
		want         string
	}{
		"as long to a percent": {
			0.548, 0.552, "took 0.55 s; with one fixed size for each stage and no functions it would have " +
				"cost $1.00 (as much) and taken about as long",
		},
		"so short that it is looked at": {0.25, 0.75, "took 0.25 s; with one fixed size for each stage and no functions it " +
			"would have cost $1.00 (as much) and taken about 0.75 s (3.0 times as long)"},
		"longer": {10, 14, "and taken about 14.0 s (40% longer)"},
	} {
		e, m := explained()
		e.Run.Static = ledger.Static{Known: true, Actual: quantity.USD, Cost: quantity.USD, Seconds: test.static}
		e.Run.Actual.Seconds = test.took
		text := strings.Join(display.Why(e, m, display.Style{Width: 1000, Whole: true}), " ")
		if text = strings.Join(strings.Fields(text), " "); !strings.Contains(text, test.want) {
			t.Errorf("%s: %q is not in %s", name, test.want, text)
		}
	}
}

// What is predicted is predicted of a venue: what another one took is not set beside it.
func TestARowOfSizesIsOfOneVenue(t *testing.T) {
	t.Parallel()
	var attempts []hindsight.Attempt
	for i := range 12 {
		one := hindsight.Attempt{
			Stage: "score", Venue: predictor.Pool, Outcome: predictor.Succeeded, Wall: 1,
			Names: []string{"input_bytes"}, Values: []float32{float32(i/6+1) * 1e6},
			Peak: quantity.Bytes(i/6+1) * 20 * quantity.MiB, Granted: 50 * quantity.MiB,
			PredictedMemory: predictor.Interval{Low: 18 << 20, Mid: 20 << 20, High: 44 << 20},
		}
		if i%6 == 0 {
			one.Venue, one.PredictedMemory = predictor.Function, predictor.Interval{}
			one.Peak, one.Granted = one.Peak+25*quantity.MiB, quantity.GiB
		}
		attempts = append(attempts, one)
	}
	lines := display.Sizes("digits-1", hindsight.Of(attempts, 2000, nil), display.Style{Width: 80})
	text := strings.Join(strings.Fields(strings.Join(lines, " ")), " ")
	for _, want := range []string{
		"5 pool 18–44 MiB 20 MiB 50 MiB", "1 function - 45 MiB 1 GiB", "1 function - 65 MiB 1 GiB",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, strings.Join(lines, "\n"))
		}
	}
}
