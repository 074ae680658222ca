package spawn

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
)

const (
	// MaxTail is how much of a child's output is kept for its errors, in bytes.
	MaxTail = 32 << 10
	// maxLine is how much of one line of output is logged at most.
	maxLine = 8 << 10
)

// Tail takes one stream of what a child prints: it logs the lines at debug level and keeps the last of them. It may be written and
// read concurrently.
type Tail struct {
	logger *slog.Logger

	mu   sync.Mutex
	kept []byte
	line []byte // the line that has no end yet
}

// NewTail returns a tail that logs to logger.
func NewTail(logger *slog.Logger) *Tail { return &Tail{logger: logger} }

// Write never fails.
func (t *Tail) Write(data []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, data...)
	if len(t.kept) > 2*MaxTail {
		t.kept = append(t.kept[:0], t.kept[len(t.kept)-MaxTail:]...)
	}
	rest := data
	for {
		line, after, found := bytes.Cut(rest, []byte("\n"))
		t.line = append(t.line, line[:min(len(line), max(maxLine-len(t.line), 0))]...)
		if !found {
			return len(data), nil
		}
		t.logger.Log(context.Background(), slog.LevelDebug, "output of a child", "line", string(t.line))
		t.line, rest = t.line[:0], after
	}
}

// Reset forgets what earlier attempts wrote.
func (t *Tail) Reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = t.kept[:0]
}

// Text returns the last of the output, from the start of a line when it was cut.
func (t *Tail) Text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	kept := t.kept
	if len(kept) > MaxTail {
		kept = kept[len(kept)-MaxTail:]
		if _, after, found := bytes.Cut(kept, []byte("\n")); found {
			kept = after
		}
	}
	return strings.ToValidUTF8(string(kept), "�")
}
