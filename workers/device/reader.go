//go:build cgo && linux

package device

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// patience is how long the driver may take to answer. One whose GPU is in trouble may never do.
const patience = 10 * time.Second

// firstPatience is the same for the first answer: without persistence mode a driver sets every GPU up when it is
// opened, which takes it one to three seconds each.
const firstPatience = time.Minute

// Reader asks the driver. Its methods may be called concurrently.
type Reader struct {
	library nvml.Interface
	inside  bool          // this process has PIDs of its own, and the driver may tell those of the machine
	calls   chan struct{} // holds the one call that is under way
	opened  atomic.Bool   // the driver was opened once
	mu      sync.Mutex
	open    bool
}

// Open returns a reader of this host's driver.
func Open() *Reader {
	r := Over(nvml.New())
	namespace, err := os.Readlink("/proc/self/ns/pid")
	r.inside = err != nil || namespace != machinePIDs
	return r
}

// machinePIDs is the namespace of the machine's own PIDs: its number is fixed (PROC_PID_INIT_INO of the kernel's
// include/linux/proc_ns.h).
const machinePIDs = "pid:[4026531836]"

// Over returns a reader of a library, such as the mock of the driver's own bindings.
func Over(library nvml.Interface) *Reader {
	return &Reader{library: library, calls: make(chan struct{}, 1)}
}

// Read returns what the host has now. The error wraps ErrNone where there is nothing to ask; any other is the driver's,
// or says that it does not answer.
func (r *Reader) Read(ctx context.Context) (Reading, error) {
	most := firstPatience
	if r.opened.Load() {
		most = patience
	}
	ctx, cancel := context.WithTimeoutCause(ctx, most,
		fmt.Errorf("%w for %s; see what nvidia-smi and dmesg say", ErrSilent, most))
	defer cancel()
	type answer struct {
		reading Reading
		err     error
	}
	answers := make(chan answer, 1)
	select {
	case r.calls <- struct{}{}:
	case <-ctx.Done():
		return Reading{}, fmt.Errorf("read the GPUs: %w", context.Cause(ctx))
	}
	// A call into the driver cannot be ended: who waits goes on, and the next one waits for it.
	go func() {
		defer func() { <-r.calls }()
		reading, err := r.read()
		answers <- answer{reading, err}
	}()
	select {
	case a := <-answers:
		if a.err != nil {
			return Reading{}, fmt.Errorf("read the GPUs: %w", a.err)
		}
		return a.reading, nil
	case <-ctx.Done():
		return Reading{}, fmt.Errorf("read the GPUs: %w", context.Cause(ctx))
	}
}

// Close lets the driver go, but for one that is being asked. The reader can be used again.
func (r *Reader) Close() error {
	select {
	case r.calls <- struct{}{}:
		defer func() { <-r.calls }()
	default: // a call that is under way may never end
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.open {
		return nil
	}
	r.open = false
	if code := r.library.Shutdown(); code != nvml.SUCCESS {
		return fmt.Errorf("let the driver go: %s", text(code))
	}
	return nil
}

func (r *Reader) read() (Reading, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.open {
		switch code := r.library.Init(); code {
		case nvml.SUCCESS:
			r.open = true
			r.opened.Store(true)
		case nvml.ERROR_LIBRARY_NOT_FOUND:
			return Reading{}, fmt.Errorf("%w: there is no NVIDIA driver", ErrNone)
		case nvml.ERROR_DRIVER_NOT_LOADED:
			return Reading{}, fmt.Errorf("%w: NVIDIA's library is there, and its kernel driver is not loaded", ErrNone)
		case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
			return Reading{}, errors.New("NVIDIA's library and its kernel driver have different versions, as after an " +
				"upgrade: load the new driver, or restart the machine")
		default:
			return Reading{}, fmt.Errorf("open the driver: %s", text(code))
		}
	}
	reading := Reading{}
	if version, code := r.library.SystemGetDriverVersion(); code == nvml.SUCCESS {
		reading.Driver = version
	}
	if version, code := r.library.SystemGetCudaDriverVersion(); code == nvml.SUCCESS {
		reading.CUDA = fmt.Sprintf("%d.%d", version/1000, version%1000/10)
	}
	count, code := r.library.DeviceGetCount()
	if code != nvml.SUCCESS {
		if code == nvml.ERROR_UNINITIALIZED || code == nvml.ERROR_DRIVER_NOT_LOADED {
			r.open = false // the driver was unloaded: the next call opens it again
		}
		return Reading{}, fmt.Errorf("count them: %s", text(code))
	}
	for index := range count {
		reading.Devices = append(reading.Devices, r.device(index)...)
	}
	return reading, nil
}

// device returns the state of a GPU, or of the instances that it is cut into.
func (r *Reader) device(index int) []State {
	unknown := State{Device: Device{Index: index, Instance: -1, Minor: -1}, Busy: -1, Watts: -1, Uncorrected: -1}
	handle, code := r.library.DeviceGetHandleByIndex(index)
	if code != nvml.SUCCESS {
		unknown.Wrong = text(code)
		return []State{unknown}
	}
	cut := false
	if r.has("nvmlDeviceGetMigMode") {
		current, _, code := handle.GetMigMode()
		cut = code == nvml.SUCCESS && current == nvml.DEVICE_MIG_ENABLE
	}
	if !cut {
		return []State{r.state(handle, unknown)}
	}
	// How the GPU as a whole stands, the driver tells only a privileged user.
	whole := r.identify(handle, unknown)
	if whole.Wrong != "" {
		return []State{whole}
	}
	most, code := handle.GetMaxMigDeviceCount()
	if code != nvml.SUCCESS {
		whole.Wrong = "is cut into instances (MIG) that cannot be counted: " + text(code)
		return []State{whole}
	}
	var instances []State
	for number := range most {
		instance, code := handle.GetMigDeviceHandleByIndex(number)
		if code != nvml.SUCCESS { // there are as many as were made, at places of their own
			continue
		}
		from := unknown
		from.Instance, from.Minor, from.Capability = number, whole.Minor, whole.Capability
		part := r.state(instance, from)
		if part.Class == whole.Class { // older drivers give it the name of the GPU
			part.Class += "-mig"
		}
		instances = append(instances, part)
	}
	if len(instances) == 0 {
		whole.Wrong = "is to be cut into instances (MIG), and has none: make some with nvidia-smi mig, or switch MIG off"
		return []State{whole}
	}
	return instances
}

// identify fills in what does not change of a GPU or an instance but its memory. What the driver does not tell stays as
// it is in s.
func (r *Reader) identify(handle nvml.Device, s State) State {
	uuid, code := handle.GetUUID()
	if code != nvml.SUCCESS {
		s.Wrong = text(code)
		return s
	}
	s.UUID = uuid
	if s.Name, code = handle.GetName(); code != nvml.SUCCESS {
		s.Wrong = "does not tell its name: " + text(code)
		return s
	}
	s.Class = Class(s.Name)
	if s.Whole() {
		if minor, code := handle.GetMinorNumber(); code == nvml.SUCCESS {
			s.Minor = minor
		}
		if major, minor, code := handle.GetCudaComputeCapability(); code == nvml.SUCCESS {
			s.Capability = fmt.Sprintf("%d.%d", major, minor)
		}
	}
	return s
}

// state fills in what the driver tells of a GPU or an instance. What it does not tell stays as it is in s.
func (r *Reader) state(handle nvml.Device, s State) State {
	wrong := func(what string, code nvml.Return) State {
		s.Wrong = what + text(code)
		return s
	}
	if s = r.identify(handle, s); s.Wrong != "" {
		return s
	}
	if code := r.memory(handle, &s); code != nvml.SUCCESS {
		return wrong("does not tell its memory: ", code)
	}
	if !s.Whole() {
		r.processes(handle, &s)
		return s // the driver tells nothing more of instances
	}
	if rates, code := handle.GetUtilizationRates(); code == nvml.SUCCESS {
		s.Busy = min(float64(rates.Gpu)/100, 1)
	} else if lost(code) {
		return wrong("", code)
	}
	if milliwatts, code := handle.GetPowerUsage(); code == nvml.SUCCESS {
		s.Watts = float64(milliwatts) / 1000
	}
	if n, code := handle.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC); code == nvml.SUCCESS {
		s.Uncorrected = int64(min(n, 1<<62))
	}
	r.processes(handle, &s)
	return s
}

