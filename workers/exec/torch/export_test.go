package torch

import (
	"testing"

	"github.com/spillway-ml/spillway/workers/exec"
)

// RequirePython is a Python that has PyTorch; the test skips without one.
func RequirePython(tb testing.TB) string {
	tb.Helper()
	return requireTorch(tb)
}

// Processes are the numbers of the processes of a pipeline's parts.
func Processes(p exec.Pipeline) []int {
	var numbers []int
	for _, s := range p.(*pipeline).stages {
		numbers = append(numbers, s.runner.process.Process.Pid)
	}
	return numbers
}
