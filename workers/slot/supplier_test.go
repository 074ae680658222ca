package slot

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"
)

func TestAPollMayOpenWhenASlotIsFree(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name                       string
		limit, running, own, other int
		want                       bool
	}{
		{"no slots, no poll", 0, 0, 0, 0, false},
		{"one slot is polled for once", 1, 0, 0, 0, true},
		{"not twice", 1, 0, 1, 0, false},
		{"an attempt fills it", 1, 1, 0, 0, false},
		{"the other queue's idle poll does not keep it", 1, 0, 0, 1, true},
		{"a second poll counts the other queue's", 3, 0, 1, 2, false},
		{"a first poll goes at most one above the limit", 4, 1, 0, 4, false},
		{"polls and attempts fill all slots", 4, 1, 2, 0, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := mayPoll(tt.limit, tt.running, tt.own, tt.other); got != tt.want {
				t.Errorf("mayPoll(limit %d, running %d, own %d, other %d): got %v, want %v", tt.limit, tt.running, tt.own, tt.other,
					got, tt.want)
			}
		})
	}
}

// Whatever happens in whatever order, attempts never exceed the limit by more than the one poll that was open.
func TestAttemptsNeverExceedTheSlotsByMoreThanOne(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(0, 6).Draw(t, "limit")
		both := rapid.Bool().Draw(t, "both")
		s := newSlots()
		s.resize(limit)
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			q := stageQueue
			if both && rapid.Bool().Draw(t, "pool") {
				q = poolQueue
			}
			switch rapid.SampledFrom([]string{"poll", "begin", "empty", "end"}).Draw(t, "what") {
			case "poll":
				if mayPoll(s.limit, s.running, s.polls[q], s.polls[q.other()]) {
					if err := s.reserve(context.Background(), q); err != nil {
						t.Fatal(err)
					}
				}
			case "begin":
				if s.polls[q] > 0 {
					s.begin(q)
				}
			case "empty":
				if s.polls[q] > 0 {
					s.release(q, false)
				}
			case "end":
				if s.running > 0 {
					s.release(q, true)
				}
			}
			most := limit
			if both && limit > 0 {
				most++
			}
			if got := s.running + s.polls[stageQueue] + s.polls[poolQueue]; got > most {
				t.Fatalf("polls and attempts: got %d, want at most %d", got, most)
			}
		}
	})
}

func TestAnIdlePollOfOneQueueDoesNotStarveTheOther(t *testing.T) {
	t.Parallel()
	s := newSlots()
	s.resize(1)
	for _, q := range []queue{stageQueue, poolQueue} {
		if err := s.reserve(t.Context(), q); err != nil {
			t.Fatalf("poll queue %d: %v", q, err)
		}
	}
}

func TestAWaitingPollOpensWhenSlotsAreRaisedOrGivenBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSlots()
		opened := make(chan error, 2)
		for range 2 {
			go func() { opened <- s.reserve(t.Context(), stageQueue) }()
		}
		synctest.Wait()
		if len(opened) != 0 {
			t.Fatalf("polls opened without slots: got %d, want 0", len(opened))
		}
		s.resize(1)
		synctest.Wait()
		if len(opened) != 1 {
			t.Fatalf("polls opened with one slot: got %d, want 1", len(opened))
		}
		s.begin(stageQueue)
		s.resize(0)
		s.resize(1)
		synctest.Wait()
		if len(opened) != 1 {
			t.Fatalf("polls opened while the slot is taken: got %d, want 1", len(opened))
		}
		s.release(stageQueue, true)
		synctest.Wait()
		if len(opened) != 2 {
			t.Fatalf("polls opened after the attempt: got %d, want 2", len(opened))
		}
	})
}

func TestAPollThatIsGivenUpStopsWaiting(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := newSlots().reserve(ctx, stageQueue); !errors.Is(err, context.Canceled) {
		t.Errorf("reserve: got %v, want context.Canceled", err)
	}
}

func TestConcurrentPollersShareTheSlots(t *testing.T) {
	t.Parallel()
	s := newSlots()
	s.resize(3)
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			q := queue(i % int(queues))
			if err := s.reserve(t.Context(), q); err != nil {
				t.Error(err)
				return
			}
			s.begin(q)
			if got := s.count(); got > 4 {
				t.Errorf("attempts: got %d, want at most 4", got)
			}
			s.release(q, true)
		})
	}
	wg.Wait()
	if got := s.count(); got != 0 {
		t.Errorf("attempts at the end: got %d, want 0", got)
	}
}
