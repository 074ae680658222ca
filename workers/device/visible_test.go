package device

import (
	"strings"
	"testing"
	"time"

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

func reasons(kept []Kept) string {
	var list []string
	for _, k := range kept {
		list = append(list, k.Reason)
	}
	return strings.Join(list, "\n")
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
	offered, kept := Filter{}.Offer(all, "")
	if len(kept) != 3 || !strings.Contains(reasons(kept), "GPU 4 is not offered: has fallen off the bus") {
		t.Errorf("kept: %q", reasons(kept))
	}
	if got := names(offered); got != "GPU-1 GPU-2" {
		t.Errorf("offers %s", got)
	}
	want := quantity.Size{GPU: 2 * quantity.Core, GPUMemory: 120 * quantity.GiB, DeviceClass: "a100"}
	if diff := cmp.Diff(want, Capacity(offered)); diff != "" {
		t.Error(diff)
	}
	if none, _ := (Filter{}).Offer([]State{lost}, ""); len(none) > 0 {
		t.Errorf("a lost device is offered: %+v", none)
	}
}

// What appears while a host offers some model is of no other one for attempts, however many there are.
func TestAHostGoesOnOfferingTheModelThatItHas(t *testing.T) {
	t.Parallel()
	all := []State{gpu(0, "a100", 40*quantity.GiB), gpu(1, "t4", 16*quantity.GiB), gpu(2, "t4", 16*quantity.GiB)}
	for class, want := range map[string]string{"": "GPU-1 GPU-2", "a100": "GPU-0", "h100": ""} {
		if offered, _ := (Filter{}).Offer(all, class); names(offered) != want {
			t.Errorf("%q: offers %s, want %s", class, names(offered), want)
		}
	}
}

func TestWhatTheOperatorHidesIsNotOffered(t *testing.T) {
	t.Parallel()
	t4, h100 := gpu(0, "t4", quantity.GiB), gpu(1, "h100", quantity.GiB)
	t4.Name, h100.Name = "Tesla T4", "NVIDIA H100 PCIe"
	mixed := []State{t4, h100}
	for name, test := range map[string]struct {
		filter Filter
		want   string
		kept   string
	}{
		"all are hidden":         {Filter{Set: true}, "", ""},
		"one is left":            {Filter{Set: true, Visible: "GPU-1"}, "GPU-1", ""},
		"a number among several": {Filter{Set: true, Visible: "1"}, "", "by the number 1"},
		"in the order of the bus": {
			Filter{Set: true, Visible: "1", Order: "PCI_BUS_ID"}, "GPU-1", "",
		},
		"an index that is not there": {
			Filter{Set: true, Visible: "1,7", Order: "PCI_BUS_ID"}, "GPU-1", `names the GPU "7", which is not among the 2`,
		},
	} {
		offered, kept := test.filter.Offer(mixed, "")
		if text := reasons(kept); names(offered) != test.want || (text == "") != (test.kept == "") ||
			!strings.Contains(text, test.kept) {
			t.Errorf("%s: offers %q, keeps %q", name, names(offered), text)
		}
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

func TestAPeakOfProcessesIsThatOfThoseThatWereThereAtOnce(t *testing.T) {
	t.Parallel()
	const gib = quantity.GiB
	of := func(peak quantity.Bytes, from, lasted time.Duration) Account {
		return Account{Peak: peak * gib, From: from, Lasted: lasted}
	}
	for name, test := range map[string]struct {
		accounts []Account
		want     quantity.Bytes
	}{
		"none":                        {nil, 0},
		"one":                         {[]Account{of(5, 1, 9)}, 5},
		"after each other":            {[]Account{of(5, 1, 9), of(7, 10, 2), of(6, 12, 1)}, 7},
		"at once":                     {[]Account{of(5, 1, 9), of(7, 2, 2)}, 12},
		"one goes on":                 {[]Account{of(5, 1, 0), of(7, 100, 2), of(1, 103, 0)}, 12},
		"the two largest never meet":  {[]Account{of(5, 1, 9), of(2, 5, 20), of(6, 12, 2)}, 8},
		"began at the same moment":    {[]Account{of(5, 1, 9), of(2, 1, 1)}, 7},
		"one ends as the next begins": {[]Account{of(5, 1, 2), of(4, 3, 1)}, 5},
	} {
		if got, known := Peak(test.accounts); got != test.want*gib || !known {
			t.Errorf("%s: %s, %t, want %d GiB", name, got, known, test.want)
		}
	}
	if _, known := Peak([]Account{of(5, 1, 9), {Peak: -1}}); known {
		t.Error("what is not told is known")
	}
}
