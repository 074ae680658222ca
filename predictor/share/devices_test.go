package share

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor/plan"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// A host without such GPUs cannot run what asks for them, however much else it has.
func TestAStageThatAsksForGPUsHasSlotsWhereTheyAreAndNowhereElse(t *testing.T) {
	t.Parallel()
	cpu := plan.Host{ID: "cpu", Capacity: quantity.Size{CPU: 64 * quantity.Core, Memory: quantity.TiB}}
	gpu := plan.Host{ID: "gpu", Capacity: quantity.Size{
		CPU: 16 * quantity.Core, Memory: 256 * quantity.GiB, GPU: quantity.Core, GPUMemory: 80 * quantity.GiB,
		DeviceClass: "h100",
	}}
	two := gpu
	two.Capacity.GPU, two.Capacity.GPUMemory = 2*quantity.Core, 120*quantity.GiB
	two.GPUs = []plan.GPU{{Class: "h100", Memory: 40 * quantity.GiB}, {Class: "h100", Memory: 80 * quantity.GiB}}
	lost := two
	lost.GPUs = []plan.GPU{{Class: "h100", Memory: 40 * quantity.GiB}, {Class: "h100", Wrong: "is lost"}}
	asks := func(cores quantity.Milli, memory quantity.Bytes, class string) quantity.Size {
		return quantity.Size{
			CPU: cores * quantity.Core, Memory: quantity.GiB, GPU: quantity.Core, GPUMemory: memory, DeviceClass: class,
		}
	}
	for name, test := range map[string]struct {
		hosts []plan.Host
		size  quantity.Size
		want  []int
	}{
		"with room":             {[]plan.Host{cpu, gpu}, asks(1, 60*quantity.GiB, ""), []int{0, 1}},
		"too many cores":        {[]plan.Host{cpu, gpu}, asks(32, 60*quantity.GiB, ""), []int{0, 1}},
		"without its host":      {[]plan.Host{cpu}, asks(1, 60*quantity.GiB, ""), []int{0}},
		"of another class":      {[]plan.Host{cpu, gpu}, asks(1, 0, "t4"), []int{0, 0}},
		"more than a GPU has":   {[]plan.Host{cpu, gpu}, asks(1, 81*quantity.GiB, ""), []int{0, 0}},
		"one of two has enough": {[]plan.Host{two}, asks(1, 50*quantity.GiB, "h100"), []int{1}},
		"both have enough":      {[]plan.Host{two}, asks(1, 40*quantity.GiB, "h100"), []int{2}},
		"the larger is lost":    {[]plan.Host{lost}, asks(1, 50*quantity.GiB, "h100"), []int{0}},
	} {
		got := Hosts(test.hosts, []Claim{{Size: test.size, Tasks: 2, Wall: 1, Slack: math.Inf(1)}})
		if diff := cmp.Diff(test.want, got[0].On); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// gpuHost is a host with ample cores whose GPUs have so much memory each.
func gpuHost(memory ...quantity.Bytes) plan.Host {
	host := plan.Host{ID: "a", Capacity: quantity.Size{CPU: 1000 * quantity.Core, Memory: quantity.TiB}}
	for i, each := range memory {
		host.GPUs = append(host.GPUs, plan.GPU{
			UUID: fmt.Sprintf("GPU-%d", i), Index: i, Instance: -1, Class: "h100", Memory: each * quantity.GiB,
		})
		host.Capacity = host.Capacity.Plus(quantity.Size{GPU: quantity.Core, GPUMemory: each * quantity.GiB})
	}
	host.Capacity.DeviceClass = "h100"
	return host
}

func asking(count int, each quantity.Bytes) quantity.Size {
	return quantity.Size{CPU: quantity.Core, Memory: quantity.GiB}.
		WithGPUs(quantity.GPUs{Count: count, Memory: each * quantity.GiB})
}

// One of 80 GiB and one of 40 are not two of 60.
func TestTheMemoryOfGPUsIsNotAddedUp(t *testing.T) {
	t.Parallel()
	mixed := gpuHost(80, 40)
	large, both, small := asking(1, 80), asking(2, 60), asking(1, 30)
	claim := func(size quantity.Size, tasks int) Claim {
		return Claim{Size: size, Tasks: tasks, Wall: 1, Slack: math.Inf(1)}
	}
	for name, test := range map[string]struct {
		claims []Claim
		want   []int
	}{
		"two of 60":                   {[]Claim{claim(both, 1)}, []int{0}},
		"two of 40":                   {[]Claim{claim(asking(2, 40), 1)}, []int{1}},
		"the small one stays":         {[]Claim{claim(small, 1), claim(large, 1)}, []int{1, 1}},
		"one large, and no other":     {[]Claim{claim(large, 9)}, []int{1}},
		"small ones take both":        {[]Claim{claim(small, 9)}, []int{2}},
		"what runs on the large one":  {[]Claim{runsOn(small, "GPU-0", 2)}, []int{2}},
		"the large one is held":       {[]Claim{runsOn(small, "GPU-0", 1), claim(large, 9)}, []int{1, 1}},
		"a first slot that waits":     {[]Claim{claim(large, 1), claim(large, 1), claim(large, 1)}, []int{1, 1, 1}},
		"what runs, nobody knows how": {[]Claim{runsOn(small, "", 1), claim(large, 9)}, []int{1, 1}},
	} {
		var got []int
		for _, slots := range Hosts([]plan.Host{mixed}, test.claims) {
			got = append(got, slots.Total)
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	// The sum of what is asked for is more than there is, and a small one is free all the same.
	got := Hosts([]plan.Host{gpuHost(1, 1, 1, 3)}, []Claim{
		claim(asking(1, 1), 2), claim(asking(1, 3), 1), claim(asking(1, 3), 1),
	})
	if got[0].Total != 2 {
		t.Errorf("beside a slot that waits: %+v, want two", got[0])
	}
	// A stage with work has a slot in any case, so the second of large ones waits on the host: no further one does.
	held := runsOn(small, "GPU-0", 1)
	if got := Hosts([]plan.Host{mixed}, []Claim{held, claim(large, 9)})[1]; got.Total != 1 || !got.Limited {
		t.Errorf("%+v", got)
	}
	rooms := NewRooms([]plan.Host{mixed}, map[string][]Holding{"a": {
		{Size: small, Left: 7, GPUs: []string{"GPU-0"}}, {Size: small, Left: 3, GPUs: []string{"GPU-1"}},
	}})
	for size, want := range map[quantity.Size]float64{
		small: 3, large: 7, both: math.Inf(1), asking(2, 40): 7, {CPU: quantity.Core}: 0,
	} {
		if got := rooms.Wait(size); got != want {
			t.Errorf("%s waits %v s, want %v", size, got, want)
		}
	}
}

func runsOn(size quantity.Size, uuid string, tasks int) Claim {
	c := Claim{Size: size, Tasks: tasks, Running: 1, On: map[string]int{"a": 1}, Wall: 1, Slack: math.Inf(1)}
	if uuid != "" {
		c.GPUs = map[string][]string{"a": {uuid}}
	}
	return c
}

// assignable reports whether devices can be given to all of these sizes at once, by trying every way.
func assignable(gpus []plan.GPU, sizes []quantity.Size) bool {
	if len(sizes) == 0 {
		return true
	}
	count, least := sizes[0].WholeGPUs(), sizes[0].MemoryOfEachGPU()
	var choose func(from int, chosen []int) bool
	choose = func(from int, chosen []int) bool {
		if len(chosen) == count {
			var left []plan.GPU
			for i, gpu := range gpus {
				if !slices.Contains(chosen, i) {
					left = append(left, gpu)
				}
			}
			return assignable(left, sizes[1:])
		}
		for i := from; i < len(gpus); i++ {
			if gpus[i].Memory >= least && (len(chosen) == 0 || gpus[i].Class == gpus[chosen[0]].Class) &&
				choose(i+1, append(slices.Clone(chosen), i)) {
				return true
			}
		}
		return false
	}
	return choose(0, nil)
}

// What is placed can be run at once, but for the first slot of a stage, which it has in any case, and who is given no
// further slot could not be given one while fewer slots than GPUs are placed.
func TestWhatGPUsHaveRoomForIsGivenAndNothingElse(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		memory := rapid.Custom(func(t *rapid.T) quantity.Bytes { return quantity.Bytes(rapid.IntRange(1, 4).Draw(t, "GiB")) })
		host := gpuHost(rapid.SliceOfN(memory, 1, 6).Draw(t, "GPUs")...)
		most := rapid.IntRange(1, 2).Draw(t, "most GPUs of an attempt")
		claims := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Claim {
			return Claim{
				Size:  asking(rapid.IntRange(1, most).Draw(t, "count"), memory.Draw(t, "each")),
				Tasks: rapid.IntRange(1, 4).Draw(t, "tasks"), Wall: 1, Slack: math.Inf(1),
			}
		}), 1, 3).Draw(t, "claims")
		given := Hosts([]plan.Host{host}, claims)
		var first, further []quantity.Size
		for i, slots := range given {
			size := claims[i].Size
			never := !assignable(host.GPUs, []quantity.Size{size})
			if never != (host.Has(size) == 0) || never != (slots.Total == 0) {
				t.Fatalf("%s has %d slots on %v", size, slots.Total, host.GPUs)
			}
			if !never && assignable(host.GPUs, append(slices.Clone(first), size)) {
				first = append(first, size)
			}
			for range slots.Total - 1 {
				further = append(further, size)
			}
		}
		if most > 1 { // attempts of several GPUs are given them one by one, which need not be the best for all
			if !assignable(host.GPUs, further) {
				t.Fatalf("%v are placed on %v", further, host.GPUs)
			}
			return
		}
		placed := slices.Concat(first, further)
		if !assignable(host.GPUs, placed) {
			t.Fatalf("%v are placed on %v", placed, host.GPUs)
		}
		// The first slot of a stage that finds no GPU free waits for one on the host, where it is counted with one: a host
		// admits attempts by number.
		counted := 0
		for _, slots := range given {
			counted += slots.Total
		}
		for i, slots := range given {
			more := append(slices.Clone(placed), claims[i].Size)
			if slots.Limited && counted < len(host.GPUs) && assignable(host.GPUs, more) {
				t.Fatalf("%s has %d of %d slots beside %v, and %v have one more", claims[i].Size, slots.Total, claims[i].Tasks,
					placed, host.GPUs)
			}
		}
	})
}

