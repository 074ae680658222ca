package device

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

func gpu(index int, class string, memory quantity.Bytes) State {
	return State{
		Device: Device{UUID: fmt.Sprintf("GPU-%d", index), Index: index, Instance: -1, Class: class, Memory: memory},
		Free:   memory,
	}
}

func TestWholeDevicesAreChosenByClassMemoryAndNumber(t *testing.T) {
	t.Parallel()
	filled := gpu(0, "a100", 40*quantity.GiB)
	filled.Free, filled.Used = 10*quantity.GiB, 30*quantity.GiB
	filled.Processes = []Process{{PID: 4242, Memory: 30 * quantity.GiB}}
	lost := gpu(5, "a100", 40*quantity.GiB)
	lost.Wrong = "has fallen off the bus"
	devices := []State{
		filled, gpu(1, "a100", 80*quantity.GiB), gpu(2, "a100", 40*quantity.GiB), gpu(3, "t4", 16*quantity.GiB),
		gpu(4, "a100", 40*quantity.GiB), lost,
	}
	for name, test := range map[string]struct {
		held map[string]bool
		need Need
		want string
		why  string
	}{
		"none":                    {need: Need{}},
		"the smallest that holds": {need: Need{Count: 1, Memory: 8 * quantity.GiB}, want: "GPU-3"},
		"as much as it needs":     {need: Need{Count: 1, Memory: 20 * quantity.GiB}, want: "GPU-2"},
		"of the class":            {need: Need{Count: 1, Class: "a100", Memory: 8 * quantity.GiB}, want: "GPU-2"},
		"beside a stranger, where there is room": {
			held: map[string]bool{"GPU-1": true, "GPU-2": true, "GPU-4": true},
			need: Need{Count: 1, Class: "a100", Memory: 8 * quantity.GiB}, want: "GPU-0",
		},
		"not beside a stranger":    {need: Need{Count: 1, Class: "a100"}, want: "GPU-2"},
		"several are of one class": {need: Need{Count: 3}, want: "GPU-1 GPU-2 GPU-4"},
		"what is held stays": {
			held: map[string]bool{"GPU-2": true}, need: Need{Count: 2, Class: "a100"}, want: "GPU-1 GPU-4",
		},
		"one that is filled": {
			held: map[string]bool{"GPU-1": true, "GPU-2": true, "GPU-4": true},
			need: Need{Count: 1, Class: "a100", Memory: 20 * quantity.GiB},
			why: "1 a100 with 20 GiB each asked for, 6 on this host: GPU 0 has 10 GiB free of 40 GiB: used by process 4242 " +
				"with 30 GiB; GPU 1 is held by another attempt; GPU 2 is held by another attempt; GPU 3 is t4; GPU 4 is held " +
				"by another attempt; GPU 5 has fallen off the bus",
		},
		"more than there are": {need: Need{Count: 9}, why: "9 GPUs asked for, 6 on this host"},
		"no such class":       {need: Need{Count: 1, Class: "h100"}, why: "GPU 3 is t4"},
		"too much memory":     {need: Need{Count: 1, Memory: 100 * quantity.GiB}, why: "GPU 1 has 80 GiB"},
	} {
		got, why := Choose(devices, test.held, test.need)
		if diff := cmp.Diff(test.want, strings.Join(got, " ")); diff != "" {
			t.Errorf("%s: %s (%s)", name, diff, why)
		}
		if (why == "") != (test.why == "") || !strings.Contains(why, test.why) {
			t.Errorf("%s: %q, want %q", name, why, test.why)
		}
	}
}

