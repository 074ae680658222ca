package torch

import "testing"

// RequirePython is a Python that has PyTorch; the test skips without one.
func RequirePython(t *testing.T) string {
	t.Helper()
	return requireTorch(t)
}