// TestAPredictedWaitForGPUsIsTheEarliestMoment looks at every moment at which an attempt ends.
func TestAPredictedWaitForGPUsIsTheEarliestMoment(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		memory := rapid.Custom(func(t *rapid.T) quantity.Bytes { return quantity.Bytes(rapid.IntRange(1, 4).Draw(t, "GiB")) })
		host := gpuHost(rapid.SliceOfN(memory, 1, 6).Draw(t, "GPUs")...)
		var held []Holding
		free := map[string]float64{}
		for _, gpu := range host.GPUs {
			if left := float64(rapid.IntRange(0, 9).Draw(t, "seconds left")); left > 0 {
				held = append(held, Holding{Size: asking(1, 1), Left: left, GPUs: []string{gpu.UUID}})
				free[gpu.UUID] = left
			}
		}
		size := asking(rapid.IntRange(1, 3).Draw(t, "count"), memory.Draw(t, "each"))
		want := math.Inf(1)
		for moment := 9.0; moment >= 0; moment-- {
			left := slices.DeleteFunc(slices.Clone(host.GPUs), func(g plan.GPU) bool { return free[g.UUID] > moment })
			if assignable(left, []quantity.Size{size}) {
				want = moment
			}
		}
		if got := NewRooms([]plan.Host{host}, map[string][]Holding{"a": held}).Wait(size); got != want {
			t.Fatalf("%s waits %v s on %v beside %v, want %v", size, got, host.GPUs, held, want)
		}
	})
}
