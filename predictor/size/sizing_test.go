package size_test

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/size"
	"github.com/spillway-ml/spillway/predictor/usage"
)

// anySizing draws what a plan may carry, and worse.
func anySizing(t *rapid.T) size.Sizing {
	bytes := rapid.Int64Range(0, 1<<52)
	return size.Sizing{
		Base: quantity.Size{
			CPU:    quantity.Milli(rapid.Int64Range(0, 1e6).Draw(t, "cpu")),
			Memory: quantity.Bytes(bytes.Draw(t, "memory")),
		},
		Term: usage.Term{
			Feature: rapid.SampledFrom([]string{"", usage.InputBytes, "rows"}).Draw(t, "feature"),
			Power:   rapid.SampledFrom([]float64{0, 0.5, 1, 2}).Draw(t, "power"),
			PerUnit: rapid.Float64Range(0, 1e12).Draw(t, "per unit"),
		},
		Floor: quantity.Bytes(bytes.Draw(t, "floor")), Most: quantity.Bytes(bytes.Draw(t, "most")),
		Static: rapid.Bool().Draw(t, "static"), Guess: rapid.Bool().Draw(t, "guess"),
	}
}

// An input far above all others is not granted what a line says before one like it was tried; its next attempt is.
func TestAFirstAttemptIsGrantedTheMostAtMost(t *testing.T) {
	t.Parallel()
	sizing := size.Sizing{
		Base: quantity.Size{CPU: 1000, Memory: 100 * quantity.MiB},
		Term: usage.Term{Feature: usage.InputBytes, Power: 1, PerUnit: 1}, Most: 400 * quantity.MiB,
	}
	capacity := quantity.Size{CPU: 4000, Memory: 64 * quantity.GiB}
	need := size.Need{Input: 10 * quantity.GiB}
	if got, _, _ := sizing.For(need, capacity); got.Memory != sizing.Most {
		t.Errorf("a first attempt with an input of 10 GiB is granted %v, want %v", got.Memory, sizing.Most)
	}
	need.OutOfMemory, need.LargestFailed = 1, sizing.Most
	if got, _, _ := sizing.For(need, capacity); got.Memory != 10*quantity.GiB+100*quantity.MiB {
		t.Errorf("the attempt after it is granted %v, want what the line says", got.Memory)
	}
}

func TestAGrantIsHeldOnceItRestsOnEnough(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		sizing size.Sizing
		want   bool
	}{
		{size.Sizing{}, false}, // declared
		{size.Sizing{Guess: true}, true},
		{size.Sizing{Guess: true, Static: true}, false},
		{size.Sizing{Learned: true, Attempts: 5}, true},
		{size.Sizing{Learned: true, Attempts: 99}, true},
		{size.Sizing{Learned: true, Attempts: 100}, false},
		{size.Sizing{Learned: true, Attempts: 5, Static: true}, false},
	} {
		if got := c.sizing.Borrows(); got != c.want {
			t.Errorf("%+v: may take more: got %v, want %v", c.sizing, got, c.want)
		}
	}
}

func anyNeed(t *rapid.T) size.Need {
	return size.Need{
		Input: quantity.Bytes(rapid.Int64Range(-5, 1<<60).Draw(t, "input")),
		Features: map[string]float64{"rows": rapid.SampledFrom([]float64{0, 1, 1e9, -1, math.NaN(), math.Inf(1)}).
			Draw(t, "rows")},
		OutOfMemory:   rapid.IntRange(0, 3).Draw(t, "kills"),
		LargestFailed: quantity.Bytes(rapid.Int64Range(0, 1<<45).Draw(t, "failed")),
	}
}

func anyCapacity(t *rapid.T) quantity.Size {
	return quantity.Size{
		CPU:    quantity.Milli(rapid.Int64Range(1, 256_000).Draw(t, "cores")),
		Memory: quantity.Bytes(rapid.Int64Range(1, 1<<44).Draw(t, "room")),
	}
}

func TestASizeIsNeverAboveTheHostAndNeverNothing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		sizing, need, capacity := anySizing(t), anyNeed(t), anyCapacity(t)
		got, expected, fits := sizing.For(need, capacity)
		if !got.Fits(capacity) || got.CPU <= 0 || got.Memory <= 0 {
			t.Fatalf("%+v for %+v on %s: got %s", sizing, need, capacity, got)
		}
		for _, value := range []float64{expected.Memory.Low, expected.Memory.Mid, expected.Memory.High} {
			if math.IsNaN(value) || value < 0 {
				t.Fatalf("expected %+v, want numbers", expected)
			}
		}
		if !fits && need.LargestFailed < capacity.Memory {
			t.Fatalf("it does not fit, though it only failed with %s of %s", need.LargestFailed, capacity.Memory)
		}
	})
}

