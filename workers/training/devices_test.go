package training

import (
	"math"
	"slices"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/spawn"
)

func TestEveryAllowedCPUIsADeviceUpToTheQuota(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cpus  []int
		quota float64
		want  []exec.Device
	}{
		"pinned": {[]int{2, 5}, math.Inf(1), []exec.Device{
			{ID: "cpu-0", Kind: exec.CPU, Threads: 1, CPUs: []int{2}}, {ID: "cpu-1", Kind: exec.CPU, Threads: 1, CPUs: []int{5}},
		}},
		"a quota that holds nothing": {
			[]int{2},
			1,
			[]exec.Device{{ID: "cpu-0", Kind: exec.CPU, Threads: 1, CPUs: []int{2}}},
		},
		"a quota is rounded down": {
			[]int{0, 1, 2, 3},
			2.9,
			[]exec.Device{{ID: "cpu-0", Kind: exec.CPU, Threads: 1}, {ID: "cpu-1", Kind: exec.CPU, Threads: 1}},
		},
		"a part of a core is one, at all": {[]int{0, 1}, 0.25, []exec.Device{{ID: "cpu-0", Kind: exec.CPU, Threads: 1}}},
		"unknown":                         {nil, math.Inf(1), []exec.Device{{ID: "cpu-0", Kind: exec.CPU, Threads: 1}}},
	} {
		if diff := cmp.Diff(c.want, processors(c.cpus, c.quota)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestDevicesOfThisProcessAreAmongItsCPUs(t *testing.T) {
	t.Parallel()
	devices, err := Devices()
	if err != nil {
		t.Fatal(err)
	}
	allowed, err := spawn.AllowedCPUs()
	if err != nil {
		t.Fatal(err)
	}
	if len(devices) < 1 || len(devices) > len(allowed) {
		t.Errorf("%d devices of %d CPUs", len(devices), len(allowed))
	}
	for _, d := range devices {
		for _, cpu := range d.CPUs {
			if !slices.Contains(allowed, cpu) {
				t.Errorf("%s is on CPU %d of %v", d.ID, cpu, allowed)
			}
		}
	}
}

func TestJoinedDevicesShareAllCPUsEqually(t *testing.T) {
	t.Parallel()
	four := processors([]int{0, 2, 4, 6}, math.Inf(1))
	for k, want := range map[int][]exec.Device{
		1: {{ID: "cpu-0", Kind: exec.CPU, Threads: 4, CPUs: []int{0, 2, 4, 6}}},
		2: {
			{ID: "cpu-0", Kind: exec.CPU, Threads: 2, CPUs: []int{0, 2}},
			{ID: "cpu-1", Kind: exec.CPU, Threads: 2, CPUs: []int{4, 6}},
		},
		3: four[:3],
		4: four,
	} {
		if diff := cmp.Diff(want, joined(four, k)); diff != "" {
			t.Errorf("%d devices (-want +got):\n%s", k, diff)
		}
	}
}

const (
	unifiedMount = "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
	legacyMount  = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct " +
		"rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
	podMount = "32 31 0:29 /pods/a /sys/fs/cgroup/cpu rw shared:9 - cgroup cgroup rw,cpu\n"
)

func TestTheLeastQuotaOfAllCgroupsAroundCounts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		files map[string]string
		want  float64
	}{
		"no cgroups": {nil, math.Inf(1)},
		"unified, two of three bound": {map[string]string{
			"proc/self/cgroup": "0::/a/b\n", "proc/self/mountinfo": unifiedMount,
			"sys/fs/cgroup/a/cpu.max": "150000 100000\n", "sys/fs/cgroup/a/b/cpu.max": "800000 100000\n",
		}, 1.5},
		"unified, none bounds": {map[string]string{
			"proc/self/cgroup": "0::/a\n", "proc/self/mountinfo": unifiedMount, "sys/fs/cgroup/a/cpu.max": "max 100000\n",
		}, math.Inf(1)},
		"legacy": {map[string]string{
			"proc/self/cgroup": "4:memory:/x\n3:cpu,cpuacct:/a\n0::/\n", "proc/self/mountinfo": legacyMount,
			"sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us":  "250000\n",
			"sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "100000\n",
			"sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us":    "-1\n", "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
		}, 2.5},
		"a part of the hierarchy is mounted": {map[string]string{
			"proc/self/cgroup": "3:cpu:/pods/a/b\n", "proc/self/mountinfo": podMount,
			"sys/fs/cgroup/cpu/b/cpu.cfs_quota_us": "50000\n", "sys/fs/cgroup/cpu/b/cpu.cfs_period_us": "100000\n",
		}, 0.5},
		"the group is outside": {map[string]string{
			"proc/self/cgroup": "3:cpu:/elsewhere\n", "proc/self/mountinfo": podMount,
			"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "300000\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
		}, 3},
		"mounted at the root": {map[string]string{
			"proc/self/cgroup": "0::/a/b\n", "proc/self/mountinfo": "29 23 0:26 / / rw - cgroup2 cgroup2 rw\n",
			"a/cpu.max": "150000 100000\n",
		}, 1.5},
		"mounted at no absolute path": {map[string]string{
			"proc/self/cgroup": "0::/a\n", "proc/self/mountinfo": "29 23 0:26 / ../.. rw - cgroup2 cgroup2 rw\n" + unifiedMount,
			"sys/fs/cgroup/a/cpu.max": "150000 100000\n",
		}, 1.5},
		"malformed": {map[string]string{
			"proc/self/cgroup": "nonsense\n0::/a\n", "proc/self/mountinfo": "nonsense\n" + unifiedMount,
			"sys/fs/cgroup/a/cpu.max": "many\n",
		}, math.Inf(1)},
	} {
		root := fstest.MapFS{}
		for path, text := range c.files {
			root[path] = &fstest.MapFile{Data: []byte(text)}
		}
		if got, err := cpuQuota(root); err != nil || got != c.want {
			t.Errorf("%s: got %v and the error %v, want %v", name, got, err, c.want)
		}
	}
}

func FuzzCPUQuota(f *testing.F) {
	f.Add("0::/a/b\n", unifiedMount, "150000 100000\n")
	f.Add("3:cpu:/pods/a/b\n", podMount, "max")
	f.Add("0::/a\n", "29 23 0:26 / ../.. rw - cgroup2 cgroup2 rw\n", "150000 100000\n") // it went round for ever
	f.Add("0::/a\n", unifiedMount, "Inf Inf\n")
	f.Fuzz(func(t *testing.T, groups, mounts, quota string) {
		got, err := cpuQuota(fstest.MapFS{
			"proc/self/cgroup":        &fstest.MapFile{Data: []byte(groups)},
			"proc/self/mountinfo":     &fstest.MapFile{Data: []byte(mounts)},
			"sys/fs/cgroup/a/cpu.max": &fstest.MapFile{Data: []byte(quota)},
		})
		if err != nil || !(got > 0) {
			t.Fatalf("got %v and the error %v", got, err)
		}
	})
}
