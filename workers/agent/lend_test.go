package agent

import (
	"log/slog"
	"os/exec"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/enforce"
	"github.com/spillway-ml/spillway/workers/enforce/enforcetest"
	"github.com/spillway-ml/spillway/workers/slot"
)

// killedBeside runs an attempt until the kernel has killed it for memory at its limit of 40 MiB, beside a neighbour
// that holds the rest of the host's 400 MiB, and then ends the neighbour.
func killedBeside(t *testing.T, borrows bool) *running {
	t.Helper()
	enforcetest.Need(t)
	enforcer, err := enforce.Open(enforce.Options{StateDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := enforcer.Close(); err != nil {
			t.Error(err)
		}
	})
	group, err := enforcer.Group("slot-1")
	if err != nil {
		t.Fatal(err)
	}
	a := &Agent{enforcer: enforcer, now: time.Now, gpus: newGPUs(nil, nil, slog.New(slog.DiscardHandler))}
	a.admission = &admission{capacity: of(4, 400), changed: func() {}, callIn: func() {}}
	a.logger = slog.New(slog.DiscardHandler)
	neighbour, err := a.admission.reserve(t.Context(), of(1, 360))
	if err != nil {
		t.Fatal(err)
	}
	size, lent := of(1, 40), quantity.Bytes(0)
	if borrows {
		size, lent = of(1, 30), 10*quantity.MiB
	}
	room, err := a.admission.reserve(t.Context(), size)
	if err != nil {
		t.Fatal(err)
	}
	r := &running{
		agent: a, try: new(slot.Attempt), room: room, gpus: new(gpuHold), admitted: of(1, 400), grant: size, borrows: borrows,
		meter: newMeter(0, a.admission.capacity, size, a.now()),
	}
	if borrows {
		r.lent = room.borrow(lent)
	}
	if held, err := group.Resize(r.limits()); err != nil || held.Memory != 40*quantity.MiB {
		t.Fatalf("the group is held to %s, %v; want 40 MiB", held, err)
	}
	r.attach(target{group: group}, a.now())
	glutton := exec.CommandContext(t.Context(), "tail", "/dev/zero") // it looks for the end of the first line
	if err := group.Start(glutton); err != nil {
		t.Fatal(err)
	}
	if err := glutton.Wait(); err == nil || !r.gauge.killed() {
		t.Fatalf("it ended with %v, want that the kernel kills it for memory", err)
	}
	neighbour.release()
	return r
}

// Memory that becomes free after the kernel has killed an attempt is not taken for what was not enough: a task that was
// killed at a tenth of the host was said to need more than the host.
func TestALimitIsNotRaisedOnceTheKernelHasKilled(t *testing.T) {
	t.Parallel()
	for name, borrows := range map[string]bool{"borrows": true, "holds what it is granted": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := killedBeside(t, borrows)
			const limit = 40 * quantity.MiB
			r.lend()
			r.change(r.agent.now(), func(held, _ quantity.Size) quantity.Size {
				held.Memory = 100 * quantity.MiB
				return held
			})
			if got := r.limits().Memory; got != limit {
				t.Errorf("its limit is %s after the kill, want %s as before", got, limit)
			}
			if free, lent := r.agent.admission.free().Memory, r.room.lent; free+r.held().Memory != 400*quantity.MiB ||
				r.held().Memory+lent != limit {
				t.Errorf("the books have %s free, %s held and %s lent of 400 MiB", free, r.held().Memory, lent)
			}
			var f finish
			usage := r.usage(&f, nil, time.Second, r.agent.now(), 0)
			ending := slot.Ending{Outcome: predictor.OutOfMemory, Cause: predictor.CauseMemoryLimit}
			if got := r.grantOf(ending).Memory; f.kills == 0 || got != limit {
				t.Errorf("%d kills, of %s; what was not enough is %s, want %s", f.kills, usage.PeakMemory, got,
					limit)
			}
		})
	}
}

// A limit that is raised between the look for a kill and its being written was not what was not enough.
func TestALimitThatWasRaisedBesideAKillIsNotWhatWasNotEnough(t *testing.T) {
	t.Parallel()
	for _, borrows := range []bool{true, false} {
		r := killedBeside(t, borrows)
		gauge := r.gauge
		gauge.sample(r.agent.now())
		r.gauge = newGauge(r.live.group, r.agent.enforcer.Mode(), r.agent.now()) // it knows of no kill yet
		r.change(r.agent.now(), func(held, _ quantity.Size) quantity.Size {
			held.Memory = 100 * quantity.MiB
			return held
		})
		if got := r.limits().Memory; got != 100*quantity.MiB {
			t.Fatalf("its limit is %s, want that it is raised to 100 MiB", got)
		}
		r.closeLoan(true, 39*quantity.MiB, gauge.charged(), r.agent.now())
		ending := slot.Ending{Outcome: predictor.OutOfMemory, Cause: predictor.CauseMemoryLimit}
		if got := r.grantOf(ending).Memory; got != 40*quantity.MiB {
			t.Errorf("borrows %t: what was not enough is %s, want 40 MiB", borrows, got)
		}
	}
}

func TestWhatWasNotEnoughIsTheLimitThatWasReached(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name                          string
		limit, earlier, charged, want quantity.Bytes
	}{
		{"never raised", 500, 0, 226, 500},
		{"killed at what it was raised to", 500, 226, 500, 500},
		{"killed a batch of pages below it", 500, 226, 499, 500},
		{"killed before it was raised", 500, 226, 226, 226},
		{"and what dies was let beyond its limit", 500, 226, 228, 226},
		{"killed as the host was full", 500, 226, 100, 226},
		{"lowered since", 200, 226, 226, 200},
		{"nothing is known of what it took", 500, 226, 0, 226},
	} {
		if got := notEnough(tt.limit, tt.earlier, tt.charged); got != tt.want {
			t.Errorf("%s: got %d, want %d", tt.name, got, tt.want)
		}
	}
}
