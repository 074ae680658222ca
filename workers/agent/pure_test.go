package agent

import (
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.temporal.io/sdk/temporal"
	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/slot"
)

func of(cores, mebibytes int) quantity.Size {
	return quantity.Size{CPU: quantity.Milli(cores) * quantity.Core, Memory: quantity.Bytes(mebibytes) * quantity.MiB}
}

func TestTheLineIsServedInItsOrder(t *testing.T) {
	t.Parallel()
	with := func(cores, mebibytes, gpus int) quantity.Size {
		return of(cores, mebibytes).WithGPUs(quantity.GPUs{Count: gpus, Memory: quantity.GiB})
	}
	capacity := with(4, 100, 2)
	for _, tt := range []struct {
		name    string
		held    quantity.Size
		waiting []quantity.Size
		want    []int
	}{
		{"an empty line", of(0, 0), nil, nil},
		{"all fit together", of(0, 0), []quantity.Size{of(1, 50), of(1, 50)}, []int{0, 1}},
		{"nobody overtakes the first who does not fit", of(1, 60), []quantity.Size{of(1, 50), of(1, 1)}, nil},
		{"those before it are served", of(1, 60), []quantity.Size{of(1, 40), of(1, 50), of(1, 1)}, []int{0}},
		{"cores count as well", of(4, 0), []quantity.Size{of(1, 1)}, nil},
		{"a host that is overfull serves nobody", of(1, 120), []quantity.Size{of(0, 1)}, nil},
		{
			"who waits for a GPU alone lets those pass who need none", with(1, 10, 2),
			[]quantity.Size{with(1, 10, 1), of(1, 10)},
			[]int{1},
		},
		{
			"and keeps its cores and memory", with(1, 10, 2),
			[]quantity.Size{with(1, 60, 1), of(1, 40), of(1, 10)},
			nil,
		},
		{
			"those who wait for GPUs keep their order", with(1, 10, 1),
			[]quantity.Size{with(1, 10, 2), with(1, 10, 1), of(1, 10)},
			[]int{2},
		},
		{
			"who does not fit for another reason as well lets nobody pass", with(1, 60, 2),
			[]quantity.Size{with(1, 60, 1), of(1, 10)},
			nil,
		},
		{
			"who wants more GPUs than work keeps nobody waiting and nothing for itself", with(1, 10, 0),
			[]quantity.Size{with(1, 60, 3), with(1, 60, 1), of(1, 30)},
			[]int{1, 2},
		},
		{
			"the memory of whole GPUs is their attempt's", with(1, 10, 1),
			[]quantity.Size{of(1, 10).WithGPUs(quantity.GPUs{Count: 1, Memory: 9 * quantity.GiB})},
			[]int{0},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got, _ := admitted(tt.held, capacity, tt.waiting); !slices.Equal(got, tt.want) {
				t.Errorf("admitted: got %d, want %d", got, tt.want)
			}
		})
	}
}

func TestAdmissionNeverGrantsMoreThanThereIsAndServesAllInOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		capacity := of(8, 100)
		var served []int
		a := &admission{capacity: capacity, changed: func() {}}
		var line []*reservation
		n := rapid.IntRange(1, 20).Draw(t, "attempts")
		for range n {
			size := of(rapid.IntRange(1, 8).Draw(t, "cores"), rapid.IntRange(1, 100).Draw(t, "mebibytes"))
			line = append(line, &reservation{admission: a, granted: make(chan struct{}), size: size})
		}
		a.waiting = slices.Clone(line)
		a.admit()
		for len(served) < n {
			for i, r := range line {
				if isGranted(r) && !slices.Contains(served, i) {
					served = append(served, i)
				}
			}
			if !a.held.Fits(capacity) {
				t.Fatalf("held: got %s, want at most %s", a.held, capacity)
			}
			if len(served) == n {
				break
			}
			for _, i := range served {
				if !line[i].released {
					line[i].release()
					break
				}
			}
		}
		if !slices.IsSorted(served) {
			t.Fatalf("served in the order %v, want the order of asking", served)
		}
	})
}

