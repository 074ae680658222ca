package partition

import "math"

// mostMarks is how many moments of a simulation are kept to go on from: more save less than they take to copy.
const mostMarks = 8

// changes is what a timeline needs to try a change of its placement and to take it back.
type changes struct {
	marks   [mostMarks]moment // of the placement
	trial   [mostMarks]moment // of the change that is tried
	marked  int               // how many marks of the placement there are
	since   int               // how many of them hold for the change, too
	reached int               // how many the simulation of the change has passed

	ops     []int // that were moved, and from where
	places  []int
	ranks   []float64 // what the first operations in topological order had
	tensors []int     // whose ways have changed, and what they were
	to      [][]int
	spare   [][]int
	seen    []bool // of each tensor
}

// mark keeps the moment when another part of the operations has ended.
func (c *changes) mark(now *moment) {
	for c.reached < mostMarks && now.done*(mostMarks+1) >= (c.reached+1)*len(now.end) {
		c.trial[c.reached].copyFrom(now)
		c.reached++
	}
}

// What it takes to rank an operation anew, and to copy its part of a moment.
const rankSteps, copySteps = 25, 5

// try simulates the placement with some blocks on other devices. What happens before the first of them can start, and
// before an operation whose way to the end has changed stands beside another one, is as before; so the simulation goes
// on from the last mark before that. exceeds is told times that the makespan is no shorter than, and ends it by
// returning true; done is false then. The change is to be kept or dropped afterwards.
func (t *timeline) try(moved, place []int, exceeds func(float64) bool) (span float64, done bool) {
	c := &t.changes
	first := t.change(moved, place)
	for _, op := range t.order {
		if len(t.reads[op]) == 0 && exceeds(t.rank[op]*(1-sameTime)) {
			return 0, false
		}
	}
	c.since = 0
	for c.since < c.marked && c.marks[c.since].now < first {
		c.since++
	}
	t.steps += copySteps * float64(len(t.order))
	if c.since == 0 {
		t.begin()
		return t.run(exceeds)
	}
	t.copyFrom(&c.marks[c.since-1])
	c.reached = c.since
	return t.run(exceeds)
}

// change puts blocks on other devices, and returns when what happens may differ first.
func (t *timeline) change(moved, place []int) (first float64) {
	c := &t.changes
	if c.seen == nil {
		c.seen = make([]bool, len(t.tensors))
	}
	first = math.Inf(1)
	last := -1 // the last place in the order that is to be ranked
	for _, b := range moved {
		for _, op := range t.blocks[b] {
			c.ops, c.places = append(c.ops, op), append(c.places, t.place[op])
			t.put(op, place[b])
			last = max(last, t.at[op])
			if len(t.reads[op]) == 0 {
				first = 0
			}
			for _, id := range t.reads[op] {
				first = min(first, t.kept.end[t.tensors[id].From])
				c.touch(id)
			}
			for _, id := range t.from[op] {
				c.touch(id)
			}
		}
	}
	for _, id := range c.tensors {
		c.seen[id] = false
		var to []int
		if n := len(c.spare); n > 0 {
			to, c.spare = c.spare[n-1][:0], c.spare[:n-1]
		}
		c.to = append(c.to, t.to[id])
		t.to[id] = t.route(id, to)
	}
	for _, op := range t.order[:last+1] {
		c.ranks = append(c.ranks, t.rank[op])
	}
	for i := last; i >= 0; i-- {
		op := t.order[i]
		if t.rank[op] = t.ranked(op); t.rank[op] != c.ranks[i] {
			first = min(first, t.kept.contested[op])
		}
	}
	t.steps += rankSteps * float64(last+1)
	return first
}

func (c *changes) touch(tensor int) {
	if !c.seen[tensor] {
		c.seen[tensor] = true
		c.tensors = append(c.tensors, tensor)
	}
}

// keep makes the change that was tried the placement.
func (t *timeline) keep() {
	c := &t.changes
	t.kept.copyFrom(&t.moment)
	for i := c.since; i < c.reached; i++ {
		c.marks[i], c.trial[i] = c.trial[i], c.marks[i]
	}
	c.marked = c.reached
	c.spare = append(c.spare, c.to...)
	c.forget()
}

// drop takes the change back that was tried.
func (t *timeline) drop() {
	c := &t.changes
	for i, op := range c.ops {
		t.put(op, c.places[i])
	}
	for i, id := range c.tensors {
		c.spare = append(c.spare, t.to[id])
		t.to[id] = c.to[i]
	}
	for i, rank := range c.ranks {
		t.rank[t.order[i]] = rank
	}
	c.forget()
}

func (c *changes) forget() {
	c.ops, c.places, c.ranks = c.ops[:0], c.places[:0], c.ranks[:0]
	c.tensors, c.to = c.tensors[:0], c.to[:0]
}

// copyFrom makes the moment equal to another one.
func (m *moment) copyFrom(o *moment) {
	m.now, m.done = o.now, o.done
	m.missing = append(m.missing[:0], o.missing...)
	m.end = append(m.end[:0], o.end...)
	m.ready = append(m.ready[:0], o.ready...)
	m.cause = append(m.cause[:0], o.cause...)
	m.contested = append(m.contested[:0], o.contested...)
	m.busy = append(m.busy[:0], o.busy...)
	m.last = append(m.last[:0], o.last...)
	m.channels = append(m.channels[:0], o.channels...)
	m.events.before = o.events.before
	m.events.items = append(m.events.items[:0], o.events.items...)
	if m.waiting == nil {
		m.waiting = make([]queue[int], len(o.waiting))
	}
	for d, q := range o.waiting {
		m.waiting[d].before = q.before
		m.waiting[d].items = append(m.waiting[d].items[:0], q.items...)
	}
}

// criticalPath is the operations of which each waited for the one after it in the list, the last to end first.
func (t *timeline) criticalPath() []int {
	var path []int
	op := 0
	for other, end := range t.kept.end {
		if end > t.kept.end[op] {
			op = other
		}
	}
	for ; op >= 0; op = int(t.kept.cause[op]) {
		path = append(path, op)
	}
	return path
}
