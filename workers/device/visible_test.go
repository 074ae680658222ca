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
