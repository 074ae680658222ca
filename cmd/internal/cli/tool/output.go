package tool

import (
	"context"
	"errors"
	"io"
	"syscall"
)

// Output is standard output, which may lose its reader, as a pipe does: what is written then goes nowhere and is no
// error, because a display that is gone stops nothing. It may be used concurrently as far as what it writes to may be.
type Output struct {
	to   io.Writer
	read context.Context //nolint:containedctx // it is the life of the reader, and ends no call
	gone context.CancelFunc
}

// NewOutput returns an output that writes to a stream.
func NewOutput(to io.Writer) *Output {
	o := &Output{to: to}
	o.read, o.gone = context.WithCancel(context.Background())
	return o
}

// Write writes, as long as somebody reads.
func (o *Output) Write(text []byte) (int, error) {
	n, err := o.to.Write(text)
	if errors.Is(err, syscall.EPIPE) {
		o.gone()
		return len(text), nil
	}
	return n, err
}

// noDescriptor is that of a stream that is no file.
const noDescriptor = ^uintptr(0)

// Fd returns the descriptor of the stream, which tells whether it is a terminal.
func (o *Output) Fd() uintptr {
	if file, ok := o.to.(interface{ Fd() uintptr }); ok {
		return file.Fd()
	}
	return noDescriptor
}

// Unread reports whether nobody reads standard output any more.
func (t *Tool) Unread() bool {
	output, ok := t.Out.(*Output)
	return ok && output.read.Err() != nil
}

// WhileRead returns a context that ends with ctx, or when nobody reads standard output any more: it is for commands
// that do nothing but show. Call stop when it is no longer needed.
func (t *Tool) WhileRead(ctx context.Context) (reading context.Context, stop func()) {
	reading, cancel := context.WithCancel(ctx)
	output, ok := t.Out.(*Output)
	if !ok {
		return reading, cancel
	}
	forget := context.AfterFunc(output.read, cancel)
	return reading, func() {
		forget()
		cancel()
	}
}
