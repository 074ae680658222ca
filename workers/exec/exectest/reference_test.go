package exectest_test

import (
	"strconv"
	"testing"

	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/exec/exectest"
)

func TestTheReferenceKeepsTheContract(t *testing.T) {
	t.Parallel()
	exectest.Run(t, exectest.Subject{
		Name: "reference",
		New: func(_ testing.TB, model string) exec.Executor {
			return exectest.Reference(exectest.Options{Model: model})
		},
		Device: func(int) exec.Device { return exec.Device{ID: "cpu", Kind: exec.CPU} },
		Models: []string{"mlp", "batchnorm"},
	})
}

func TestWhatStandsInForCUDADevicesKeepsTheContract(t *testing.T) {
	t.Parallel()
	exectest.Run(t, exectest.Subject{
		Name: "reference on CUDA",
		New: func(_ testing.TB, model string) exec.Executor {
			return exectest.NewCUDA(exectest.Reference(exectest.Options{Model: model}), make([]exectest.CUDADevice, 8)...)
		},
		Device: func(part int) exec.Device {
			return exec.Device{ID: "cuda:" + strconv.Itoa(part), Kind: exec.CUDA, Index: part}
		},
		Models: []string{"mlp", "batchnorm"},
	})
}
