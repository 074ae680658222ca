package agent

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workers/slot"
)

// TestAFenceIsShutBeforeTheLeaseEnds plays renewals that are on their way for any time, are lost, or taken when the
// answer is lost: while the fence is open, the server, which counts from when it took the last one, holds the lease.
func TestAFenceIsShutBeforeTheLeaseEnds(t *testing.T) {
	t.Parallel()
	const lease = 5 * time.Second
	rapid.Check(t, func(t *rapid.T) {
		var now time.Duration
		f := newFence(lease, func() time.Duration { return now })
		until := time.Duration(-1) // when the server counts the host as lost
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now += time.Duration(rapid.Int64Range(0, int64(2*lease)).Draw(t, "pause"))
			sent := now
			if f.left() > 0 && now >= until {
				t.Fatalf("open for %v at %v, and the lease ended at %v", f.left(), now, until)
			}
			now += time.Duration(rapid.Int64Range(0, int64(lease)).Draw(t, "way there"))
			if f.left() > 0 && now >= until {
				t.Fatalf("open for %v at %v, and the lease ended at %v", f.left(), now, until)
			}
			switch rapid.IntRange(0, 2).Draw(t, "what becomes of it") {
			case 0: // it is lost
			case 1: // it is taken, and nobody hears of it
				until = now + lease
			case 2:
				until = now + lease
				now += time.Duration(rapid.Int64Range(0, int64(lease)).Draw(t, "way back"))
				f.renew(sent)
			}
		}
	})
}

// TestALeaseThatEndedWhileTheMachineSleptIsNotTheSame has a machine sleep for longer than its lease and renew it before
// anything else happens, as a laptop that is opened does: what ran before ends.
func TestALeaseThatEndedWhileTheMachineSleptIsNotTheSame(t *testing.T) {
	t.Parallel()
	clock := &uptime{}
	f := newFence(time.Hour, clock.now)
	f.renew(clock.now())
	guarded, release := f.guard(t.Context())
	defer release()
	clock.pass(30 * time.Minute)
	f.renew(clock.now())
	clock.pass(30 * time.Minute)
	f.renew(clock.now())
	if guarded.Err() != nil {
		t.Fatal("it was shut although the lease was renewed in time")
	}
	clock.pass(48 * time.Minute)
	f.renew(clock.now())
	<-guarded.Done()
	if !errors.Is(context.Cause(guarded), slot.ErrFenced) {
		t.Errorf("it ended with %v, want %v", context.Cause(guarded), slot.ErrFenced)
	}
}

// uptime is a clock that a test sets.
type uptime struct{ at atomic.Int64 }

func (u *uptime) now() time.Duration      { return time.Duration(u.at.Load()) }
func (u *uptime) pass(span time.Duration) { u.at.Add(int64(span)) }

// cut is an inventory that a test can cut off, and what was told of fences and attempts in hand.
type cut struct {
	mu     sync.Mutex
	off    bool
	fenced []bool
	hands  map[string][][]string // the tasks in hand by instance, as they were told
}

var errCutOff = errors.New("the server is away")

func (c *cut) set(off bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.off = off
}

func (c *cut) told(t *testing.T, what string, is func() bool) {
	t.Helper()
	for {
		c.mu.Lock()
		met := is()
		c.mu.Unlock()
		if met {
			return
		}
		select {
		case <-time.After(time.Millisecond):
		case <-t.Context().Done():
			t.Fatalf("the test ended before this came true: %s", what)
		}
	}
}

// TestAnAgentThatIsCutOffKillsWhatItRuns: before its lease ends nothing runs any more, the attempt is lost, and once it
// is heard again it takes the task again, as another instance.
func TestAnAgentThatIsCutOffKillsWhatItRuns(t *testing.T) {
	t.Parallel()
	const lease = 200 * time.Millisecond // by a clock that stands still unless the test moves it
	clock, line := &uptime{}, &cut{hands: map[string][][]string{}}
	h := start(t, 1, func(o *Options) {
		o.Lease, o.uptime, o.Drain = lease, clock.now, time.Millisecond
		tell := o.Inventory
		o.Inventory = func(ctx context.Context, host predictor.Host) error {
			line.mu.Lock()
			defer line.mu.Unlock()
			if line.off {
				return errCutOff
			}
			return tell(context.WithoutCancel(ctx), host)
		}
		o.Started = func(_ context.Context, started predictor.HostStarted) error {
			recorder, _ := o.Recorder.(*recorder)
			recorder.keep(started)
			return nil
		}
		o.Fenced = func(fenced bool) {
			line.mu.Lock()
			defer line.mu.Unlock()
			line.fenced = append(line.fenced, fenced)
		}
		o.InHand = func(_ context.Context, instance string, _ int, taken []slot.Taken) error {
			tasks := []string{}
			for _, one := range taken {
				if len(one.Token) == 0 || one.Attempt == 0 {
					t.Errorf("in hand is %+v, which nobody can give back", one)
				}
				tasks = append(tasks, one.Task.ID)
			}
			line.mu.Lock()
			defer line.mu.Unlock()
			line.hands[instance] = append(line.hands[instance], tasks)
			return nil
		}
	})
	h.submit(t, order{Do: "hang"}, func(task *wire.Task) { task.Timeout = time.Hour })
	await(t, h.recorder, "the attempt has begun", func(predictor.AttemptStarted) bool { return true })
	first := told[predictor.AttemptStarted](h.recorder)[0]
	line.told(t, "what is in hand was told", func() bool {
		return slices.ContainsFunc(line.hands[first.Instance], func(tasks []string) bool {
			return slices.Equal(tasks, []string{"score-1"})
		})
	})
	children := childrenOf(h)
	if len(children) != 1 {
		t.Fatalf("%d processes run, want one", len(children))
	}

	line.set(true)
	clock.pass(lease)
	line.told(t, "the agent was fenced", func() bool { return slices.Equal(line.fenced, []bool{true}) })
	if err := syscall.Kill(children[0], 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the process of the attempt when the agent said that it was killed: %v, want it gone", err)
	}
	records := h.records()
	if len(records) != 1 || records[0].Outcome != predictor.Lost || records[0].Cause != predictor.CauseHostLost ||
		!strings.Contains(records[0].Error, "cut off") {
		t.Errorf("Records: got %+v, want one of a lost attempt", records)
	}
	if started := told[predictor.AttemptStarted](h.recorder); len(started) != 1 {
		t.Errorf("%d attempts began while the agent was cut off, want none", len(started)-1)
	}

	line.set(false)
	line.told(t, "tasks are taken again", func() bool { return slices.Equal(line.fenced, []bool{true, false}) })
	h.plans <- placement(1, predictor.Sizing{})
	await(t, h.recorder, "the task was taken again", func(e predictor.AttemptStarted) bool { return e.Attempt == 2 })
	again := told[predictor.AttemptStarted](h.recorder)[1]
	starts := told[predictor.HostStarted](h.recorder)
	if len(starts) != 2 || starts[0].Instance != first.Instance || starts[1].Instance != again.Instance ||
		first.Instance == again.Instance || again.Attempt != 2 {
		t.Errorf("starts: got %+v of the host, %+v and %+v of the attempts, want an instance each", starts, first, again)
	}
}

// childrenOf are the processes of the attempts that run.
func childrenOf(h *host) (pids []int) {
	h.agent.mu.Lock()
	defer h.agent.mu.Unlock()
	for r := range h.agent.running {
		r.mu.Lock()
		found, err := r.live.group.Pids()
		r.mu.Unlock()
		if err == nil {
			pids = append(pids, found...)
		}
	}
	return pids
}
