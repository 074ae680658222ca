package logs

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

func TestWhatIsKeptOfAnyTimeIsABurstAndTheRateAtMost(t *testing.T) {
	t.Parallel()
	type line struct {
		at   time.Time
		cost int
	}
	rapid.Check(t, func(t *rapid.T) {
		rate, burst, total := rapid.IntRange(1, 1000).Draw(t, "rate"), rapid.IntRange(100, 2000).Draw(t, "burst"),
			rapid.IntRange(100, 20_000).Draw(t, "total")
		l := newLimiter(quantity.Bytes(rate), quantity.Bytes(burst), quantity.Bytes(total), begin)
		now := begin
		var passed []line
		sum := 0
		for range rapid.IntRange(1, 200).Draw(t, "lines") {
			now = now.Add(time.Duration(rapid.IntRange(0, 1000).Draw(t, "ms")) * time.Millisecond)
			next := line{now, rapid.IntRange(1, 100).Draw(t, "cost")}
			room := rapid.IntRange(0, 5000).Draw(t, "room")
			if l.admit(next.cost, room, now) != kept {
				continue
			}
			if next.cost > room {
				t.Fatalf("a line of %d was kept with room for %d", next.cost, room)
			}
			passed = append(passed, next)
			sum += next.cost
		}
		if sum > total {
			t.Fatalf("%d of %d were kept", sum, total)
		}
		for first := range passed {
			window := 0
			for last := first; last < len(passed); last++ {
				window += passed[last].cost
				most := float64(burst) + float64(rate)*passed[last].at.Sub(passed[first].at).Seconds()
				if float64(window) > most+1e-6 {
					t.Fatalf("lines %d to %d are %d bytes, more than %f", first, last, window, most)
				}
			}
		}
	})
}

func TestAProgramThatPrintsSlowerThanItsRateLosesNothing(t *testing.T) {
	t.Parallel()
	l := newLimiter(1000, 4000, 1<<30, begin)
	for i := range 10_000 {
		if got := l.admit(100, 1<<20, begin.Add(time.Duration(i)*100*time.Millisecond)); got != kept {
			t.Fatalf("line %d: admission %d", i, got)
		}
	}
}

func TestWhatIsKeptOfAFloodAreWholePassages(t *testing.T) {
	t.Parallel()
	l := newLimiter(1000, 4000, 1<<30, begin)
	changes, keeping, all := 0, true, 0
	for ms := range 60_000 { // 100 times the rate for a minute
		got := l.admit(100, 1<<20, begin.Add(time.Duration(ms)*time.Millisecond)) == kept
		if got != keeping {
			changes, keeping = changes+1, got
		}
		if got {
			all += 100
		}
	}
	if all < 60_000 || all > 64_000 {
		t.Errorf("%d bytes were kept of a minute at 1000 a second after 4000", all)
	}
	if changes > 125 {
		t.Errorf("it began and stopped %d times in a minute", changes)
	}
}

func TestNothingIsKeptAfterTheTotal(t *testing.T) {
	t.Parallel()
	l := newLimiter(1000, 4000, 1000, begin)
	for i := range 30 {
		want := kept
		if i >= 10 {
			want = tooMuch
		}
		if got := l.admit(100, 1<<20, begin.Add(time.Duration(i)*time.Hour)); got != want {
			t.Errorf("line %d: admission %d, want %d", i, got, want)
		}
	}
	if got := l.admit(1, 1<<20, begin); got != tooMuch {
		t.Error("a small line was kept after a large one was not")
	}
}

func TestANoteSaysWhatIsMissingAndWhy(t *testing.T) {
	t.Parallel()
	options := WriterOptions{}.orUsual()
	for want, m := range map[string]missing{
		"": {},
		"1 line left out: printed faster than 1 MiB a second":                   {tooFast: 1},
		"7 lines left out: the log's stream was slow or away":                   {noRoom: 7},
		"the attempt has printed 64 MiB; nothing that follows is kept":          {tooMuch: 3},
		"2 lines left out: printed faster than 1 MiB a second; 1 line left out": {tooFast: 2, noRoom: 1},
	} {
		if got := m.note(options); !strings.HasPrefix(got, want) || want == "" && got != "" {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
