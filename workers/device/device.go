// Package device sees the GPUs of this host, how they are used and by whom, and says which of them an attempt gets.
//
// What it reads comes from NVIDIA's management library (NVML), which is part of the driver and loaded when it is asked
// for the first time; a build without cgo, and a host without the driver, see no GPU and say why.
package device

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// ErrNone says that this host has no GPU that could be asked for: no driver, or a build without cgo. The error that
// wraps it says which.
var ErrNone = errors.New("no GPU is seen")

// ErrSilent is wrapped by the error of a read that the driver did not answer in time. It may yet: one that nothing
// keeps loaded takes seconds for each GPU when it is opened.
var ErrSilent = errors.New("the driver has not answered")

// Device is one GPU, or one instance of a GPU that is cut into several (MIG), as its driver describes it. It does not
// change while the driver is loaded.
type Device struct {
	// UUID names it on every host and in CUDA_VISIBLE_DEVICES: "GPU-604ac76c-..." or "MIG-...".
	UUID string `json:"uuid"`
	// Index is the GPU's number in the order of the PCI bus, which is that of nvidia-smi; Instance that of a MIG instance
	// on it, -1 for a whole GPU.
	Index    int `json:"index"`
	Instance int `json:"instance"`
	// Minor is the number in /dev/nvidia0; -1 when the driver does not tell.
	Minor int `json:"minor"`
	// Bus is its place on the PCI bus, "00000000:3B:00.0", by which the kernel's log calls it; empty when the driver does
	// not tell. GPUInstance is the number that nvidia-smi gives the GPU instance of a MIG instance; -1 for a whole GPU.
	Bus         string `json:"bus,omitempty"`
	GPUInstance int    `json:"gpu_instance"`
	// Name is the product, "NVIDIA H100 80GB HBM3"; Class how sizes and prices call it, "h100" (see Class).
	Name  string `json:"name"`
	Class string `json:"class"`
	// Memory is what programs can have of it: without what the driver keeps for itself, where it says how much.
	Memory quantity.Bytes `json:"memory_bytes"`
	// Capability is the version of its instructions, "9.0"; empty when the driver does not tell.
	Capability string `json:"capability,omitempty"`
}

// Whole reports whether it is a GPU and no instance of one.
func (d Device) Whole() bool { return d.Instance < 0 }

// Profile is that of a MIG instance, "3g.20gb"; empty for a whole GPU, and where the driver does not tell it.
func (d Device) Profile() string {
	_, profile, _ := strings.Cut(d.Name, " MIG ")
	return profile
}

// Label is how people call it on its host: "GPU 3", or "GPU 3 instance 1".
func (d Device) Label() string {
	if d.Whole() {
		return fmt.Sprintf("GPU %d", d.Index)
	}
	return fmt.Sprintf("GPU %d instance %d", d.Index, d.Instance)
}

// Same reports whether another state is of the same place on the bus: one that does not tell its UUID any more is known
// by that.
func (d Device) Same(other State) bool { return d.Index == other.Index && d.Instance == other.Instance }

// Order compares devices by their place on the bus.
func Order(a, b State) int {
	return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.Instance, b.Instance))
}

// Taken is what an attempt has taken of a device since it stood as before says: what its own processes hold, which own
// tells by their PIDs. Where nobody knows whose the processes are, it is what all hold that were not there before, or
// how much more of the device is used: what other programs take later counts then, as nobody can tell it apart.
func Taken(before, now State, own func(pid int) bool) quantity.Bytes {
	mine := slices.DeleteFunc(slices.Clone(now.Processes), func(p Process) bool { return !own(p.PID) })
	switch {
	case len(mine) > 0 || !now.PIDsUnknown:
	case len(now.Processes) == 0: // as in a container, where the driver may know none
		return max(now.Used-before.Used, 0)
	default:
		mine = slices.DeleteFunc(slices.Clone(now.Processes), func(p Process) bool {
			return slices.ContainsFunc(before.Processes, func(old Process) bool { return old.PID == p.PID })
		})
	}
	sum := quantity.Bytes(0)
	for _, p := range mine {
		if p.Memory < 0 {
			return max(now.Used-before.Used, 0)
		}
		sum += p.Memory
	}
	return sum
}

