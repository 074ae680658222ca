//go:build cgo && linux

package device

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/device/devicetest"
)

func read(t *testing.T, library nvml.Interface) Reading {
	t.Helper()
	reader := Over(library)
	reading, err := reader.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := reader.Close(); err != nil {
		t.Fatal(err)
	}
	return reading
}

func TestAHostOfEightGPUsIsRead(t *testing.T) {
	t.Parallel()
	library := devicetest.DGXA100()
	reading := read(t, library)
	if len(reading.Devices) != 8 || reading.Driver != "550.54.15" || reading.CUDA != "12.4" {
		t.Fatalf("%d devices, driver %s, CUDA %s", len(reading.Devices), reading.Driver, reading.CUDA)
	}
	want := State{
		Device: Device{
			UUID: library.Devices[1].(*dgxa100.Device).UUID, Index: 1, Instance: -1, Minor: 1, GPUInstance: -1,
			Bus:  "00000000:01:00.0",
			Name: "Mock NVIDIA A100-SXM4-40GB", Class: "a100", Memory: 39*quantity.GiB + 512*quantity.MiB, Capability: "8.0",
		},
		Used: 30 * quantity.GiB, Free: 9*quantity.GiB + 512*quantity.MiB, Busy: .1, Watts: 61.5,
		Processes: []Process{{PID: 4242, Memory: 30 * quantity.GiB}},
	}
	if diff := cmp.Diff(want, reading.Devices[1]); diff != "" {
		t.Error(diff)
	}
}

// What an older driver has not, or does not tell, is not known; the rest is.
func TestWhatADriverDoesNotTellIsNotKnown(t *testing.T) {
	t.Parallel()
	library := devicetest.DGXA100()
	library.LookupSymbolFunc = func(symbol string) error { return errors.New("no " + symbol) }
	d := library.Devices[0].(*dgxa100.Device)
	d.GetUtilizationRatesFunc = func() (nvml.Utilization, nvml.Return) {
		return nvml.Utilization{}, nvml.ERROR_NOT_SUPPORTED
	}
	d.GetPowerUsageFunc = func() (uint32, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED }
	d.GetTotalEccErrorsFunc = func(nvml.MemoryErrorType, nvml.EccCounterType) (uint64, nvml.Return) {
		return 0, nvml.ERROR_NOT_SUPPORTED
	}
	d.GetComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) {
		return []nvml.ProcessInfo{{Pid: 7, UsedGpuMemory: ^uint64(0)}}, nvml.SUCCESS
	}
	d.MemoryInfo = nvml.Memory{Total: 40 << 30, Used: 1 << 30, Free: 39 << 30}
	got := read(t, library).Devices[0]
	if got.Memory != 40*quantity.GiB || got.Busy != -1 || got.Watts != -1 || got.Uncorrected != -1 || got.Wrong != "" {
		t.Errorf("%+v", got)
	}
	if diff := cmp.Diff([]Process{{PID: 7, Memory: -1}}, got.Processes); diff != "" {
		t.Error(diff)
	}
}

// Who computes on a GPU is known where the driver tells it, by PIDs that this process knows.
func TestWhoseProcessesAreIsNotKnownInAContainer(t *testing.T) {
	t.Parallel()
	library := devicetest.DGXA100()
	library.Devices[0].(*dgxa100.Device).GetComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) {
		return nil, nvml.ERROR_NO_PERMISSION
	}
	devices := read(t, library).Devices
	if !devices[0].PIDsUnknown || devices[1].PIDsUnknown {
		t.Errorf("unknown of GPU 0: %t, of GPU 1: %t", devices[0].PIDsUnknown, devices[1].PIDsUnknown)
	}
	reader := Over(library)
	reader.inside = true
	reading, err := reader.Read(t.Context())
	if err != nil || !reading.Devices[1].PIDsUnknown || len(reading.Devices[1].Processes) != 1 {
		t.Errorf("%+v, %v", reading.Devices[1], err)
	}
}

func TestADeviceThatDisappearsIsNamedAndTheOthersStay(t *testing.T) {
	t.Parallel()
	library := devicetest.DGXA100()
	reader := Over(library)
	before, err := reader.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	library.Devices[2].(*dgxa100.Device).GetUtilizationRatesFunc = func() (nvml.Utilization, nvml.Return) {
		return nvml.Utilization{}, nvml.ERROR_GPU_IS_LOST
	}
	inner := library.DeviceGetHandleByIndexFunc
	library.DeviceGetHandleByIndexFunc = func(index int) (nvml.Device, nvml.Return) {
		if index == 5 {
			return nil, nvml.ERROR_GPU_IS_LOST
		}
		return inner(index)
	}
	after, err := reader.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(after.Devices) != len(before.Devices) {
		t.Fatalf("%d devices", len(after.Devices))
	}
	for i, d := range after.Devices {
		if gone := i == 2 || i == 5; gone != strings.Contains(d.Wrong, "fallen off the bus") {
			t.Errorf("GPU %d: %q", i, d.Wrong)
		}
	}
}

func TestAHostWithoutADriverSaysSo(t *testing.T) {
	t.Parallel()
	for code, want := range map[nvml.Return]string{
		nvml.ERROR_LIBRARY_NOT_FOUND:       "there is no NVIDIA driver",
		nvml.ERROR_DRIVER_NOT_LOADED:       "kernel driver is not loaded",
		nvml.ERROR_LIB_RM_VERSION_MISMATCH: "different versions",
	} {
		library := &mock.Interface{InitFunc: func() nvml.Return { return code }}
		_, err := Over(library).Read(t.Context())
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%d: %v", code, err)
		}
		if none := code != nvml.ERROR_LIB_RM_VERSION_MISMATCH; none != errors.Is(err, ErrNone) {
			t.Errorf("%d: ErrNone is %t", code, !none)
		}
	}
}

