package enforce

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

func someBytes(t *rapid.T, name string) quantity.Bytes {
	return quantity.Bytes(rapid.Int64Range(0, int64(4*quantity.TiB)).Draw(t, name))
}

func TestAMemoryLimitIsNeverBelowUseAndNeverGrowsWhenLowered(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		use := someBytes(t, "use")
		held := someBytes(t, "held")
		if held > 0 {
			use = min(use, held) // the kernel sees to it
		}
		want := someBytes(t, "want")
		got := memoryTarget(want, use, held)
		switch {
		case got < use:
			t.Errorf("memoryTarget(%d, %d, %d): got %d, below the use", want, use, held, got)
		case got < want:
			t.Errorf("memoryTarget(%d, %d, %d): got %d, below what is wanted", want, use, held, got)
		case held > 0 && want < held && got > held:
			t.Errorf("memoryTarget(%d, %d, %d): got %d, above what was held", want, use, held, got)
		case want >= use && got != want:
			t.Errorf("memoryTarget(%d, %d, %d): got %d although what is wanted is enough", want, use, held, got)
		case got > max(want, use+slack(use)):
			t.Errorf("memoryTarget(%d, %d, %d): got %d, more than the use needs", want, use, held, got)
		}
	})
}

// The kernel is simulated: a limit below the use kills, and use grows by at most the slack between two steps.
func TestRepeatedLoweringKillsNothingAndReachesWhatIsWanted(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		want := quantity.Bytes(rapid.Int64Range(1, int64(quantity.TiB)).Draw(t, "want"))
		held := want + someBytes(t, "above")
		for range 20 {
			use := quantity.Bytes(rapid.Int64Range(0, int64(held)).Draw(t, "use"))
			next := memoryTarget(want, use, held)
			if next < use || next > held {
				t.Fatalf("use %d, held %d: next limit %d", use, held, next)
			}
			held = next
		}
		if got := memoryTarget(want, 0, held); got != want {
			t.Errorf("when nothing is used any more: got %d, want %d", got, want)
		}
	})
}

func TestAQuotaIsTheShareOfAPeriod(t *testing.T) {
	t.Parallel()
	for cpu, want := range map[quantity.Milli]int64{MinimumCPU: 1000, 250: 25_000, 1000: 100_000, 64_000: 6_400_000} {
		if got := quotaMicroseconds(cpu); got != want {
			t.Errorf("quota of %s cores: got %d us, want %d", cpu, got, want)
		}
		if got := cpuLimit(want, periodMicroseconds); got != cpu {
			t.Errorf("limit of a quota of %d us: got %s cores, want %s", want, got, cpu)
		}
	}
}

func TestTheTighterLimitCountsAndZeroIsNone(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ a, b, want quantity.Bytes }{{0, 0, 0}, {0, 2, 2}, {2, 0, 2}, {2, 3, 2}, {3, 2, 2}} {
		if got := tighterOf(c.a, c.b); got != c.want {
			t.Errorf("tighterOf(%d, %d): got %d, want %d", c.a, c.b, got, c.want)
		}
	}
}

// need is the memory of a simulated group at one moment: what it needs, and cache on top.
type need struct{ needed, cache quantity.Bytes }

func TestThePeakOfTheWorkingSetLiesBetweenWhatWasSeenAndWhatWasNeeded(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		moments := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) need {
			return need{someBytes(t, "needed"), quantity.Bytes(rapid.Int64Range(0, 1000).Draw(t, "cache"))}
		}), 1, 20).Draw(t, "moments")
		var p peaks
		var kernel, needed, seen quantity.Bytes
		cacheless := true
		for i, m := range moments {
			cacheless = cacheless && m.cache == 0
			kernel, needed = max(kernel, m.needed+m.cache), max(needed, m.needed)
			if i%3 == 0 { // between two calls of Usage
				seen = max(seen, m.needed)
				r := reading{reclaimable: m.cache, peak: kernel}
				r.usage.Memory = m.needed + m.cache
				p.observe(r)
			}
		}
		final := reading{peak: kernel}
		final.usage.Memory = moments[len(moments)-1].needed
		last := p.observe(final)
		if last.Peak != kernel {
			t.Errorf("peak: got %d, want the kernel's %d", last.Peak, kernel)
		}
		if last.PeakWorkingSet < seen || last.PeakWorkingSet > last.Peak {
			t.Errorf("peak of the working set: got %d, want at least %d and at most %d", last.PeakWorkingSet, seen, last.Peak)
		}
		if cacheless && last.PeakWorkingSet != needed {
			t.Errorf("peak of the working set without any cache: got %d, want %d exactly", last.PeakWorkingSet, needed)
		}
	})
}

func TestAPeakThatTheKernelCannotResetIsNotTakenForTheNextOnes(t *testing.T) {
	t.Parallel()
	at := func(now, peak quantity.Bytes, kills int64) reading {
		r := reading{peak: peak}
		r.usage.Memory, r.usage.OutOfMemory = now, kills
		return r
	}
	var p peaks
	p.observe(at(10, 100, 2))
	p.reset(at(10, 100, 2), false)
	if got := p.observe(at(30, 100, 2)); got.Peak != 30 || got.OutOfMemory != 0 {
		t.Errorf("below the earlier peak: got %d with %d kills, want what was seen, 30, and none", got.Peak, got.OutOfMemory)
	}
	if got := p.observe(at(50, 120, 3)); got.Peak != 120 || got.OutOfMemory != 1 {
		t.Errorf("above the earlier peak: got %d with %d kills, want the kernel's 120 and one", got.Peak, got.OutOfMemory)
	}
	p.reset(at(20, 20, 3), true)
	if got := p.observe(at(20, 25, 3)); got.Peak != 25 {
		t.Errorf("after a reset that the kernel followed: got %d, want its 25", got.Peak)
	}
}

func TestAModeIsTheBestUsableOneUnlessOneIsWanted(t *testing.T) {
	t.Parallel()
	offers := []Offer{{Mode: Unified, Reason: "it is a test"}, {Mode: Legacy, Usable: true}, {Mode: None, Usable: true}}
	for want, expect := range map[Mode]Mode{"": Legacy, Legacy: Legacy, None: None} {
		if got, err := chooseMode(want, offers); err != nil || got != expect {
			t.Errorf("chooseMode(%q): got %q, %v, want %q", want, got, err, expect)
		}
	}
	if _, err := chooseMode(Unified, offers); err == nil || !strings.Contains(err.Error(), "it is a test") {
		t.Errorf("a mode that is not offered: got %v, want the reason", err)
	}
}

func FuzzTheRecordOfAnOwner(f *testing.F) {
	f.Add([]byte(`{"pid":7,"directories":["/sys/fs/cgroup/spillway-0"]}garbage`))
	f.Add([]byte(``))
	f.Add([]byte(`{"pid":"x"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		first, err := parseRecord(text)
		again, againErr := parseRecord(text)
		if diff := cmp.Diff(first, again); diff != "" || (err == nil) != (againErr == nil) {
			t.Errorf("two readings differ: %s", diff)
		}
		if err != nil && (first.PID != 0 || first.Directories != nil) {
			t.Errorf("an error with the record %+v", first)
		}
	})
}

func TestARecordIsReadAlthoughALongerOneWasCutOffWhileItWasReplaced(t *testing.T) {
	t.Parallel()
	got, err := parseRecord([]byte(`{"pid":7,"directories":["/a"]}gth/of/the/last"]}`))
	if diff := cmp.Diff(record{PID: 7, Directories: []string{"/a"}}, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}
