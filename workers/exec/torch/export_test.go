package torch

import (
	"testing"

	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/exec/torch/torchtest"
)

// RequirePython is a Python that has PyTorch; the test skips without one.
func RequirePython(tb testing.TB) string {
	tb.Helper()
	return torchtest.Python(tb)
}

// Processes are the numbers of the processes of a pipeline's parts.
func Processes(p exec.Pipeline) []int {
	var numbers []int
	for _, s := range p.(*pipeline).stages {
		numbers = append(numbers, s.runner.process.number())
	}
	return numbers
}
