package logs

import (
	"cmp"
	"container/heap"
	"slices"
	"time"
)

// mergeBytes bounds the lines that a merger should hold; beyond them the oldest come out before their time.
const mergeBytes = 64 << 20

// merger puts the lines of several attempts, each in order, into one order by time. A message holds lines of some
// hundred milliseconds, so its lines come after later ones of other messages: they are held until nothing older can
// come.
type merger struct {
	lines heldLines
	bytes int
	open  []openMessage // messages with lines held, by sequence
	next  uint64        // the sequence after the newest message
}

// held is a line with the time by which it is ordered: its own, but not after its message was stored, so that a host
// whose clock is ahead holds nobody up. Neither goes back within an attempt, so its lines stay in order; within a
// message this is made sure of.
type held struct {
	Line
	at time.Time
}

type openMessage struct {
	sequence uint64
	left     int // lines held
}

// push takes the lines of a message. Sequences grow from call to call.
func (m *merger) push(sequence uint64, stored time.Time, lines []Line) {
	m.next = sequence + 1
	if len(lines) == 0 {
		return
	}
	m.open = append(m.open, openMessage{sequence, len(lines)})
	var at time.Time
	for _, line := range lines {
		if line.At.After(at) {
			at = line.At
		}
		if at.After(stored) {
			at = stored
		}
		heap.Push(&m.lines, held{line, at})
		m.bytes += costOf(line.LogLine)
	}
}

// pop returns the first line in order if it is not after until, or if more is held than should be.
func (m *merger) pop(until time.Time) (Line, bool) {
	if len(m.lines) == 0 || m.lines[0].at.After(until) && m.bytes <= mergeBytes {
		return Line{}, false
	}
	line := heap.Pop(&m.lines).(held).Line
	m.bytes -= costOf(line.LogLine)
	at, _ := slices.BinarySearchFunc(m.open, line.Sequence, func(o openMessage, sequence uint64) int {
		return cmp.Compare(o.sequence, sequence)
	})
	m.open[at].left--
	done := 0
	for done < len(m.open) && m.open[done].left == 0 {
		done++
	}
	m.open = m.open[done:]
	line.Resume = m.next
	if len(m.open) > 0 {
		line.Resume = m.open[0].sequence
	}
	return line, true
}

// heldLines is a heap by time, then in the order of the stream.
type heldLines []held

func (h heldLines) Len() int { return len(h) }

func (h heldLines) Less(i, j int) bool {
	return cmp.Or(h[i].at.Compare(h[j].at), cmp.Compare(h[i].Sequence, h[j].Sequence),
		cmp.Compare(h[i].Index, h[j].Index)) < 0
}

func (h heldLines) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

// Push is called by package heap.
func (h *heldLines) Push(line any) { *h = append(*h, line.(held)) }

// Pop is called by package heap.
func (h *heldLines) Pop() any {
	last := len(*h) - 1
	line := (*h)[last]
	(*h)[last] = held{}
	*h = (*h)[:last]
	return line
}
