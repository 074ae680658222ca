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
	for _, c := range []struct {
		batch, replicas, parts, wanted int
		sharding                       exec.Sharding
		want                           []int
	}{
		{64, 2, 2, 0, "", []int{1, 2, 4, 8, 16, 32}},
		{60, 2, 2, 0, "", []int{1, 2}},
		{60, 2, 1, 0, "", []int{1, 2, 4, 8, 16}},
		{60, 2, 1, 0, exec.ShardOptimizer, []int{1, 2}},
		{15, 2, 2, 0, "", nil},
		{15, 2, 1, 0, "", []int{1, 2, 4}},
		{60, 2, 2, 8, "", nil},
		{48, 2, 2, 6, "", []int{6}},
	} {
		s := setup{replicas: c.replicas, sharding: c.sharding}
		got, err := s.microBatchNumbers(Job{Batch: c.batch, MicroBatches: c.wanted}, c.parts)
		if !slices.Equal(got, c.want) || (err != nil) != (c.want == nil) {
			t.Errorf("%d samples, %d replicas of %d parts: got %v, %v; want %v", c.batch, c.replicas, c.parts, got, err, c.want)
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
