package gomlx

import (
	"bufio"
	"fmt"
	"os"
	osexec "os/exec"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/exec/exectest"
	"github.com/spillway-ml/spillway/workers/schedule"
)

func middle(list []float64) float64 {
	list = slices.Clone(list)
	slices.Sort(list)
	return list[len(list)/2]
}

// stepper returns a function that trains the next step of one of the large models and returns how long it took. The
// batch is all of the data, samples copies of it.
func stepper(
	t *testing.T, name string, copies, microBatches, threads int, sizes ...int,
) func() (seconds, bubble float64) {
	t.Helper()
	c := large()[name]
	data := InMemory{Inputs: []Array{copied(c.data.Inputs[0], copies)}, Target: copied(c.data.Target, copies)}
	executor, err := New(c.model, data)
	if err != nil {
		t.Fatal(err)
	}
	l := exec.Layout{Batch: copies * c.batch, MicroBatches: microBatches}
	first := 0
	for i, size := range sizes {
		part := exec.Part{InFlight: microBatches, Device: exec.Device{ID: "cpu-" + strconv.Itoa(i), Threads: threads}}
		for _, block := range c.model.Blocks[first : first+size] {
			part.Ops = append(part.Ops, block.Name)
		}
		l.Parts, first = append(l.Parts, part), first+size
	}
	if len(sizes) == 0 {
		l.Parts = []exec.Part{{InFlight: microBatches, Device: exec.Device{Threads: threads}}}
	}
	p, err := executor.Load(t.Context(), l)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	s, err := schedule.OneForwardOneBackward(len(l.Parts), microBatches, schedule.Options{})
	if err != nil {
		t.Fatal(err)
	}
	engine, err := exec.NewEngine(p, s, exec.EngineOptions{Layout: l})
	if err != nil {
		t.Fatal(err)
	}
	step := int64(0)
	return func() (seconds, bubble float64) {
		began := time.Now()
		report, err := engine.Step(t.Context(), step)
		if err != nil {
			t.Fatal(err)
		}
		step++
		return time.Since(began).Seconds(), report.Bubble()
	}
}

func copied(a Array, copies int) Array {
	if a.Int32 != nil {
		return Array{Shape: a.Shape, Int32: slices.Repeat(a.Int32, copies)}
	}
	return Array{Shape: a.Shape, Float32: slices.Repeat(a.Float32, copies)}
}

// TestMeasureTwoPartsBesideOne prints how long a step of two parts of one thread each takes beside one of the whole
// model on one thread, the same samples in each.
func TestMeasureTwoPartsBesideOne(t *testing.T) {
	exectest.RequireMeasuring(t)
	for _, tt := range []struct {
		model                string
		copies, microBatches int
		sizes                []int
	}{{"mlp", 4, 8, []int{8, 7}}, {"transformer", 1, 8, []int{4, 4}}} {
		t.Run(tt.model, func(t *testing.T) {
			split := stepper(t, tt.model, tt.copies, tt.microBatches, 1, tt.sizes...)
			whole, cut := stepper(t, tt.model, tt.copies, 1, 1), stepper(t, tt.model, tt.copies, tt.microBatches, 1)
			var inTwo, inOne, inOneCut, bubbles []float64
			for range 5 {
				seconds, bubble := split()
				inTwo, bubbles = append(inTwo, seconds), append(bubbles, bubble)
				seconds, _ = whole()
				inOne = append(inOne, seconds)
				seconds, _ = cut()
				inOneCut = append(inOneCut, seconds)
			}
			two, one, oneCut := middle(inTwo[1:]), middle(inOne[1:]), middle(inOneCut[1:])
			t.Logf("%s: 2 parts of %d micro-batches %.1f ms, bubble %.3f; 1 part of one micro-batch %.1f ms, ratio %.3f; 1 "+
				"part of %d %.1f ms, ratio %.3f; of the fastest steps %.3f and %.3f",
				tt.model, tt.microBatches, two*1e3, middle(bubbles), one*1e3, two/one, tt.microBatches, oneCut*1e3, two/oneCut,
				slices.Min(inTwo)/slices.Min(inOne), slices.Min(inTwo)/slices.Min(inOneCut))
			exectest.LogLoad(t)
		})
	}
}

// TestMeasureTheExecutorBesidePyTorch prints what a step costs here and in PyTorch, for models of the same shapes; both
// take turns.
func TestMeasureTheExecutorBesidePyTorch(t *testing.T) {
	exectest.RequireMeasuring(t)
	const python = "/usr/bin/python3"
	if err := osexec.CommandContext(t.Context(), python, "-c", "import torch").Run(); err != nil {
		t.Skipf("%s has no torch: %v", python, err)
	}
	for _, threads := range []int{1, 2} {
		for _, model := range []string{"mlp", "cnn", "transformer"} {
			t.Run(fmt.Sprintf("%s with %d threads", model, threads), func(t *testing.T) {
				measureBeside(t, python, model, threads)
			})
		}
	}
}

func measureBeside(t *testing.T, python, model string, threads int) {
	t.Helper()
	cmd := osexec.CommandContext(t.Context(), python, "-B", "testdata/loops.py", model, strconv.Itoa(threads))
	cmd.Env, cmd.Stderr = append(cmd.Environ(), "OMP_NUM_THREADS="+strconv.Itoa(threads), "OMP_WAIT_POLICY=PASSIVE"),
		os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines, step := bufio.NewScanner(out), stepper(t, model, 1, 1, threads)
	var ours, theirs []float64
	for range 7 {
		seconds, _ := step()
		ours = append(ours, seconds)
		if _, err := in.Write([]byte("\n")); err != nil || !lines.Scan() {
			t.Fatal("the loop in PyTorch ended")
		}
		if seconds, err = strconv.ParseFloat(lines.Text(), 64); err != nil {
			t.Fatal(err)
		}
		theirs = append(theirs, seconds)
	}
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%s, %d threads: %.1f ms a step, PyTorch %.1f ms, ratio %.2f; of the fastest steps %.2f", model, threads,
		middle(ours[2:])*1e3, middle(theirs[2:])*1e3,
		middle(ours[2:])/middle(theirs[2:]), slices.Min(ours)/slices.Min(theirs))
	exectest.LogLoad(t)
}
