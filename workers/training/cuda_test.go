package training_test

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/exec/exectest"
	"github.com/spillway-ml/spillway/workers/training"
)

// cudas are the CUDA devices of these indices.
func cudas(indices ...int) []exec.Device {
	all := make([]exec.Device, len(indices))
	for i, index := range indices {
		all[i] = exec.Device{ID: "cuda:" + strconv.Itoa(index), Kind: exec.CUDA, Index: index, Threads: 8}
	}
	return all
}

// host is a host of some equal CUDA devices.
func host(n int, memory quantity.Bytes) *exectest.CUDA {
	return exectest.NewCUDA(exectest.Reference(exectest.Options{}),
		slices.Repeat([]exectest.CUDADevice{{Name: "NVIDIA H100", Memory: memory, Out: 2e10, In: 2e10, Copy: 1e12}}, n)...)
}

func TestAHostWhoseDevicesAreAllCUDAIsPlannedForAndTrains(t *testing.T) {
	t.Parallel()
	for name, devices := range map[string][]exec.Device{
		"one device": cudas(0), "eight devices": cudas(0, 1, 2, 3, 4, 5, 6, 7),
		"a mixed host": append(devices("cpu-0"), cudas(0, 1)...),
	} {
		for _, parts := range []int{0, len(devices)} {
			t.Run(name+" in "+strconv.Itoa(parts), func(t *testing.T) {
				t.Parallel()
				on := host(8, 0)
				result, err := training.Run(t.Context(), training.Job{
					Executor: on, Devices: devices, Partitions: min(parts, 4), Batch: 12, Steps: 4, Seed: 7, Directory: t.TempDir(),
				}, training.Observer{})
				if err != nil {
					t.Fatal(err)
				}
				for _, p := range result.Training.Parts {
					if p.Kind == exec.CUDA && p.Threads != 0 {
						t.Errorf("%d CPU threads are planned for %s", p.Threads, p.Device)
					}
				}
				if touched := on.Touched(); len(touched) > len(devices) {
					t.Errorf("of %d devices, those that were touched are %v", len(devices), touched)
				}
			})
		}
	}
}

func TestADeviceThatDisappearsEndsATrainingWithItsNameAndItsCheckpoint(t *testing.T) {
	t.Parallel()
	on := host(2, 0)
	j := training.Job{
		Executor: on, Devices: cudas(0, 1), Partitions: 2, MicroBatches: 2, Batch: 12, Steps: 1_000_000,
		Directory:       t.TempDir(),
		CheckpointEvery: 1,
	}
	_, err := training.Run(t.Context(), j, training.Observer{Checkpointed: func(_ string, step int64) {
		if step >= 3 {
			on.Lose(1)
		}
	}})
	if err == nil || !strings.Contains(err.Error(), "cuda:1 has fallen off the bus") ||
		!strings.Contains(err.Error(), "the last good checkpoint is ") {
		t.Fatalf("got %v", err)
	}
	path, _ := newest(t, j.Directory)
	j.Resume, j.Devices, j.Steps, j.Directory = path, cudas(0), 12, t.TempDir()
	j.Partitions = 1
	if _, err := training.Run(t.Context(), j, training.Observer{}); err != nil {
		t.Errorf("what is left does not go on: %v", err)
	}
}

func TestAModelLargerThanOneCUDADeviceTrainsOnTwo(t *testing.T) {
	t.Parallel()
	j := training.Job{
		Executor: host(2, 0), Devices: cudas(0, 1), Batch: 12, MicroBatches: 12, Steps: 6, Recompute: training.RecomputeNever,
		Seed: 7, CheckpointEvery: -1,
	}
	peak := func(parts int) (most quantity.Bytes) {
		j.Partitions = parts
		plan, _, err := training.Plan(t.Context(), j)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range plan.Parts {
			most = max(most, p.PredictedPeakBytes)
		}
		return most
	}
	whole, half := peak(1), peak(2)
	if half >= whole {
		t.Fatalf("of %v, the larger half is %v", whole, half)
	}
	j.Partitions, j.Directory = 0, t.TempDir()
	small := host(2, (whole+half)/2)
	j.Executor = small
	result, err := training.Run(t.Context(), j, training.Observer{})
	if err != nil {
		t.Fatal(err)
	}
	if len(result.Training.Parts) != 2 {
		t.Errorf("it trains in %d parts on devices of %v; unsplit it takes %v", len(result.Training.Parts), (whole+half)/2,
			whole)
	}
	for _, p := range result.Training.Parts {
		if p.Class != "NVIDIA H100" || p.CapacityBytes != (whole+half)/2 {
			t.Errorf("a part is on %q of %v", p.Class, p.CapacityBytes)
		}
	}
}

func TestADeviceThatIsNotThereIsToldBeforeAnythingIsProbed(t *testing.T) {
	t.Parallel()
	on := host(8, quantity.GiB)
	_, _, err := training.Plan(t.Context(), training.Job{Executor: on, Devices: cudas(0, 8), Partitions: 2, Batch: 12})
	if !errors.Is(err, exec.ErrRequest) || !strings.Contains(err.Error(), "there is no device cuda:8; this host has 8") {
		t.Errorf("got %v", err)
	}
}
