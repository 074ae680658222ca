package agent

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
)

const (
	// maxTail is how much of a child's output is kept for its errors.
	maxTail = 32 << 10
	// maxLine is how much of one line of output is logged at most.
	maxLine = 8 << 10
)

// tail takes one stream of what a child prints: it logs the lines at debug level and keeps the last of them. It may be written and
// read concurrently.
type tail struct {
	logger *slog.Logger

	mu   sync.Mutex
	kept []byte
	line []byte // the line that has no end yet
}

// Write never fails.
func (t *tail) Write(data []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, data...)
	if len(t.kept) > 2*maxTail {
		t.kept = append(t.kept[:0], t.kept[len(t.kept)-maxTail:]...)
	}
	rest := data
	for {
		line, after, found := bytes.Cut(rest, []byte("\n"))
		t.line = append(t.line, line[:min(len(line), max(maxLine-len(t.line), 0))]...)
		if !found {
			return len(data), nil
		}
		t.logger.Log(context.Background(), slog.LevelDebug, "stage output", "line", string(t.line))
		t.line, rest = t.line[:0], after
	}
}

// reset forgets what earlier attempts wrote.
func (t *tail) reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = t.kept[:0]
}

// text returns the last of the output, from the start of a line when it was cut.
func (t *tail) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	kept := t.kept
	if len(kept) > maxTail {
		kept = kept[len(kept)-maxTail:]
		if _, after, found := bytes.Cut(kept, []byte("\n")); found {
			kept = after
		}
	}
	return strings.ToValidUTF8(string(kept), "�")
}
