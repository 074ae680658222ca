package share

import (
	"cmp"
	"math"
	"slices"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/plan"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Claim is what one stage wants of the hosts.
type Claim struct {
	// Size is that of one slot, Held what those hold in which an attempt runs, which may come to as much; the zero value
	// is Size.
	Size, Held quantity.Size
	// Tasks is how many the stage has, those that wait and those that run. Running is how many run, On on which hosts:
	// these keep their slots where they are.
	Tasks, Running int
	On             map[string]int
	// GPUs are those that running attempts are known to have on which hosts, by UUID; nil where that is not known.
	GPUs map[string][]string
	// Kept is how many slots the stage keeps while there is room, though fewer may be needed now (see [Held.Keep]).
	Kept int
	// Unfit are the hosts that cannot run it: they get no further slot of it. Nil where all can.
	Unfit map[string]bool
	// Placed is how many slots it had on which hosts.
	Placed map[string]int
	// Wall is how long a task takes, and Slack how long the stage has until its earliest deadline, +Inf without one; in
	// seconds.
	Wall, Slack float64
	// Team is the place of its team among those that share the hosts.
	Team int
	// Next is what tasks that begin in one further slot cost at most until slots are given anew. Lone says that nobody
	// knows: then it is all that is left of the team's money.
	Next quantity.Money
	Lone bool
	// Holds says that it has a slot whose [Turn] is not over, Since when its last turn began, 0 for never.
	Holds bool
	Since fact.Instant
}

// Needed is how many slots the stage could use now.
func (c Claim) Needed() int { return max(min(c.Tasks, plan.MaxSlots), c.Running) }

// Slots is what a stage gets.
type Slots struct {
	// Total is how many slots, and On how many on each host, in the order of the hosts.
	Total int
	On    []int
	// Limited says that it could use more than there is room for, Bound that it could use more than its team may have.
	Limited bool
	Bound   Bound
}

// Hosts gives the room of the hosts to the stages.
//
// What runs keeps its slot. Every stage with work has at least one slot, even one that does not fit: admission makes
// its attempts wait, so nothing starves. Then, as long as one fits, the next slot goes to the stage that would miss its
// deadline by most, else to the stage that would finish last (see [Finish]), of equals to the first.
//
// Giving one slot at a time to the largest finish minimises the latest finish over the stages when slots are alike:
// moving a slot from any stage to another could only make the giver the later one. What fits beside is kept for a while
// by stages that needed it lately, in their order. Attempts on hosts that are gone hold nothing: their tasks come back.
// Without any host nobody has a slot, and without one that has its GPUs, or can run it at all, a stage has none: there
// its tasks could never run.
func Hosts(hosts []plan.Host, claims []Claim) []Slots { return Teams(hosts, claims, nil) }

// Finish is how many seconds so many slots take for tasks of wall seconds each:
//
//	tasks x wall / slots
//
// of the slots only those that have something to do; +Inf without one.
func Finish(tasks, slots int, wall float64) float64 {
	if slots == 0 {
		return math.Inf(1)
	}
	return float64(tasks) * wall / float64(Serving(tasks, slots))
}

// Serving is how many of the slots have something to do.
func Serving(tasks, slots int) int { return min(slots, max(tasks, 1)) }

// room is a host with what is left of it, which may fall below zero when more runs than fits.
type room struct {
	plan.Host
	index   int
	left    quantity.Size
	devices devices
}

// rooms are the hosts: by the order in which they were given, by name, and by what is left of them, the most first.
type rooms struct {
	all, order []*room
	named      map[string]*room
}

func newRooms(hosts []plan.Host) *rooms {
	r := &rooms{all: make([]*room, len(hosts)), named: make(map[string]*room, len(hosts))}
	for i, host := range hosts {
		r.all[i] = &room{Host: host, index: i, left: host.Capacity, devices: newDevices(host)}
		r.named[host.ID] = r.all[i]
	}
	r.order = slices.Clone(r.all)
	slices.SortFunc(r.order, before)
	return r
}

// before orders hosts by the cores that are left, then the memory, the most first, then as they were given.
func before(a, b *room) int {
	return cmp.Or(cmp.Compare(b.left.CPU, a.left.CPU), cmp.Compare(b.left.Memory, a.left.Memory),
		cmp.Compare(a.index, b.index))
}

// take takes room of a host.
func (r *rooms) take(host *room, size quantity.Size) {
	at, _ := slices.BinarySearchFunc(r.order, host, before)
	r.order = slices.Delete(r.order, at, at+1)
	host.left = host.left.Minus(size)
	at, _ = slices.BinarySearchFunc(r.order, host, before)
	r.order = slices.Insert(r.order, at, host)
}

// holdDevices makes the GPUs of running attempts theirs: first those of which that is known.
func holdDevices(rooms []*room, claims []Claim) {
	for _, named := range []bool{true, false} {
		for _, claim := range claims {
			count := claim.Size.WholeGPUs()
			if count == 0 {
				continue
			}
			for _, host := range rooms {
				uuids := claim.GPUs[host.ID]
				if named && len(uuids) > 0 {
					host.devices.hold(claim.Size, uuids, forever)
				}
				if named {
					continue
				}
				for range claim.On[host.ID] - len(uuids)/count {
					host.devices.hold(claim.Size, nil, forever)
				}
			}
		}
	}
}

// stage is a claim with what it has got so far.
type stage struct {
	Claim
	Slots
	team   *team
	runsOn []*room // the hosts on which its attempts run, where its team is bounded
	order  int
	most   []int                 // how many slots the GPUs of each host have room for, whoever has them now; nil for any
	growth map[int]quantity.Size // by how much what runs may yet grow on a host: no further slot of the stage takes that
}

// begin gives a stage with work what it has in any case.
func (s *stage) begin(rooms *rooms) {
	if s.Needed() == 0 {
		return
	}
	held := s.Size
	if !s.Held.IsZero() {
		held = s.Held
		s.growth = map[int]quantity.Size{}
	}
	for name, running := range s.Claim.On {
		host := rooms.named[name]
		for range running {
			if host == nil {
				break
			}
			s.place(rooms, host, held, false)
			if s.growth != nil {
				s.growth[host.index] = s.growth[host.index].Plus(s.Size.Minus(held))
			}
		}
	}
	if s.Total == 0 {
		s.place(rooms, s.roomiest(rooms, true), s.Size, true)
	}
}

// place gives the stage one slot on the host. Without any host the slot is granted nowhere: it is placed when one
// joins. What runs has its GPUs already; a further slot is given some, as far as they are free.
func (s *stage) place(rooms *rooms, host *room, size quantity.Size, further bool) {
	if host == nil {
		return
	}
	if further {
		for _, i := range host.devices.choose(size, notHeld) {
			host.devices.until[i] = forever
		}
	}
	s.Total++
	s.Slots.On[host.index]++
	rooms.take(host, size)
}

// roomiest returns the host for the stage's next slot: one where it had more slots than it has got so far, so that
// placements do not wander, else the one with the most cores free, then memory. When none has room it is nil, or with
// force the one with the most of those that have such GPUs as it asks for: cores and memory become free, GPUs do not
// grow.
//
// The hosts lie in that order, so the first with room is the one, and none behind a host with too few cores has any: a
// thousand hosts are not all looked at for each of ten thousand stages.
func (s *stage) roomiest(rooms *rooms, force bool) *room {
	least := s.Size.CPU
	if s.Held.CPU > s.Size.CPU { // what runs may yet leave more than is left now
		least = math.MinInt64
	}
	host := s.first(rooms, least, s.hasRoom)
	if host == nil && force {
		host = s.first(rooms, math.MinInt64, func(h *room) bool { return fits(s.Size, h.Capacity) })
	}
	if host == nil && force {
		host = s.first(rooms, math.MinInt64, func(*room) bool { return true })
	}
	return host
}

// first is the first host that will do, of those where the stage can run and so many cores are left: one where it had
// more slots than it has got so far, else any.
func (s *stage) first(rooms *rooms, cores quantity.Milli, does func(*room) bool) (first *room) {
	for name, slots := range s.Placed {
		host := rooms.named[name]
		if host != nil && slots > s.Slots.On[host.index] && s.can(host) && does(host) &&
			(first == nil || before(host, first) < 0) {
			first = host
		}
	}
	if first != nil {
		return first
	}
	for _, host := range rooms.order {
		if host.left.CPU < cores {
			break
		}
		if s.can(host) && does(host) {
			return host
		}
	}
	return nil
}

// can reports whether the stage can run on a host at all.
func (s *stage) can(host *room) bool { return s.most == nil || s.most[host.index] > 0 }

// hasRoom reports whether a host has room for one more slot of the stage.
func (s *stage) hasRoom(host *room) bool {
	return fits(s.Size, host.left.Minus(s.growth[host.index])) && host.devices.fit(s.Size, notHeld)
}

// fits reports whether a host with so much left has room for a size. GPUs are given whole: whether theirs is enough
// memory is a question to each of them, see devices.
func fits(size, left quantity.Size) bool {
	size.GPU = quantity.Milli(size.WholeGPUs()) * quantity.Core
	size.GPUMemory, left.GPUMemory, size.DeviceClass = 0, 0, "" // the sum may be less than nothing beside a first slot
	return size.Fits(left)
}

// needs is a heap of stages that want another slot, the neediest first.
type needs []*stage

// Len is the number of stages.
func (n needs) Len() int { return len(n) }

// Swap exchanges two stages.
func (n needs) Swap(i, j int) { n[i], n[j] = n[j], n[i] }

// Push adds a stage.
func (n *needs) Push(s any) { *n = append(*n, s.(*stage)) }

// Pop removes the last stage.
func (n *needs) Pop() any {
	last := (*n)[len(*n)-1]
	*n = (*n)[:len(*n)-1]
	return last
}

// Less orders by need, then as the stages were given.
func (n needs) Less(i, j int) bool {
	a, b := n[i], n[j]
	return cmp.Or(
		Neediest(a.Slack, Finish(a.Tasks, a.Total, a.Wall), b.Slack, Finish(b.Tasks, b.Total, b.Wall)),
		cmp.Compare(a.order, b.order),
	) < 0
}

// Neediest orders two stages by the time by which a deadline would be missed, then by the predicted finish, the latest
// first; all in seconds.
func Neediest(slackA, finishA, slackB, finishB float64) int {
	return cmp.Or(
		cmp.Compare(min(0, slackA-finishA), min(0, slackB-finishB)),
		cmp.Compare(finishB, finishA),
	)
}
