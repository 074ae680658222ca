package agent

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

func TestAHostTellsForHowLongItIsHeldWithoutAGapOrAnOverlap(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		var told []predictor.HostHeld
		calls := 0
		a := &Agent{
			id: "h1", base: quantity.Size{CPU: 2000}, gpus: newGPUs(nil, nil, nil), price: quantity.USD, now: time.Now,
			logger: slog.New(slog.DiscardHandler),
			held: func(_ context.Context, held predictor.HostHeld) error {
				if calls++; calls == 3 || calls == 4 { // the stream is away, over two minutes
					return errors.New("no acknowledgement")
				}
				told = append(told, held)
				return nil
			},
		}
		ctx, end := context.WithCancel(t.Context())
		over := make(chan struct{})
		go func() {
			defer close(over)
			a.tellHeld(ctx)
		}()
		time.Sleep(4*time.Minute + 20*time.Second)
		end()
		<-over
		at := func(seconds int) time.Time { return begin.Add(time.Duration(seconds) * time.Second) }
		var want []predictor.HostHeld
		for _, span := range [][2]int{{0, 0}, {0, 60}, {60, 120}, {120, 180}, {180, 240}, {240, 260}} {
			want = append(want, predictor.HostHeld{
				Host: "h1", Capacity: a.base, PricePerHour: a.price, From: at(span[0]),
				At: at(span[1]),
			})
		}
		if diff := cmp.Diff(want, told); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// TestNoTaskIsTakenBeforeItIsKnownThatTheHostStartedAnew refuses the first word of it.
func TestNoTaskIsTakenBeforeItIsKnownThatTheHostStartedAnew(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var said []predictor.HostStarted
	h := start(t, 1, func(o *Options) {
		o.Started = func(_ context.Context, started predictor.HostStarted) error {
			mu.Lock()
			defer mu.Unlock()
			if said = append(said, started); len(said) == 1 {
				return errors.New("the stream has no leader")
			}
			return nil
		}
	})
	h.done(t, order{Do: "report"})
	mu.Lock()
	defer mu.Unlock()
	begun := told[predictor.AttemptStarted](h.recorder)
	if len(said) != 2 || said[0] != said[1] || said[0].Host != "h1" || said[0].Venue != predictor.Pool ||
		said[0].Instance == "" {
		t.Errorf("told %+v, want the same twice: that the pool of h1 has started", said)
	}
	if len(begun) != 1 || begun[0].Instance != said[0].Instance || begun[0].At.Before(said[0].At) {
		t.Errorf("attempts %+v, want one of the instance that was told before", begun)
	}
}
