package hindsight_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/hindsight"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// attempt is one that took peak of the memory that it was granted, for wall seconds.
func attempt(input, rows float32, peak quantity.Bytes, wall float64) hindsight.Attempt {
	return hindsight.Attempt{
		Stage: "fit", Venue: fact.Pool, Outcome: fact.Succeeded, Names: []string{"input_bytes", "rows"},
		Values: []float32{input, rows}, Peak: peak, Granted: 2 * peak, Wall: wall,
		PredictedMemory: fact.Interval{Low: 90, Mid: 100, High: 110},
	}
}

func TestEachQuantityIsShownOverWhatExplainsIt(t *testing.T) {
	t.Parallel()
	var attempts []hindsight.Attempt
	for i := range 12 {
		rows, input := float32(i), float32((i*5)%12)
		attempts = append(attempts, attempt(input, rows, quantity.Bytes(100+3*i*i), 200-float64(input)))
	}
	got := hindsight.Of(attempts, 100, nil)
	if len(got) != 1 || got[0].Stage != "fit" || got[0].Attempts != 12 {
		t.Fatalf("got %+v, want the 12 attempts of fit", got)
	}
	memory, wall := got[0].Memory, got[0].Wall
	if memory.Feature != "rows" || wall.Feature != "input_bytes" {
		t.Errorf("peaks are shown over %q and run times over %q, want rows and input_bytes", memory.Feature, wall.Feature)
	}
	for i, point := range memory.Points {
		if point.At != float64(i) || point.Actual != float64(100+3*i*i) || point.Granted != 2*point.Actual {
			t.Errorf("point %d is %+v, want that of %d rows", i, point, i)
		}
	}
	if memory.Predicted != 12 || memory.Within != 2 || wall.Predicted != 0 {
		t.Errorf("of memory %d of %d came within the band, want 2 of 12; of %d run times something was expected, want none",
			memory.Within, memory.Predicted, wall.Predicted)
	}
}

func TestWhatIsExplainedByNothingIsShownInItsOrder(t *testing.T) {
	t.Parallel()
	peaks := []quantity.Bytes{30, 10, 40, 11, 50, 9, 26, 53}
	inputs := []float32{4, 4, 5, 5, 4, 5, 5, 4}
	for name, count := range map[string]int{"few": 4, "unrelated": len(peaks)} {
		var attempts []hindsight.Attempt
		for i := range count {
			attempts = append(attempts, attempt(inputs[i], 7, peaks[i], 1))
		}
		memory := hindsight.Of(attempts, 100, nil)[0].Memory
		if memory.Feature != "" {
			t.Errorf("%s: peaks are explained by %q, want nothing", name, memory.Feature)
		}
		for i, point := range memory.Points {
			if point.At != float64(i+1) || point.Actual != float64(peaks[i]) {
				t.Errorf("%s: point %d is %+v, want the attempt that ended as number %d", name, i, point, i+1)
			}
		}
	}
}

func TestOnlyWhatTellsOfANeedIsCompared(t *testing.T) {
	t.Parallel()
	killed := attempt(1, 1, 0, 3)
	killed.Outcome, killed.Cause, killed.Granted = fact.OutOfMemory, fact.CauseMemoryLimit, 64
	device, failed, lost := killed, attempt(1, 1, 10, 3), attempt(1, 1, 10, 3)
	device.Cause, failed.Outcome, lost.Outcome = fact.CauseDeviceMemory, fact.Failed, fact.Lost
	got := hindsight.Of([]hindsight.Attempt{killed, device, failed, lost, attempt(1, 1, 100, 3)}, 100, nil)[0]
	if got.Attempts != 5 || got.Memory.Attempts != 2 || got.Memory.Killed != 1 || got.Memory.Predicted != 1 ||
		got.Wall.Attempts != 1 {
		t.Errorf("got %+v, want 5 attempts, of which memory compares two and one was killed, run times one", got)
	}
	if point := got.Memory.Points[0]; !point.Killed || point.Actual != 64 {
		t.Errorf("the killed attempt is %+v, want the limit that was not enough", point)
	}
	if none := hindsight.Of(nil, 100, nil); none == nil || len(none) != 0 {
		t.Errorf("no attempts are %v, want an empty list", none)
	}
}

