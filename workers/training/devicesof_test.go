package training_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/graph"
	"github.com/spillway-ml/spillway/workers/partition"
	"github.com/spillway-ml/spillway/workers/training"
)

func TestDevicesOfAFileShareTheCoresAndAreNumbered(t *testing.T) {
	t.Parallel()
	cpu := func(id string) partition.Device {
		return partition.Device{ID: id, Class: graph.CPU, Memory: quantity.GiB}
	}
	gpu := func(id string) partition.Device { return partition.Device{ID: id, Class: graph.Accelerator} }
	for name, test := range map[string]struct {
		list    []partition.Device
		cores   int
		want    []exec.Device
		unknown int
	}{
		"two CPU devices have half of the cores each": {
			list: []partition.Device{cpu("a"), cpu("b")}, cores: 5, unknown: -1,
			want: []exec.Device{
				{ID: "a", Kind: exec.CPU, Threads: 2, Memory: quantity.GiB},
				{ID: "b", Kind: exec.CPU, Threads: 2, Memory: quantity.GiB},
			},
		},
		"more CPU devices than cores have one each": {
			list: []partition.Device{cpu("a"), cpu("b")}, cores: 1, unknown: -1,
			want: []exec.Device{
				{ID: "a", Kind: exec.CPU, Threads: 1, Memory: quantity.GiB},
				{ID: "b", Kind: exec.CPU, Threads: 1, Memory: quantity.GiB},
			},
		},
		"accelerators are numbered apart from CPUs": {
			list: []partition.Device{gpu("x"), cpu("a"), gpu("y")}, cores: 2, unknown: -1,
			want: []exec.Device{
				{ID: "x", Kind: exec.CUDA},
				{ID: "a", Kind: exec.CPU, Threads: 2, Memory: quantity.GiB},
				{ID: "y", Kind: exec.CUDA, Index: 1},
			},
		},
		"a class of another kind is named": {
			list: []partition.Device{cpu("a"), {ID: "f", Class: "fpga"}}, cores: 2, unknown: 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, unknown := training.DevicesOf(test.list, test.cores)
			if diff := cmp.Diff(test.want, got); diff != "" || unknown != test.unknown {
				t.Errorf("unknown is %d, want %d (-want +got):\n%s", unknown, test.unknown, diff)
			}
		})
	}
}

func TestTheNewestCheckpointIsTheOneWrittenLastAndIsCopiedWhole(t *testing.T) {
	t.Parallel()
	if got := training.NewestCheckpoint(filepath.Join(t.TempDir(), "none")); got != "" {
		t.Errorf("of a directory that is not there: %q", got)
	}
	dir, out := t.TempDir(), filepath.Join(t.TempDir(), "out")
	for i, name := range []string{"step-2", "step-1", ".spillway-x"} { // the last one is half written
		at := time.Date(2026, 11, 23, i, 0, 0, 0, time.UTC)
		path := filepath.Join(dir, name)
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(path, "state"), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
	newest := training.NewestCheckpoint(dir)
	if filepath.Base(newest) != "step-1" {
		t.Fatalf("the newest is %s", newest)
	}
	for range 2 { // a second time it is there
		left, err := training.CopyCheckpoint(newest, out, false)
		if err != nil {
			t.Fatal(err)
		}
		if text, err := os.ReadFile(filepath.Join(left, "state")); err != nil || string(text) != "step-1" {
			t.Errorf("the copy %s has %q, %v", left, text, err)
		}
	}
	if entries, err := os.ReadDir(out); err != nil || len(entries) != 1 {
		t.Errorf("left are %v, %v", entries, err)
	}
}
