package engine

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities/access/natsaccess"
)

func TestAWorkerThatIsKeptOutIsStartedWhenItIsLetInAgain(t *testing.T) {
	t.Parallel()
	now := time.Now()
	barred := func(left time.Duration) error {
		return fmt.Errorf("let it in: %w", &natsaccess.BarredError{Until: now.Add(left)})
	}
	for _, test := range []struct {
		err         error
		pause, want time.Duration
	}{
		{nil, firstPause, firstPause},
		{errors.New("exit status 1"), longPause, longPause},
		{barred(7 * time.Second), firstPause, 7 * time.Second},
		{barred(7 * time.Second), longPause, longPause},
		{barred(-time.Second), firstPause, firstPause},
	} {
		if got := pauseAfter(test.err, test.pause, now); got != test.want {
			t.Errorf("after %v with a pause of %v: %v, want %v", test.err, test.pause, got, test.want)
		}
	}
}

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