func TestInstancesStandInPlaceOfTheGPUThatIsCut(t *testing.T) {
	t.Parallel()
	library := devicetest.DGXA100()
	cut, empty := library.Devices[3].(*dgxa100.Device), library.Devices[4].(*dgxa100.Device)
	for _, d := range []*dgxa100.Device{cut, empty} {
		if _, code := d.SetMigMode(1); code != nvml.SUCCESS {
			t.Fatal(code)
		}
		// Who is not privileged is told nothing of the memory of a GPU that is cut.
		d.GetMemoryInfo_v2Func = func() (nvml.Memory_v2, nvml.Return) { return nvml.Memory_v2{}, nvml.ERROR_NO_PERMISSION }
		d.GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) { return nvml.Memory{}, nvml.ERROR_NO_PERMISSION }
		d.GetMaxMigDeviceCountFunc = func() (int, nvml.Return) { return 7, nvml.SUCCESS }
		d.GetMigDeviceHandleByIndexFunc = func(int) (nvml.Device, nvml.Return) { return nil, nvml.ERROR_NOT_FOUND }
	}
	cut.GetMigDeviceHandleByIndexFunc = func(index int) (nvml.Device, nvml.Return) {
		if index != 0 && index != 2 {
			return nil, nvml.ERROR_NOT_FOUND
		}
		name := "NVIDIA A100-SXM4-40GB MIG 3g.20gb"
		if index == 2 { // as an older driver has it
			name, _ = cut.GetName()
		}
		return &mock.Device{
			GetUUIDFunc:          func() (string, nvml.Return) { return "MIG-" + string(rune('a'+index)), nvml.SUCCESS },
			GetNameFunc:          func() (string, nvml.Return) { return name, nvml.SUCCESS },
			GetGpuInstanceIdFunc: func() (int, nvml.Return) { return 7 + index, nvml.SUCCESS },
			GetMemoryInfo_v2Func: func() (nvml.Memory_v2, nvml.Return) {
				return nvml.Memory_v2{Total: 20 << 30, Free: 20 << 30}, nvml.SUCCESS
			},
			GetComputeRunningProcessesFunc: func() ([]nvml.ProcessInfo, nvml.Return) { return nil, nvml.SUCCESS },
		}, nvml.SUCCESS
	}
	reading := read(t, library)
	var labels []string
	for _, d := range reading.Devices[3:6] {
		labels = append(labels, d.Label()+" "+d.UUID[:5]+" "+d.Class)
	}
	want := []string{
		"GPU 3 instance 0 MIG-a a100-3g.20gb", "GPU 3 instance 2 MIG-c a100-mig", "GPU 4 " + empty.UUID[:5] + " a100",
	}
	if diff := cmp.Diff(want, labels); diff != "" {
		t.Error(diff)
	}
	if d := reading.Devices[4]; d.GPUInstance != 9 || d.Bus != "00000000:03:00.0" || d.Profile() != "" ||
		reading.Devices[3].Profile() != "3g.20gb" {
		t.Errorf("%+v", d)
	}
	if wrong := reading.Devices[5].Wrong; !strings.Contains(wrong, "has none") {
		t.Errorf("GPU 4: %q", wrong)
	}
}

// A driver that keeps account tells what ended processes took at most.
func TestTheDriversAccountsAreRead(t *testing.T) {
	t.Parallel()
	library := devicetest.DGXA100()
	d := library.Devices[0].(*dgxa100.Device)
	d.GetAccountingModeFunc = func() (nvml.EnableState, nvml.Return) { return nvml.FEATURE_ENABLED, nvml.SUCCESS }
	d.GetAccountingStatsFunc = func(pid uint32) (nvml.AccountingStats, nvml.Return) {
		switch pid {
		case 1:
			return nvml.AccountingStats{MaxMemoryUsage: 5 << 30, StartTime: 1_000_000, Time: 2000}, nvml.SUCCESS
		case 2:
			return nvml.AccountingStats{MaxMemoryUsage: ^uint64(0), IsRunning: 1}, nvml.SUCCESS
		default:
			return nvml.AccountingStats{}, nvml.ERROR_NOT_FOUND
		}
	}
	reader := Over(library)
	reading, err := reader.Read(t.Context())
	if err != nil || !reading.Devices[0].Accounts || reading.Devices[1].Accounts {
		t.Fatalf("%v", err)
	}
	got, err := reader.Accounts(t.Context(), d.UUID, []int{1, 2, 3})
	want := []Account{{PID: 1, Peak: 5 * quantity.GiB, From: time.Second, Lasted: 2 * time.Second}, {PID: 2, Peak: -1}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%s, %v", diff, err)
	}
}

// A driver that never answers holds nobody up for longer than the patience, and is asked by one caller at a time.
func TestADriverThatHangsIsToldOf(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		library, hung, calls := devicetest.DGXA100(), make(chan struct{}), 0
		library.DeviceGetCountFunc = func() (int, nvml.Return) {
			calls++
			<-hung
			return 0, nvml.SUCCESS
		}
		reader := Over(library)
		for _, patience := range []string{"1m0s", "10s"} { // the first time it may be setting its GPUs up
			_, err := reader.Read(t.Context())
			if err == nil || !strings.Contains(err.Error(), "has not answered for "+patience) {
				t.Errorf("%v", err)
			}
		}
		if err := reader.Close(); err != nil {
			t.Errorf("Close while it hangs: %v", err)
		}
		close(hung)
		synctest.Wait()
		if _, err := reader.Read(t.Context()); err != nil || calls != 2 {
			t.Errorf("after it woke: %v, %d calls", err, calls)
		}
	})
}
