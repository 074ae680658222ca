//go:build cgo && linux

// Package devicetest holds a machine with GPUs in memory, for tests of what reads a driver.
package devicetest

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
)

// DGXA100 returns the driver's own mock of a machine with eight A100 of 40 GiB, with the functions that it lacks and a
// reader calls. The driver uses 4 MiB of each, as it does; the second GPU is busy with process 4242, which has 30 GiB.
func DGXA100() *dgxa100.Server {
	s := dgxa100.New()
	for i, d := range s.Devices {
		complete(d.(*dgxa100.Device), i)
	}
	return s
}

func complete(d *dgxa100.Device, number int) {
	used := uint64(4 << 20) // that of one that nobody uses
	var running []nvml.ProcessInfo
	if number == 1 {
		used = 30 << 30
		running = []nvml.ProcessInfo{{Pid: 4242, UsedGpuMemory: used}}
	}
	d.GetMemoryInfo_v2Func = func() (nvml.Memory_v2, nvml.Return) {
		const reserved = 512 << 20
		return nvml.Memory_v2{Total: 40 << 30, Reserved: reserved, Used: used, Free: 40<<30 - reserved - used}, nvml.SUCCESS
	}
	d.GetUtilizationRatesFunc = func() (nvml.Utilization, nvml.Return) {
		return nvml.Utilization{Gpu: uint32(10 * number)}, nvml.SUCCESS
	}
	d.GetPciInfoFunc = func() (place nvml.PciInfo, code nvml.Return) {
		for i, c := range []byte("0000" + d.PciBusID) { // the domain has eight digits
			place.BusId[i] = int8(c)
		}
		return place, nvml.SUCCESS
	}
	d.GetAccountingModeFunc = func() (nvml.EnableState, nvml.Return) { return nvml.FEATURE_DISABLED, nvml.SUCCESS }
	d.GetPowerUsageFunc = func() (uint32, nvml.Return) { return 61_500, nvml.SUCCESS }
	d.GetTotalEccErrorsFunc = func(nvml.MemoryErrorType, nvml.EccCounterType) (uint64, nvml.Return) {
		return 0, nvml.SUCCESS
	}
	d.GetComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) { return running, nvml.SUCCESS }
}
