package spend

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

var epoch = time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)

func after(d time.Duration) time.Time { return epoch.Add(d) }

func nanos(d time.Duration) int64 { return epoch.Add(d).UnixNano() }

// who is a line of a bill at its finest.
type who struct{ run, stage, host string }

// spent sums up a window by who spent.
func spent(b *Book, since, until int64, running ...Span) map[who]Sums {
	var found []Span
	b.Each(since, until, running, func(s Span) { found = append(found, s) })
	return sumOf(found)
}

func total(found map[who]Sums) (sum Sums) {
	for _, s := range found {
		sum.Add(s)
	}
	return sum
}

func present(host string, from, to time.Duration, perHour quantity.Money) predictor.HostHeld {
	return predictor.HostHeld{
		Host: host, Capacity: quantity.Size{CPU: 4000}, PricePerHour: perHour, From: after(from),
		At: after(to),
	}
}

func holding(owner *Owner, host string, from, to time.Duration, cost quantity.Money) Span {
	return Span{
		Owner: owner, Venue: predictor.Pool, Host: host, From: nanos(from), To: nanos(to), Counted: nanos(to),
		Sums: Sums{Attempts: 1, Held: to - from, Pool: cost},
	}
}

var (
	prep  = &Owner{Run: "r1", Pipeline: "p", Stage: "app/prep"}
	train = &Owner{Run: "r1", Pipeline: "p", Stage: "app/train"}
	other = &Owner{Run: "r2", Pipeline: "q", Stage: "app/train"}
)

func TestIdleTimeIsPaidByWhoeverHeldTheHostInThatMinute(t *testing.T) {
	t.Parallel()
	const cent = quantity.USD / 100
	b := New()
	b.Present(present("h", 0, 10*time.Minute, 60*cent)) // a cent for each minute
	b.Hold(holding(prep, "h", 0, time.Minute, cent/4))  // three quarters of the minute are idle, and its own
	b.Hold(holding(train, "h", 5*time.Minute, 5*time.Minute+20*time.Second, cent/10))
	b.Hold(holding(prep, "h", 5*time.Minute+20*time.Second, 6*time.Minute, cent/10))
	b.Hold(holding(other, "h", 8*time.Minute, 9*time.Minute, 2*cent)) // more than the host costs: nothing is idle
	want := map[who]Sums{
		{"r1", "app/prep", "h"}:  {Idle: cent*3/4 + 5_333_333_333}, // two thirds of 0.8 cents
		{"r1", "app/train", "h"}: {Idle: 2_666_666_667},
		{"", "", "h"}:            {Idle: 7 * cent},
	}
	if diff := gocmp.Diff(want, spent(b, 0, math.MaxInt64), gocmp.AllowUnexported(who{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	running := holding(other, "h", 6*time.Minute, 8*time.Minute, cent)
	got := spent(b, 0, math.MaxInt64, running)
	if got[who{"r2", "app/train", "h"}].Idle != cent || got[who{"", "", "h"}].Idle != 5*cent {
		t.Errorf("with an attempt that goes on: %v", got)
	}
	if diff := gocmp.Diff(want, spent(b, 0, math.MaxInt64), gocmp.AllowUnexported(who{})); diff != "" {
		t.Errorf("the attempt that goes on was kept:\n%s", diff)
	}
}

func TestWhatIsOldIsClosedAsItWasAttributed(t *testing.T) {
	t.Parallel()
	const cent = quantity.USD / 100
	b := New()
	b.Present(present("h", 0, 2*time.Hour, 60*cent))
	b.Hold(holding(prep, "h", 30*time.Minute, 31*time.Minute, cent/4))
	before := spent(b, 0, math.MaxInt64)
	b.Present(present("late", 8*24*time.Hour-time.Minute, 8*24*time.Hour, 0))
	if b.hosts["h"] != nil {
		t.Fatalf("a host that was not there for a week is still kept")
	}
	idle, until := b.Closed()
	if want := nanos(24 * time.Hour); until != floor(want, hour) {
		t.Errorf("closed until %d, want the hour of %d", until, want)
	}
	kept := sumOf(idle)
	if diff := gocmp.Diff(before, kept, gocmp.AllowUnexported(who{})); diff != "" {
		t.Errorf("minute by minute and by the hour:\n%s", diff)
	}
	if got := before[who{"r1", "app/prep", "h"}].Idle; got != cent*3/4 {
		t.Errorf("a minute of the hour pays for %s, want three quarters of a minute", got)
	}
	b.Present(present("h", time.Hour, 2*time.Hour, 60*cent)) // told again, a week late
	if again, _ := b.Closed(); len(again) != 0 || len(spent(b, 0, math.MaxInt64)) != 0 {
		t.Errorf("what comes a week late changes what was closed: %v, %v", again, spent(b, 0, math.MaxInt64))
	}
}

// sumOf sums up spans by who spent.
func sumOf(spans []Span) map[who]Sums {
	found := map[who]Sums{}
	for _, s := range spans {
		of := who{host: s.Host}
		if s.Owner != nil {
			of.run, of.stage = s.Owner.Run, s.Owner.Stage
		}
		sums := found[of]
		sums.Add(s.Sums)
		found[of] = sums
	}
	maps.DeleteFunc(found, func(_ who, s Sums) bool { return s == Sums{} })
	return found
}

func TestABookThatIsReopenedSaysTheSame(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		events := drawEvents(t)
		whole := New()
		tell(whole, events)
		until := floor(nanos(time.Duration(rapid.Int64Range(0, int64(3*time.Hour)).Draw(t, "closed"))), hour)
		if until > whole.closed {
			whole.close(until)
		}
		_, closed := whole.Closed()
		again := Reopen(closed)
		for _, event := range events {
			if end(event) > closed {
				tell(again, []any{event})
			}
		}
		if diff := gocmp.Diff(spent(whole, 0, math.MaxInt64), spent(again, 0, math.MaxInt64),
			gocmp.AllowUnexported(who{})); diff != "" {
			t.Fatalf("closed until %d (-whole +reopened):\n%s", closed, diff)
		}
	})
}

// drawEvents draws presences, holdings and what is kept, within two hours and with few collisions of prices.
func drawEvents(t *rapid.T) []any {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) any {
		host := rapid.SampledFrom([]string{"h", "i"}).Draw(t, "host")
		// Whole and odd nanoseconds, so that rounding happens.
		from := time.Duration(rapid.Int64Range(0, int64(2*time.Hour)).Draw(t, "from"))
		to := from + time.Duration(rapid.Int64Range(0, int64(20*time.Minute)).Draw(t, "length"))
		if rapid.Bool().Draw(t, "present") {
			return present(host, from, to, map[string]quantity.Money{"h": 1_234_567_891, "i": 7}[host])
		}
		owner := rapid.SampledFrom([]*Owner{prep, train, other}).Draw(t, "owner")
		return holding(owner, host, from, to, quantity.Money(rapid.Int64Range(0, 200_000_000).Draw(t, "cost")))
	}), 0, 20).Draw(t, "events")
}

