package cgroup_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/workers/cgroup"
)

var wanted = []string{"memory", "cpuacct", "cpu"}

func TestTheOwnCgroupIsFoundInEachHierarchy(t *testing.T) {
	t.Parallel()
	const (
		hybrid = `31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
33 31 0:30 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
34 31 0:31 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd
35 31 0:32 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
`
		hybridOwn = "4:memory:/a/b\n2:cpuacct,cpu:/\n1:name=systemd:/\n0::/c\n"
		container = "9 8 0:3 /docker/7 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
		elsewhere = "9 8 0:3 /other /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
	)
	unified, legacy := cgroup.Parse([]byte(hybrid), []byte(hybridOwn), wanted)
	want := []cgroup.Hierarchy{
		{Mount: "/sys/fs/cgroup/cpu,cpuacct", Own: "/sys/fs/cgroup/cpu,cpuacct", Controllers: []string{"cpu", "cpuacct"}},
		{Mount: "/sys/fs/cgroup/memory", Own: "/sys/fs/cgroup/memory/a/b", Controllers: []string{"memory"}},
	}
	if diff := cmp.Diff(want, legacy); diff != "" {
		t.Errorf("v1 (-want +got):\n%s", diff)
	}
	if unified == nil || unified.Own != "/sys/fs/cgroup/unified/c" {
		t.Errorf("v2: got %+v", unified)
	}
	around := legacy[1].Around()
	if diff := cmp.Diff([]string{"/sys/fs/cgroup/memory/a/b", "/sys/fs/cgroup/memory/a", "/sys/fs/cgroup/memory"},
		around); diff != "" {
		t.Errorf("around (-want +got):\n%s", diff)
	}
	if _, legacy := cgroup.Parse([]byte(container), []byte("4:memory:/docker/7/x\n"), wanted); len(legacy) != 1 ||
		legacy[0].Own != "/sys/fs/cgroup/memory/x" {
		t.Errorf("a container sees its part only: got %+v", legacy)
	}
	if _, legacy := cgroup.Parse([]byte(elsewhere+container), []byte("4:memory:/docker/7/x\n"), wanted); len(legacy) !=
		1 || legacy[0].Hidden {
		t.Errorf("of two mounts one shows the own cgroup: got %+v", legacy)
	}
	if _, legacy := cgroup.Parse([]byte(elsewhere), []byte("4:memory:/docker/7\n"), wanted); len(legacy) != 1 ||
		!legacy[0].Hidden || legacy[0].Own != "/sys/fs/cgroup/memory" {
		t.Errorf("a mount that does not show the own cgroup: got %+v", legacy)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("9 8 0:3 /docker/7 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n", "4:memory:/docker/7/x\n0::/a")
	f.Add("29 23 0:26 / ../.. rw - cgroup2 cgroup2 rw\n", "0::/a\n")
	f.Fuzz(func(t *testing.T, mounts, own string) {
		unified, legacy := cgroup.Parse([]byte(mounts), []byte(own), wanted)
		if unified != nil {
			legacy = append(legacy, *unified)
		}
		for _, h := range legacy {
			if inside, err := filepath.Rel(h.Mount, h.Own); err != nil || strings.HasPrefix(inside, "../") || inside == ".." {
				t.Errorf("own cgroup %q outside of its mount %q", h.Own, h.Mount)
			}
			h.Around()
		}
	})
}
