package share

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

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
