//go:build cgo && linux

package device

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Sees reports whether this build asks the driver of GPUs at all: with cgo, on Linux.
const Sees = true

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
	reading, err := ask(ctx, r, r.read)
	if err != nil {
		return Reading{}, fmt.Errorf("read the GPUs: %w", err)
	}
	return reading, nil
}

// Accounts returns what the driver has written down of processes on a device, those that have ended included; nothing
// of those that it does not know. See [State.Accounts].
func (r *Reader) Accounts(ctx context.Context, uuid string, pids []int) ([]Account, error) {
	accounts, err := ask(ctx, r, func() ([]Account, error) { return r.accounts(uuid, pids) })
	if err != nil {
		return nil, fmt.Errorf("read the accounts of %s: %w", uuid, err)
	}
	return accounts, nil
}

// ask calls the driver, one call at a time, and gives up waiting after a while.
func ask[T any](ctx context.Context, r *Reader, call func() (T, error)) (told T, err error) {
	most := firstPatience
	if r.opened.Load() {
		most = patience
	}
	ctx, cancel := context.WithTimeoutCause(ctx, most,
		fmt.Errorf("%w for %s; see what nvidia-smi and dmesg say", ErrSilent, most))
	defer cancel()
	type answer struct {
		told T
		err  error
	}
	answers := make(chan answer, 1)
	select {
	case r.calls <- struct{}{}:
	case <-ctx.Done():
		return told, context.Cause(ctx)
	}
	// A call into the driver cannot be ended: who waits goes on, and the next one waits for it.
	go func() {
		defer func() { <-r.calls }()
		told, err := call()
		answers <- answer{told, err}
	}()
	select {
	case a := <-answers:
		return a.told, a.err
	case <-ctx.Done():
		return told, context.Cause(ctx)
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
	unknown := State{
		Device: Device{Index: index, Instance: -1, Minor: -1, GPUInstance: -1}, Busy: -1, Watts: -1, Uncorrected: -1,
	}
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
		from.Instance, from.Minor, from.Capability, from.Bus = number, whole.Minor, whole.Capability, whole.Bus
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
		if place, code := handle.GetPciInfo(); code == nvml.SUCCESS {
			s.Bus = written(place.BusId[:])
		}
	} else if number, code := handle.GetGpuInstanceId(); code == nvml.SUCCESS {
		s.GPUInstance = number
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
	mode, code := handle.GetAccountingMode()
	s.Accounts = code == nvml.SUCCESS && mode == nvml.FEATURE_ENABLED
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

// accounts reads what the driver wrote down of processes.
func (r *Reader) accounts(uuid string, pids []int) (accounts []Account, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.open {
		return nil, errors.New("the driver is not open")
	}
	handle, code := r.library.DeviceGetHandleByUUID(uuid)
	if code != nvml.SUCCESS {
		return nil, errors.New(text(code))
	}
	for _, pid := range pids {
		stats, code := handle.GetAccountingStats(uint32(pid))
		switch code {
		case nvml.SUCCESS:
		case nvml.ERROR_NOT_FOUND:
			continue
		default:
			return nil, errors.New(text(code))
		}
		account := Account{
			PID: pid, Peak: -1, From: time.Duration(stats.StartTime) * time.Microsecond,
			Lasted: time.Duration(stats.Time) * time.Millisecond,
		}
		if stats.MaxMemoryUsage != ^uint64(0) { // NVML_VALUE_NOT_AVAILABLE
			account.Peak = bytesOf(stats.MaxMemoryUsage)
		}
		accounts = append(accounts, account)
	}
	return accounts, nil
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

// written is a text of C.
func written(text []int8) string {
	var s strings.Builder
	for _, c := range text {
		if c == 0 {
			break
		}
		s.WriteByte(byte(c))
	}
	return s.String()
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