func TestAfterAKillTheNextAttemptHasTwiceAsMuchOrAllThatThereIs(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		sizing, need, capacity := anySizing(t), anyNeed(t), anyCapacity(t)
		need.OutOfMemory = max(need.OutOfMemory, 1)
		got, _, _ := sizing.For(need, capacity)
		if got.Memory < min(need.LargestFailed*size.GrowAfterOutOfMemory, capacity.Memory) {
			t.Fatalf("after a kill at %s on %s: got %s", need.LargestFailed, capacity, got)
		}
	})
}

func TestMoreInputNeverMeansLessMemory(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		sizing, need, capacity := anySizing(t), anyNeed(t), anyCapacity(t)
		less, _, _ := sizing.For(need, capacity)
		need.Input = max(need.Input, 0) + quantity.Bytes(rapid.Int64Range(0, 1<<40).Draw(t, "more"))
		more, _, _ := sizing.For(need, capacity)
		if more.Memory < less.Memory {
			t.Fatalf("with more input %s, with less %s", more, less)
		}
	})
}

func TestReliefGivesWithinWhatIsFreeAndWithinWhatAKillWouldGive(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		bytes := rapid.Int64Range(0, 1<<40)
		held, used, free := quantity.Bytes(bytes.Draw(t, "held")), quantity.Bytes(bytes.Draw(t, "used")),
			quantity.Bytes(rapid.Int64Range(-1<<30, 1<<40).Draw(t, "free"))
		admitted := quantity.Bytes(rapid.Int64Range(0, int64(held)).Draw(t, "admitted"))
		expected := quantity.Bytes(bytes.Draw(t, "expected"))
		got := size.Relief(held, admitted, expected, used, free)
		switch {
		case got < held:
			t.Fatalf("%s of %s are used: got %s, less than was held", used, held, got)
		case got > held && got > held+max(free, 0):
			t.Fatalf("%s is free: got %s more", free, got-held)
		case got > held && got > admitted*size.GrowAfterOutOfMemory:
			t.Fatalf("admitted with %s: got %s", admitted, got)
		}
	})
	const mib = quantity.MiB
	for _, c := range []struct{ held, admitted, expected, used, free, want quantity.Bytes }{
		{100 * mib, 100 * mib, 0, 80 * mib, 1000 * mib, 100 * mib},         // far from its limit
		{100 * mib, 100 * mib, 0, 95 * mib, 1000 * mib, 125 * mib},         // close to it
		{100 * mib, 100 * mib, 0, 95 * mib, 10 * mib, 110 * mib},           // little is free
		{190 * mib, 100 * mib, 0, 189 * mib, 1000 * mib, 200 * mib},        // as much as after a kill
		{200 * mib, 100 * mib, 0, 200 * mib, 1000 * mib, 200 * mib},        // and no more
		{100 * mib, 100 * mib, 0, 100 * mib, -1000 * mib, 100 * mib},       // an overfull host
		{100 * mib, 100 * mib, 98 * mib, 97 * mib, 1000 * mib, 100 * mib},  // as expected
		{100 * mib, 100 * mib, 98 * mib, 98 * mib, 1000 * mib, 100 * mib},  // exactly so
		{100 * mib, 100 * mib, 98 * mib, 99 * mib, 1000 * mib, 125 * mib},  // more than expected
		{100 * mib, 100 * mib, 10 * mib, 80 * mib, 1000 * mib, 100 * mib},  // more, and far from its limit
		{100 * mib, 100 * mib, 150 * mib, 95 * mib, 1000 * mib, 125 * mib}, // a limit below what is expected
	} {
		if got := size.Relief(c.held, c.admitted, c.expected, c.used, c.free); got != c.want {
			t.Errorf("%s of %s used, admitted with %s, %s free: got %s, want %s", c.used, c.held, c.admitted, c.free, got,
				c.want)
		}
	}
}

