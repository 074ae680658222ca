package engine

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// started is the lifecycle of an engine that has started no part yet.
func started(t *testing.T) *lifecycle {
	t.Helper()
	l := newLifecycle(context.Background(), slog.New(slog.DiscardHandler))
	if err := l.start(t.Context(), func(context.Context) error { return nil }); err != nil {
		t.Fatal(err)
	}
	return l
}

// deaf ends at nothing but the end of the test.
func deaf(t *testing.T) (part func(context.Context) error) {
	t.Helper()
	over := make(chan struct{})
	t.Cleanup(func() { close(over) })
	return func(context.Context) error { <-over; return nil }
}

func TestAttackAPartThatHangsDoesNotKeepTheEngineFromEnding(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := started(t)
		var ended []string
		for _, name := range []string{"servers", "pool"} {
			e.onClose(name, func(context.Context) error { ended = append(ended, name); return nil })
		}
		e.work("deaf", deaf(t))
		e.onClose("the deaf port", deaf(t))
		began := time.Now()
		err := e.Close(t.Context())
		if !errors.Is(err, errLeft) || !strings.Contains(err.Error(), "end deaf:") ||
			!strings.Contains(err.Error(), "end the deaf port:") {
			t.Errorf("Close: %v, want one that names the parts that were left", err)
		}
		if took := time.Since(began); took > closeLimit+time.Second {
			t.Errorf("Close took %v", took)
		}
		if len(ended) != 2 || ended[0] != "pool" {
			t.Errorf("ended %v; want the pool, then the servers, also behind what hangs", ended)
		}
		<-e.Done()
	})
}

func TestWhoeverClosesAnEngineCanHurryIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := started(t)
		e.work("deaf", deaf(t))
		e.work("slow", func(ctx context.Context) error {
			<-ctx.Done()
			<-e.life.Done() // it winds up as long as it is let
			return nil
		})
		began := time.Now()
		e.fail(errors.New("a part broke")) // closes it too, and hurries it not
		time.Sleep(time.Second)
		hurried, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := e.Close(hurried); !errors.Is(err, errLeft) || strings.Contains(err.Error(), "slow") {
			t.Errorf("Close: %v, want one of the deaf part only", err)
		}
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("a hurried Close took %v", took)
		}
	})
}

func TestAnEngineEndsWhatWasStartedWhileItEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := started(t)
		late := false
		e.onClose("early", func(context.Context) error {
			e.onClose("late", func(context.Context) error { late = true; return nil })
			return nil
		})
		if err := e.Close(t.Context()); err != nil || !late {
			t.Errorf("Close: %v, ended what was late: %v", err, late)
		}
	})
}

func TestNothingIsStartedBehindTheEndOfAnEngine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLifecycle(t.Context(), slog.New(slog.DiscardHandler))
		broke, ended := errors.New("a part broke"), 0
		err := l.start(t.Context(), func(ctx context.Context) error {
			l.work("weak", func(context.Context) error { return broke })
			<-ctx.Done() // a step of the start that waits
			time.Sleep(time.Second)
			l.onClose("last", func(context.Context) error { ended++; return nil }) // and that opens something yet
			return ctx.Err()
		})
		if !errors.Is(err, broke) || ended != 1 {
			t.Errorf("start: %v, ended what was opened last %d times; want the failure of the part, and once", err, ended)
		}
		if err := l.Err(); !errors.Is(err, broke) {
			t.Errorf("Err: %v", err)
		}
		l = newLifecycle(t.Context(), slog.New(slog.DiscardHandler))
		closed := make(chan error, 1)
		err = l.start(t.Context(), func(ctx context.Context) error {
			go func() { closed <- l.Close(context.Background()) }()
			<-ctx.Done()
			return ctx.Err()
		})
		if !errors.Is(err, errClosed) || <-closed != nil {
			t.Errorf("start of an engine that is closed meanwhile: %v", err)
		}
	})
}
