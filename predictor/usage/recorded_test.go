package usage_test

import (
	"encoding/json"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/spillway-ml/spillway/predictor/usage"
)

// recorded are the attempts of a program at half a core, one and two, five at each, in the order in which they ran:
// first with the first at every size, then with the second.
type recorded struct {
	Program string
	Tries   []usage.Try
}

// readRecorded reads what make measure-speed measured with SPILLWAY_UPDATE=1.
func readRecorded(t *testing.T) (programs []recorded) {
	t.Helper()
	data, err := os.ReadFile("testdata/speeds.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &programs); err != nil {
		t.Fatal(err)
	}
	return programs
}

// at are the attempts with so many cores.
func (r recorded) at(cores float64) (tries []usage.Try) {
	for _, try := range r.Tries {
		if try.Cores == cores {
			tries = append(tries, try)
		}
	}
	return tries
}

// faster is how many times as fast the program is with so many cores as with one: the median of the runs that followed
// each other, so that what else the host did meets both alike.
func (r recorded) faster(cores float64) float64 {
	one := r.at(1)
	var times []float64
	for i, try := range r.at(cores) {
		times = append(times, one[i].Seconds/try.Seconds)
	}
	slices.Sort(times)
	return times[len(times)/2]
}

// TestSpeedsOfRealProgramsAreKnownAfterFiveAttemptsAtOneSizeAndOneAtAnother predicts the speed of eight programs at
// three sizes by what was measured of them, for every two sizes: a row is within a tenth where it is so at all three.
func TestSpeedsOfRealProgramsAreKnownAfterFiveAttemptsAtOneSizeAndOneAtAnother(t *testing.T) {
	t.Parallel()
	sizes := []float64{0.5, 1, 2}
	programs := readRecorded(t)
	if len(programs) != 8 {
		t.Fatalf("%d programs were recorded, want 8", len(programs))
	}
	rows, missed := 0, 0
	for _, program := range programs {
		for _, five := range sizes {
			for _, one := range sizes {
				if one == five {
					continue
				}
				var tries usage.Tries
				for i, try := range program.at(five)[:5] {
					tries.Add(try, usage.Features{}, nil)
					if i == 0 {
						tries.Add(program.at(one)[2], usage.Features{}, nil)
					}
				}
				speed := tries.Learn(usage.Duration{}, true)
				worst := 0.0
				for _, cores := range sizes {
					got, want := speed.At(cores), program.faster(cores)
					off := math.Abs(got.Mid/want - 1)
					if worst = max(worst, off); off > 0.10 {
						t.Logf("%s, five at %v cores and one at %v: %.3f times as fast on %v as on one, want %.3f: %+v",
							program.Program, five, one, got.Mid, cores, want, plain(speed))
					}
				}
				if rows++; worst > 0.10 {
					missed++
				}
				if worst > 0.15 {
					t.Errorf("%s, five at %v cores and one at %v: a speed is off by %.0f percent, want 15 at most", program.Program,
						five, one, 100*worst)
				}
			}
		}
	}
	// What was measured is itself off by some percent: a program whose garbage is collected beside it took from 0.63 to
	// 0.82 s with one core.
	if missed > 4 {
		t.Errorf("%d of %d rows are off by more than 10 percent, want 4 at most", missed, rows)
	}
}