// Whatever attempts borrow, take and give back, and in whatever order: what is held and what is lent is never more than
// there is, and an attempt that fits waits for no loan once it was called in.
func TestWhatIsHeldAndWhatIsLentIsNeverMoreThanThereIs(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		capacity := of(64, 1000)
		called := 0
		a := &admission{capacity: capacity, changed: func() {}, callIn: func() { called++ }}
		var all []*reservation
		mebibytes := rapid.IntRange(1, 600)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			var running []*reservation
			for _, r := range all {
				if isGranted(r) && !r.released {
					running = append(running, r)
				}
			}
			what := rapid.SampledFrom([]string{"come", "borrow", "return", "take", "end"}).Draw(t, "what")
			if what == "come" || len(running) == 0 {
				r := &reservation{admission: a, granted: make(chan struct{}), size: of(1, mebibytes.Draw(t, "size"))}
				all = append(all, r)
				a.waiting = append(a.waiting, r)
				a.admit()
				continue
			}
			r := rapid.SampledFrom(running).Draw(t, "attempt")
			switch what {
			case "borrow":
				want, _ := r.loan()
				if got := r.borrow(max(want, r.lent)); got > max(want, r.lent) {
					t.Fatalf("lent: got %s, more than the %s that were asked for", got, want)
				}
			case "return":
				r.borrow(r.lent / 2)
			case "take":
				took := of(0, mebibytes.Draw(t, "took")).Memory
				r.resize(func(held, free quantity.Size) quantity.Size {
					held.Memory = predictor.Follow(held.Memory, min(took, held.Memory+r.lent), free.Memory)
					return held
				})
			case "end":
				r.release()
			}
			if a.held.Memory+a.lent > capacity.Memory || a.lent < 0 {
				t.Fatalf("after %s: %s are held and %s lent, of %s", what, a.held.Memory, a.lent, capacity.Memory)
			}
		}
		for _, r := range all {
			if isGranted(r) && !r.released {
				r.borrow(0)
			}
		}
		if a.lent != 0 {
			t.Fatalf("all was given back, and %s are lent", a.lent)
		}
		if len(a.waiting) > 0 && a.waiting[0].size.Fits(room(a.held, capacity)) {
			t.Fatal("the first in the line waits though it fits")
		}
	})
}

func TestLoansAreCalledInForWhoWaitsForNothingElse(t *testing.T) {
	t.Parallel()
	called := 0
	a := &admission{capacity: of(8, 100), changed: func() {}, callIn: func() { called++ }}
	come := func(mebibytes int) *reservation {
		r := &reservation{admission: a, granted: make(chan struct{}), size: of(1, mebibytes)}
		a.waiting = append(a.waiting, r)
		a.admit()
		return r
	}
	first := come(20)
	borrow := func(r *reservation) quantity.Bytes {
		part, _ := r.loan()
		return r.borrow(part)
	}
	if got, want := borrow(first), 40*quantity.MiB; got != want {
		t.Fatalf("the first was lent %s, want %s: half of what is free", got, want)
	}
	second := come(60)
	if isGranted(second) || called != 1 {
		t.Fatalf("60 MiB of 100, 20 held and 40 lent: granted %v, called in %d times, want a call", isGranted(second), called)
	}
	third := come(50)
	if _, called := first.loan(); !called {
		t.Error("the second waits for nothing but what is lent: got no call")
	}
	borrow(first)
	if !isGranted(second) || isGranted(third) || called != 1 {
		t.Fatalf("after the call: granted %v and %v, called in %d times, want the second and no further call for the third, "+
			"which does not fit", isGranted(second), isGranted(third), called)
	}
	if got, called := first.loan(); got != 10*quantity.MiB || called {
		t.Errorf("may borrow %s, called in: %v, want 10 MiB: the first in the line waits until another ends, not for what "+
			"is lent", got, called)
	}
}

