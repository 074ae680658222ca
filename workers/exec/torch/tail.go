package torch

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
)

const (
	// mostKept is how much of what a model prints is kept for errors.
	mostKept = 4 << 10
	// mostLine is how much of one line is logged.
	mostLine = 8 << 10
)

// tail takes what a model prints: it logs the lines at debug level and keeps the last of them. It may be used concurrently.
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
	t.kept = append(t.kept, data[max(len(data)-mostKept, 0):]...)
	if len(t.kept) > mostKept {
		t.kept = append(t.kept[:0], t.kept[len(t.kept)-mostKept:]...)
	}
	rest := data
	for {
		line, after, found := bytes.Cut(rest, []byte("\n"))
		t.line = append(t.line, line[:min(len(line), mostLine-len(t.line))]...)
		if !found {
			return len(data), nil
		}
		t.logger.Log(context.Background(), slog.LevelDebug, "model output", "line", string(t.line))
		t.line, rest = t.line[:0], after
	}
}

// text returns the last that was printed, without surrounding space.
func (t *tail) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(strings.ToValidUTF8(string(t.kept), "\uFFFD"))
}
