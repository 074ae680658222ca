package plan_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/predictor/plan"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

const gib = quantity.GiB

func host(gpus ...plan.GPU) plan.Host { return plan.Host{ID: "a", GPUs: gpus} }

func gpu(class string, memory quantity.Bytes) plan.GPU {
	return plan.GPU{Class: class, Memory: memory * gib}
}

func asks(count int, class string, each quantity.Bytes) quantity.Size {
	return quantity.Size{}.WithGPUs(quantity.GPUs{Count: count, Class: class, Memory: each * gib})
}

// All GPUs of an attempt are of one class, and each has its part of the memory.
func TestWhatAHostHasRoomForIsAskedOfSingleGPUs(t *testing.T) {
	t.Parallel()
	lost := gpu("h100", 80)
	lost.Wrong = "is lost"
	mixed := host(gpu("h100", 80), gpu("h100", 40), gpu("t4", 16), lost)
	uniform := plan.Host{Capacity: quantity.Size{GPU: 2 * quantity.Core, GPUMemory: 120 * gib, DeviceClass: "a100"}}
	for name, test := range map[string]struct {
		host       plan.Host
		size       quantity.Size
		has, could int
	}{
		"two of 60 of 80 and 40":       {mixed, asks(2, "", 60), 0, 1},
		"two of 40":                    {mixed, asks(2, "", 40), 1, 1},
		"any":                          {mixed, asks(1, "", 0), 3, 4},
		"two of one class":             {mixed, asks(2, "", 0), 1, 1},
		"three of two classes":         {mixed, asks(3, "", 0), 0, 1},
		"another class":                {mixed, asks(1, "v100", 0), 0, 0},
		"of a host that tells of none": {uniform, asks(1, "a100", 60), 2, 2},
		"more than one of its has":     {uniform, asks(1, "", 61), 0, 0},
	} {
		if has, could := test.host.Has(test.size), test.host.Could(test.size); has != test.has || could != test.could {
			t.Errorf("%s: has %d, could have %d, want %d and %d", name, has, could, test.has, test.could)
		}
	}
	if got := mixed.For(asks(2, "", 0)); got.GPUMemory != 80*gib || got.GPU != 2*quantity.Core {
		t.Errorf("for two: %s, want two of 40 GiB", got)
	}
}

func TestKindsOfHostsAreToldOnce(t *testing.T) {
	t.Parallel()
	with := func(memory quantity.Bytes, h plan.Host) plan.Host {
		h.Capacity.Memory = memory * gib
		return h
	}
	a, b := host(gpu("h100", 80), gpu("h100", 40)), host(gpu("h100", 40), gpu("h100", 80))
	got := plan.Kinds([]plan.Host{
		with(8, host(gpu("t4", 16))), with(16, a), with(2, plan.Host{ID: "cpu"}), with(32, b),
		with(64, plan.Host{ID: "large"}),
	})
	want := []plan.HostKind{
		{Memory: 64 * gib},
		{Memory: 32 * gib, GPUs: plan.Equipment{"h100": {80 * gib, 40 * gib}}},
		{Memory: 8 * gib, GPUs: plan.Equipment{"t4": {16 * gib}}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if text := got[1].GPUs.String(); text != "2 h100 with 80 GiB and 40 GiB" {
		t.Error(text)
	}
	one := quantity.Size{}.WithGPUs(quantity.GPUs{Count: 1})
	for name, test := range map[string]struct {
		size   quantity.Size
		failed quantity.Bytes
		want   []bool
	}{
		"one that has not failed":    {quantity.Size{}, 0, []bool{true, true, true}},
		"one that needs most":        {quantity.Size{}, 32 * gib, []bool{true, false, false}},
		"one that needs a GPU, too":  {one, 31 * gib, []bool{false, true, false}},
		"one that had all there is":  {quantity.Size{}, 64 * gib, []bool{false, false, false}},
		"one that needs a large GPU": {asks(1, "", 60), 0, []bool{false, true, false}},
	} {
		for i, kind := range got {
			if takes := kind.Takes(test.size, test.failed); takes != test.want[i] {
				t.Errorf("%s: kind %d takes it: %t, want %t", name, i, takes, test.want[i])
			}
		}
	}
}

func TestSeveralGPUsAreWholeOnes(t *testing.T) {
	t.Parallel()
	part := plan.GPU{UUID: "MIG-1", Class: "h100-20g", Memory: 20 * quantity.GiB, Profile: "3g.20gb"}
	other := part
	other.UUID = "MIG-2"
	parts := host(part, other)
	one, two := quantity.Size{GPU: quantity.Core}, quantity.Size{GPU: 2 * quantity.Core}
	if got := parts.Has(one); got != 2 {
		t.Errorf("two instances are %d slots of one, want 2", got)
	}
	if got := parts.Has(two); got != 0 {
		t.Errorf("two instances are %d slots of two, want none: a program sees one of them", got)
	}
}
