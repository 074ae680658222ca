package spawn

import (
	"bytes"
	"slices"
	"strings"
	"sync"
)

// LastBytes keeps the end of what is written to it. It may be written and read concurrently; use [NewLastBytes].
type LastBytes struct {
	limit int

	mu   sync.Mutex
	kept []byte // at most twice the limit, so that most writes move nothing
	cut  bool   // something was written before what is kept
}

// NewLastBytes returns one that keeps limit bytes.
func NewLastBytes(limit int) *LastBytes { return &LastBytes{limit: limit} }

// Write never fails.
func (l *LastBytes) Write(data []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kept = append(l.kept, data...)
	if over := len(l.kept) - l.limit; over > l.limit {
		l.kept, l.cut = append(l.kept[:0], l.kept[over:]...), true
	}
	return len(data), nil
}

// Reset forgets what was written.
func (l *LastBytes) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kept, l.cut = l.kept[:0], false
}

// Bytes returns the last bytes, wherever a line begins.
func (l *LastBytes) Bytes() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.kept[max(0, len(l.kept)-l.limit):])
}

// Text returns the last of what was written, from the start of a line when it was cut.
func (l *LastBytes) Text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	kept := l.kept[max(0, len(l.kept)-l.limit):]
	if l.cut || len(kept) < len(l.kept) {
		if _, after, found := bytes.Cut(kept, []byte("\n")); found {
			kept = after
		}
	}
	return strings.ToValidUTF8(string(kept), "�")
}