// TestLoansAreCalledInBehindWhoWaitsForAGPU has one that needs no GPU wait behind one that does, for what is lent.
func TestLoansAreCalledInBehindWhoWaitsForAGPU(t *testing.T) {
	t.Parallel()
	called := 0
	withGPU := func(mebibytes int) quantity.Size {
		return of(1, mebibytes).WithGPUs(quantity.GPUs{Count: 1, Memory: quantity.GiB})
	}
	capacity := withGPU(100)
	capacity.CPU = 8 * quantity.Core
	a := &admission{capacity: capacity, changed: func() {}, callIn: func() { called++ }}
	come := func(size quantity.Size) *reservation {
		r := &reservation{admission: a, granted: make(chan struct{}), size: size}
		a.waiting = append(a.waiting, r)
		a.admit()
		return r
	}
	training := come(withGPU(10))
	part, _ := training.loan()
	training.borrow(part)
	next, other := come(withGPU(10)), come(of(1, 50))
	if isGranted(next) || isGranted(other) || called != 1 {
		t.Fatalf("granted %v and %v, called in %d times; want a call for the one that needs no GPU", isGranted(next),
			isGranted(other), called)
	}
	part, asked := training.loan()
	if want := 15 * quantity.MiB; part != want || !asked {
		t.Errorf("may borrow %s, called in: %v; want %s, half of what neither of them needs", part, asked, want)
	}
	training.borrow(part)
	if isGranted(next) || !isGranted(other) {
		t.Errorf("after the call: granted %v and %v, want the one that needs no GPU", isGranted(next), isGranted(other))
	}
}

func TestALoanThatIsALittleOtherIsNotWorthAWrite(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name               string
		held, part, called quantity.Bytes
		want               quantity.Bytes
	}{
		{"the first", 0, 10, 0, 10},
		{"none", 0, 0, 0, 0},
		{"a little more", 80, 90, 0, 80},
		{"more", 80, 91, 0, 91},
		{"a little less", 80, 70, 0, 80},
		{"less", 80, 69, 0, 69},
		{"a little less, for which somebody waits", 80, 79, 1, 79},
		{"a little more, while somebody waits", 80, 81, 1, 80},
		{"nothing is left", 80, 0, 0, 0},
	} {
		if got := nextLoan(tt.held, tt.part, tt.called > 0); got != tt.want {
			t.Errorf("%s: got %d, want %d", tt.name, got, tt.want)
		}
	}
}

// The books have what the kernel allows, whether it took back what was given up or not.
func TestTheBooksHaveWhatTheKernelAllows(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name                string
		held, lent, allowed quantity.Bytes
		want                quantity.Bytes
	}{
		{"it grew", 300, 100, 400, 300},
		{"it gave up 100", 300, 100, 300, 200},
		{"it gave up 100, and the kernel took 30 back", 300, 100, 370, 270},
		{"the kernel took nothing back", 300, 100, 400, 300},
		{"the kernel refused a raise beyond its loan", 350, 0, 320, 320},
		{"the kernel allows no less", 1, 1, 4, 4},
	} {
		if got := booked(tt.held, tt.lent, tt.allowed); got != tt.want {
			t.Errorf("%s: got %d, want %d", tt.name, got, tt.want)
		}
	}
}

func TestAReservationThatDoesNotChangeTellsNobody(t *testing.T) {
	t.Parallel()
	told := 0
	a := &admission{capacity: of(8, 100), changed: func() { told++ }, callIn: func() {}}
	r := &reservation{admission: a, granted: make(chan struct{}), size: of(1, 20)}
	a.waiting = append(a.waiting, r)
	a.admit()
	for _, memory := range []int{20, 20, 30, 30} {
		r.resize(func(quantity.Size, quantity.Size) quantity.Size { return of(1, memory) })
	}
	if told != 1 {
		t.Errorf("told %d times that what is held has changed, want once", told)
	}
}

func isGranted(r *reservation) bool {
	select {
	case <-r.granted:
		return true
	default:
		return false
	}
}

