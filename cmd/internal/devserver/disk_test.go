package devserver

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sys/unix"
)

// limitedFiles says, in the environment of a test binary, that it may limit the size of its files: the limit is the
// whole process's.
const limitedFiles = "SPILLWAY_TEST_LIMITED_FILES"

// A file that may not grow fails as a full disk does, and needs no disk of its own.
func TestAStreamThatCouldNotWriteGoesOnOnceItCan(t *testing.T) {
	t.Parallel()
	if os.Getenv(limitedFiles) == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), limitedFiles+"=1")
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS") {
			t.Fatalf("%v:\n%s", err, out)
		}
		return
	}
	signal.Ignore(unix.SIGXFSZ)
	n := startNATSAlone(t, t.TempDir(), slog.New(slog.DiscardHandler)).nats
	nc, err := nats.Connect("", nats.InProcessServer(n.server))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "EVENTS", Subjects: []string{"events.>"}})
	if err != nil {
		t.Fatal(err)
	}
	publish := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := js.Publish(ctx, "events.one", make([]byte, 1<<10))
		return err
	}

	limitFiles(t, 16<<10)
	var acknowledged uint64
	for publish() == nil {
		acknowledged++
	}
	if err := n.check(t.Context()); err == nil || !strings.Contains(err.Error(), "make room in the state directory") {
		t.Errorf("check while nothing can be written: got %v, want what to do", err)
	}
	limitFiles(t, unix.RLIM_INFINITY)
	for publish() != nil {
		if errors.Is(t.Context().Err(), context.Canceled) {
			t.Fatal("the stream never went on")
		}
	}
	acknowledged++
	if err := n.check(t.Context()); err != nil {
		t.Errorf("check after the stream went on: %v", err)
	}
	info, err := stream.Info(t.Context())
	if err != nil || info.State.Msgs < acknowledged {
		t.Errorf("messages: got %d, error %v; want the %d that were acknowledged", info.State.Msgs, err, acknowledged)
	}
}

// limitFiles bounds the size of every file that this process writes, in bytes.
func limitFiles(t *testing.T, size uint64) {
	t.Helper()
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		t.Fatal(err)
	}
	limit.Cur = min(size, limit.Max)
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		t.Fatal(err)
	}
}
