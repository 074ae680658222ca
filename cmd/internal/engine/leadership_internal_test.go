package engine

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
)

func TestWhatTheLeaderDoesIsDoneWhileItLeadsOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		b := &base{lifecycle: newLifecycle(ctx, slog.New(slog.DiscardHandler))}
		var told []string
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			b.whileLeading(ctx, "tell", func(ctx context.Context) {
				told = append(told, "begin")
				<-ctx.Done()
				told = append(told, "end")
			})
		}()
		expect := func(when string, want ...string) {
			t.Helper()
			synctest.Wait()
			if !slices.Equal(told, want) {
				t.Errorf("%s: got %q, want %q", when, told, want)
			}
			told = nil
		}
		expect("before it leads")
		b.lead.set(3)
		expect("when it leads", "begin")
		b.lead.set(3)
		expect("when it is told so again")
		b.lead.set(0)
		expect("when it leads no more", "end")
		b.lead.set(4)
		expect("when it leads again", "begin")
		b.lead.set(5)
		expect("when it leads in a later term", "end", "begin")
		cancel()
		<-ended
		expect("at the end", "end")
	})
}

func TestWorkThatReturnsIsDoneForItsTerm(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		b := &base{lifecycle: newLifecycle(ctx, slog.New(slog.DiscardHandler))}
		calls := 0
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			b.whileLeading(ctx, "count", func(context.Context) { calls++ })
		}()
		for _, step := range []struct {
			term  uint64
			calls int
		}{{0, 0}, {1, 1}, {0, 1}, {2, 2}} {
			b.lead.set(step.term)
			synctest.Wait()
			if calls != step.calls {
				t.Errorf("term %d: %d calls, want %d", step.term, calls, step.calls)
			}
		}
		cancel()
		<-ended
	})
}
