package slot

import (
	"context"
	"sync"

	"go.temporal.io/sdk/worker"
)

// queue is one of the two task queues of a stage.
type queue int

const (
	stageQueue queue = iota
	poolQueue
	queues // how many there are
)

// other is the stage's other queue.
func (q queue) other() queue { return poolQueue - q }

// slots is the room that the pollers of both queues share.
type slots struct {
	mu      sync.Mutex
	limit   int
	running int
	polls   [queues]int
	changed chan struct{} // closed and replaced whenever room may have appeared
}

func newSlots() *slots { return &slots{changed: make(chan struct{})} }

// mayPoll reports whether a queue with own open polls may open one more, while the stage's other queue has other open
// polls.
//
// A poll holds a slot before anyone knows whether it will bring a task, for up to a minute. With one slot and two
// queues a strict count would let the idle queue's poll keep the busy queue waiting for that minute. So a queue's first
// poll may go one above the limit: polls and attempts together never exceed limit+1, and no queue waits for the other's
// idle poll (TestAnIdlePollOfOneQueueDoesNotStarveTheOther).
func mayPoll(limit, running, own, other int) bool {
	if running >= limit {
		return false
	}
	return running+own+other < limit || own == 0 && running+other <= limit
}

// reserve waits until q may open a poll.
func (s *slots) reserve(ctx context.Context, q queue) error {
	for {
		s.mu.Lock()
		if mayPoll(s.limit, s.running, s.polls[q], s.polls[q.other()]) {
			s.polls[q]++
			s.mu.Unlock()
			return nil
		}
		changed := s.changed
		s.mu.Unlock()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

// begin turns a poll of q into a running attempt.
func (s *slots) begin(q queue) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.polls[q]--
	s.running++
	s.wake() // the first poll of a queue does not wait for the other queue's
}

// release gives back a poll of q, or the attempt that it became.
func (s *slots) release(q queue, running bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if running {
		s.running--
	} else {
		s.polls[q]--
	}
	s.wake()
}

// resize sets how many attempts may run.
func (s *slots) resize(limit int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if limit > s.limit {
		s.wake()
	}
	s.limit = limit
}

// wake lets all who wait look again; the caller holds mu.
func (s *slots) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *slots) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running
}

// supplier shows the slots of a stage to the Temporal worker of one of its queues.
type supplier struct {
	slots *slots
	queue queue
}

// permit is what a reserved slot is used for.
type permit struct{ running bool }

// ReserveSlot waits for room; Temporal's worker calls it before each poll.
func (s supplier) ReserveSlot(ctx context.Context, _ worker.SlotReservationInfo) (*worker.SlotPermit, error) {
	if err := s.slots.reserve(ctx, s.queue); err != nil {
		return nil, err
	}
	return &worker.SlotPermit{UserData: &permit{}}, nil
}

// TryReserveSlot is for eager tasks, which stages never are: their workflows run in another process.
func (s supplier) TryReserveSlot(worker.SlotReservationInfo) *worker.SlotPermit { return nil }

// MarkSlotUsed says that the poll has brought a task.
func (s supplier) MarkSlotUsed(info worker.SlotMarkUsedInfo) {
	if p, ok := info.Permit().UserData.(*permit); ok && !p.running {
		p.running = true
		s.slots.begin(s.queue)
	}
}

// ReleaseSlot says that the attempt is over, or that the poll brought nothing.
func (s supplier) ReleaseSlot(info worker.SlotReleaseInfo) {
	if p, ok := info.Permit().UserData.(*permit); ok {
		s.slots.release(s.queue, p.running)
	}
}

// MaxSlots returns 0: the number changes, so there is no maximum to report.
func (s supplier) MaxSlots() int { return 0 }
