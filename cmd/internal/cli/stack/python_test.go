package stack

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
)

// TestThePythonModuleIsWrittenOnceAndWhole asks for it several times at once, and again.
func TestThePythonModuleIsWrittenOnceAndWhole(t *testing.T) {
	t.Parallel()
	state := filepath.Join(t.TempDir(), "state")
	var asked sync.WaitGroup
	var said [8]bytes.Buffer
	for i := range said {
		asked.Go(func() {
			if err := pythonModule(&tool.Tool{State: state, Out: &said[i]}); err != nil {
				t.Error(err)
			}
		})
	}
	asked.Wait()
	entries, err := os.ReadDir(state)
	if err != nil || len(entries) != 1 || !strings.HasPrefix(entries[0].Name(), "python-") {
		t.Fatalf("left in the state directory: %v, %v, want one directory", entries, err)
	}
	dir := filepath.Join(state, entries[0].Name())
	for i := range said {
		if said[i].String() != dir+"\n" {
			t.Errorf("got %q, want %q", said[i].String(), dir)
		}
	}
	if text, err := os.ReadFile(filepath.Join(dir, "spillway", "__init__.py")); err != nil || len(text) == 0 {
		t.Errorf("the module has %d bytes, %v", len(text), err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := pythonModule(&tool.Tool{State: file, Out: &said[0]}); err == nil {
		t.Error("a file is taken for a state directory")
	}
}
