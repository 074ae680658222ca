package share

import (
	"cmp"
	"container/heap"
	"math"
	"slices"
	"time"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/plan"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Team is one of those among whom the hosts are shared.
type Team struct {
	// Weight is what part of the hosts is the team's beside others that want as much, in proportion to theirs; 0 is 1.
	Weight float64
	// Slots is how many its stages have together at most, running attempts among them; 0 is no bound.
	Slots int
	// Limited says that its slots are bounded by Money, which further tasks of it may cost together.
	Limited bool
	Money   quantity.Money
}

// Bound is why a stage has fewer slots than it could use.
type Bound int

// Bounds of slots.
const (
	Unbounded Bound = iota
	// ByOthers says that its team has its part and other teams want theirs, BySlots that its team has as many as it may,
	// ByMoney that what is left of its team's money pays no further task.
	ByOthers
	BySlots
	ByMoney
)

// Turn is for how long a stage keeps its slot while its team cannot have one for each of its stages: then the one that
// has waited the longest has it.
const Turn = fact.Instant(20 * time.Second)

// Teams gives the room of the hosts to the stages of several teams; with one, or with none, it is [Hosts].
//
// Teams share by weighted max-min fairness over dominant shares (Ghodsi et al., "Dominant Resource Fairness", NSDI
// 2011, https://www.usenix.org/conference/nsdi11/dominant-resource-fairness-fair-allocation-multiple-resource-types,
// which with one resource is max-min fairness: Bertsekas and Gallager, "Data Networks", 2nd ed., 6.5.2): with
//
//	share(t) = max over CPU, memory, GPUs of what t holds / what all hosts have
//
// the next slot goes to the team of the least share(t)/weight(t) that wants one that fits, to its stage that Hosts
// would give it to. So what a team does not want is lent to the others by their weights, and no team's share/weight can
// be raised but by lowering that of one that has no more.
//
// What that comes to on hosts on which nothing runs is each team's part, where they want more than there is. A team
// that holds more than its part, as it borrowed what another wants now, keeps slots up to its part: what runs goes on,
// and no further task begins in a slot that is not kept, so that what was lent comes back as attempts end. Within a
// team that has all that it wants, or is not bounded, slots are given as Hosts gives them. One that is bounded may have
// fewer slots than stages: these take turns, each for [Turn].
func Teams(hosts []plan.Host, claims []Claim, teams []Team) []Slots {
	d := deal(hosts, claims, teams)
	if len(d.teams) > 1 {
		d.entitle(hosts, claims, teams)
	}
	for _, s := range d.stages {
		if s.team.bounded() {
			s.hold(d.rooms)
			continue
		}
		s.begin(d.rooms)
		for range s.Total {
			s.team.takes(s)
		}
	}
	d.keep()
	d.shareNeeded()
	given := make([]Slots, len(d.stages))
	for i, s := range d.stages {
		for s.Total < s.Kept && s.team.permits(s) == Unbounded {
			host := s.roomiest(d.rooms, false)
			if host == nil {
				break
			}
			s.place(d.rooms, host, s.Size, true)
			s.team.takes(s)
		}
		given[i] = s.Slots
	}
	return given
}

// dealing is how far the hosts are shared.
type dealing struct {
	rooms  *rooms
	stages []*stage
	teams  []*team
}

// deal lays out what there is to share and who wants it.
func deal(hosts []plan.Host, claims []Claim, teams []Team) *dealing {
	d := &dealing{rooms: newRooms(hosts), stages: make([]*stage, len(claims))}
	on := make([]int, len(hosts)*len(claims)) // of all stages
	var whole quantity.Size
	for _, host := range hosts {
		whole = whole.Plus(host.Capacity)
	}
	for _, one := range teams {
		d.teams = append(d.teams, &team{Team: one, whole: whole, part: math.Inf(1)})
	}
	if len(teams) == 0 {
		d.teams = []*team{{whole: whole, part: math.Inf(1)}}
	}
	for i, claim := range claims {
		s := &stage{
			Claim: claim, Slots: Slots{On: on[i*len(hosts) : (i+1)*len(hosts)]}, order: i, team: d.teams[0],
		}
		if len(teams) > 0 {
			s.team = d.teams[claim.Team]
		}
		d.stages[i] = s
		if claim.Size.WholeGPUs() == 0 && len(claim.Unfit) == 0 {
			continue
		}
		s.most = make([]int, len(hosts))
		for at, host := range hosts {
			if !claim.Unfit[host.ID] {
				s.most[at] = host.Has(claim.Size)
			}
		}
	}
	holdDevices(d.rooms.all, claims)
	return d
}

// team is a Team with what it has got so far.
type team struct {
	Team
	whole quantity.Size // what all hosts have
	held  quantity.Size // what its slots come to
	slots int           // how many it has, or are kept for it
	used  int           // those, and what runs beside them
	part  float64       // of the whole, that it has at most; +Inf where others do not want more than there is
	wants needs         // its stages that want another slot
}

// bounded reports whether the team may have fewer slots than it could use where there is room.
func (t *team) bounded() bool { return t.Slots > 0 || t.Limited || !math.IsInf(t.part, 1) }

// share is the dominant share of a size.
func (t *team) share(size quantity.Size) float64 { return Dominant(size, t.whole) }

// Dominant is the largest part that a size is of what there is, over CPU, memory and GPUs; 0 of what there is nothing
// of.
func Dominant(size, whole quantity.Size) float64 {
	of := func(some, all float64) float64 {
		if all <= 0 {
			return 0
		}
		return max(some, 0) / all
	}
	return max(of(float64(size.CPU), float64(whole.CPU)), of(float64(size.Memory), float64(whole.Memory)),
		of(float64(size.GPU), float64(whole.GPU)))
}

// rank is what the next slot is given by, the least first.
func (t *team) rank() float64 {
	weight := t.Weight
	if !(weight > 0) {
		weight = 1
	}
	return t.share(t.held) / weight
}

// rounding is how far sums of shares may be off.
const rounding = 1e-9

// permits says why a stage of the team may have no further slot; Unbounded where it may. The first slot of a team
// counts as its part: nothing smaller can be given.
func (t *team) permits(s *stage) Bound {
	slots := t.used
	if s.Total < s.Running { // one that runs there already
		slots = t.slots
	}
	switch {
	case t.Slots > 0 && slots >= t.Slots:
		return BySlots
	case t.Limited && (s.Lone && t.Money <= 0 || !s.Lone && s.Next > t.Money):
		return ByMoney
	case t.slots > 0 && t.share(t.held.Plus(s.Size)) > t.part*(1+rounding):
		return ByOthers
	default:
		return Unbounded
	}
}

// takes notes a slot that a stage of the team was just given.
func (t *team) takes(s *stage) {
	t.slots++
	if s.Total > s.Running {
		t.used++
	}
	t.held = t.held.Plus(s.Size)
	if t.Limited {
		next := s.Next
		if s.Lone {
			next = t.Money
		}
		t.Money -= next
	}
}

// entitle finds the part of each team: what it would have if nothing ran yet, where not all get what they want. Slots
// that are kept for a while count as wanted, so that parts are as calm as they are.
func (d *dealing) entitle(hosts []plan.Host, claims []Claim, teams []Team) {
	rested := make([]Claim, len(claims))
	for i, claim := range claims {
		rested[i] = claim
		if claim.Needed() > 0 {
			rested[i].Tasks = max(claim.Needed(), claim.Kept)
		}
		rested[i].Running, rested[i].On, rested[i].GPUs, rested[i].Held, rested[i].Kept = 0, nil, nil, quantity.Size{}, 0
	}
	var wanting []int
	for _, claim := range claims {
		if claim.Needed() > 0 && !slices.Contains(wanting, claim.Team) {
			wanting = append(wanting, claim.Team)
		}
	}
	if len(wanting) < 2 {
		return // there is nobody to share with
	}
	ideal := deal(hosts, rested, teams)
	ideal.shareNeeded()
	short := slices.ContainsFunc(ideal.stages, func(s *stage) bool {
		return s.Limited && slices.ContainsFunc(ideal.rooms.all, func(host *room) bool {
			return s.can(host) && fits(s.Size, host.Capacity)
		})
	})
	if !short {
		return
	}
	for i, one := range ideal.teams {
		d.teams[i].part = one.share(one.held)
	}
}

// hold takes what runs off the room there is, whether or not its slots are kept.
func (s *stage) hold(rooms *rooms) {
	held := s.Size
	if !s.Held.IsZero() {
		held = s.Held
		s.growth = map[int]quantity.Size{}
	}
	for _, host := range rooms.all {
		if s.Claim.On[host.ID] > 0 {
			s.runsOn = append(s.runsOn, host)
		}
		for range s.Claim.On[host.ID] {
			rooms.take(host, held)
			if s.growth != nil {
				s.growth[host.index] = s.growth[host.index].Plus(s.Size.Minus(held))
			}
		}
	}
	s.team.used += s.Running
}

// keep gives the stages of bounded teams one slot each, as far as the teams may have as many, in the order of their
// turns, and then those in which attempts run.
func (d *dealing) keep() {
	var bounded []*stage
	for _, s := range d.stages {
		if s.team.bounded() && s.Needed() > 0 {
			bounded = append(bounded, s)
		}
	}
	inTurn := slices.SortedStableFunc(slices.Values(bounded), func(a, b *stage) int {
		if a.Holds != b.Holds {
			if a.Holds {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.Since, b.Since)
	})
	for _, s := range inTurn {
		s.Bound = s.team.permits(s)
		switch {
		case s.Bound == BySlots && s.team.slots < s.team.Slots:
			s.team.slots++ // as soon as one that runs has ended
		case s.Bound == Unbounded && !s.stays():
			if host := s.roomiest(d.rooms, true); host != nil {
				s.place(d.rooms, host, s.Size, true)
				s.team.takes(s)
			}
		}
	}
	for _, s := range bounded {
		for s.Total > 0 && s.team.permits(s) == Unbounded && s.stays() {
			continue
		}
	}
}

// stays keeps a slot in which an attempt runs, whose room is held; false where there is none more.
func (s *stage) stays() bool {
	for _, host := range s.runsOn {
		if s.Slots.On[host.index] < s.Claim.On[host.ID] {
			s.Total++
			s.Slots.On[host.index]++
			s.team.takes(s)
			return true
		}
	}
	return false
}

// shareNeeded gives the slots that are needed now, one at a time, to the team of the least share, and there to whoever
// needs it most.
func (d *dealing) shareNeeded() {
	for _, s := range d.stages {
		if s.Total < s.Needed() {
			s.team.wants = append(s.team.wants, s)
		}
	}
	for _, t := range d.teams {
		heap.Init(&t.wants)
	}
	for t := d.next(); t != nil; t = d.next() {
		s := t.wants[0]
		if s.Bound = t.permits(s); s.Bound != Unbounded {
			heap.Pop(&t.wants)
			continue
		}
		host := s.roomiest(d.rooms, false)
		if host == nil {
			s.Limited = true
			heap.Pop(&t.wants)
			continue
		}
		s.place(d.rooms, host, s.Size, true)
		t.takes(s)
		if s.Total >= s.Needed() {
			heap.Pop(&t.wants)
			continue
		}
		heap.Fix(&t.wants, 0)
	}
}

// next is the team that is given the next slot; nil where none wants one.
func (d *dealing) next() (least *team) {
	if len(d.teams) == 1 {
		if t := d.teams[0]; len(t.wants) > 0 {
			return t
		}
		return nil
	}
	for _, t := range d.teams {
		if len(t.wants) > 0 && (least == nil || t.rank() < least.rank()) {
			least = t
		}
	}
	return least
}
