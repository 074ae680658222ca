package logs

import (
	"bytes"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spillway-ml/spillway/activities/wire"
)

const (
	// maxLine is how much of one line is kept, in bytes.
	maxLine = 16 << 10
	// redrawEvery is the least time between two states of one line that are kept.
	redrawEvery = time.Second
)

// splitter makes lines of what a program writes to one of its streams. A line ends with "\n" or "\r\n". A "\r" alone
// goes back to the start of the line: of the states that such a line goes through, as progress bars do many times a
// second, one a second is kept, and the last. A line that has no end yet waits for it, but for the states of a redrawn
// one, which tick tells.
type splitter struct {
	origin  wire.LogOrigin
	line    state // as it is drawn so far
	earlier state // the line before the last "\r"
	told    []byte
	toldAt  time.Time // when told was last told or found to be the same
	back    bool      // a "\r" has come, and not yet what follows
	redrawn bool      // the line has gone back to its start
}

// state is what one line shows.
type state struct {
	text []byte // at most maxLine
	cut  bool   // more came
}

func (s *state) blank() bool { return len(bytes.TrimSpace(s.text)) == 0 }

func (s *state) extend(data []byte) {
	room := maxLine - len(s.text)
	s.cut = s.cut || len(data) > room
	s.text = append(s.text, data[:min(len(data), room)]...)
}

// write takes what the program writes at now, and calls emit with every line that is complete by it.
func (s *splitter) write(data []byte, now time.Time, emit func(wire.LogLine)) {
	for len(data) > 0 {
		if s.back {
			s.back = false
			if data[0] == '\n' {
				s.end(now, emit)
				data = data[1:]
				continue
			}
			s.goBack(now, emit)
		}
		at := bytes.IndexAny(data, "\r\n")
		if at < 0 {
			s.line.extend(data)
			return
		}
		s.line.extend(data[:at])
		if data[at] == '\n' {
			s.end(now, emit)
		} else {
			s.back = true
		}
		data = data[at+1:]
	}
}

// tick tells the state of a redrawn line when none was told for long.
func (s *splitter) tick(now time.Time, emit func(wire.LogLine)) {
	if s.redrawn || s.back {
		s.redrawn = true
		s.tellState(now, emit)
	}
}

// finish tells the line that has no end.
func (s *splitter) finish(now time.Time, emit func(wire.LogLine)) {
	if len(s.line.text) > 0 || s.redrawn {
		s.end(now, emit)
	}
}

// goBack begins a new state of the line.
func (s *splitter) goBack(now time.Time, emit func(wire.LogLine)) {
	s.redrawn = true
	s.tellState(now, emit)
	if !s.line.blank() { // bars are wiped with spaces
		s.earlier.text, s.earlier.cut = append(s.earlier.text[:0], s.line.text...), s.line.cut
	}
	s.line = state{text: s.line.text[:0]}
}

// tellState tells the state of a redrawn line unless that has just been done.
func (s *splitter) tellState(now time.Time, emit func(wire.LogLine)) {
	if s.toldAt.IsZero() || now.Sub(s.toldAt) >= redrawEvery {
		s.tellLast(now, emit)
		if s.told != nil {
			s.toldAt = now // also when it has not changed: it is not compared again at every "\r"
		}
	}
}

// tellLast tells the newest state of a redrawn line that is not blank, once.
func (s *splitter) tellLast(now time.Time, emit func(wire.LogLine)) {
	last := &s.line
	if last.blank() {
		last = &s.earlier
	}
	if !last.blank() && !bytes.Equal(last.text, s.told) {
		s.told = append(s.told[:0], last.text...)
		s.tell(*last, now, emit)
	}
}

// end tells the line in its last state and begins the next.
func (s *splitter) end(now time.Time, emit func(wire.LogLine)) {
	if s.redrawn {
		s.tellLast(now, emit)
	} else {
		s.tell(s.line, now, emit)
	}
	*s = splitter{origin: s.origin, line: state{text: s.line.text[:0]}}
}

func (s *splitter) tell(shown state, now time.Time, emit func(wire.LogLine)) {
	text := shown.text
	if shown.cut {
		text = wholeRunes(text)
	}
	emit(wire.LogLine{
		At: now, Origin: s.origin, Text: strings.ToValidUTF8(string(text), "\uFFFD"), Cut: shown.cut,
		Redrawn: s.redrawn,
	})
}

// wholeRunes returns text without the beginning of a character at its end.
func wholeRunes(text []byte) []byte {
	for i := len(text) - 1; i >= max(0, len(text)-utf8.UTFMax+1); i-- {
		if utf8.RuneStart(text[i]) {
			if !utf8.FullRune(text[i:]) {
				return text[:i]
			}
			break
		}
	}
	return text
}