func TestARunningAttemptIsResizedWithinWhatIsFree(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name             string
		held, free, want quantity.Size
		used             quantity.Bytes
		size             quantity.Size
	}{
		{"it grows into free room", of(1, 10), of(4, 50), of(2, 30), 0, of(2, 30)},
		{"not beyond it", of(1, 10), of(0, 5), of(2, 30), 0, of(1, 15)},
		{"it shrinks", of(2, 30), of(0, 0), of(1, 10), 5 * quantity.MiB, of(1, 10)},
		{"not below what it uses", of(2, 30), of(0, 0), of(1, 10), 20 * quantity.MiB, of(1, 20)},
		{"an overfull host takes nothing away", of(1, 10), of(-1, -5), of(2, 30), 0, of(1, 10)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tt.size, resized(tt.held, tt.free, tt.want, tt.used)); diff != "" {
				t.Errorf("size (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAnAttemptCostsTheLargerOfItsShares(t *testing.T) {
	t.Parallel()
	start := time.Unix(0, 0)
	capacity := of(4, 100)
	m := newMeter(quantity.USD, capacity, of(1, 50), start)
	m.hold(of(4, 10), start.Add(time.Hour))
	if got, want := m.cost(start.Add(90*time.Minute)), quantity.USD; got != want {
		t.Errorf("an hour at half the memory and half an hour at all cores: got %s, want %s", got, want)
	}
	for _, tt := range []struct {
		name           string
		capacity, held quantity.Size
		wall           time.Duration
		want           quantity.Money
	}{
		{"no time costs nothing", capacity, of(1, 50), 0, 0},
		{"a clock that went back costs nothing", capacity, of(1, 50), -time.Hour, 0},
		{"a host of nothing costs nothing", quantity.Size{}, of(1, 50), time.Hour, 0},
	} {
		if got := newMeter(quantity.USD, tt.capacity, tt.held, time.Unix(0, 0)).cost(time.Unix(0, 0).Add(tt.wall)); got !=
			tt.want {
			t.Errorf("%s: got %s, want %s", tt.name, got, tt.want)
		}
	}
}

func TestAnAttemptEndsAsWhatWasSeenSays(t *testing.T) {
	t.Parallel()
	failure := func(f wire.StageFailure) *wire.Answer { return &wire.Answer{Error: &f} }
	sigkill := &status{signal: syscall.SIGKILL, words: "signal: killed"}
	exited := func(code int) *status { return &status{code: code, words: "exit status " + strconv.Itoa(code)} }
	for _, tt := range []struct {
		name     string
		finish   finish
		want     slot.Ending
		reusable bool
	}{
		{"an answer without an error", finish{answer: &wire.Answer{}}, slot.Ending{Outcome: predictor.Succeeded}, true},
		{
			"an error of the stage leaves the child usable",
			finish{answer: failure(wire.StageFailure{Message: "boom", Permanent: true})},
			slot.Ending{Outcome: predictor.Failed, Cause: predictor.CauseError, Message: "boom", Permanent: true},
			true,
		},
		{
			"a panic does not",
			finish{answer: failure(wire.StageFailure{Message: "boom", Stack: "main.go:1"})},
			slot.Ending{Outcome: predictor.Failed, Cause: predictor.CausePanic, Message: "boom", Stack: "main.go:1"},
			false,
		},
		{
			"memory that the code was refused",
			finish{answer: failure(wire.StageFailure{Message: "full", OutOfMemory: true})},
			slot.Ending{Outcome: predictor.OutOfMemory, Cause: predictor.CauseMemoryRefused, Message: "full"},
			true,
		},
		{
			"memory that was refused although its limit was far",
			finish{
				exit: exited(1), tail: "MemoryError\n", command: true, enforced: true, grant: of(1, 64), peak: 8 * quantity.MiB,
			},
			slot.Ending{
				Outcome: predictor.OutOfMemory, Cause: predictor.CauseMemoryRefused, Counts: true,
				Message: "the command ended: it was refused memory: exit code 1: MemoryError; it had taken 8 MiB of its 64 MiB, " +
					"so something else than its memory limit refused it: a limit that it sets itself, or a request for more than " +
					"any machine has",
			},
			false,
		},
		{
			"memory that a program that looks at its limit was refused",
			finish{
				exit: exited(1), tail: "java.lang.OutOfMemoryError\n", command: true, enforced: true, grant: of(1, 64),
				peak: 16 * quantity.MiB,
			},
			slot.Ending{
				Outcome: predictor.OutOfMemory, Cause: predictor.CauseMemoryRefused,
				Message: "the command ended: it was refused memory: exit code 1: java.lang.OutOfMemoryError",
			},
			false,
		},
		{
			"a success that crosses a cancellation is a success",
			finish{answer: &wire.Answer{}, stopped: predictor.Cancelled},
			slot.Ending{Outcome: predictor.Succeeded},
			false,
		},
		{
			"an error after a cancellation is the cancellation",
			finish{
				answer: failure(wire.StageFailure{Message: "context canceled"}), stopped: predictor.Cancelled,
				reason: "the run",
			},
			slot.Ending{Outcome: predictor.Cancelled, Message: "the run"},
			false,
		},
		{
			"killed at its timeout",
			finish{stopped: predictor.TimedOut, reason: "late", exit: sigkill, kills: 1},
			slot.Ending{Outcome: predictor.TimedOut, Message: "late"},
			false,
		},
		{
			"killed by the kernel at its limit",
			finish{exit: sigkill, kills: 1, enforced: true, grant: of(1, 100), peak: 99 * quantity.MiB},
			slot.Ending{
				Outcome: predictor.OutOfMemory, Cause: predictor.CauseMemoryLimit,
				Message: "the kernel killed it at its memory limit of 100 MiB, of which it had taken 99 MiB",
			},
			false,
		},
		{
			"a stage whose own child was killed at the limit",
			finish{
				answer: failure(wire.StageFailure{Message: "convert: signal: killed"}), kills: 1, enforced: true,
				grant: of(1, 100), peak: 101 * quantity.MiB,
			},
			slot.Ending{
				Outcome: predictor.OutOfMemory, Cause: predictor.CauseMemoryLimit,
				Message: "the kernel killed it at its memory limit of 100 MiB, of which it had taken 100 MiB",
			},
			false,
		},
		{
			"killed because the host ran out of memory, and nobody knows by whom",
			finish{exit: sigkill, hostKills: true},
			slot.Ending{
				Outcome: predictor.OutOfMemory, Cause: predictor.CauseHostMemory,
				Message: "the kernel killed the stage's process because the host ran out of memory",
			},
			false,
		},
		{
			"killed because the host ran out of memory, within its own grant",
			finish{exit: sigkill, hostKills: true, enforced: true, grant: of(1, 100), peak: 50 * quantity.MiB},
			slot.Ending{
				Outcome: predictor.Lost, Cause: predictor.CauseHostMemory,
				Message: "the kernel killed the stage's process because the host ran out of memory, though it had taken only 50 " +
					"MiB of its 100 MiB",
			},
			false,
		},
		{
			"killed by someone else",
			finish{exit: sigkill},
			slot.Ending{
				Outcome: predictor.Failed, Cause: predictor.CauseSignal,
				Message: "the stage's process ended: signal: killed",
			},
			false,
		},
		{
			"device memory that a library was refused",
			finish{
				exit: exited(1), tail: "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n",
				grant: quantity.Size{GPU: 1000},
			},
			slot.Ending{
				Outcome: predictor.OutOfMemory, Cause: predictor.CauseDeviceMemory,
				Message: "the stage's process ended: exit status 1: torch.OutOfMemoryError: CUDA out of memory. Tried to " +
					"allocate 2.00 GiB",
			},
			false,
		},
		{
			"an exit tells its last words",
			finish{exit: exited(3), tail: "one\ntwo\n"},
			slot.Ending{
				Outcome: predictor.Failed, Cause: predictor.CauseExit,
				Message: "the stage's process ended: exit status 3: two",
			},
			false,
		},
		{
			"a crash tells its panic",
			finish{exit: exited(2), tail: "log\npanic: nil map\n\ngoroutine 7\n"},
			slot.Ending{
				Outcome: predictor.Failed, Cause: predictor.CauseExit,
				Message: "the stage's process ended: exit status 2: panic: nil map", Stack: "panic: nil map\n\ngoroutine 7\n",
			},
			false,
		},
		{
			"memory that the runtime was refused",
			finish{exit: exited(2), tail: "fatal error: runtime: out of memory\n"},
			slot.Ending{
				Outcome: predictor.OutOfMemory, Cause: predictor.CauseMemoryRefused,
				Message: "the stage's process ended: exit status 2: fatal error: runtime: out of memory",
				Stack:   "fatal error: runtime: out of memory\n",
			},
			false,
		},
		{
			"a child that did not start",
			finish{failed: errors.New("no such file")},
			slot.Ending{Outcome: predictor.Failed, Cause: predictor.CauseStart, Message: "no such file"},
			false,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, reusable := ended(tt.finish)
			if diff := cmp.Diff(tt.want, got); diff != "" || reusable != tt.reusable {
				t.Errorf("reusable %v, want %v; ending (-want +got):\n%s", reusable, tt.reusable, diff)
			}
		})
	}
}

func TestAHostReadsItsOwnRowsOfAPlan(t *testing.T) {
	t.Parallel()
	a, b := predictor.StageID{App: "x", Build: "y", Name: "a"}, predictor.StageID{App: "x", Build: "y", Name: "b"}
	plan := predictor.Plan{
		Grants: []predictor.Grant{
			{Stage: a, Venue: predictor.Pool, Slots: 9, PoolOnly: true},
			{Stage: b, Venue: predictor.Pool, Slots: 9},
			{Stage: b, Venue: predictor.Function, Slots: 9, PoolOnly: true},
		},
		Placements: []predictor.Placement{
			{Stage: a, Host: "h1", Slots: 2},
			{Stage: a, Host: "h1", Device: "gpu0", Slots: 1},
			{Stage: b, Host: "h1", Slots: 0},
			{Stage: b, Host: "h2", Slots: 4},
		},
	}
	for host, want := range map[string]map[predictor.StageID]slot.Target{
		"h1": {a: {Slots: 3, PoolOnly: true}}, "h2": {b: {Slots: 4}}, "h3": {},
	} {
		if diff := cmp.Diff(want, placed(plan, host)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", host, diff)
		}
	}
}

func TestAnAttemptThatCannotRunHereSaysWhyAndWhetherItWaits(t *testing.T) {
	t.Parallel()
	h100 := func(memory quantity.Bytes) quantity.Size {
		return of(1, 10).WithGPUs(quantity.GPUs{Count: 1, Class: "h100", Memory: memory})
	}
	const gib = quantity.GiB
	ranOut := predictor.Need{OutOfMemory: 1, LargestFailedGPU: 79 * gib}
	bare := &Agent{id: "h", base: of(4, 100), gpus: newGPUs(nil, nil, slog.New(slog.DiscardHandler))}
	equipped := &Agent{id: "h", base: of(4, 100), gpus: known(t, newCards(2, 80*gib))}
	beside := &Agent{
		id: "h", base: of(4, 100), gpus: known(t, newCards(2, 80*gib)),
		kinds: []predictor.HostKind{
			{Memory: 100 * quantity.MiB, GPUs: predictor.Equipment{"h100": {80 * gib, 80 * gib}}},
			{Memory: 100 * quantity.MiB, GPUs: predictor.Equipment{"h200": {141 * gib}, "h100": {94 * gib}}},
			{Memory: 400 * quantity.MiB},
		},
	}
	for _, tt := range []struct {
		name       string
		agent      *Agent
		size, base quantity.Size
		need       predictor.Need
		fits       bool
		outcome    predictor.Outcome
		want       string
	}{
		{"one that fits", bare, of(1, 10), of(1, 10), predictor.Need{}, true, "", ""},
		{
			"one that outgrew the host", bare, of(1, 100), of(1, 10),
			predictor.Need{OutOfMemory: 1, LargestFailed: 100 * quantity.MiB},
			false,
			predictor.OutOfMemory, "needs 200 MiB or more",
		},
		{
			"one that outgrew the host, and another has more", beside, of(1, 100), of(1, 10),
			predictor.Need{OutOfMemory: 1, LargestFailed: 100 * quantity.MiB},
			false,
			predictor.Lost, "it waits for a host that has more: up to 400 MiB",
		},
		{
			"one that outgrew the host, and the larger ones have no GPU", beside, h100(0), h100(0),
			predictor.Need{OutOfMemory: 1, LargestFailed: 100 * quantity.MiB},
			false,
			predictor.OutOfMemory, "no other host has more for it",
		},
		{
			"one that outgrew the largest host", beside, of(1, 100), of(1, 10),
			predictor.Need{OutOfMemory: 2, LargestFailed: 400 * quantity.MiB},
			false,
			predictor.OutOfMemory, "needs 800 MiB or more",
		},
		{
			"one that outgrew the hosts with its GPUs", beside, h100(90 * gib), h100(0),
			predictor.Need{OutOfMemory: 2, LargestFailed: 100 * quantity.MiB},
			false,
			predictor.OutOfMemory, "no other host has more for it",
		},
		{
			"what its stage asks for", bare, h100(0), h100(0),
			predictor.Need{},
			true,
			predictor.Lost, "waits for a host that can: 1 h100 asked for, 0 on this host",
		},
		{
			"more than its stage asks for", equipped, h100(90 * gib), h100(0),
			predictor.Need{},
			true,
			predictor.Failed, "no host has the GPUs that it is sized with",
		},
		{
			"more, which another host has", beside, h100(90 * gib), h100(0),
			predictor.Need{},
			true,
			predictor.Lost, "GPU 0 has 80 GiB",
		},
		{
			"it had a whole GPU", equipped, h100(80 * gib), h100(80 * gib), ranOut, false,
			predictor.OutOfMemory, "it ran out of GPU memory with 79 GiB on 1 GPU",
		},
		{
			"it had a whole GPU, and another host has larger ones", beside, h100(80 * gib), h100(80 * gib), ranOut, false,
			predictor.Lost, "GPU 0 has 80 GiB",
		},
		{"it had a part of one", equipped, h100(80 * gib), h100(0), ranOut, true, "", ""},
	} {
		got, found := tt.agent.unfit(sized{size: tt.size, base: tt.base, need: tt.need, fits: tt.fits})
		if found != (tt.want != "") || found && got.Outcome != tt.outcome || !strings.Contains(got.Message, tt.want) ||
			found && got.Permanent != (tt.outcome != predictor.Lost) ||
			(got.HostWait > 0) != (got.Outcome == predictor.Lost && tt.agent == beside) { // the plan may send it here again
			t.Errorf("%s: got %v %+v, want %s: %q", tt.name, found, got, tt.outcome, tt.want)
		}
	}
}

// Another program may hold a GPU for ever, and larger hosts may be full for as long: who waits for them is told so in
// the end.
func TestAWaitForAnotherHostHasAnEnd(t *testing.T) {
	t.Parallel()
	a := &Agent{id: "h", base: of(4, 100), gpus: known(t, newCards(1, quantity.GiB))}
	for _, tt := range []struct {
		ending slot.Ending
		given  int
		want   []string
	}{
		{
			slot.Ending{Cause: predictor.CauseNoGPU, HostWait: gpuPatience, Message: "used by process 4242"},
			5,
			[]string{"used by process 4242", "it has waited for 1h0m0s on hosts that had none for it"},
		},
		{
			slot.Ending{Cause: predictor.CauseNoMemory, HostWait: slot.ElsewhereDelay, Message: "it waits for a host"},
			119,
			[]string{"it waits for a host", "it has waited for 1h0m0s, and is given up: make room on the larger hosts"},
		},
	} {
		tt.ending.Outcome = predictor.Lost
		given := 0
		for state := (wire.Heartbeat{}); ; given++ {
			after, err := slot.Conclude(wire.Task{}, 1, state,
				a.last(tt.ending, predictor.Sizing{}, predictor.Need{}, state.HostWait, false))
			var failed *temporal.ApplicationError
			if !errors.As(err, &failed) || !strings.Contains(failed.Message(), tt.want[0]) || given > tt.given {
				t.Fatalf("%s after %d times: %v", tt.ending.Cause, given, err)
			}
			if failed.NonRetryable() {
				if !strings.Contains(failed.Message(), tt.want[1]) {
					t.Error(failed.Message())
				}
				break
			}
			state = after
		}
		if given != tt.given {
			t.Errorf("%s: given back %d times, want %d", tt.ending.Cause, given, tt.given)
		}
	}
	after, _ := slot.Conclude(wire.Task{}, 1, wire.Heartbeat{HostWait: mostHostWait}, slot.Ending{Outcome: predictor.Lost})
	if after.HostWait != 0 {
		t.Errorf("%s is remembered of an attempt that got one", after.HostWait)
	}
}

func TestMarksOfEndsAreFoundHoweverTheyCome(t *testing.T) {
	t.Parallel()
	text := "one\n" + wire.OutputEnd + "two\x00" + wire.OutputEnd + "three" + wire.OutputEnd[:5]
	for size := 1; size <= len(text); size++ {
		var sink strings.Builder
		o := newOutput(slog.New(slog.DiscardHandler))
		o.out.attach(&sink, nil)
		ends := 0
		for at := 0; at < len(text); at += size {
			if _, err := o.out.Write([]byte(text[at:min(at+size, len(text))])); err != nil {
				t.Fatal(err)
			}
			select {
			case <-o.out.ended:
				ends++
			default:
			}
		}
		if got, want := sink.String(), "one\ntwo\x00three"; got != want || ends == 0 {
			t.Errorf("in pieces of %d: got %q and %d ends, want %q", size, got, ends, want)
		}
	}
}

func TestAChildSeesOnlyWhatItShall(t *testing.T) {
	t.Parallel()
	host := map[string]string{"PATH": "/bin", "AWS_SECRET_ACCESS_KEY": "secret", "HOME": "/root", "GOMAXPROCS": "64"}
	lookup := func(name string) (string, bool) { value, set := host[name]; return value, set }
	got := environment(lookup, build{"digits", "b1"}, "file:///a", quantity.Size{CPU: 1500, Memory: 1000}, true,
		map[string]string{"MODEL": "x", "HOME": "/tmp", wire.RoleEnvironment: "evil", "CUDA_VISIBLE_DEVICES": "all"},
		[]string{"GPU-1", "GPU-2"})
	want := []string{
		"CUDA_DEVICE_ORDER=PCI_BUS_ID", "CUDA_VISIBLE_DEVICES=GPU-1,GPU-2",
		"GOMAXPROCS=2", "GOMEMLIMIT=950", "HOME=/tmp", "MODEL=x", "PATH=/bin",
		"SPILLWAY_ARTIFACTS=file:///a", "SPILLWAY_BUILD=b1", "SPILLWAY_ENFORCED=1", "SPILLWAY_ROLE=child",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
}

// The kernel may count what a cgroup around the attempt's refused as if that had been full.
func TestWhoRefusedAnAttemptProcessesIsSaidAsFarAsItIsKnown(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		peak int
		want string
	}{
		{
			"it had all that it may have", 4096,
			", as it had the 4096 that an attempt may have at once: let it start fewer workers or threads",
		},
		{
			"it had fewer", 500,
			", though it had no more than 500 of the 4096 that an attempt may have at once: the container or service in which " +
				"the engine runs has a limit of its own; raise that, or let it start fewer workers or threads",
		},
		{
			"the kernel does not tell how many it had", 0,
			", as it had the 4096 that an attempt may have at once, or the container or service in which the engine runs all " +
				"that it may have: let it start fewer workers or threads",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			want := "the kernel refused 2 times to start a process or thread for it" + tt.want
			if diff := cmp.Diff(want, refusals{forks: 2, most: 4096, peak: tt.peak}.String()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
