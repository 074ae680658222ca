package device

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

func names(devices []State) string {
	var list []string
	for _, d := range devices {
		list = append(list, d.UUID)
	}
	return strings.Join(list, " ")
}

func TestWhatCUDAWouldSeeIsOffered(t *testing.T) {
	t.Parallel()
	all := []State{gpu(0, "a100", quantity.GiB), gpu(1, "a100", quantity.GiB), gpu(2, "t4", quantity.GiB)}
	for value, want := range map[string]string{
		"": "", "1": "GPU-1", "2, 0": "GPU-2 GPU-0", "GPU-2": "GPU-2", "0,9,1": "GPU-0", "-1": "", "0,0": "GPU-0", "x": "",
		"1,,2": "GPU-1",
	} {
		if got := names(Visible(all, value)); got != want {
			t.Errorf("%q leaves %q, want %q", value, got, want)
		}
	}
}

func TestANumberOfACutGPUIsItsFirstInstance(t *testing.T) {
	t.Parallel()
	first, second := gpu(0, "a100-1g.5gb", quantity.GiB), gpu(0, "a100-1g.5gb", quantity.GiB)
	first.UUID, first.Instance, second.UUID, second.Instance = "MIG-a", 0, "MIG-b", 1
	all := []State{first, second, gpu(1, "a100", quantity.GiB)}
	for value, want := range map[string]string{"0": "MIG-a", "0,1": "MIG-a GPU-1", "MIG-b": "MIG-b"} {
		if got := names(Visible(all, value)); got != want {
			t.Errorf("%q leaves %q, want %q", value, got, want)
		}
	}
}

func TestANumberMayMeanAnotherDeviceWhereModelsAreMixed(t *testing.T) {
	t.Parallel()
	named := func(index int, name string) State {
		d := gpu(index, Class(name), quantity.GiB)
		d.Name = name
		return d
	}
	same := []State{named(0, "Tesla T4"), named(1, "Tesla T4")}
	mixed := []State{named(0, "Tesla T4"), named(1, "NVIDIA H100 PCIe")}
	cut := []State{named(0, "NVIDIA H100 PCIe MIG 1g.10gb"), named(0, "NVIDIA H100 PCIe MIG 2g.20gb")}
	for _, test := range []struct {
		devices            []State
		value, order, want string
	}{
		{same, "1", "", ""},
		{cut, "0", "", ""},
		{mixed, "1", "", "1"},
		{mixed, "GPU-1, 0", "FASTEST_FIRST", "0"},
		{mixed, "1", "PCI_BUS_ID", ""},
		{mixed, "GPU-1", "", ""},
		{mixed, "-1", "", ""},
		{mixed, "", "", ""},
	} {
		if got := Ambiguous(test.devices, test.value, test.order); got != test.want {
			t.Errorf("%q, order %q: %q, want %q", test.value, test.order, got, test.want)
		}
	}
}

func TestADeviceThatIsNotThereIsNamed(t *testing.T) {
	t.Parallel()
	all := []State{gpu(0, "a100", quantity.GiB), gpu(1, "a100", quantity.GiB)}
	for value, want := range map[string]string{
		"": "", "-1": "", "0,1": "", "0,7": "7", "GPU-1": "", "GPU-9,0": "GPU-9", "1,-1,9": "", "none": "",
	} {
		if got := Missing(all, value); got != want {
			t.Errorf("%q: %q, want %q", value, got, want)
		}
	}
}

func TestAHostOffersTheModelThatItHasMostOf(t *testing.T) {
	t.Parallel()
	lost := gpu(4, "h100", 80*quantity.GiB)
	lost.Wrong = "has fallen off the bus"
	all := []State{
		gpu(0, "t4", 16*quantity.GiB), gpu(1, "a100", 40*quantity.GiB), gpu(2, "a100", 80*quantity.GiB), lost,
		gpu(3, "t4", 16*quantity.GiB),
	}
	offered := Offer(all)
	if got := names(offered); got != "GPU-1 GPU-2" {
		t.Errorf("offers %s", got)
	}
	want := quantity.Size{GPU: 2 * quantity.Core, GPUMemory: 120 * quantity.GiB, DeviceClass: "a100"}
	if diff := cmp.Diff(want, Capacity(offered)); diff != "" {
		t.Error(diff)
	}
	if got := Capacity(Offer([]State{lost})); !got.IsZero() {
		t.Errorf("a lost device is offered: %s", got)
	}
}

func TestWhatIsTakenIsThatOfItsOwnProcesses(t *testing.T) {
	t.Parallel()
	const old, mine, stranger = 7, 100, 200
	now := func(used quantity.Bytes, processes ...Process) State { return State{Used: used, Processes: processes} }
	inside := func(s State) State {
		s.PIDsUnknown = true
		return s
	}
	before := now(2*quantity.GiB, Process{PID: old, Memory: quantity.GiB})
	of := func(pid int, gib quantity.Bytes) Process { return Process{PID: pid, Memory: gib * quantity.GiB} }
	untold := Process{PID: mine, Memory: -1}
	for name, test := range map[string]struct {
		now  State
		want quantity.Bytes
	}{
		"nobody computes":                        {now(2 * quantity.GiB), 0},
		"its own":                                {now(8*quantity.GiB, of(old, 1), of(mine, 5)), 5},
		"its own beside a later stranger":        {now(30*quantity.GiB, of(old, 1), of(mine, 5), of(stranger, 20)), 5},
		"a stranger alone":                       {now(30*quantity.GiB, of(old, 1), of(stranger, 20)), 0},
		"how much it holds is not told":          {now(9*quantity.GiB, of(old, 1), untold), 7},
		"inside a container that knows its PIDs": {inside(now(9*quantity.GiB, of(mine, 5), of(stranger, 2))), 5},
		"PIDs of another namespace":              {inside(now(9*quantity.GiB, of(old, 1), of(4321, 6))), 6},
		"no PID is told":                         {inside(now(9 * quantity.GiB)), 7},
		"less than before":                       {inside(now(quantity.GiB)), 0},
	} {
		if got := Taken(before, test.now, func(pid int) bool { return pid == mine }); got != test.want*quantity.GiB {
			t.Errorf("%s: %s, want %d GiB", name, got, test.want)
		}
	}
}