func tell(b *Book, events []any) {
	for _, event := range events {
		switch e := event.(type) {
		case predictor.HostHeld:
			b.Present(e)
		case Span:
			b.Hold(e)
		}
	}
}

func TestAdjacentWindowsSumToTheWhole(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		b := New()
		tell(b, drawEvents(t))
		whole := spent(b, 0, math.MaxInt64)
		cuts := []int64{0, math.MaxInt64}
		for range rapid.IntRange(0, 5).Draw(t, "cuts") {
			cuts = append(cuts, nanos(time.Duration(rapid.Int64Range(0, int64(150*time.Minute)).Draw(t, "cut"))))
		}
		slices.Sort(cuts)
		sum := map[who]Sums{}
		for i, until := range cuts[1:] {
			for of, s := range spent(b, cuts[i], until) {
				both := sum[of]
				both.Add(s)
				sum[of] = both
			}
		}
		if diff := gocmp.Diff(whole, sum, gocmp.AllowUnexported(who{})); diff != "" {
			t.Fatalf("the windows %v (-whole +sum):\n%s", cuts, diff)
		}
	})
}

func TestTheOrderOfEventsAndWhatIsToldTwiceDoNotMatter(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		events := drawEvents(t)
		first, second := New(), New()
		tell(first, events)
		tell(second, rapid.Permutation(events).Draw(t, "order"))
		for _, event := range events {
			if e, ok := event.(predictor.HostHeld); ok {
				second.Present(e)
			}
		}
		if diff := gocmp.Diff(spent(first, 0, math.MaxInt64), spent(second, 0, math.MaxInt64),
			gocmp.AllowUnexported(who{})); diff != "" {
			t.Fatalf("(-first +second):\n%s", diff)
		}
	})
}

