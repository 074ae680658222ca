package predictor_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// tookOfAGPU folds attempts of a stage that had a GPU and took so much of its memory.
func tookOfAGPU(state predictor.State, n int, peak quantity.Bytes) predictor.State {
	for i := range n {
		r := record("earlier", "train", i, -100+float64(i), 20)
		r.Usage.GPUPeakMemory = peak
		r.Grant = quantity.Size{CPU: quantity.Core, Memory: quantity.GiB, GPU: quantity.Core, GPUMemory: 80 * quantity.GiB}
		state = predictor.Fold(state, r)
	}
	return state
}

// A host without GPUs may be far larger than the one that has them, or the only one for a while.
func TestAStageThatAsksForAGPUIsPlacedWhereOneIs(t *testing.T) {
	t.Parallel()
	host := func(id string, cores int, memory quantity.Bytes) predictor.Host {
		room := quantity.Size{CPU: quantity.Milli(cores) * quantity.Core, Memory: memory}
		return predictor.Host{ID: id, Capacity: room, Free: room}
	}
	cpu, gpu := host("cpu", 64, quantity.TiB), host("gpu", 16, 256*quantity.GiB)
	gpu.Capacity.GPU, gpu.Capacity.GPUMemory, gpu.Capacity.DeviceClass = quantity.Core, 80*quantity.GiB, "h100"
	gpu.Free = gpu.Capacity
	state := tookOfAGPU(predictor.State{}, 8, 76*quantity.GiB)
	scheduled := hint("r", "train", 3, 0)
	scheduled.Declared = quantity.Size{GPU: quantity.Core}
	state = fold(state, started("r", 0, predictor.Goal{}), scheduled)
	for tick, hosts := range [][]predictor.Host{{cpu, gpu}, {cpu}, {cpu, gpu}} {
		snap := laptop(1+float64(tick), 1)
		snap.Hosts = hosts
		var plan predictor.Plan
		plan, state = predictor.Decide(state, snap)
		var placed []string
		for _, p := range plan.Placements {
			if p.Slots > 0 {
				placed = append(placed, fmt.Sprintf("%s@%s:%d", p.Stage.Name, p.Host, p.Slots))
			}
		}
		want := "train@gpu:1"
		if len(hosts) == 1 {
			want = ""
			if told := strings.Join(reasons(plan), "\n"); !strings.Contains(told, "no host with a valid lease has what it "+
				"asks for: 1 GPU") {
				t.Errorf("tick %d: nobody is told what is waited for: %s", tick, told)
			}
		}
		if got := strings.Join(placed, " "); got != want {
			t.Errorf("tick %d: got %q, want %q: %s", tick, got, want, strings.Join(reasons(plan), "\n"))
		}
	}
}

// Who holds a GPU pays for its part of the host, so that part of the cores costs nothing more, however dear it is.
func TestTheCoresThatComeWithAGPUAreUsed(t *testing.T) {
	t.Parallel()
	given := func(price quantity.Money) (quantity.Size, int) {
		state := predictor.State{}
		for i := range 24 { // Amdahl: 0.3 of it is serial
			cores := []float64{1, 2, 4, 8, 16, 24}[i%6]
			wall := 20 * (0.3 + 0.7/cores)
			r := record("earlier", "train", i, -100+float64(i), wall)
			r.Usage.CPU = 20 * time.Second
			r.Usage.GPUPeakMemory = 30 * quantity.GiB
			r.Grant = quantity.Size{CPU: quantity.Milli(cores) * quantity.Core, Memory: quantity.GiB, GPU: quantity.Core}
			state = predictor.Fold(state, r)
		}
		room := quantity.Size{
			CPU: 192 * quantity.Core, Memory: 2 * quantity.TiB, GPU: 8 * quantity.Core, GPUMemory: 640 * quantity.GiB,
			DeviceClass: "h100",
		}
		scheduled := hint("r", "train", 40, 0)
		scheduled.Declared = quantity.Size{GPU: quantity.Core}
		state = fold(state, started("r", 0, predictor.Goal{}), scheduled)
		var plan predictor.Plan
		for tick := range 3 {
			snap := laptop(1+float64(70*tick), 1)
			snap.Hosts = []predictor.Host{{ID: "gpu", Capacity: room, Free: room, PricePerHour: price}}
			plan, state = predictor.Decide(state, snap)
		}
		return plan.Sizings[0].Base, slots(plan, "train", predictor.Pool)
	}
	for _, price := range []quantity.Money{8 * quantity.USD / 10, 98 * quantity.USD} {
		size, slots := given(price)
		if size.CPU < 16*quantity.Core || size.CPU > 24*quantity.Core || slots != 8 {
			t.Errorf("at %s an hour: %d slots of %s cores, want 8 of about 24", price, slots, size.CPU)
		}
	}
}

