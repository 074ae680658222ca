package training

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/spillway-ml/spillway/workers/cgroup"
	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/graph"
	"github.com/spillway-ml/spillway/workers/partition"
	"github.com/spillway-ml/spillway/workers/spawn"
)

// Devices returns what this process may use: a device of one thread for each CPU of its affinity mask, as many as the
// CPU quotas of its cgroups allow, rounded down, and one at least. Where a quota leaves fewer than the mask has, they
// are not pinned: the quota holds wherever they run. CUDA devices are not looked for; name them in [Job.Devices], as
// [InStage] does.
func Devices() ([]exec.Device, error) {
	cpus, err := spawn.AllowedCPUs()
	if err != nil {
		return nil, fmt.Errorf("find the devices: %w", err)
	}
	quota, err := cpuQuota(os.DirFS("/"))
	if err != nil {
		return nil, fmt.Errorf("find the devices: %w", err)
	}
	return processors(cpus, quota), nil
}

// DevicesOf makes devices for parts of those of a file of devices: CPU devices share the cores evenly, each with one at
// least, and accelerators are CUDA devices, numbered in the order of the file. unknown is the first of a class that
// models cannot be trained on, -1 without one.
func DevicesOf(list []partition.Device, cores int) (devices []exec.Device, unknown int) {
	onCPU, accelerators := 0, 0
	for _, device := range list {
		if device.Class == graph.CPU {
			onCPU++
		}
	}
	for i, device := range list {
		one := exec.Device{ID: device.ID, Memory: device.Memory}
		switch device.Class {
		case graph.CPU:
			one.Kind, one.Threads = exec.CPU, max(cores/onCPU, 1)
		case graph.Accelerator:
			one.Kind, one.Index = exec.CUDA, accelerators
			accelerators++
		default:
			return nil, i
		}
		devices = append(devices, one)
	}
	return devices, -1
}

// processors are the devices of some CPUs under a quota of cores.
func processors(cpus []int, quota float64) []exec.Device {
	count := max(1, len(cpus))
	pinned := len(cpus) > 0
	if quota < float64(count) {
		count, pinned = max(1, int(quota)), false
	}
	devices := make([]exec.Device, count)
	for i := range devices {
		devices[i] = exec.Device{ID: "cpu-" + strconv.Itoa(i), Kind: exec.CPU, Threads: 1}
		if pinned {
			devices[i].CPUs = []int{cpus[i]}
		}
	}
	return devices
}

// joined makes k equal devices of more: each has the threads and the CPUs of as many neighbours as there are for it.
// Those that are left over stay idle.
func joined(devices []exec.Device, k int) []exec.Device {
	each := len(devices) / k
	all := make([]exec.Device, k)
	for i := range all {
		all[i] = exec.Device{ID: prefixOf(devices) + "cpu-" + strconv.Itoa(i), Kind: exec.CPU, Host: devices[0].Host}
		for _, d := range devices[i*each : (i+1)*each] {
			all[i].Threads += d.Threads
			all[i].CPUs = append(all[i].CPUs, d.CPUs...)
		}
	}
	return all
}

// prefixOf is what the IDs of devices of another host begin with: its name and a slash.
func prefixOf(devices []exec.Device) string {
	return devices[0].ID[:strings.LastIndexByte(devices[0].ID, '/')+1]
}

// cpuQuota is how many cores the cgroups around this process let it use, from the files of the system's root; +Inf
// where none bounds it.
func cpuQuota(root fs.FS) (float64, error) {
	groups, err := fs.ReadFile(root, "proc/self/cgroup")
	if errors.Is(err, fs.ErrNotExist) {
		return math.Inf(1), nil // no cgroups: not Linux, or a kernel without them
	} else if err != nil {
		return 0, fmt.Errorf("read the cgroups of this process: %w", err)
	}
	mounts, err := fs.ReadFile(root, "proc/self/mountinfo")
	if err != nil {
		return 0, fmt.Errorf("read the mounts of this process: %w", err)
	}
	least := math.Inf(1)
	unified, legacy := cgroup.Parse(mounts, groups, []string{"cpu"})
	if unified != nil {
		legacy = append(legacy, *unified)
	}
	for _, h := range legacy {
		for _, group := range h.Around() {
			least = min(least, quotaOf(root, strings.TrimPrefix(group, "/"), h.Controllers == nil))
		}
	}
	return least, nil
}

// quotaOf is the quota of one cgroup in cores; +Inf where it has none or its files are not there.
func quotaOf(root fs.FS, group string, unified bool) float64 {
	number := func(file string) float64 {
		text, err := fs.ReadFile(root, path.Join(group, file))
		if err != nil {
			return math.NaN()
		}
		value, err := strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
		if err != nil {
			return math.NaN()
		}
		return value
	}
	quota, period := math.NaN(), math.NaN()
	if unified { // "max 100000" or "150000 100000"
		text, err := fs.ReadFile(root, path.Join(group, "cpu.max"))
		if err == nil {
			_, err = fmt.Sscanf(string(text), "%f %f", &quota, &period)
		}
		if err != nil {
			return math.Inf(1)
		}
	} else {
		quota, period = number("cpu.cfs_quota_us"), number("cpu.cfs_period_us")
	}
	if cores := quota / period; quota > 0 && period > 0 && cores > 0 { // -1 is none
		return cores
	}
	return math.Inf(1)
}
