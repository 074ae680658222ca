//go:build cgo && linux

package agent

import (
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/device"
	"github.com/spillway-ml/spillway/workers/device/devicetest"
)

// mocked gives the agent the GPUs of the driver's own mock.
func mocked(t *testing.T, library nvml.Interface) func(*Options) {
	t.Helper()
	reader := device.Over(library)
	t.Cleanup(func() {
		if err := reader.Close(); err != nil {
			t.Error(err)
		}
	})
	return func(o *Options) { o.GPUs = reader }
}

// What the driver says of each GPU, and who has it, is in what the host tells of itself.
func TestAHostTellsHowItsGPUsStandAndWhoHasThem(t *testing.T) {
	t.Parallel()
	library := devicetest.DGXA100()
	first := library.Devices[0].(*dgxa100.Device)
	first.GetTotalEccErrorsFunc = func(nvml.MemoryErrorType, nvml.EccCounterType) (uint64, nvml.Return) {
		return 3, nvml.SUCCESS
	}
	first.GetUtilizationRatesFunc = func() (nvml.Utilization, nvml.Return) {
		return nvml.Utilization{Gpu: 50}, nvml.SUCCESS
	}
	var pid atomic.Uint32
	first.GetComputeRunningProcessesFunc = func() (running []nvml.ProcessInfo, code nvml.Return) {
		if own := pid.Load(); own > 0 {
			running = []nvml.ProcessInfo{{Pid: own, UsedGpuMemory: 5 << 30}, {Pid: 4243, UsedGpuMemory: 1 << 30}}
		}
		return running, nvml.SUCCESS
	}
	h, _, _ := startWithStore(t, 1, mocked(t, library))
	h.obeyed(placement(1, asking(quantity.GPUs{Count: 1})))
	dir := t.TempDir()
	task := h.command(t, "a", shell(`echo $$ >"`+dir+`/new"; mv "`+dir+`/new" "`+dir+`/pid"
		until [ -e "`+dir+`/enough" ]; do sleep 0.01; done`), nil)
	pid.Store(uint32(awaitPID(t, filepath.Join(dir, "pid"))))
	awaitTrue(t, func() bool { return len(h.agent.Host().GPUs[0].Others) == 1 })
	gpus := h.agent.Host().GPUs
	want := predictor.GPU{
		UUID: first.UUID, Instance: -1, Bus: "00000000:00:00.0", Name: "Mock NVIDIA A100-SXM4-40GB", Class: "a100",
		Memory: 39*quantity.GiB + 512*quantity.MiB, Used: 4 * quantity.MiB, Busy: .5, Watts: 61.5, Uncorrected: 3,
		Holder: &predictor.GPUHolder{Run: "r", Stage: stage.Name, Task: "a", Attempt: 1},
		Others: []predictor.GPUProcess{{PID: 4243, Memory: quantity.GiB}},
	}
	if diff := cmp.Diff(want, gpus[0]); diff != "" {
		t.Error(diff)
	}
	others := []predictor.GPUProcess{{PID: 4242, Memory: 30 * quantity.GiB}}
	if diff := cmp.Diff(others, gpus[1].Others); diff != "" || gpus[1].Holder != nil {
		t.Errorf("%s, held by %+v", diff, gpus[1].Holder)
	}
	sampled := predictor.GPUSample{Memory: 5 * quantity.GiB, Busy: .5}
	awaitTrue(t, func() bool {
		return slices.ContainsFunc(told[predictor.Sampled](h.recorder), func(s predictor.Sampled) bool {
			return s.GPU != nil && *s.GPU == sampled
		})
	})
	release(t, filepath.Join(dir, "enough"))
	if _, err := task.Wait(t); err != nil {
		t.Fatal(err)
	}
	record := h.records()[0]
	if !slices.Equal(record.GPUs, []string{first.UUID}) || record.Grant.DeviceClass != "a100" ||
		record.Usage.GPUPeakMemory != 5*quantity.GiB || record.Usage.GPUBusy <= 0 {
		t.Errorf("%v, granted %s, used %+v", record.GPUs, record.Grant, record.Usage)
	}
	if started := told[predictor.AttemptStarted](h.recorder); len(started) != 1 ||
		!slices.Equal(started[0].GPUs, record.GPUs) {
		t.Errorf("started with %+v", started)
	}
}
