package predictor_test

import (
	"testing"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// grantedWhile is what attempts are granted after six minutes in which so many tasks of a run with this goal wait for
// memory and nothing ends, and how often sizes changed after the first of them.
func grantedWhile(
	t *testing.T, waiting, checkpoints int, goal predictor.Goal,
) (memory quantity.Bytes, changes int) {
	t.Helper()
	peaks := []int{2000, 2300, 2150, 2450, 2050, 2600, 2200, 2100, 2350, 2500, 2250, 2400}
	state := fold(history(predictor.State{}, "score", 0.1, peaks, nil), started("r", 0, goal),
		hint("r", "score", waiting, 0))
	for i := range 40 { // what running out of memory costs falls step by step
		_, state = predictor.Decide(state, laptop(1+float64(i)/100, 4))
		ended := record("earlier", "score", len(peaks)+i, 1, 600)
		ended.Usage.PeakMemory, ended.Usage.CPU = quantity.Bytes(peaks[i%len(peaks)])*quantity.MiB, ended.Usage.Wall/10
		ended.Checkpoints = checkpoints
		state = predictor.Fold(state, ended)
	}
	for now := 2.0; now < 360; now += 5 {
		var plan predictor.Plan
		plan, state = predictor.Decide(state, laptop(now, 4))
		if now > 60 {
			changes += len(sizesTold(plan))
		}
		memory = plan.Sizings[0].Base.Memory
	}
	return memory, changes
}

func TestHeadroomIsWhatRunningOutOfMemoryCostsHere(t *testing.T) {
	t.Parallel()
	idle, calm := grantedWhile(t, 1, 0, predictor.Goal{})
	full, changes := grantedWhile(t, 400, 0, predictor.Goal{})
	saved, _ := grantedWhile(t, 400, 9, predictor.Goal{})
	if full >= idle {
		t.Errorf("%s is granted while 400 tasks wait for memory, want less than the %s while nobody does", full, idle)
	}
	if saved > full {
		t.Errorf("%s is granted attempts that lose a tenth of their work, want no more than the %s of those that lose all",
			saved, full)
	}
	if calm > 2 || changes > 2 { // limits are lowered where they were too much for two minutes
		t.Errorf("sizes changed %d times in five minutes while one task waited, and %d times while 400 did", calm, changes)
	}
}

// Spare memory is worth what those would pay that wait for it: where they are in a hurry as the run itself is, less is
// spare, so that more of them run; where they pay nothing to end earlier, nothing is lost by what is spare.
func TestSpareMemoryIsWorthWhatThosePayThatWaitForIt(t *testing.T) {
	t.Parallel()
	idle, _ := grantedWhile(t, 1, 0, predictor.Goal{Minimise: predictor.Latency})
	hurry, _ := grantedWhile(t, 400, 0, predictor.Goal{Minimise: predictor.Latency})
	if hurry >= idle {
		t.Errorf("%s is granted while 400 tasks of a run in a hurry wait for memory, want less than the %s while none does",
			hurry, idle)
	}
	thrifty, _ := grantedWhile(t, 400, 0, predictor.Goal{Minimise: predictor.Cost})
	usual, _ := grantedWhile(t, 400, 0, predictor.Goal{})
	if thrifty <= usual {
		t.Errorf("%s is granted while 400 tasks wait whose run pays nothing to end earlier, want more than the %s of others",
			thrifty, usual)
	}
}
