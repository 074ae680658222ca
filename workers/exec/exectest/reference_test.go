package exectest_test

import (
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