// To need a whole device is no reason to wait for more of it than there is: the driver keeps some of it, and a display
// or a monitor some hundred MiB.
func TestANeedIsNoMoreThanIsReallyFree(t *testing.T) {
	t.Parallel()
	kept := gpu(0, "h100", 80*quantity.GiB)
	kept.Used, kept.Free = 500*quantity.MiB, 80*quantity.GiB-500*quantity.MiB
	monitored, filled := kept, kept
	monitored.Processes = []Process{{PID: 990, Memory: 500 * quantity.MiB}}
	filled.Used, filled.Free = 20*quantity.GiB, 60*quantity.GiB
	filled.Processes = []Process{{PID: 990, Memory: 20 * quantity.GiB}}
	inside := kept
	inside.PIDsUnknown = true
	untold, shared := monitored, inside
	untold.Processes = []Process{{PID: 990, Memory: -1}}
	shared.Used, shared.Free = filled.Used, filled.Free
	nobodyKnows := Need{Count: 1}
	learned := Need{Count: 1, Memory: 80*quantity.GiB - quantity.MiB, Learned: true}
	asked := learned
	asked.Learned = false
	for name, test := range map[string]struct {
		device State
		need   Need
		given  bool
	}{
		"what the driver keeps":                  {kept, learned, true},
		"what the driver keeps of what is asked": {kept, asked, true},
		"beside a monitor":                       {monitored, learned, true},
		"as much was asked for beside a monitor": {monitored, asked, true},
		"as much was asked for, and is not free": {filled, asked, false},
		"after it ran out of memory, inside":     {inside, asked, true},
		"a monitor that does not tell":           {untold, asked, true},
		"another container fills it":             {shared, asked, false},
		"nobody knows, beside a monitor":         {monitored, nobodyKnows, true},
		"nobody knows, inside":                   {inside, nobodyKnows, true},
		"nobody knows, and it is filled":         {filled, nobodyKnows, false},
		"nobody knows, and others fill it":       {shared, nobodyKnows, false},
		"another program fills it":               {filled, learned, false},
		"inside a container":                     {inside, learned, true},
	} {
		if got, why := Choose([]State{test.device}, nil, test.need); (len(got) == 1) != test.given {
			t.Errorf("%s: %v, %s", name, got, why)
		}
	}
}

// Whatever comes and goes, no device is given twice, all of an attempt's are of one class and hold what it needs, and
// who is refused could not have been served.
func TestNoDeviceIsGivenTwice(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(7, 11))
	classes := []string{"a100", "t4", "h100"}
	for range 2000 {
		var devices []State
		for i := range 1 + random.IntN(8) {
			devices = append(devices, gpu(i, classes[random.IntN(3)], quantity.Bytes(1+random.IntN(4))*20*quantity.GiB))
		}
		held := map[string]bool{}
		for range 6 {
			need := Need{Count: 1 + random.IntN(4), Memory: quantity.Bytes(random.IntN(90)) * quantity.GiB}
			if random.IntN(2) == 0 {
				need.Class = classes[random.IntN(3)]
			}
			shuffled := slices.Clone(devices)
			random.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
			got, why := Choose(devices, held, need)
			again, _ := Choose(shuffled, held, need)
			if diff := cmp.Diff(got, again); diff != "" {
				t.Fatalf("the order of the list matters: %s", diff)
			}
			if why != "" && servable(devices, held, need) {
				t.Fatalf("%v of %v refused: %s", need, devices, why)
			}
			for _, uuid := range got {
				d := devices[slices.IndexFunc(devices, func(d State) bool { return d.UUID == uuid })]
				if held[uuid] || d.Memory < need.Memory || need.Class != "" && d.Class != need.Class {
					t.Fatalf("%v got %+v", need, d)
				}
				held[uuid] = true
			}
		}
	}
}

func servable(devices []State, held map[string]bool, need Need) bool {
	count := map[string]int{}
	for _, d := range devices {
		if !held[d.UUID] && d.Memory >= need.Memory && (need.Class == "" || need.Class == d.Class) {
			count[d.Class]++
		}
	}
	for _, n := range count {
		if n >= need.Count {
			return true
		}
	}
	return false
}

func TestProductsHaveShortNames(t *testing.T) {
	t.Parallel()
	for product, want := range map[string]string{
		"NVIDIA H100 80GB HBM3": "h100", "NVIDIA A100-SXM4-40GB": "a100", "Mock NVIDIA A100-SXM4-40GB": "a100",
		"Tesla T4": "t4", "NVIDIA A10G": "a10g", "NVIDIA L40S": "l40s", "NVIDIA H200": "h200", "Tesla V100-SXM2-16GB": "v100",
		"NVIDIA GeForce RTX 4090": "rtx-4090", "NVIDIA RTX A6000": "rtx-a6000", "NVIDIA B200": "b200",
		"NVIDIA A100-SXM4-40GB MIG 3g.20gb": "a100-3g.20gb", "": "", "NVIDIA": "nvidia", "Quadro RTX 6000": "rtx-6000",
		"NVIDIA GH200 480GB": "gh200", "NVIDIA RTX 6000 Ada Generation": "rtx-6000-ada",
		"NVIDIA RTX PRO 6000 Blackwell Server Edition": "rtx-pro-6000", "NVIDIA RTX PRO 4000 Blackwell": "rtx-pro-4000",
		"GRID A100D-7-80C": "a100d-7-80c", "NVIDIA A40-48Q": "a40-48q", "GRID T4-2B4": "t4-2b4",
	} {
		if got := Class(product); got != want {
			t.Errorf("%q is %q, want %q", product, got, want)
		}
	}
}