// memory reads a device's memory without what the driver keeps for itself, which older drivers do not tell apart.
func (r *Reader) memory(handle nvml.Device, s *State) nvml.Return {
	if r.has("nvmlDeviceGetMemoryInfo_v2") {
		m, code := handle.GetMemoryInfo_v2()
		if code == nvml.SUCCESS {
			s.Memory = bytesOf(m.Total - min(m.Reserved, m.Total))
			s.Used, s.Free = bytesOf(m.Used), bytesOf(m.Free)
		}
		if code == nvml.SUCCESS || lost(code) {
			return code
		}
	}
	m, code := handle.GetMemoryInfo()
	if code == nvml.SUCCESS {
		s.Memory, s.Used, s.Free = bytesOf(m.Total), bytesOf(m.Used), bytesOf(m.Free)
	}
	return code
}

// has reports whether the driver has a function: to call one that it has not ends the process.
func (r *Reader) has(symbol string) bool { return r.library.Extensions().LookupSymbol(symbol) == nil }

// processes reads who computes on a device.
func (r *Reader) processes(handle nvml.Device, s *State) {
	list, code := handle.GetComputeRunningProcesses()
	if s.PIDsUnknown = r.inside || code != nvml.SUCCESS; code != nvml.SUCCESS {
		return
	}
	for _, p := range list {
		one := Process{PID: int(p.Pid), Memory: -1}
		if p.UsedGpuMemory != ^uint64(0) { // NVML_VALUE_NOT_AVAILABLE
			one.Memory = bytesOf(p.UsedGpuMemory)
		}
		s.Processes = append(s.Processes, one)
	}
	slices.SortFunc(s.Processes, func(a, b Process) int { return a.PID - b.PID })
}

func bytesOf(n uint64) quantity.Bytes { return quantity.Bytes(min(n, 1<<62)) }

// lost reports whether a device cannot be used any more before somebody does something about it.
func lost(code nvml.Return) bool {
	return code == nvml.ERROR_GPU_IS_LOST || code == nvml.ERROR_RESET_REQUIRED || code == nvml.ERROR_GPU_NOT_FOUND
}

// text says what an answer of the driver means, and what to do where that is known.
func text(code nvml.Return) string {
	switch code {
	case nvml.ERROR_GPU_IS_LOST:
		return "has fallen off the bus: see dmesg, and restart the machine"
	case nvml.ERROR_RESET_REQUIRED:
		return "wants a reset: nvidia-smi --gpu-reset when nobody uses it"
	case nvml.ERROR_GPU_NOT_FOUND:
		return "is not there any more"
	case nvml.ERROR_NO_PERMISSION:
		return "this user may not ask the driver"
	default:
		return fmt.Sprintf("the driver says %q (%d)", code.Error(), int32(code))
	}
}
