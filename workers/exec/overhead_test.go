package exec_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/schedule"
)

// idle is a pipeline whose stages only wait, as for a device, so that what is left is the engine.
type idle struct {
	exec.Pipeline
	stages, microBatches int
	pass                 time.Duration // of a forward pass; a backward pass takes twice as long
}

func (p idle) Stages() []exec.Stage {
	stages := make([]exec.Stage, p.stages)
	for i := range stages {
		stages[i] = idleStage{index: i, pass: p.pass}
	}
	return stages
}

func (p idle) Batch(context.Context, int64) (exec.Batch, error) {
	b := exec.Batch{MicroBatches: make([]exec.Message, p.microBatches), Samples: make([]int, p.microBatches)}
	for i := range b.Samples {
		b.Samples[i] = 1
	}
	return b, nil
}

type idleStage struct {
	exec.Stage
	index int
	pass  time.Duration
}

func (s idleStage) Forward(context.Context, int64, int, exec.Message, []exec.Message) (exec.Message, error) {
	s.wait(s.pass)
	return nil, nil //nolint:nilnil // a message may be nil
}

func (s idleStage) Backward(context.Context, int, []exec.Message) ([]exec.Message, error) {
	s.wait(2 * s.pass)
	return make([]exec.Message, s.index), nil
}

func (idleStage) wait(d time.Duration) {
	if d > 0 {
		time.Sleep(d)
	}
}

func (idleStage) Step(context.Context, float64) (float64, error) { return 1, nil }

// The bubble of equal stages is (K-1)/(M+K-1) (Y. Huang et al., GPipe, https://arxiv.org/abs/1811.06965, section 2.3).
func TestMeasureTheBubbleBesideItsFormula(t *testing.T) {
	if os.Getenv("SPILLWAY_MEASURE") != "1" {
		t.Skip("it measures; set SPILLWAY_MEASURE=1")
	}
	for _, stages := range []int{2, 4, 8} {
		for _, microBatches := range []int{1, 4, 16, 64} {
			for _, made := range []schedule.Schedule{
				must(schedule.GPipe(stages, microBatches, schedule.Options{})),
				must(schedule.OneForwardOneBackward(stages, microBatches, schedule.Options{})),
			} {
				p := idle{stages: stages, microBatches: microBatches, pass: 2 * time.Millisecond}
				report, err := engine(t, p, made, exec.EngineOptions{}).Step(t.Context(), 0)
				if err != nil {
					t.Fatal(err)
				}
				formula := float64(stages-1) / float64(microBatches+stages-1)
				t.Logf("%-5s %d stages, %2d micro-batches: bubble %.3f, formula %.3f, step %v", made.Name, stages, microBatches,
					report.Bubble(), formula, report.Duration)
			}
		}
	}
}

func BenchmarkEngine(b *testing.B) {
	for _, stages := range []int{1, 2, 4, 8} {
		b.Run(fmt.Sprintf("%d stages, 32 micro-batches", stages), func(b *testing.B) {
			const microBatches = 32
			s := must(schedule.OneForwardOneBackward(stages, microBatches, schedule.Options{}))
			e := engine(b, idle{stages: stages, microBatches: microBatches}, s, exec.EngineOptions{})
			b.ReportAllocs()
			for b.Loop() {
				if report, err := e.Step(b.Context(), 0); err != nil || report.Loss != 1 {
					b.Fatalf("loss %v, %v", report.Loss, err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*stages*microBatches*2), "ns/pass")
		})
	}
}
