package function

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"syscall"

	"github.com/spillway-ml/spillway/workers/spawn"
)

// output keeps the end of what an environment prints. It reads the pipe itself, instead of leaving that to
// os/exec, so that drain can take everything printed so far: the log tail of an invocation then never misses its
// last lines. Reading and keeping happen under one lock.
type output struct {
	function string
	log      *slog.Logger
	pipe     *os.File
	raw      syscall.RawConn
	reading  sync.WaitGroup

	mu   sync.Mutex
	buf  []byte // scratch of read
	tail *spawn.LastBytes
	line []byte // the line that is not complete yet, for the log
}

func newOutput(function string, logger *slog.Logger) *output {
	o := &output{function: function, buf: make([]byte, 4<<10), tail: spawn.NewLastBytes(maxTailBytes)}
	if logger.Enabled(context.Background(), slog.LevelDebug) {
		o.log = logger
	}
	return o
}

// open starts reading and returns the end to write to, which the caller closes.
func (o *output) open() (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("open a pipe for the output of %s: %w", o.function, err)
	}
	raw, err := r.SyscallConn()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open a pipe for the output of %s: %w", o.function, err), r.Close(), w.Close())
	}
	o.pipe, o.raw = r, raw
	o.reading.Go(func() {
		for open := true; open; {
			if err := raw.Read(func(fd uintptr) bool {
				var n int
				n, open = o.read(fd)
				return n > 0 || !open
			}); err != nil {
				return // closed
			}
		}
	})
	return w, nil
}

// read takes what the pipe holds now, at most one buffer. open is false at the end of the output.
func (o *output) read(fd uintptr) (n int, open bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	n, err := syscall.Read(int(fd), o.buf)
	switch {
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.EINTR):
		return 0, true
	case err != nil || n == 0:
		return 0, false
	}
	o.keep(o.buf[:n])
	return n, true
}

// drain takes everything that was printed before the call.
func (o *output) drain() {
	if err := o.raw.Control(func(fd uintptr) {
		for n := 1; n > 0; {
			n, _ = o.read(fd)
		}
	}); err != nil {
		return // closed: there is nothing more
	}
}

// take returns the end of the output since the last call, after a drain.
func (o *output) take() []byte {
	o.drain()
	o.mu.Lock()
	defer o.mu.Unlock()
	defer o.tail.Reset()
	return o.tail.Bytes()
}

// close stops reading.
func (o *output) close() {
	if err := o.pipe.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		panic(fmt.Sprintf("close the output of %s: %v", o.function, err))
	}
	o.reading.Wait()
}

// keep adds p to the tail and, if someone listens, to the log.
func (o *output) keep(p []byte) {
	if _, err := o.tail.Write(p); err != nil {
		panic(err) // it never fails
	}
	if o.log == nil {
		return
	}
	o.line = append(o.line, p...)
	for {
		line, rest, found := bytes.Cut(o.line, []byte("\n"))
		if !found && len(o.line) < maxTailBytes {
			return
		}
		o.log.Debug("function output", "function", o.function, "line", string(line))
		o.line = append(o.line[:0], rest...)
	}
}
