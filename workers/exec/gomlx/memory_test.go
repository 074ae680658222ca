package gomlx_test

import (
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/workers/exec"
)

// TestMemoryStaysFlat runs before the parallel tests, so the heap is its own.
func TestMemoryStaysFlat(t *testing.T) { //nolint:paralleltest // others would allocate
	model := mlp(4, 8, 3, 3)
	layout := exec.Layout{Parts: cut(model, 3, len(model.Blocks)-3), Batch: 8, MicroBatches: 3}
	pipeline := load(t, model, points(40, 4, 3), layout)
	steps := int64(500)
	if os.Getenv("SPILLWAY_MEASURE") == "1" {
		steps = 10_000
	}
	held := func() int64 {
		runtime.GC()
		runtime.GC() // empties the pools, too
		var memory runtime.MemStats
		runtime.ReadMemStats(&memory)
		return int64(memory.HeapAlloc)
	}
	train(t, pipeline, layout, 0, 100)
	before := held()
	train(t, pipeline, layout, 100, steps)
	grown := held() - before
	t.Logf("%d steps: %d bytes more, %d goroutines", steps, grown, runtime.NumGoroutine())
	if most := int64(64 << 10); grown > most+16*steps {
		t.Errorf("%d bytes more after %d steps; want less than %d", grown, steps, most+16*steps)
	}
	runtime.KeepAlive(pipeline)
}

// TestStagesRunAtTheSameTime prints by how much two stages of one thread each are faster side by side than one after
// the other: 2 at best.
func TestStagesRunAtTheSameTime(t *testing.T) { //nolint:paralleltest // it measures
	if os.Getenv("SPILLWAY_MEASURE") != "1" {
		t.Skip("it measures: set SPILLWAY_MEASURE=1")
	}
	model := mlp(512, 512, 6, 10)
	layout := exec.Layout{Parts: cut(model, len(model.Blocks)), Batch: 64, MicroBatches: 1}
	one, two := load(t, model, points(64, 512, 10), layout), load(t, model, points(64, 512, 10), layout)
	const steps = 30
	train(t, one, layout, 0, 2)
	train(t, two, layout, 0, 2)
	start := time.Now()
	train(t, one, layout, 2, steps)
	train(t, two, layout, 2, steps)
	apart := time.Since(start)
	start = time.Now()
	t.Run("side by side", func(t *testing.T) {
		for i, pipeline := range []exec.Pipeline{one, two} {
			t.Run(strconv.Itoa(i), func(t *testing.T) {
				t.Parallel()
				train(t, pipeline, layout, 2+steps, steps)
			})
		}
	})
	together := time.Since(start)
	t.Logf("%d steps of each: one after the other %v, side by side %v, ratio %.2f on %d cores",
		steps, apart, together, apart.Seconds()/together.Seconds(), runtime.NumCPU())
}
