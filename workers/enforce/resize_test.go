package enforce

import (
	"errors"
	"os/exec"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// written is a control that notes what is written, and holds all that it is told while it is not refused.
type written struct {
	control
	cpu     []quantity.Milli
	memory  []quantity.Bytes
	refused error
	running []int
}

func (w *written) start(*exec.Cmd) error { return nil }

func (w *written) setCPU(cpu quantity.Milli) (quantity.Milli, error) {
	w.cpu = append(w.cpu, cpu)
	return cpu, w.refused
}

func (w *written) setMemory(want, _ quantity.Bytes) (quantity.Bytes, error) {
	w.memory = append(w.memory, want)
	return want, w.refused
}

func (w *written) kill() error {
	w.running = nil
	return nil
}

func (w *written) pids() ([]int, error) { return w.running, nil }

// A write of a CPU limit gives the group a new quota at once, whatever it has used of the last: what is not changed is
// not written.
func TestALimitThatDoesNotChangeIsNotWritten(t *testing.T) {
	t.Parallel()
	size := func(cpu quantity.Milli, memory quantity.Bytes) quantity.Size {
		return quantity.Size{CPU: cpu, Memory: memory * quantity.MiB}
	}
	kernel := &written{}
	g := &Group{name: "g", control: kernel, enforcer: &Enforcer{limit: size(4000, 1000)}}
	refused := errors.New("refused")
	for _, step := range []struct {
		size    quantity.Size
		refused error
	}{
		{size(250, 100), nil},
		{size(250, 100), nil},
		{size(250, 120), nil}, // a loan that grows
		{size(250, 110), nil},
		{size(500, 110), nil},
		{size(250, 130), refused},
		{size(500, 110), nil}, // it is not known what is held after an error
		{size(500, 110), nil},
	} {
		kernel.refused = step.refused
		if _, err := g.Resize(step.size); !errors.Is(err, step.refused) {
			t.Fatalf("to %s: got %v, want %v", step.size, err, step.refused)
		}
	}
	if diff := cmp.Diff([]quantity.Milli{250, 500, 250, 500}, kernel.cpu); diff != "" {
		t.Errorf("CPU limits that were written (-want +got):\n%s", diff)
	}
	memory := []quantity.Bytes{
		100 * quantity.MiB, 120 * quantity.MiB, 110 * quantity.MiB, 130 * quantity.MiB, 110 * quantity.MiB,
	}
	if diff := cmp.Diff(memory, kernel.memory); diff != "" {
		t.Errorf("memory limits that were written (-want +got):\n%s", diff)
	}
	kernel.running = []int{1}
	if err := g.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := kernel.cpu[len(kernel.cpu)-1]; got != 500 {
		t.Errorf("after a kill: %s cores are held, want 500 again", got)
	}
}
