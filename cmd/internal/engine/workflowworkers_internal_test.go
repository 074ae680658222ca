package engine

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

func TestWhatAWorkerPrintsIsLoggedWithoutItsPassword(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	lines := &lineLogger{logger: slog.New(slog.NewTextHandler(&log, nil)), secret: "pass-word"}
	for _, part := range []string{
		"connect to NATS at nats://app:pass-", "word@127.0.0.1:4222: refused\nnext", " line\n",
		strings.Repeat("pass-word", longestLine),
	} {
		if _, err := lines.Write([]byte(part)); err != nil {
			t.Fatal(err)
		}
	}
	if text := log.String(); strings.Contains(text, "pass-word") || !strings.Contains(text, "127.0.0.1:4222: refused") ||
		!strings.Contains(text, "next line") {
		t.Errorf("logged, with the password or not all of the rest:\n%.2000s", text)
	}
}