// Which GPU a running attempt has its host tells: one of 40 GiB is free beside it, and none of 80.
func TestWhatRunsOnALargeGPUKeepsThatAndNoOther(t *testing.T) {
	t.Parallel()
	const gib = quantity.GiB
	for name, test := range map[string]struct {
		held    int // the number of the GPU that is held
		limited string
	}{
		"the small one is held": {held: 1},
		"the large one is held": {held: 0, limited: "the hosts have no room"},
	} {
		host := predictor.Host{ID: "local", Capacity: quantity.Size{
			CPU: 64 * quantity.Core, Memory: quantity.TiB, GPU: 3 * quantity.Core, GPUMemory: 200 * gib, DeviceClass: "h100",
		}}
		for i, memory := range []quantity.Bytes{80 * gib, 40 * gib, 80 * gib} {
			host.GPUs = append(host.GPUs, predictor.GPU{
				UUID: fmt.Sprintf("GPU-%d", i), Index: i, Instance: -1, Class: "h100", Memory: memory,
			})
		}
		host.GPUs[test.held].Holder = &predictor.GPUHolder{Run: "r", Stage: "small", Task: "small-0", Attempt: 1}
		host.Free = host.Capacity
		small, large := hint("r", "small", 1, 0), hint("r", "large", 9, 0)
		small.Declared = quantity.Size{CPU: quantity.Core, Memory: gib}.WithGPUs(quantity.GPUs{Count: 1, Memory: 30 * gib})
		large.Declared = quantity.Size{CPU: quantity.Core, Memory: gib}.WithGPUs(quantity.GPUs{Count: 1, Memory: 80 * gib})
		begun := predictor.AttemptStarted{
			Run: "r", Stage: small.Stage, Task: "small-0", Attempt: 1, Venue: predictor.Pool, Host: "local",
			Grant: small.Declared, At: small.At.Add(time.Second / 2),
		}
		state := fold(predictor.State{}, started("r", 0, predictor.Goal{}), small, large, begun)
		snap := laptop(1, 1)
		snap.Hosts = []predictor.Host{host}
		plan, _ := predictor.Decide(state, snap)
		slots := 0
		for _, p := range plan.Placements {
			if p.Stage.Name == "large" {
				slots += p.Slots
			}
		}
		want := 2
		if test.limited != "" {
			want = 1
		}
		if told := strings.Join(reasons(plan), "\n"); slots != want || !strings.Contains(told, test.limited) {
			t.Errorf("%s: %d slots for large ones, want %d: %s", name, slots, want, told)
		}
		if plan.Kinds != nil {
			t.Errorf("%s: kinds %v, want none of a host alone", name, plan.Kinds)
		}
		other := laptop(1, 1).Hosts[0]
		other.ID = "other"
		snap.Hosts = append(snap.Hosts, other)
		plan, _ = predictor.Decide(state, snap)
		if got := plan.Kinds; len(got) != 2 || got[1].GPUs.String() != "3 h100 with 80 GiB and 40 GiB" {
			t.Errorf("%s: kinds %v", name, got)
		}
	}
}

// A driver that sets its GPUs up is no host without any.
func TestADriverThatHasNotAnsweredIsToldOf(t *testing.T) {
	t.Parallel()
	train := hint("r", "train", 1, 0)
	train.Declared = quantity.Size{GPU: quantity.Core}
	snap := laptop(1, 1)
	snap.Hosts[0].GPUsUnknown = true
	plan, _ := predictor.Decide(fold(predictor.State{}, started("r", 0, predictor.Goal{}), train), snap)
	if told := strings.Join(reasons(plan), "\n"); !strings.Contains(told, "1 GPU; the driver of the GPUs of "+
		snap.Hosts[0].ID+" has not answered yet") {
		t.Error(told)
	}
}
