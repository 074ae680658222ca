package procfs

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

func TestTheNameOfAProcessMayHoldAnything(t *testing.T) {
	t.Parallel()
	const rest = " 1 5 6 0 -1 4 0 0 0 0 20 30 0 0 20 0 1 0 99 4096 3 18446744073709551615\n"
	want := Stat{
		State: 'S', Parent: 1, Group: 5, Session: 6, Born: 99, CPU: 500 * time.Millisecond, Resident: 3 * 4096,
	}
	for _, name := range []string{"(a)", "(a) (b c)", "(a) Z 9 9)", "()", "(\n)"} {
		got, ok := parse([]byte("7 "+name+" S"+rest), 4096)
		if diff := cmp.Diff(want, got); diff != "" || !ok || got.Ended() {
			t.Errorf("%q: %t (-want +got):\n%s", name, ok, diff)
		}
	}
	if got, ok := parse([]byte("7 (sh) Z"+rest), 4096); !ok || !got.Ended() {
		t.Errorf("one that waits to be collected: %t, %+v", ok, got)
	}
	for _, short := range []string{"", "7", "7 (sh)", "7 (sh) S 1 5 6"} {
		if got, ok := parse([]byte(short), 4096); ok {
			t.Errorf("%q: got %+v", short, got)
		}
	}
}

func TestAmountsAreReadByTheirKeys(t *testing.T) {
	t.Parallel()
	const status = "Name:\tsh\nVmPeak:\t    4000 kB\nVmHWM:\t    1234 kB\nRssFile:\t 7 kB\nThreads:\t1\nBad: x kB\n"
	for key, want := range map[string]quantity.Bytes{
		"VmHWM:": 1234 * quantity.KiB, "RssFile:": 7 * quantity.KiB, "RssShmem:": 0, "Bad:": 0,
	} {
		if got := Kilobytes([]byte(status), key); got != want {
			t.Errorf("%s: got %s, want %s", key, got, want)
		}
	}
}

func FuzzTheTextsOfProc(f *testing.F) {
	f.Add([]byte("7 (a) (b c) S 1 5 6 0 -1 4 0 0 0 0 20 30 0 0 20 0 1 0 99 4096 3 1"))
	f.Add([]byte("VmHWM:\t12 kB\n"))
	f.Fuzz(func(_ *testing.T, text []byte) {
		_, _ = parse(text, 4096)
		Kilobytes(text, "VmHWM:")
	})
}