// union are the intervals of a host without overlaps, by sorting: the oracle of host.present.
func union(events []any, name string) (intervals [][2]int64) {
	var sorted [][2]int64
	for _, event := range events {
		if e, ok := event.(predictor.HostHeld); ok && e.Host == name && e.From.Before(e.At) {
			sorted = append(sorted, [2]int64{e.From.UnixNano(), e.At.UnixNano()})
		}
	}
	slices.SortFunc(sorted, func(a, b [2]int64) int { return cmp.Compare(a[0], b[0]) })
	for _, s := range sorted {
		if n := len(intervals); n > 0 && s[0] <= intervals[n-1][1] {
			intervals[n-1][1] = max(intervals[n-1][1], s[1])
		} else {
			intervals = append(intervals, s)
		}
	}
	return intervals
}

func TestIdleTimeAndHoldingsSumToThePriceOfTheHost(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		b := New()
		events := drawEvents(t)
		for i, event := range events { // so cheap that no minute costs less than what was held in it
			if s, ok := event.(Span); ok {
				s.Pool = quantity.Money(rapid.Int64Range(0, 1000).Draw(t, fmt.Sprint("cost", i)))
				events[i] = s
			}
		}
		tell(b, events)
		var price, held quantity.Money
		there := union(events, "h")
		for _, interval := range there {
			price += quantity.Money(1_234_567_891).Prorated(
				quantity.Fraction{Of: interval[1] - interval[0], In: int64(time.Hour)})
		}
		// of what was held, the minutes in which the host was there for long enough to pay for it
		for _, event := range events {
			s, ok := event.(Span)
			if !ok || s.Host != "h" || s.From == s.To {
				continue
			}
			s.each(minute, func(part Span) {
				for _, interval := range there {
					if at := floor(part.From, minute); interval[0] <= at && interval[1] >= at+minute {
						held += part.Pool
					}
				}
			})
		}
		idle := quantity.Money(0)
		for of, s := range spent(b, 0, math.MaxInt64) {
			if of.host == "h" {
				idle += s.Idle
			}
		}
		// Minutes in which the host came or went are between: at most two for each interval, with at most 20 holders of 1,000
		// picodollars.
		least, most := price-held-quantity.Money(len(there)*(2*20*1000+1)), price-held+quantity.Money(len(there))
		if idle < least || idle > most {
			t.Fatalf("idle time is %d of %d, want between %d and %d with %d held", idle, price, least, most, held)
		}
	})
}

func TestMemoryStaysWithinItsBounds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		events := drawEvents(t)
		narrow := New()
		narrow.most = 5
		// what comes late finds its hour closed
		slices.SortStableFunc(events, func(a, b any) int { return cmp.Compare(end(a), end(b)) })
		tell(narrow, events)
		entries := 0
		for _, h := range narrow.hosts {
			entries += len(h.presences)
			for _, holders := range h.minutes {
				entries += len(holders)
			}
		}
		if entries != narrow.entries {
			t.Fatalf("%d entries are counted, there are %d", narrow.entries, entries)
		}
		if current := floor(narrow.latest, hour); entries > 5 && narrow.closed != current {
			t.Fatalf("%d entries are kept, want at most 5 besides those of the current hour", entries)
		}
	})
}

func TestHoursSumToTheSpans(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		hours := Hours{}
		var spans []Span
		for _, event := range drawEvents(t) {
			if s, ok := event.(Span); ok {
				spans = append(spans, s)
				hours.Add(s)
			}
		}
		if diff := gocmp.Diff(sumOf(spans), sumOf(hours.Spans()), gocmp.AllowUnexported(who{})); diff != "" {
			t.Fatalf("(-spans +hours):\n%s", diff)
		}
		for _, s := range hours.Spans() {
			if floor(s.From, hour) != floor(max(s.From, s.To-1), hour) {
				t.Fatalf("%+v is of more than an hour", s)
			}
		}
	})
}

func end(event any) int64 {
	switch e := event.(type) {
	case predictor.HostHeld:
		return e.At.UnixNano()
	case Span:
		return e.To
	}
	return 0
}

func TestTheFirstPriceOfAnIntervalCounts(t *testing.T) {
	t.Parallel()
	b := New()
	b.Present(present("h", time.Hour, 2*time.Hour, 100))
	b.Present(present("h", 0, 3*time.Hour, 1000))
	if got := total(spent(b, 0, math.MaxInt64)).Idle; got != 2100 {
		t.Errorf("an hour of 100 and two of 1000 cost %d", got)
	}
}

