package spawn

import (
	"bytes"
	"context"
	"log/slog"
	"sync"
)

const (
	// MaxTail is how much of a child's output is kept for its errors, in bytes.
	MaxTail = 32 << 10
	// maxLine is how much of one line of output is logged at most.
	maxLine = 8 << 10
)

// Tail takes one stream of what a child prints: it logs the lines at debug level and keeps the last of them. It may be
// written and read concurrently.
type Tail struct {
	*LastBytes

	logger *slog.Logger

	mu   sync.Mutex
	line []byte // guarded by mu: the line that has no end yet
}

// NewTail returns a tail of MaxTail bytes that logs to logger.
func NewTail(logger *slog.Logger) *Tail {
	return &Tail{LastBytes: NewLastBytes(MaxTail), logger: logger}
}

// Write never fails.
func (t *Tail) Write(data []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n, err := t.LastBytes.Write(data)
	rest := data
	for {
		line, after, found := bytes.Cut(rest, []byte("\n"))
		t.line = append(t.line, line[:min(len(line), max(maxLine-len(t.line), 0))]...)
		if !found {
			return n, err
		}
		t.logger.Log(context.Background(), slog.LevelDebug, "output of a child", "line", string(t.line))
		t.line, rest = t.line[:0], after
	}
}
