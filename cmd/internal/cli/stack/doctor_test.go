package stack

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/cli/transfer/transfertest"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/device"
	"github.com/spillway-ml/spillway/workers/enforce"
)

func check(t *testing.T, got finding, wanted severity, found string) {
	t.Helper()
	if got.Severity != wanted || !strings.Contains(got.Found, found) {
		t.Errorf("got %+v, want %s with %q", got, wanted, found)
	}
}

func TestWhatHoldsAttemptsIsTold(t *testing.T) {
	t.Parallel()
	no := enforce.Offer{Mode: enforce.Unified, Reason: "it is not mounted"}
	none := enforce.Offer{Mode: enforce.None, Usable: true}
	v1 := enforce.Offer{Mode: enforce.Legacy, Usable: true, Controllers: []string{"cpu", "memory"}}
	check(t, examineLimits([]enforce.Offer{no, v1, none}), fine, "cgroup v1 (cpu, memory)")
	v1.Reason = "without pids"
	check(t, examineLimits([]enforce.Offer{no, v1, none}), notice, "cgroup v1 (cpu, memory)")
	check(t, examineLimits([]enforce.Offer{no, none}), notice, "none; cgroup v2: it is not mounted")
}

func TestGPUsAreToldWithWhatIsWrongWithThem(t *testing.T) {
	t.Parallel()
	gpu := func(index int, free quantity.Bytes) device.State {
		return device.State{
			Device: device.Device{Index: index, Instance: -1, Class: "h100", Memory: 80 * quantity.GiB}, Free: free,
		}
	}
	busy, lost, worn := gpu(1, 10*quantity.GiB), gpu(2, 0), gpu(3, 80*quantity.GiB)
	busy.Processes = []device.Process{{PID: 4242, Memory: 70 * quantity.GiB}}
	lost.Wrong, worn.Uncorrected = "has fallen off the bus", 2
	all := device.Reading{
		Driver: "550.54.15", CUDA: "12.4", Devices: []device.State{gpu(0, 80*quantity.GiB), busy},
	}
	check(t, examineGPU("/", all, nil), fine, "NVIDIA driver 550.54.15 for CUDA 12.4: GPU 0 h100, 80 GiB of 80 GiB free; "+
		"GPU 1 h100, 10 GiB of 80 GiB free (1 program on it)")
	all.Devices = []device.State{lost, worn}
	got := examineGPU("/", all, nil)
	check(t, got, notice, "GPU 3 h100")
	if got.Do != "GPU 2 has fallen off the bus; GPU 3 has had 2 memory errors that could not be corrected: see "+
		"nvidia-smi -q" {
		t.Error(got.Do)
	}
	root := transfertest.DirectoryOf(t, map[string]string{"dev/nvidia1": "", "dev/nvidia7": ""})
	if err := os.Chmod(filepath.Join(root, "dev/nvidia7"), 0o666); err != nil {
		t.Fatal(err)
	}
	private, open := gpu(0, 80*quantity.GiB), gpu(1, 80*quantity.GiB)
	private.Minor, open.Minor = 1, 7
	all.Devices = []device.State{private, open}
	if got := examineGPU(root, all, nil); got.Severity != notice || !strings.HasPrefix(got.Do,
		"GPU 0 (/dev/nvidia1) may be opened by its owner and group only") || strings.Contains(got.Do, "nvidia7") {
		t.Errorf("%+v", got)
	}
	check(t, examineGPU("/", device.Reading{Driver: "550.54.15"}, nil), notice, "without a GPU")
	check(t, examineGPU("/", device.Reading{}, errors.New("the driver has not answered")), problem, "not answered")
}

func TestWhyNoGPUIsSeenIsTold(t *testing.T) {
	t.Parallel()
	none := func(files map[string]string) finding {
		return examineGPU(transfertest.DirectoryOf(t, files), device.Reading{}, device.ErrNone)
	}
	check(t, none(nil), fine, "no NVIDIA driver")
	check(t, none(map[string]string{"proc/driver/nvidia/gpus/0000:01/information": ""}), notice, "GPUs: 1, but none can")
	check(t, none(map[string]string{"usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1": ""}), notice, "library without a GPU")
}

func TestMemoryIsReadFromMeminfo(t *testing.T) {
	t.Parallel()
	root := transfertest.DirectoryOf(t, map[string]string{
		"good": "MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\n",
		"low":  "MemTotal: 8388608 kB\nMemAvailable: 1024 kB\n", "bad": "x",
	})
	check(t, examineMemory(filepath.Join(root, "good")), fine, "8 GiB, 4 GiB available")
	check(t, examineMemory(filepath.Join(root, "low")), notice, "1 MiB available")
	check(t, examineMemory(filepath.Join(root, "bad")), problem, "MemTotal")
	check(t, examineMemory(filepath.Join(root, "none")), problem, "no such file")
}

func TestATakenPortIsANotice(t *testing.T) {
	t.Parallel()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	number := listener.Addr().(*net.TCPAddr).Port
	check(t, examinePort(t.Context(), "NATS", number), notice, "taken")
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	check(t, examinePort(t.Context(), "NATS", number), fine, "free")
}

func TestTheBuildOfTheBinaryIsToldWithItsMend(t *testing.T) {
	t.Parallel()
	check(t, examineOwnBuild("fieldtrack,simd"), fine, "with GOEXPERIMENT=simd")
	without := examineOwnBuild("nosimd")
	check(t, without, notice, "without GOEXPERIMENT=simd")
	if !strings.Contains(without.Do, "GOEXPERIMENT=simd go install") {
		t.Errorf("got %q, want the command", without.Do)
	}
}

func TestItIsToldForHowLongCostsAreKnownByTheHour(t *testing.T) {
	t.Parallel()
	dir := transfertest.DirectoryOf(t, map[string]string{"ledger.db": "12345"})
	check(t, examineCosts(dir, 0), fine, "5 B; known by the hour for 90 days (--keep-hours), by run for 365 days")
	check(t, examineCosts(dir, 30*24*time.Hour), fine, "known by the hour for 30 days")
}

func TestAStateDirectoryThatCannotBeIsAProblem(t *testing.T) {
	t.Parallel()
	root := transfertest.DirectoryOf(t, map[string]string{"file": ""})
	check(t, examineState(filepath.Join(root, "new", "deep")), fine, "writable")
	check(t, examineState(filepath.Join(root, "file", "state")), problem, "cannot be written")
	if entries, err := os.ReadDir(root); err != nil || len(entries) != 1 {
		t.Errorf("something was left: %v, %v", entries, err)
	}
}

func TestABuildThatSeesNoGPUSaysSo(t *testing.T) {
	t.Parallel()
	const blind = "this binary was built without cgo and sees no GPU"
	if found := examineBlind("linux", "amd64"); !strings.Contains(found.Found, blind) || found.Severity != fine ||
		!strings.Contains(found.Do, "SPILLWAY_VARIANT=gpu") {
		t.Errorf("got %+v", found)
	}
	if found := examineBlind("darwin", "arm64"); !strings.Contains(found.Found, blind) || found.Do != "" {
		t.Errorf("there is no other build: got %+v", found)
	}
}
