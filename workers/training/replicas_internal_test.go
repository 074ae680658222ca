package training

import (
	"slices"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/workers/exec"
)

// TestReplicasHaveAsManyDevicesEachAndNoneTwice draws numbers of CPUs, replicas and parts.
func TestReplicasHaveAsManyDevicesEachAndNoneTwice(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		cpus := rapid.IntRange(1, 12).Draw(t, "CPUs")
		replicas := rapid.IntRange(2, 6).Draw(t, "replicas")
		parts := rapid.IntRange(0, 4).Draw(t, "parts")
		d := deviceSet{own: rapid.Bool().Draw(t, "own")}
		for i := range cpus {
			d.all = append(d.all, exec.Device{ID: "cpu-" + strconv.Itoa(i), Threads: 1, CPUs: []int{i}})
		}
		groups, shared, err := d.groups(replicas, parts)
		if err != nil || len(groups) != replicas {
			t.Fatalf("%d groups and the error %v; want %d", len(groups), err, replicas)
		}
		var pinned []int
		for _, group := range groups {
			if len(group.all) != len(groups[0].all) || len(group.all) < max(parts, 1) {
				t.Fatalf("a replica has %d devices, and the first %d, for %d parts", len(group.all), len(groups[0].all), parts)
			}
			for _, device := range group.of(max(parts, 1)) {
				pinned = append(pinned, device.CPUs...)
			}
		}
		if want := replicas*max(parts, 1) > cpus; want && !shared {
			t.Fatal("there are more ranks than CPUs, and it is not said")
		}
		if shared && len(pinned) > 0 {
			t.Fatalf("ranks that share CPUs are pinned to %v", pinned)
		}
		slices.Sort(pinned)
		if len(slices.Compact(slices.Clone(pinned))) != len(pinned) {
			t.Fatalf("CPUs %v: one is of two ranks", pinned)
		}
	})
}

func TestMicroBatchesOfPartsAreOfOneSize(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ batch, replicas, most, want int }{
		{64, 2, 8, 8}, {60, 2, 8, 6}, {64, 4, 64, 16}, {15, 2, 4, 0}, {14, 2, 6, 1},
	} {
		if got := evenly(c.batch, c.replicas, c.most); got != c.want {
			t.Errorf("%d samples, %d replicas, %d micro-batches: got %d; want %d", c.batch, c.replicas, c.most, got, c.want)
		}
	}
}

// TestGPUsAreNotSharedBySilence has a device for each rank named.
func TestGPUsAreNotSharedBySilence(t *testing.T) {
	t.Parallel()
	gpus := deviceSet{all: []exec.Device{{ID: "a", Kind: exec.CUDA}, {ID: "b", Kind: exec.CUDA, Index: 1}}}
	if _, _, err := gpus.groups(2, 2); err == nil {
		t.Error("four ranks are on two GPUs")
	}
	if groups, shared, err := gpus.groups(2, 1); err != nil || shared || groups[1].all[0].ID != "b" {
		t.Errorf("got %v, shared %v, error %v; want a GPU for each", groups, shared, err)
	}
}
