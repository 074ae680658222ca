package search

import (
	"cmp"
	"math"
	"slices"
)

// nextOfBracket goes on with the bracket that is under way, or begins the next one.
func (s *Search) nextOfBracket() (Job, bool) {
	b := &s.bracket
	if b.size == 0 && !s.open() {
		return Job{}, false
	}
	if len(b.members) < b.size {
		i := s.begin(b.first)
		b.members = append(b.members, i)
		return s.start(i), true
	}
	if len(b.waiting) == 0 && !s.advance() {
		return Job{}, false
	}
	if s.bracket.size == 0 { // it is over
		return s.nextOfBracket()
	}
	i := b.waiting[0]
	b.waiting = b.waiting[1:]
	s.trials[i].rung++
	return s.start(i), true
}

// open begins a bracket; not where all are over. Hyperband's brackets are by its paper: of as many rungs as there are
// and then of fewer, each about as dear as the first; after the last it begins again.
func (s *Search) open() bool {
	left := s.options.Trials - len(s.trials)
	if left < 1 {
		return false
	}
	rungs := s.Rungs()
	first, size := 0, left
	if s.options.Algorithm != Halving {
		first = s.beyond % rungs
		above := rungs - 1 - first
		size = int(math.Ceil(float64(rungs) / float64(above+1) * math.Pow(float64(s.options.Eta), float64(above))))
	}
	s.bracket = bracket{first: first, size: min(size, left), rung: first}
	return true
}

// advance brings a bracket whose members have all come as far to the next rung, or closes it; not where some have not.
// It reports whether there is something to do.
func (s *Search) advance() bool {
	b := &s.bracket
	if slices.ContainsFunc(b.members, func(i int) bool { return s.trials[i].running }) {
		return false
	}
	going := s.going()
	if len(going) == 0 {
		s.bracket = bracket{}
		s.beyond++
		return s.Begun() < s.options.Trials
	}
	b.members, b.size, b.waiting = going, len(going), slices.Clone(going)
	b.rung++
	return true
}

// going are the members of the bracket that go on to the next rung, now that all have come to the end of this one: the
// best part of them, at least one, and none that diverged.
func (s *Search) going() []int {
	b := s.bracket
	if b.rung == s.Rungs()-1 {
		return nil
	}
	members := slices.Clone(b.members)
	slices.SortStableFunc(members, func(i, j int) int { return cmp.Compare(s.at(i, b.rung), s.at(j, b.rung)) })
	best := members[:max(1, len(members)/s.options.Eta)]
	return slices.DeleteFunc(best, func(i int) bool { return math.IsInf(s.at(i, b.rung), 1) })
}

// bracketsDone reports whether nothing is left of the bracket, while no job is under way, and no other will be opened.
func (s *Search) bracketsDone() bool {
	b := s.bracket
	if b.size > 0 && (len(b.members) < b.size || len(b.waiting) > 0 || len(s.going()) > 0) {
		return false
	}
	return s.Begun() >= s.options.Trials
}