func TestThePriceOfAHostIsTheOneToldLast(t *testing.T) {
	t.Parallel()
	var p Prices
	p.Present(present("h", time.Hour, 2*time.Hour, 100))
	p.Present(present("h", 0, 3*time.Hour, 1000))
	p.Present(present("h", 0, time.Hour, 7)) // late
	p.Present(present("i", time.Hour, 0, 7)) // no time
	if price, known := p.Of("h"); !known || price.PerHour != 1000 {
		t.Errorf("the price is %v, known %v, want the one told last", price.PerHour, known)
	}
	if _, known := p.Of("i"); known || !slices.Equal(p.Hosts(), []string{"h"}) {
		t.Errorf("%v have a price, want h only", p.Hosts())
	}
	before := p.Revision()
	p.Present(present("h", 3*time.Hour, 4*time.Hour, 1000))
	if p.Revision() != before {
		t.Error("the same price again is another revision")
	}
	p.Present(present("i", 8*24*time.Hour, 9*24*time.Hour, 7))
	if _, known := p.Of("h"); known || p.Revision() == before {
		t.Error("a host that was not there for a week has its price yet, or nobody is told that it has not")
	}
}

func TestTimesOutOfRangeAreCut(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		given time.Time
		want  int64
	}{
		{time.Time{}, 0},
		{epoch, epoch.UnixNano()},
		{epoch.AddDate(400, 0, 0), 230 * 365 * 24 * 3600 * 1e9},
		{epoch.AddDate(-400, 0, 0), 0},
	} {
		if got := Nanoseconds(c.given); got != c.want {
			t.Errorf("%v is %d, want %d", c.given, got, c.want)
		}
	}
}

func TestAPartIsRoundedAsMoneyIs(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		number := func(name string) int64 {
			return rapid.OneOf(rapid.Int64Range(-3, 20), rapid.Int64Range(math.MaxInt64-20, math.MaxInt64), rapid.Int64()).
				Draw(t, name)
		}
		amount, of, in := number("amount"), number("of"), number("in")
		want := int64(quantity.Money(amount).Prorated(quantity.Fraction{Of: of, In: in}))
		if got := prorated(amount, of, in); got != want {
			t.Fatalf("%d x %d / %d is %d, want %d", amount, of, in, got, want)
		}
	})
}

func FuzzBookTakesAnyTimes(f *testing.F) {
	f.Add(int64(0), int64(1), int64(5), int64(7), int64(1))
	f.Add(int64(-1<<62), int64(1<<62), int64(1)<<40, int64(1)<<61, int64(math.MaxInt64))
	f.Fuzz(func(t *testing.T, from, to, hold, until, cost int64) {
		b := New()
		b.most = 1000
		b.Present(predictor.HostHeld{
			Host: "h", From: time.Unix(0, from), At: time.Unix(0, to),
			PricePerHour: quantity.Money(cost),
		})
		a, z := Nanoseconds(time.Unix(0, hold)), Nanoseconds(time.Unix(0, until))
		z = min(max(a, z), a+int64(366*24*time.Hour)) // what the ledger lets through
		s := Span{
			Owner: prep, Venue: predictor.Pool, Host: "h", From: a, To: z, Counted: z,
			Sums: Sums{Attempts: 1, Pool: quantity.Money(max(0, cost/2))},
		}
		b.Hold(s)
		for of, sums := range spent(b, 0, math.MaxInt64) {
			if sums.Pool < 0 || sums.Idle < 0 || sums.Held < 0 {
				t.Errorf("%+v spent %+v", of, sums)
			}
		}
	})
}

func ExampleSpan_Within() {
	const cent = quantity.USD / 100
	s := holding(prep, "h", 0, time.Hour, cent)
	for _, part := range []Sums{
		s.Within(nanos(0), nanos(20*time.Minute)),
		s.Within(nanos(20*time.Minute), nanos(2*time.Hour)),
	} {
		fmt.Printf("held for %s for $%s; %d attempts ended\n", part.Held, part.Pool.Decimal(), part.Attempts)
	}
	// Output:
	// held for 20m0s for $0.003333333333; 0 attempts ended
	// held for 40m0s for $0.006666666667; 1 attempts ended
}
