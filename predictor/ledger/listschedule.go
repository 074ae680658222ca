package ledger

import (
	"cmp"
	"container/heap"
	"slices"
	"sort"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger/spend"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// rescheduled is an attempt as it is scheduled again at another size. Times are nanoseconds since 1970.
type rescheduled struct {
	stage            int // its stage's place among the run's; attempts of one stage are started in order
	scheduled, ended int64
	// lasts is for how long it holds size; 0 for one that would not have been made.
	lasts time.Duration
	size  quantity.Size
}

// listSchedule returns when a run that began and ended at these times would have ended on hosts with these capacities,
// had its attempts held these sizes for these times; known is false where some attempt fits on no host.
//
// It is a list schedule (Graham, "Bounds on multiprocessing timing anomalies", SIAM J. Appl. Math. 17(2), 1969):
// attempts start in the order in which they are scheduled, each on the first host that has room. What a run waits for
// before it schedules an attempt is not told, so it is taken to be the attempt whose end came last before: the
// attempt is scheduled as long after that end as it was. That keeps stages in their order, and loops and windows as
// narrow as they were. The same holds for the run's own end.
func listSchedule(attempts []rescheduled, hosts []quantity.Size, began, ended int64) (end int64, known bool) {
	ends := make([]int, len(attempts)) // attempts by their end
	for i := range attempts {
		ends[i] = i
	}
	slices.SortStableFunc(ends, func(a, b int) int { return cmp.Compare(attempts[a].ended, attempts[b].ended) })
	// before is the attempt that ended last by a time; -1 for none.
	before := func(at int64) int {
		n := sort.Search(len(ends), func(i int) bool { return attempts[ends[i]].ended > at })
		if n == 0 {
			return -1
		}
		return ends[n-1]
	}
	s := schedule{attempts: attempts, free: slices.Clone(hosts), followers: make([][]int, len(attempts))}
	for i, attempt := range attempts {
		if !slices.ContainsFunc(hosts, func(capacity quantity.Size) bool { return attempt.size.Fits(capacity) }) {
			return 0, false
		}
		if cause := before(attempt.scheduled); cause >= 0 && attempts[cause].ended < attempt.ended {
			s.followers[cause] = append(s.followers[cause], i)
		} else {
			heap.Push(&s.coming, moment{at: attempt.scheduled, attempt: i})
		}
	}
	s.run()
	last, final := before(ended), ended
	if last >= 0 {
		final = s.endedAt[last] + ended - attempts[last].ended
	}
	for _, at := range s.endedAt {
		final = max(final, at)
	}
	return max(final, began), true
}

// schedule is the state of a list schedule.
type schedule struct {
	attempts  []rescheduled
	free      []quantity.Size // by host
	followers [][]int         // the attempts that are scheduled after the end of each
	waiting   [][]int         // by stage, in order
	coming    moments         // when attempts are scheduled
	going     moments         // when attempts end
	hosts     map[int]int     // where attempts run
	endedAt   []int64
}

func (s *schedule) run() {
	s.hosts, s.endedAt = map[int]int{}, make([]int64, len(s.attempts))
	for len(s.coming) > 0 || len(s.going) > 0 {
		// An end comes before a start at the same time: it makes room.
		if len(s.going) > 0 && (len(s.coming) == 0 || s.going[0].at <= s.coming[0].at) {
			s.end(heap.Pop(&s.going).(moment))
			continue
		}
		now := s.coming[0].at
		for len(s.coming) > 0 && s.coming[0].at == now {
			next := heap.Pop(&s.coming).(moment).attempt
			stage := s.attempts[next].stage
			for len(s.waiting) <= stage {
				s.waiting = append(s.waiting, nil)
			}
			s.waiting[stage] = append(s.waiting[stage], next)
		}
		s.start(now)
	}
}

// end gives an attempt's room back, and schedules what follows it.
func (s *schedule) end(ending moment) {
	attempt := s.attempts[ending.attempt]
	s.endedAt[ending.attempt] = ending.at
	if host, held := s.hosts[ending.attempt]; held {
		s.free[host] = s.free[host].Plus(attempt.size)
		delete(s.hosts, ending.attempt)
	}
	for _, next := range s.followers[ending.attempt] {
		heap.Push(&s.coming, moment{at: ending.at + s.attempts[next].scheduled - attempt.ended, attempt: next})
	}
	s.start(ending.at)
}

// start starts every waiting attempt that has room, stage by stage.
func (s *schedule) start(now int64) {
	for stage, queue := range s.waiting {
		for len(queue) > 0 && s.place(queue[0], now) {
			queue = queue[1:]
		}
		s.waiting[stage] = queue
	}
}

func (s *schedule) place(attempt int, now int64) bool {
	one := s.attempts[attempt]
	if one.lasts <= 0 {
		heap.Push(&s.going, moment{at: now, attempt: attempt})
		return true
	}
	host := slices.IndexFunc(s.free, one.size.Fits)
	if host < 0 {
		return false
	}
	s.free[host] = s.free[host].Minus(one.size)
	s.hosts[attempt] = host
	heap.Push(&s.going, moment{at: now + int64(one.lasts), attempt: attempt})
	return true
}

// moment is a time at which something happens to an attempt.
type moment struct {
	at      int64
	attempt int
}

// moments is a heap of them, the earliest first, then by attempt, so that the same run gives the same schedule.
type moments []moment

func (m moments) Len() int      { return len(m) }
func (m moments) Swap(i, j int) { m[i], m[j] = m[j], m[i] }
func (m moments) Less(i, j int) bool {
	return m[i].at < m[j].at || m[i].at == m[j].at && m[i].attempt < m[j].attempt
}

// Push implements heap.Interface.
func (m *moments) Push(one any) { *m = append(*m, one.(moment)) }

// Pop implements heap.Interface.
func (m *moments) Pop() any {
	last := (*m)[len(*m)-1]
	*m = (*m)[:len(*m)-1]
	return last
}

// staticSeconds is how long the run, which has ended, would have taken with its stages at these sizes, all at the
// hosts at which some of its attempts ran, or else at the cheapest that holds its largest size; 0 where that cannot
// be said.
func (c *compared) staticSeconds(sizes map[string]quantity.Size) float64 {
	names := map[string]bool{}
	stages := map[*stage]int{}
	for i, st := range c.stages {
		stages[st.stage] = i
	}
	var again []rescheduled
	for i := range c.attempts.count {
		of := c.attempts.at(i)
		m := of.manner.Value()
		if !of.recorded || m.outcome == predictor.Refused {
			continue
		}
		if m.venue == predictor.Pool {
			names[m.host] = true
		}
		size := sizes[of.stage.id.Name]
		one := rescheduled{stage: stages[of.stage], scheduled: of.scheduled, ended: of.ended, size: size}
		if of.priced().Made(size) {
			one.lasts = of.priced().Held(size) + of.settle
		}
		again = append(again, one)
	}
	var hosts []quantity.Size
	for _, name := range c.prices.Hosts() {
		if price, _ := c.prices.Of(name); names[name] {
			hosts = append(hosts, price.Capacity)
		}
	}
	if len(hosts) == 0 {
		var largest quantity.Size
		for _, size := range sizes {
			largest = quantity.Size{CPU: max(largest.CPU, size.CPU), Memory: max(largest.Memory, size.Memory)}
		}
		if host, known := cheapest(&c.prices, largest); known {
			hosts = append(hosts, host.Capacity)
		}
	}
	began := spend.Nanoseconds(c.startedAt)
	end, known := listSchedule(again, hosts, began, spend.Nanoseconds(c.endedAt))
	if !known || len(again) == 0 {
		return 0
	}
	return time.Duration(end - began).Seconds()
}