// State is a device at one moment.
type State struct {
	Device
	// Used is the memory that programs hold, Free what is left. Both are zero when Wrong says why nothing is known.
	Used quantity.Bytes `json:"used_bytes"`
	Free quantity.Bytes `json:"free_bytes"`
	// Busy is the share of the last moments (a sixth of a second to a second) in which a kernel ran, 0 to 1; -1 when the
	// driver does not tell, as for MIG instances.
	Busy float64 `json:"busy"`
	// Watts is what it draws; -1 when the driver does not tell.
	Watts float64 `json:"watts"`
	// Uncorrected counts the memory errors since the driver was loaded that could not be corrected; -1 when it has no such
	// memory or does not tell.
	Uncorrected int64 `json:"uncorrected"`
	// Processes are those that compute on it, by PID.
	Processes []Process `json:"processes,omitempty"`
	// PIDsUnknown says that the driver does not tell its processes, or may tell PIDs of another namespace than that of
	// this process, as in a container: whose they are is not known.
	PIDsUnknown bool `json:"pids_unknown,omitempty"`
	// Accounts says that the driver keeps account of what each process takes (accounting mode, nvidia-smi
	// --accounting-mode=1), so that [Reader.Accounts] knows of those that are over.
	Accounts bool `json:"accounts,omitempty"`
	// Wrong says why no attempt can use it: it fell off the bus, or wants a reset. Empty when one can.
	Wrong string `json:"wrong,omitempty"`
}

// Process is a program that has a context on a device.
type Process struct {
	PID int `json:"pid"`
	// Memory is what it holds of the device; -1 when the driver does not tell, as in some containers.
	Memory quantity.Bytes `json:"memory_bytes"`
}

// Reading is what a host's driver said at one moment.
type Reading struct {
	// Driver is its version, "550.54.15"; CUDA the newest version that it runs, "12.4".
	Driver string `json:"driver"`
	CUDA   string `json:"cuda"`
	// Devices are by Index and Instance. A GPU that is cut into instances is not among them, its instances are.
	Devices []State `json:"devices"`
}

// Account is what a driver has written down of one process on a device.
type Account struct {
	PID int
	// Peak is the most memory that it held at once; -1 when the driver does not tell.
	Peak quantity.Bytes
	// From is when it began, by the driver's clock since some moment, and Lasted for how long it went on; 0 while it does.
	From, Lasted time.Duration
}

// Peak is the most that processes may have held of a device together, each as much as it ever did: exact for one, and
// for several that ran after each other. Known is false where the driver does not tell it of one of them.
func Peak(accounts []Account) (peak quantity.Bytes, known bool) {
	for _, at := range accounts {
		if at.Peak < 0 {
			return 0, false
		}
		sum := quantity.Bytes(0)
		for _, a := range accounts { // those that are there when this one begins; the most is at some beginning
			if a.From <= at.From && (a.Lasted == 0 || at.From < a.From+a.Lasted) {
				sum += max(a.Peak, 0)
			}
		}
		peak = max(peak, sum)
	}
	return peak, true
}

// noise are words of product names that tell no model from another; lines are those that a model is named with.
var (
	noise = []string{"nvidia", "tesla", "geforce", "quadro", "grid", "graphics", "gpu", "mock"}
	lines = []string{"rtx", "gtx", "titan", "pro"}
)

// share matches the end of the name of a virtual GPU, which is a part of one: "80c" of "GRID A100D-7-80C"
// (https://docs.nvidia.com/vgpu/latest/grid-vgpu-user-guide/index.html).
var share = regexp.MustCompile(`^[0-9]+[abcq][0-9]?$`)

// Class returns the short name of a product that sizes and prices use: its model in lower case, such as "h100" of
// "NVIDIA H100 80GB HBM3", "a10g" of "NVIDIA A10G", "l40s", "t4", and "rtx-4090" of "NVIDIA GeForce RTX 4090". Memory
// and interconnect are no part of it: what a device holds stands beside its class. A part of a GPU is of another class
// than the GPU, and than a part of another size: "a100-1g.5gb". Empty for an empty name.
func Class(product string) string {
	words := strings.FieldsFunc(strings.ToLower(product), func(r rune) bool { return r == ' ' || r == '-' || r == '/' })
	var line []string
	for at, word := range words {
		switch {
		case slices.Contains(lines, word):
			line = append(line, word)
		case !slices.Contains(noise, word):
			return strings.Join(append(line, word), "-") + beside(words[at+1:])
		}
	}
	return strings.Join(words, "-")
}

// beside is what the words after a model tell of a class: which part of a GPU it is, or of which generation where an
// older one has the same number.
func beside(words []string) string {
	if at := slices.Index(words, "mig"); at >= 0 {
		return "-" + cmp.Or(strings.Join(words[at+1:], "-"), "mig")
	}
	if n := len(words); n > 0 && share.MatchString(words[n-1]) {
		return "-" + strings.Join(words, "-")
	}
	if slices.Contains(words, "ada") {
		return "-ada"
	}
	return ""
}
