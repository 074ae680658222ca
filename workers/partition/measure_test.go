package partition_test

import (
	"math"
	"os"
	"testing"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/workers/partition"
)

func TestMeasureLongChainsAgainstAllPipelines(t *testing.T) {
	if os.Getenv("SPILLWAY_MEASURE") == "" {
		t.Skip("SPILLWAY_MEASURE is not set: it takes minutes")
	}
	n, same := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		p := drawChain(t, 8, 6)
		want := everyPipeline(t, p)
		got, err := partition.Solve(p)
		if (err != nil) != math.IsInf(want, 1) {
			t.Fatalf("the best takes %v: %v", want, err)
		}
		n++
		if err != nil || near(float64(got.StepTime), want) {
			same++
		}
	})
	t.Logf("%d of %d plans are the best of all", same, n)
	if same < n {
		t.Errorf("%d of %d plans are not the best of all", n-same, n)
	}
}
