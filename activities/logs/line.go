package logs

import "github.com/spillway-ml/spillway/activities/wire"

// Line is one line of an attempt, as Follow hands it out.
type Line struct {
	wire.LogSource
	wire.LogLine
	// Sequence and Index name the line: its message in the stream, and which line of it this is, from 0.
	Sequence uint64 `json:"sequence"`
	Index    int    `json:"index"`
	// Resume is where a reader goes on that has handled this line: a Follow from there misses nothing. It may hand out
	// again some of the last lines; Seen tells which.
	Resume uint64 `json:"resume"`
}

// Seen tells lines that were handled already from new ones when a reader goes on at a line's Resume. The zero value has
// seen nothing. It is for one goroutine.
type Seen struct {
	handled map[uint64]int // by message: how many of its lines
	resume  uint64
}

// Resume returns where to go on; 0 before the first line.
func (s *Seen) Resume() uint64 { return s.resume }

// Again reports whether line was handled before, and takes it as handled from now on.
func (s *Seen) Again(line Line) bool {
	if line.Sequence < s.resume || line.Index < s.handled[line.Sequence] {
		return true
	}
	if s.handled == nil {
		s.handled = map[uint64]int{}
	}
	s.handled[line.Sequence] = line.Index + 1 // the lines of a message come in order
	if line.Resume > s.resume {
		s.resume = line.Resume
		for sequence := range s.handled {
			if sequence < s.resume {
				delete(s.handled, sequence)
			}
		}
	}
	return false
}
