package trigger

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/activities/wire"
)

func TestHowThePaceAnswersToOneStart(t *testing.T) {
	t.Parallel()
	known := aimd{limit: 10, quickest: 5 * time.Millisecond, cut: time.Second}
	far := aimd{limit: 10, quickest: 200 * time.Millisecond}
	at := func(began, took time.Duration) sample { return sample{began: began, ended: began + took} }
	for name, row := range map[string]struct {
		before aimd
		sample sample
		want   float64
	}{
		"quick, and no other could begin": {
			known,
			sample{began: 2 * time.Second, ended: 2100 * time.Millisecond, full: true},
			10.1,
		},
		"quick, and there was room":       {known, at(2*time.Second, 100*time.Millisecond), 10},
		"slow":                            {known, at(2*time.Second, 600*time.Millisecond), 8},
		"slow, begun before the last cut": {known, at(0, 2*time.Second), 10},
		"failed":                          {known, sample{began: 2 * time.Second, ended: 3 * time.Second, failed: true}, 5},
		"not slow for a server far away":  {far, at(2*time.Second, 1500*time.Millisecond), 10},
		"slow even for one far away":      {far, at(2*time.Second, 1700*time.Millisecond), 8},
		"failed at the fewest": {
			aimd{limit: fewestStarts},
			sample{began: 1, ended: 2, failed: true},
			fewestStarts,
		},
		"quick at the most": {aimd{limit: mostStarts}, sample{began: 1, ended: 2, full: true}, mostStarts},
	} {
		if got := row.before.after(row.sample); got.limit != row.want {
			t.Errorf("%s: limit %v, want %v", name, got.limit, row.want)
		}
	}
}

// queue is a server that deals with one start after another, beside other work of its own.
type queue struct {
	service   func(now time.Duration) time.Duration
	busyUntil time.Duration
}

// drained starts n runs at the limit through the queue. It tells when each began and ended, in the order in which they
// ended, and the limiter after it.
func drained(q *queue, n int) (starts []sample, limiters []aimd) {
	p := newAIMD()
	var now time.Duration
	var underWay []sample
	for begun := 0; len(starts) < n; {
		for ; begun < n && len(underWay) < p.starts(); begun++ {
			q.busyUntil = max(q.busyUntil, now) + q.service(now)
			underWay = append(underWay, sample{began: now, ended: q.busyUntil, failed: q.busyUntil-now > startTimeout})
		}
		s := underWay[0]
		s.full = len(underWay) >= p.starts()
		underWay, now = underWay[1:], s.ended
		p = p.after(s)
		starts, limiters = append(starts, s), append(limiters, p)
	}
	return starts, limiters
}

// TestStartsKeepTheServerBusyAndNeverRunIntoTheirDeadline floods servers of any speed, which may change.
func TestStartsKeepTheServerBusyAndNeverRunIntoTheirDeadline(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		least, most := int64(100*time.Microsecond), int64(400*time.Millisecond)
		first := time.Duration(rapid.Int64Range(least, most).Draw(t, "service"))
		second := time.Duration(rapid.Int64Range(least, most).Draw(t, "service later"))
		change := time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(t, "changes at"))
		var worked time.Duration
		q := &queue{service: func(now time.Duration) time.Duration {
			one := first
			if now > change {
				one = second
			}
			worked += one
			return one
		}}
		starts, limiters := drained(q, 2000)
		for i, s := range starts {
			if s.failed {
				t.Fatalf("start %d took %v", i, s.ended-s.began)
			}
			if p := limiters[i]; p.limit < fewestStarts || p.limit > mostStarts {
				t.Fatalf("the limit is %v", p.limit)
			}
		}
		if whole := starts[len(starts)-1].ended; worked < whole*99/100 {
			t.Fatalf("the server worked %v of %v", worked, whole)
		}
		if starts[1000].ended < change && change < starts[len(starts)-1].ended {
			return // it has not had the time to follow the change
		}
		var tail time.Duration
		for _, s := range starts[1500:] {
			tail = max(tail, s.ended-s.began)
		}
		if allowed := max(mostSlow, fewestStarts*max(first, second)) * 3 / 2; tail > allowed {
			t.Fatalf("in the end a start takes %v, more than %v", tail, allowed)
		}
	})
}

func TestAFloodOfOneBindingHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newAdmission()
		var mu sync.Mutex
		var order []string
		var all sync.WaitGroup
		begin := func(binding string) {
			all.Go(func() {
				s, err := a.enter(t.Context(), binding)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				order = append(order, binding)
				mu.Unlock()
				time.Sleep(20 * time.Millisecond)
				s.leave(false)
			})
		}
		for range 1000 {
			begin("flood")
		}
		synctest.Wait() // the first are under way, all others wait
		for range 10 {
			begin("quiet")
		}
		all.Wait()
		if len(order) != 1010 {
			t.Fatalf("%d starts began, want 1010", len(order))
		}
		// What was under way came first; then the two take turns. Starts that are let in together note themselves here in
		// any order.
		if last := len(order) - 1 - slices.Index(reversed(order), "quiet"); last > 2*firstStarts+2*10 {
			t.Errorf("the last start of the quiet binding was number %d", last)
		}
	})
}

func reversed(values []string) []string {
	values = slices.Clone(values)
	slices.Reverse(values)
	return values
}

func TestAStartThatIsWithdrawnCostsNobodyItsTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newAdmission()
		var underWay []*start
		for range firstStarts {
			s, err := a.enter(t.Context(), "a")
			if err != nil {
				t.Fatal(err)
			}
			underWay = append(underWay, s)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var gone, stays sync.WaitGroup
		for i := range 10 {
			gone.Go(func() {
				if _, err := a.enter(ctx, fmt.Sprintf("gone-%d", i%3)); err == nil {
					t.Error("it began after it was withdrawn")
				}
			})
			stays.Go(func() {
				s, err := a.enter(t.Context(), "stays")
				if err != nil {
					t.Error(err)
					return
				}
				s.leave(false)
			})
		}
		synctest.Wait()
		cancel()
		gone.Wait()
		for _, s := range underWay {
			s.leave(false)
		}
		stays.Wait()
		if len(a.turns) != 0 || len(a.waiting) != 0 || a.underWay != 0 {
			t.Errorf("left behind: turns %v, waiting %v, %d under way", a.turns, a.waiting, a.underWay)
		}
	})
}

// TestAFloodOfEventsIsStartedAtAPaceAndHoldsUpNoOtherPipeline: the server answers nothing until the test lets it.
func TestAFloodOfEventsIsStartedAtAPaceAndHoldsUpNoOtherPipeline(t *testing.T) {
	t.Parallel()
	mem := newMemory()
	var mu sync.Mutex
	var underWay, most int
	var order []string
	answer := make(chan struct{})
	mem.hold = func(start Start) {
		mu.Lock()
		underWay++
		most = max(most, underWay)
		order = append(order, start.Pipeline)
		mu.Unlock()
		<-answer
		mu.Lock()
		underWay--
		mu.Unlock()
	}
	s := restart(t, newJetStream(t), mem, open("flood"), open("other"), open("quiet"))
	begun := func(n int) func() (bool, string) {
		return func() (bool, string) {
			mu.Lock()
			defer mu.Unlock()
			return len(order) >= n, fmt.Sprintf("%d starts have begun", len(order))
		}
	}
	for i := range 200 {
		s.publish(wire.EventSubject("flood"), fmt.Sprintf(`{"n":%d}`, i))
		s.publish(wire.EventSubject("other"), fmt.Sprintf(`{"n":%d}`, i))
	}
	s.await("as many starts have begun as may", begun(firstStarts))
	s.publish(wire.EventSubject("quiet"), `{}`)
	s.await("the event of the quiet pipeline waits for its turn", func() (bool, string) {
		s.admission.mu.Lock()
		defer s.admission.mu.Unlock()
		return len(s.admission.waiting) == 3, fmt.Sprintf("%v wait", s.admission.turns)
	})
	stats, err := s.Stats(t.Context())
	if err != nil || stats.StartLimit != firstStarts {
		t.Errorf("the limit is told as %d, %v; want %d", stats.StartLimit, err, firstStarts)
	}
	var waiting uint64
	for _, one := range stats.Bindings {
		waiting += one.Waiting
	}
	if waiting != 401 {
		t.Errorf("%d events are told as waiting, want 401", waiting)
	}
	for range 3 {
		answer <- struct{}{} // one start ends, and that of the binding whose turn it is begins
	}
	s.await("the start of the quiet pipeline, the third in turn, has begun", func() (bool, string) {
		mu.Lock()
		defer mu.Unlock()
		return slices.Contains(order, "quiet"), fmt.Sprintf("%d starts have begun", len(order))
	})
	close(answer)
	s.settled()
	mu.Lock()
	defer mu.Unlock()
	if most > mostStarts || len(order) != 401 {
		t.Errorf("%d starts were under way at a time, %d in all; want at most %d, and 401", most, len(order), mostStarts)
	}
}
