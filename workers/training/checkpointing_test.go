package training

import (
	"errors"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/partition"
)

func TestTheCopyOfACheckpointIsPricedWhereItIs(t *testing.T) {
	t.Parallel()
	s := setupOf(t, chain(2), 8, exec.Device{Threads: 1})
	s.model.classes[exec.CUDA+"/"] = s.model.classes[exec.CPU+"/1"]
	cpu, gpu := exec.Device{ID: "cpu", Threads: 1}, exec.Device{ID: "gpu", Kind: exec.CUDA}
	s.machine = machine{copyRate: 1000, seen: map[string]exec.Surveyed{"gpu": {Out: 500, Save: 100}}}
	copied := 3.0 * 4000 // parameters and Adam's state
	for when, want := range map[copying]func(peak float64) float64{
		copiesNever:  func(peak float64) float64 { return peak },
		copiesLast:   func(peak float64) float64 { return max(peak, 2*copied) },
		copiesBeside: func(peak float64) float64 { return peak + copied },
	} {
		s.copies = when
		made, err := s.price([][]int{{0}, {1}}, []exec.Device{cpu, gpu}, 8, unchanged)
		if err != nil {
			t.Fatal(err)
		}
		if p := made.parts[0]; !near(p.most, want(p.peak)) {
			t.Errorf("%d, on a CPU: at most %v of a peak of %v; want %v", when, p.most, p.peak, want(p.peak))
		}
		if p := made.parts[1]; !near(p.most, p.peak) {
			t.Errorf("%d, on a GPU: at most %v of a peak of %v, though the copy is on the host", when, p.most, p.peak)
		}
		s.model.base = 500
		if got, want := s.onHost(made), quantity.Bytes(500+copied); got != want {
			t.Errorf("the part on a GPU takes %v of the host; want %v, a process and a copy", got, want)
		}
		if got, want := s.checkpoint(made), 132*time.Second; got != want {
			t.Errorf("a checkpoint takes %v; want %v", got, want)
		}
	}
}

func TestAPlanLeavesRoomForTheCopyOfACheckpoint(t *testing.T) {
	t.Parallel()
	job := Job{Executor: chain(4), Devices: equalDevices(1, 0), Partitions: 1, Batch: 4, MicroBatches: 4}
	training, _, err := Plan(t.Context(), job)
	if err != nil {
		t.Fatal(err)
	}
	peak, copied := training.Parts[0].PredictedPeakBytes, quantity.Bytes(3*4*4000)
	job.Devices = equalDevices(1, peak+copied)
	if _, _, err := Plan(t.Context(), job); err != nil {
		t.Errorf("with room for a copy of %v: %v", copied, err)
	}
	job.Devices = equalDevices(1, peak+copied/2)
	if _, _, err := Plan(t.Context(), job); !errors.Is(err, partition.ErrUnfit) {
		t.Errorf("with room for half of a copy: %v", err)
	}
}

func TestTheFirstCheckpointComesByWhatThePlanSaysItCosts(t *testing.T) {
	t.Parallel()
	job := Job{Executor: chain(1), TimeToLoss: time.Hour}
	k := newKeeper(job, planned{checkpoint: 2 * time.Second}, nil, nil)
	if got, want := k.interval(), Interval(2*time.Second, time.Hour); got != want || got <= shortestInterval {
		t.Errorf("the first after %v; want %v", got, want)
	}
	k.costs.saved(8*time.Second, 8*time.Second)
	if got, want := k.interval(), Interval(8*time.Second, time.Hour); got != want {
		t.Errorf("the second after %v; want %v, by what the first has cost", got, want)
	}
}
