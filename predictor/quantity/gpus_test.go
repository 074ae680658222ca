package quantity

import (
	"math"
	"strings"
	"testing"
)

func TestGPUsThatNobodyCanGiveAreRefused(t *testing.T) {
	t.Parallel()
	for want, g := range map[string]GPUs{
		"": {}, "give 1 to 1024": {Count: -1}, "it asks for 5000 GPUs": {Count: 5000}, "how many": {Memory: GiB},
		"not how many": {Class: "h100"}, "memory of each GPU": {Count: 1, Memory: math.MaxInt64},
		"of the memory of each": {Count: 1, Memory: -1}, `of class "H100"`: {Count: 1, Class: "H100"},
		"in lower case": {Count: 1, Class: "h100, t4"}, "rtx-4090": {Count: 1, Class: strings.Repeat("a", 100)},
	} {
		if err := g.Check(); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", g, err, want)
		}
	}
	if err := (GPUs{Count: 8, Class: "rtx-4090", Memory: 24 * GiB}).Check(); err != nil {
		t.Error(err)
	}
}

func TestASizeWithGPUsSaysSo(t *testing.T) {
	t.Parallel()
	size := Size{CPU: 2 * Core, Memory: GiB}.WithGPUs(GPUs{Count: 2, Class: "h100", Memory: 40 * GiB})
	if got, want := size.String(), "2 cores, 1 GiB, 2 GPU with 80 GiB on h100"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	less := size.AtMost(Size{CPU: Core, Memory: MiB})
	if less.GPU != 2*Core || less.GPUMemory != 80*GiB || less.CPU != Core || less.Memory != MiB {
		t.Errorf("cut to %s", less)
	}
	if size.Fits(Size{CPU: 9 * Core, Memory: TiB}) || less.Fits(size.Minus(Size{GPU: 1})) || !less.Fits(size) {
		t.Error("devices must be there")
	}
}
