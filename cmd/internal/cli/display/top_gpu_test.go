package display

import (
	"testing"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

func TestAGPUIsToldInOneLine(t *testing.T) {
	t.Parallel()
	for want, gpu := range map[string]predictor.GPU{
		"GPU 0 h100: held, 12 GiB of 80 GiB, 93% busy, 412 W": {
			Instance: -1, Class: "h100", Holder: &predictor.GPUHolder{Run: "r", Task: "train-0", Attempt: 1},
			Used: 12 * quantity.GiB, Memory: 80 * quantity.GiB, Busy: .93, Watts: 412,
		},
		"GPU 3 instance 1 a100: 0 B of 20 GiB": {
			Index: 3, Instance: 1, Class: "a100", Memory: 20 * quantity.GiB, Busy: -1, Watts: -1,
		},
		"GPU 1 has fallen off the bus": {Index: 1, Instance: -1, Wrong: "has fallen off the bus"},
	} {
		if got := gpuLine(gpu); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
