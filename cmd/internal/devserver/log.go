package devserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"

	natsserver "github.com/nats-io/nats-server/v2/server"
	tlog "go.temporal.io/server/common/log"
	"go.temporal.io/server/common/log/tag"
)

// fatality keeps the first failure that a server calls fatal. As programs of their own the servers would exit there;
// here the goroutine that failed ends and the process lives to report it.
type fatality struct {
	mu  sync.Mutex
	err error
}

func (f *fatality) record(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.err = err
	}
}

// cause is the first fatal failure, or nil.
func (f *fatality) cause() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// run calls work, which a fatal failure may end together with its goroutine, and returns that failure or else work's
// error.
func (f *fatality) run(work func() error) error {
	done := make(chan error, 1)
	go func() {
		err := errors.New("its goroutine was ended")
		defer func() {
			fatal := f.cause()
			// A fatal failure inside a sync.OnceValue comes out of it as a panic.
			if p := recover(); p != nil && fatal == nil {
				panic(p)
			}
			if fatal != nil {
				err = fatal
			}
			done <- err
		}()
		err = work()
	}()
	return <-done
}

// refusalMessage is how Temporal logs that a request was not authorized.
const refusalMessage = "Authorization error"

// temporalLog passes Temporal's errors on; its warnings are too many to be of use. While Temporal stops, its services
// complain of each other's absence: that is passed on at Debug.
type temporalLog struct {
	logger   *slog.Logger
	fatal    *fatality
	stopping *atomic.Bool
}

var _ tlog.Logger = temporalLog{}

// Debug drops the message.
func (temporalLog) Debug(string, ...tag.Tag) {}

// Info drops the message.
func (temporalLog) Info(string, ...tag.Tag) {}

// Warn drops the message.
func (temporalLog) Warn(string, ...tag.Tag) {}

// Error passes the message on, but for refusals: who is refused is told, and must not be able to fill the log.
func (l temporalLog) Error(msg string, tags ...tag.Tag) {
	if msg != refusalMessage {
		l.error(msg, tags)
	}
}

// DPanic passes the message on; it panics in Temporal's own development only.
func (l temporalLog) DPanic(msg string, tags ...tag.Tag) { l.error(msg, tags) }

// Panic passes the message on and panics, as its callers rely on.
func (l temporalLog) Panic(msg string, tags ...tag.Tag) {
	l.error(msg, tags)
	panic(describe(msg, tags))
}

// Fatal records the failure and ends the goroutine.
func (l temporalLog) Fatal(msg string, tags ...tag.Tag) {
	l.error(msg, tags)
	l.fatal.record(errors.New(describe(msg, tags)))
	runtime.Goexit()
}

func (l temporalLog) error(msg string, tags []tag.Tag) {
	level := slog.LevelError
	if l.stopping.Load() {
		level = slog.LevelDebug
	}
	attrs := make([]slog.Attr, 0, len(tags)+1)
	attrs = append(attrs, slog.String("temporal_message", msg))
	for _, t := range tags {
		attrs = append(attrs, slog.Any(strings.ReplaceAll(t.Key(), "-", "_"), t.Value()))
	}
	l.logger.LogAttrs(context.Background(), level, "temporal reported an error", attrs...)
}

// describe makes one line of a message and those of its tags that tell what happened and where.
func describe(msg string, tags []tag.Tag) string {
	var b strings.Builder
	b.WriteString(strings.ToLower(msg[:min(1, len(msg))]) + msg[min(1, len(msg)):])
	for _, t := range tags {
		switch t.Key() {
		case "error", "service", "address":
			fmt.Fprintf(&b, ", %s: %v", t.Key(), t.Value())
		}
	}
	return b.String()
}

// natsLog passes the errors of NATS on.
type natsLog struct {
	logger *slog.Logger
	fatal  *fatality
}

var _ natsserver.Logger = natsLog{}

// Debugf drops the message.
func (natsLog) Debugf(string, ...any) {}

// Tracef drops the message.
func (natsLog) Tracef(string, ...any) {}

// Noticef drops the message.
func (natsLog) Noticef(string, ...any) {}

// Warnf drops the message.
func (natsLog) Warnf(string, ...any) {}

// Errorf passes the message on; at Debug when it is about a client, who is told it, too.
func (l natsLog) Errorf(format string, args ...any) {
	level := slog.LevelError
	if ofClient(format) {
		level = slog.LevelDebug
	}
	l.logger.LogAttrs(context.Background(), level, "nats reported an error",
		slog.String("nats_message", fmt.Sprintf(format, args...)))
}

// Fatalf records the failure; NATS goes on to give up by itself.
func (l natsLog) Fatalf(format string, args ...any) {
	l.Errorf(format, args...)
	l.fatal.record(fmt.Errorf(format, args...))
}
