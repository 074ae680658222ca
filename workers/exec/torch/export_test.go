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

// Processes are the numbers of the processes of a pipeline's parts, replica by replica.
func Processes(p exec.Pipeline) []int {
	var numbers []int
	if replicas, are := p.(*ranks); are {
		for _, r := range replicas.all {
			numbers = append(numbers, r.runner.process.number())
		}
		return numbers
	}
	for _, s := range p.(*pipeline).stages {
		numbers = append(numbers, s.runner.process.number())
	}
	return numbers
}