func TestDeviceMemoryThatWasNotEnoughGrowsAlone(t *testing.T) {
	t.Parallel()
	sizing := size.Sizing{Base: quantity.Size{
		CPU: 1000, Memory: quantity.GiB, GPU: 1000,
		GPUMemory: 2 * quantity.GiB,
	}}
	capacity := quantity.Size{CPU: 4000, Memory: 16 * quantity.GiB, GPU: 1000, GPUMemory: 80 * quantity.GiB}
	need := size.Need{OutOfMemory: 1, LargestFailedGPU: 2 * quantity.GiB}
	got, _, fits := sizing.For(need, capacity)
	if got.GPUMemory != 4*quantity.GiB || got.Memory != quantity.GiB || !fits {
		t.Errorf("got %s, fits %v, want twice the device memory and the same memory", got, fits)
	}
	// All that can be had of a device is a little less than what it has.
	for _, failed := range []quantity.Bytes{80 * quantity.GiB, 80*quantity.GiB - 4*quantity.MiB} {
		need.LargestFailedGPU = failed
		if _, _, fits := sizing.For(need, capacity); fits {
			t.Errorf("%s of the device was not enough, and yet it fits", failed)
		}
	}
}

// A host of several GPUs has no more for an attempt of one than one of them.
func TestDeviceMemoryGrowsToThatOfItsOwnDevices(t *testing.T) {
	t.Parallel()
	sizing := size.Sizing{Base: quantity.Size{CPU: 1000, Memory: quantity.GiB, GPU: 1000}}
	capacity := quantity.Size{CPU: 4000, Memory: 16 * quantity.GiB, GPU: 8000, GPUMemory: 640 * quantity.GiB}
	need := size.Need{OutOfMemory: 1, LargestFailedGPU: 45 * quantity.GiB}
	if got, _, fits := sizing.For(need, capacity); got.GPUMemory != 80*quantity.GiB || !fits {
		t.Errorf("got %s, fits %v, want all of one GPU", got, fits)
	}
	need.LargestFailedGPU = 80 * quantity.GiB
	if _, _, fits := sizing.For(need, capacity); fits {
		t.Error("all of the GPU was not enough, and yet it fits")
	}
}

// What attempts were seen to take is no head-room: a smaller card is not for them.
func TestAHostWithSmallerDevicesIsNotSentWhatCannotFit(t *testing.T) {
	t.Parallel()
	sizing := size.Sizing{Learned: true, GPUPeak: 65 * quantity.GiB, Base: quantity.Size{
		CPU: 1000, Memory: quantity.GiB, GPU: 1000, GPUMemory: 70 * quantity.GiB,
	}}
	for memory, want := range map[quantity.Bytes]quantity.Bytes{
		40 * quantity.GiB: 65 * quantity.GiB, 64 * quantity.GiB: 64 * quantity.GiB, 66 * quantity.GiB: 66 * quantity.GiB,
		80 * quantity.GiB: 70 * quantity.GiB,
	} {
		capacity := quantity.Size{CPU: 4000, Memory: 16 * quantity.GiB, GPU: 8000, GPUMemory: 8 * memory}
		if got, _, _ := sizing.For(size.Need{}, capacity); got.GPUMemory != want {
			t.Errorf("on GPUs of %s: got %s, want %s", memory, got, want)
		}
	}
}

// Some attempts take far more than the others, so that these are not given room for them: what they take is known.
func TestAnAttemptThatPassedItsLimitIsGivenWhatOthersTookThatDid(t *testing.T) {
	t.Parallel()
	capacity := quantity.Size{CPU: 4000, Memory: 64 * quantity.GiB}
	for _, c := range []struct {
		name         string
		above        float64
		failed, want quantity.Bytes // MiB
	}{
		{"three times", 3.15, 105, 315},
		{"less than twice", 1.5, 105, 150},
		{"nothing is known", 0, 105, 210},
		{"more than any", 3.15, 315, 630},
	} {
		sizing := size.Sizing{
			Base: quantity.Size{CPU: 1000, Memory: 105 * quantity.MiB}, Learned: true,
			Expected: size.Expected{Base: 100 * float64(quantity.MiB), Above: c.above},
		}
		need := size.Need{OutOfMemory: 1, LargestFailed: c.failed * quantity.MiB}
		if got, _, fits := sizing.For(need, capacity); got.Memory != c.want*quantity.MiB || !fits {
			t.Errorf("%s: after a kill at %d MiB the next attempt is granted %s, want %d MiB", c.name, c.failed, got.Memory,
				c.want)
		}
	}
}
