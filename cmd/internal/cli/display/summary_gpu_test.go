package display

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

func TestASummarySaysWhichGPUsAStageHad(t *testing.T) {
	t.Parallel()
	run := ledger.RunView{Stages: []ledger.StageView{
		{Name: "load"},
		{Name: "fit", GPU: ledger.StageGPU{
			Count: 2, Class: "h100", Peak: 61 * quantity.GiB, Grant: 160 * quantity.GiB, HeldSeconds: 100, BusySeconds: 87,
		}},
		{Name: "short", GPU: ledger.StageGPU{Count: 1, Grant: 80 * quantity.GiB, HeldSeconds: 1}},
	}}
	want := []string{
		"  fit had 2 x h100: memory at its peak 61 GiB of 160 GiB, busy 87%",
		"  short had 1 x GPU: memory at its peak unknown, busy unknown",
	}
	if diff := cmp.Diff(want, gpuLines(run, Style{Width: 100})); diff != "" {
		t.Error(diff)
	}
}