func TestManyAttemptsAreThinnedEvenly(t *testing.T) {
	t.Parallel()
	var attempts []hindsight.Attempt
	for i := range 10_000 {
		one := attempt(float32(i), 0, quantity.Bytes(1000+i), float64(1+i))
		if i%1000 == 500 {
			one.Outcome, one.Cause = fact.OutOfMemory, fact.CauseMemoryLimit
		}
		attempts = append(attempts, one)
	}
	memory := hindsight.Of(attempts, 2000, nil)[0].Memory
	if memory.Attempts != 10_000 || memory.Killed != 10 || len(memory.Points) != 2000 {
		t.Fatalf("%d attempts, %d killed, %d points; want 10000, 10, 2000", memory.Attempts, memory.Killed,
			len(memory.Points))
	}
	seen := 0
	for i, point := range memory.Points {
		if want := float64(i) * 9999 / 1999; math.Abs(point.At-want) > 20 {
			t.Fatalf("point %d is at %g, want about %g", i, point.At, want)
		}
		if point.Killed {
			seen++
		}
	}
	if last := memory.Points[1999].At; memory.Points[0].At != 0 || last != 9999 || seen != 10 {
		t.Errorf("the points go from %g to %g with %d killed, want 0 to 9999 with 10", memory.Points[0].At, last, seen)
	}
	for _, most := range []int{0, 1, 2, 3} {
		if got := len(hindsight.Of(attempts, most, nil)[0].Memory.Points); got != most {
			t.Errorf("at most %d points are asked for, %d came", most, got)
		}
	}
}

func TestNumbersThatAreNoneExplainNothing(t *testing.T) {
	t.Parallel()
	var attempts []hindsight.Attempt
	for i := range 8 {
		one := attempt(float32(math.NaN()), float32(math.Inf(1)), quantity.Bytes(100+i), 1)
		if i%2 == 0 {
			one.Values = nil
		}
		attempts = append(attempts, one)
	}
	if got := hindsight.Of(attempts, 10, nil)[0].Memory; got.Feature != "" {
		t.Errorf("peaks are explained by %q, want nothing", got.Feature)
	}
}

func ExampleOf() {
	var attempts []hindsight.Attempt
	for epochs := range 6 {
		attempts = append(attempts, hindsight.Attempt{
			Stage: "train", Venue: fact.Pool, Outcome: fact.Succeeded,
			Names: []string{"epochs"}, Values: []float32{float32(epochs)},
			PredictedWall: fact.Interval{Low: 5, Mid: 15, High: 25}, Wall: float64(10 * epochs),
		})
	}
	wall := hindsight.Of(attempts, 2000, nil)[0].Wall
	fmt.Printf("run time over %s: %d of %d within the band\n", wall.Feature, wall.Within, wall.Predicted)
	// Output: run time over epochs: 2 of 5 within the band
}

func TestFeaturesAreThoseOfTheirName(t *testing.T) {
	t.Parallel()
	var attempts []hindsight.Attempt
	for i := range 20 {
		one := attempt(float32(i), 3, quantity.Bytes(100+i), 1)
		if i%2 == 0 { // of another build, which knows them in another order
			one.Names, one.Values = []string{"rows", "input_bytes"}, []float32{3, float32(i)}
		}
		attempts = append(attempts, one)
	}
	if got := hindsight.Of(attempts, 100, nil)[0].Memory; got.Feature != "input_bytes" || got.Points[19].At != 19 {
		t.Errorf("peaks are shown over %q up to %g, want input_bytes up to 19", got.Feature, got.Points[19].At)
	}
}

func TestManyStagesShareThePoints(t *testing.T) {
	t.Parallel()
	var attempts []hindsight.Attempt
	for i := range 2000 {
		for j := range 30 {
			one := attempt(float32(j), 0, quantity.Bytes(100+j), 1)
			one.Stage = fmt.Sprint("stage-", i)
			attempts = append(attempts, one)
		}
	}
	points := 0
	for _, stage := range hindsight.Of(attempts, 2000, nil) {
		points += len(stage.Memory.Points)
	}
	if points != hindsight.MostPoints {
		t.Errorf("2,000 stages have %d points, want %d", points, hindsight.MostPoints)
	}
}
