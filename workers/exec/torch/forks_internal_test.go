package torch

import (
	"context"
	"log/slog"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/workers/exec/torch/torchtest"
)

// gone waits until a process has ended.
func gone(t *testing.T, pid int) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Minute); runs(pid); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("process %d is there still", pid)
		}
	}
}

func TestRunnersAreForkedFromOneProcessThatEndsWithTheirContexts(t *testing.T) {
	t.Parallel()
	var f forks
	how := launching{python: torchtest.Python(t), threads: 1, logger: slog.New(slog.DiscardHandler)}
	first, endFirst := context.WithCancel(t.Context())
	second, endSecond := context.WithCancel(t.Context())
	defer endFirst()
	defer endSecond()
	runners := make([]*runner, 4)
	var starting sync.WaitGroup
	for i := range runners {
		ctx := first
		if i%2 == 1 {
			ctx = second
		}
		starting.Go(func() {
			r, err := f.start(ctx, how)
			if err != nil {
				t.Error(err)
				return
			}
			runners[i] = r
		})
	}
	if starting.Wait(); t.Failed() {
		t.FailNow()
	}
	server := f.servers[how.kind()].server
	for _, r := range runners {
		if p, isForked := r.process.(*forked); !isForked || p.server != server {
			t.Fatalf("process %d is not forked from process %d", r.process.number(), server.process.number())
		}
	}
	endFirst()
	for _, i := range []int{0, 2} {
		gone(t, runners[i].process.number()) // and collected
	}
	var answered []int
	if err := runners[1].call(second, "survey", map[string]any{"devices": []string{}}, &answered); err != nil {
		t.Errorf("one whose context goes on: %v", err)
	}
	runners[1].close()
	runners[3].close()
	select {
	case <-server.gone:
		t.Error("the server has ended, and a context in which it was used goes on")
	default:
	}
	endSecond()
	gone(t, server.process.number())

	// What was killed is not asked again.
	r, err := f.start(t.Context(), how)
	if err != nil {
		t.Fatal(err)
	}
	after := f.servers[how.kind()].server
	if after == server {
		t.Error("a runner was forked from a server that has ended")
	}
	if err := syscall.Kill(-after.process.number(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	gone(t, r.process.number())
	<-r.gone
	if r, err = f.start(t.Context(), how); err != nil {
		t.Fatalf("after a server was killed: %v", err)
	}
	r.close()
}

func TestAForkServerThatNobodyForksFromEndsThoughItsContextGoesOn(t *testing.T) {
	t.Parallel()
	f := forks{idle: time.Millisecond}
	how := launching{python: torchtest.Python(t), threads: 1, logger: slog.New(slog.DiscardHandler)}
	var before *forkServer
	for range 2 { // the second is forked from another one
		r, err := f.start(t.Context(), how)
		if err != nil {
			t.Fatal(err)
		}
		p, isForked := r.process.(*forked)
		if !isForked || p.server == before {
			t.Fatalf("process %d is forked from a server that has ended", r.process.number())
		}
		select {
		case <-p.server.gone:
			t.Fatal("a server has ended from which a process is forked that goes on")
		case <-time.After(20 * time.Millisecond): // longer than it may be idle
		}
		r.close()
		<-p.server.gone
		before = p.server
	}
}
