package torch_test

import (
	"math"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	spillway "github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/exec/exectest"
	"github.com/spillway-ml/spillway/workers/exec/torch/torchtest"
)

// How long a step may wait for data that take 80 % of it to fetch, beside one whose data are there, and what is noise
// beyond that.
const (
	ofAStep                  = 0.8
	hiddenBar, hiddenNoise   = 0.05, 0.05
	hiddenRounds, hiddenLong = 6, 14
	hiddenFill               = 5 // steps of a round until batches that were fetched between rounds are used
	hiddenCalibrations       = 5 // times that the data are given more or less to do
	hiddenOff                = 0.05
)

// TestMeasureADataLoaderThatIsHidden trains a perceptron with one thread on one core: on data that are there, on data
// that take 80 % of a step to decompress, fetched by the same process, and by a process of their own on another core.
// They take turns of several steps.
func TestMeasureADataLoaderThatIsHidden(t *testing.T) {
	exectest.RequireMeasuring(t)
	if runtime.NumCPU() < 2 {
		t.Skip("it needs two cores")
	}
	bothVersionsInTurn(t, func(t *testing.T, python string) {
		t.Helper()
		began := func(data string, workers int) *spillway.Engine {
			l := fetching(workers)
			l.Batch, l.Parts[0].Device = 64, core(0)
			return engine(t, load(t, executorOf(t, python, "loading_measured.py:build", data), l), l)
		}
		next := map[*spillway.Engine]int64{}
		steps := func(run *spillway.Engine, count int) (walls, waits []float64) {
			for range count {
				started := time.Now()
				report, err := run.Step(t.Context(), next[run])
				if err != nil {
					t.Fatal(err)
				}
				next[run]++
				walls, waits = append(walls, time.Since(started).Seconds()), append(waits, report.Data.Seconds())
			}
			return walls, waits
		}
		ready := began("ready", 0)
		// fetched is the part of a step that data of so many crops a sample take to fetch, in turns with steps alone: what a
		// core does in a second changes with what the others do.
		fetched := func(crops float64) (run *spillway.Engine, share float64) {
			run = began(strconv.FormatFloat(crops, 'f', 3, 64), 0)
			var walls, waits []float64
			for range 3 {
				alone, _ := steps(ready, 6)
				_, waited := steps(run, 6)
				walls, waits = append(walls, alone[2:]...), append(waits, waited[2:]...)
			}
			return run, median(waits) / median(walls)
		}
		crops := 8.0
		here, share := fetched(crops)
		for range hiddenCalibrations {
			if math.Abs(share-ofAStep) <= hiddenOff {
				break
			}
			crops *= ofAStep / share // besides crops, a batch takes what is put together of any sample
			here, share = fetched(crops)
		}
		if math.Abs(share-ofAStep) > hiddenOff {
			t.Fatalf("%.1f crops a sample take %.2f of a step to fetch, want %.2f: the machine does other things", crops, share,
				ofAStep)
		}
		beside := began(strconv.FormatFloat(crops, 'f', 3, 64), 1)
		names := []string{"data that are there", "fetched when asked for", "fetched beside"}
		took, waited := make([][]float64, 3), make([][]float64, 3)
		for range hiddenRounds {
			for i, run := range []*spillway.Engine{ready, here, beside} {
				walls, waits := steps(run, hiddenLong)
				took[i], waited[i] = append(took[i], walls[hiddenFill:]...), append(waited[i], waits[hiddenFill:]...)
			}
		}
		for i, name := range names {
			t.Logf("%s: a step of %s (least %.2f ms), %s of it waited for data; %.3f times the first", name,
				milliseconds(took[i]), slices.Min(took[i])*1e3, milliseconds(waited[i]), median(took[i])/median(took[0]))
		}
		computed := median(took[2]) - median(waited[2])
		t.Logf("%.1f crops a sample: a batch takes %.2f of a step to fetch; fetched beside, a step waits %.3f of what it "+
			"computes, which takes %.3f times as long beside the other process", crops, median(waited[1])/median(took[0]),
			median(waited[2])/computed, computed/median(took[0]))
		if cost := median(waited[2]) / computed; cost > hiddenBar+hiddenNoise {
			t.Errorf("a step waits %.3f of its time for data that are fetched beside it, want %.2f, and %.2f more for noise",
				cost, hiddenBar, hiddenNoise)
		}
		exectest.LogLoad(t)
	})
}

// bothVersionsInTurn runs a test with each version of PyTorch, one after the other.
func bothVersionsInTurn(t *testing.T, test func(t *testing.T, python string)) {
	t.Helper()
	t.Run("PyTorch 1", func(t *testing.T) { test(t, torchtest.Python(t)) })
	t.Run("PyTorch 2", func(t *testing.T) { test(t, torchtest.Python2(t)) })
}
