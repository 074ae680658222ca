package runs

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
)

// keyPoll is how long reading a key waits before it looks whether anyone still wants one.
const keyPoll = 100 * time.Millisecond

// Keys that leave.
const (
	keyQuit  = 'q'
	keyCtrlC = 3 // a terminal in raw mode sends it as a byte
	keyCtrlD = 4
)

// readKeys calls leave when a key that leaves is pressed, until ctx ends. The terminal of standard input shows no keys
// meanwhile; restore ends the reading and puts it back. Where standard input is no terminal nothing is read.
func readKeys(ctx context.Context, t *tool.Tool, leave func()) (restore func() error, err error) {
	file, ok := t.Deps.Stdin.(interface{ Fd() uintptr })
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return func() error { return nil }, nil
	}
	descriptor := int(file.Fd())
	before, err := term.MakeRaw(descriptor)
	if err != nil {
		return nil, fmt.Errorf("read keys of the terminal: %w", err)
	}
	ctx, stop := context.WithCancel(ctx)
	var reading sync.WaitGroup
	reading.Go(func() {
		for ctx.Err() == nil {
			if pressed(descriptor) {
				leave()
				return
			}
		}
	})
	return func() error {
		stop()
		reading.Wait()
		if err := term.Restore(descriptor, before); err != nil {
			return fmt.Errorf("give the terminal back: %w", err)
		}
		return nil
	}, nil
}

// pressed waits a while for keys and reports whether one of them leaves. A terminal that is gone leaves too.
func pressed(descriptor int) bool {
	ready := []unix.PollFd{{Fd: int32(descriptor), Events: unix.POLLIN}}
	n, err := unix.Poll(ready, int(keyPoll.Milliseconds()))
	if errors.Is(err, unix.EINTR) || err == nil && n == 0 {
		return false
	}
	if err != nil {
		return true
	}
	var keys [64]byte
	n, err = unix.Read(descriptor, keys[:])
	if err != nil || n == 0 {
		return !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN)
	}
	for _, key := range keys[:n] {
		if key == keyQuit || key == keyCtrlC || key == keyCtrlD {
			return true
		}
	}
	return false
}
