package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"go.temporal.io/sdk/temporal"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/device"
)

// cards are the GPUs that a driver tells of.
type cards struct {
	mu     sync.Mutex
	states []device.State
	err    error
	reads  int // how often they were read
	// accounts is what the driver has written down, by UUID.
	accounts map[string][]device.Account
}

func newCards(count int, memory quantity.Bytes) *cards {
	c := &cards{}
	for i := range count {
		c.states = append(c.states, device.State{
			Device: device.Device{
				UUID: fmt.Sprintf("GPU-%d", i), Index: i, Instance: -1, Name: "NVIDIA H100 80GB HBM3", Class: "h100",
				Memory: memory,
			},
			Free: memory, Busy: -1, Watts: -1, Uncorrected: -1,
		})
	}
	return c
}

// Read tells how they stand.
func (c *cards) Read(context.Context) (device.Reading, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reads++
	return device.Reading{Driver: "550.54.15", CUDA: "12.4", Devices: slices.Clone(c.states)}, c.err
}

// Accounts tells what was written down of processes.
func (c *cards) Accounts(_ context.Context, uuid string, pids []int) (some []device.Account, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range c.accounts[uuid] {
		if slices.Contains(pids, a.PID) {
			some = append(some, a)
		}
	}
	return some, c.err
}

// hold lets a program take memory of a device; 0 ends it.
func (c *cards) hold(index, pid int, memory quantity.Bytes) {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := &c.states[index]
	d.Processes = slices.DeleteFunc(slices.Clone(d.Processes), func(p device.Process) bool { return p.PID == pid })
	if memory > 0 {
		d.Processes = append(d.Processes, device.Process{PID: pid, Memory: memory})
	}
	d.Used = 0
	for _, p := range d.Processes {
		d.Used += p.Memory
	}
	d.Free = d.Memory - d.Used
}

func (c *cards) lose(index int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	lost := device.State{Device: device.Device{Index: index, Instance: -1}, Wrong: "has fallen off the bus"}
	c.states[index] = lost // as the driver tells: without a name
}

func (c *cards) on(o *Options) { o.GPUs = c }

// known are the GPUs of a driver, as an agent has them that has looked once.
func known(t *testing.T, driver *cards) *gpus {
	t.Helper()
	g := newGPUs(driver, nil, slog.New(slog.DiscardHandler))
	if err := g.look(t.Context()); err != nil {
		t.Fatal(err)
	}
	return g
}

// replace makes other GPUs those that are there.
func (c *cards) replace(states []device.State) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.states = states
}

// mend brings a lost GPU back.
func (c *cards) mend(index int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.states[index] = newCards(index+1, 80*quantity.GiB).states[index]
}

// asking is a stage that asks for GPUs.
func asking(g quantity.GPUs) predictor.Sizing {
	return predictor.Sizing{Stage: stage, Base: of(1, 64).WithGPUs(g)}
}

func TestAttemptsHaveGPUsOfTheirOwnAndSeeNoOthers(t *testing.T) {
	t.Parallel()
	driver := newCards(2, 80*quantity.GiB)
	h, printed, _ := startWithStore(t, 3, driver.on)
	h.obeyed(placement(3, asking(quantity.GPUs{Count: 1})))
	dir := t.TempDir()
	pids := t.TempDir()
	script := `echo "[$CUDA_VISIBLE_DEVICES]"; : >"` + dir + `/$SPILLWAY_TASK"; cd "` + pids + `"
		echo $$ >$SPILLWAY_TASK; mv $SPILLWAY_TASK "$CUDA_VISIBLE_DEVICES"
		until [ -e "` + dir + `/enough" ]; do sleep 0.01; done`
	c := shell(script)
	c.Environment = map[string]string{"CUDA_VISIBLE_DEVICES": "0,1,2,3"} // it is not asked
	first, second := h.command(t, "a", c, nil), h.command(t, "b", c, nil)
	running := func() int {
		files, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		return len(files)
	}
	awaitTrue(t, func() bool { return running() == 2 })
	third := h.command(t, "c", c, nil)
	if host := h.agent.Host(); host.Free.GPU != 0 || host.Capacity.GPU != 2*quantity.Core ||
		host.Capacity.DeviceClass != "h100" || len(host.GPUs) != 2 || host.GPUs[0].Holder == nil ||
		host.GPUs[1].Holder == nil {
		t.Errorf("the host tells %+v", host)
	}
	on0, on1 := awaitPID(t, filepath.Join(pids, "GPU-0")), awaitPID(t, filepath.Join(pids, "GPU-1"))
	driver.hold(0, on0, 3*quantity.GiB)
	driver.hold(1, on1, 3*quantity.GiB)
	awaitTrue(t, func() bool { return h.agent.Host().GPUs[1].Used == 3*quantity.GiB })
	driver.hold(0, on0, 0)
	driver.hold(1, on1, 0)
	if running() != 2 {
		t.Error("the third attempt runs without a GPU")
	}
	release(t, filepath.Join(dir, "enough"))
	for _, wait := range []func() error{
		func() error { _, err := first.Wait(t); return err },
		func() error { _, err := second.Wait(t); return err },
		func() error { _, err := third.Wait(t); return err },
	} {
		if err := wait(); err != nil {
			t.Fatal(err)
		}
	}
	both := []string{printed("a", 1), printed("b", 1)}
	slices.Sort(both)
	if diff := gocmp.Diff([]string{"[GPU-0]\n", "[GPU-1]\n"}, both); diff != "" {
		t.Error(diff)
	}
	peaks := 0
	for _, record := range h.records() {
		if record.Grant.GPU != quantity.Core || record.Grant.GPUMemory != 80*quantity.GiB {
			t.Errorf("granted %s", record.Grant)
		}
		if record.Usage.GPUPeakMemory == 3*quantity.GiB {
			peaks++
		}
	}
	if peaks != 2 {
		t.Errorf("%d peaks of 3 GiB: %+v", peaks, h.records())
	}
	if host := h.agent.Host(); host.Free != host.Capacity || host.GPUs[0].Holder != nil {
		t.Errorf("after all: %+v", host)
	}
}

func TestAChildWithGPUsIsANewOneAndServesNobodyElse(t *testing.T) {
	t.Parallel()
	h := start(t, 1, newCards(8, 80*quantity.GiB).on)
	visible := func(sizing predictor.Sizing) (pid int, value string) {
		h.plans <- placement(1, sizing)
		awaitTrue(t, func() bool { held, _ := h.agent.sizing(stage); return held == sizing })
		out, _ := h.done(t, order{Do: "environment"})
		value = "unset"
		for _, pair := range out.Env {
			if name, of, _ := strings.Cut(pair, "="); name == "CUDA_VISIBLE_DEVICES" {
				value = of
			}
		}
		return out.PID, value
	}
	none := predictor.Sizing{Stage: stage, Base: of(1, 64)}
	plain, value := visible(none)
	if value != "" {
		t.Errorf("a stage that asks for no GPU sees %q", value)
	}
	pid, value := visible(asking(quantity.GPUs{Count: 2}))
	if pid == plain || value != "GPU-0,GPU-1" {
		t.Errorf("process %d (before: %d) sees %q", pid, plain, value)
	}
	again, value := visible(none)
	if again == pid || value != "" {
		t.Errorf("process %d (with GPUs: %d) sees %q", again, pid, value)
	}
}

// The plan gives a stage no slot on a host that has not its GPUs, so its tasks wait until one has them: also this one,
// where they appear.
func TestWhoseGPUsAreNotHereWaitsUntilAHostHasThem(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		gpus  int
		asked quantity.GPUs
		want  string
	}{
		"none here":     {0, quantity.GPUs{Count: 1}, "cannot give it its GPUs, so it waits for a host that can: 1 GPU"},
		"too many":      {2, quantity.GPUs{Count: 3}, "3 GPUs asked for, 2 on this host: GPU 0 (h100) is free"},
		"another class": {2, quantity.GPUs{Count: 1, Class: "t4"}, "GPU 0 is h100"},
		"too large":     {2, quantity.GPUs{Count: 1, Memory: 100 * quantity.GiB}, "GPU 0 has 80 GiB"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			driver := newCards(test.gpus, 80*quantity.GiB)
			h := start(t, 1, driver.on)
			h.obeyed(placement(1, asking(test.asked)))
			task := h.submit(t, order{Do: "environment"}, nil)
			awaitTrue(t, func() bool { return len(task.Failures()) > 0 })
			var lost *temporal.ApplicationError
			if err := task.Failures()[0]; !errors.As(err, &lost) || lost.Type() != wire.LostError || lost.NonRetryable() ||
				!strings.Contains(lost.Message(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
			if name == "another class" {
				driver.replace(newCards(0, 0).states)
				if err := h.agent.gpus.look(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			more := newCards(4, 120*quantity.GiB).states
			for i := range more {
				more[i].UUID, more[i].Class = fmt.Sprintf("GPU-new-%d", i), cmp.Or(test.asked.Class, "h100")
			}
			driver.replace(more)
			if err := h.agent.gpus.look(t.Context()); err != nil {
				t.Fatal(err)
			}
			if out, _ := decoded(t, h, task); !slices.ContainsFunc(out.Env, func(pair string) bool {
				return strings.HasPrefix(pair, "CUDA_VISIBLE_DEVICES=GPU-new-0")
			}) {
				t.Errorf("%v", out.Env)
			}
		})
	}
}

func TestWhoRunsOutOfTheMemoryOfWholeGPUsIsToldWhatWouldFit(t *testing.T) {
	t.Parallel()
	h, _, _ := startWithStore(t, 1, newCards(2, 16*quantity.GiB).on)
	h.plans <- placement(1, asking(quantity.GPUs{Count: 1}))
	awaitTrue(t, func() bool { _, known := h.agent.sizing(stage); return known })
	task := h.command(t, "a", shell(`echo '{"out_of_memory": "device"}' >$SPILLWAY_REPORT; sleep 0.1; exit 1`), nil)
	_, err := task.Wait(t)
	var failed *temporal.ApplicationError
	const want = "it ran out of GPU memory with 16 GiB on 1 GPU"
	if !errors.As(err, &failed) || !strings.Contains(failed.Message(), want) ||
		!strings.Contains(failed.Message(), "GPU 0 has 16 GiB") {
		t.Errorf("%v, want %q", err, want)
	}
	if records := h.records(); len(records) != 1 || records[0].Cause != predictor.CauseDeviceMemory ||
		!strings.Contains(records[0].Error, want) {
		t.Errorf("%+v", records)
	}
	if failures := task.Failures(); len(failures) > 0 {
		t.Errorf("it was given back, though nothing more can be had: %v", failures)
	}
}

func TestAGPUThatAnotherProgramFillsIsWaitedForAndNamed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		driver := newCards(2, 80*quantity.GiB)
		g := known(t, driver)
		driver.hold(0, 4242, 70*quantity.GiB)
		driver.hold(1, 4243, 2*quantity.GiB)
		began := time.Now()
		_, err := g.take(t.Context(), device.Need{Count: 1, Memory: 79*quantity.GiB + 1}, predictor.GPUHolder{})
		if !errors.Is(err, errNoGPU) || !strings.Contains(err.Error(),
			"GPU 0 has 10 GiB free of 80 GiB: used by process 4242 with 70 GiB") {
			t.Errorf("%v", err)
		}
		if waited := time.Since(began); waited != gpuPatience {
			t.Errorf("it waited for %s", waited)
		}
		go func() {
			time.Sleep(gpuPatience / 2)
			driver.hold(1, 4243, 0)
		}()
		hold, err := g.take(t.Context(), device.Need{Count: 1}, predictor.GPUHolder{})
		if err != nil || !slices.Equal(hold.uuids, []string{"GPU-1"}) {
			t.Errorf("%+v, %v", hold, err)
		}
		g.give(hold)
		driver.err = errors.New("the driver has not answered")
		if _, err := g.take(t.Context(), device.Need{Count: 1}, predictor.GPUHolder{}); !errors.Is(err, errNoGPU) {
			t.Errorf("%v", err)
		}
	})
}

// Another attempt may have the only GPU that is large enough for hours: that is no reason to give up.
func TestAGPUThatAnotherAttemptHasIsWaitedForAsLongAsThatGoesOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		driver := newCards(2, 40*quantity.GiB)
		driver.states[0].Memory, driver.states[0].Free = 80*quantity.GiB, 80*quantity.GiB
		g := known(t, driver)
		large := device.Need{Count: 1, Memory: 60 * quantity.GiB}
		first, err := g.take(t.Context(), large, predictor.GPUHolder{})
		if err != nil {
			t.Fatal(err)
		}
		driver.hold(0, 100, 70*quantity.GiB) // as it does itself
		go func() {
			time.Sleep(9 * gpuPatience)
			driver.hold(0, 100, 0)
			g.give(first)
		}()
		began := time.Now()
		second, err := g.take(t.Context(), large, predictor.GPUHolder{})
		if err != nil || !slices.Equal(second.uuids, first.uuids) || time.Since(began) < 9*gpuPatience {
			t.Fatalf("after %s: %+v, %v", time.Since(began), second, err)
		}
		driver.hold(1, 4242, 39*quantity.GiB) // a stranger has the other one: the large one alone is waited for
		ctx, cancel := context.WithTimeout(t.Context(), 3*gpuPatience)
		defer cancel()
		began = time.Now()
		if _, err := g.take(ctx, device.Need{Count: 1}, predictor.GPUHolder{}); err == nil ||
			time.Since(began) != 3*gpuPatience {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
	})
}

func TestAGPUThatFallsOffTheBusIsOfferedNoMore(t *testing.T) {
	t.Parallel()
	driver := newCards(2, 80*quantity.GiB)
	h := start(t, 1, driver.on)
	driver.lose(1)
	if err := h.agent.gpus.look(t.Context()); err != nil {
		t.Fatal(err)
	}
	host := h.agent.Host()
	if host.Capacity.GPU != quantity.Core || host.Capacity.GPUMemory != 80*quantity.GiB ||
		host.GPUs[1].Wrong != "has fallen off the bus" || host.GPUs[1].UUID != "GPU-1" {
		t.Errorf("%+v", host)
	}
	h.plans <- placement(1, asking(quantity.GPUs{Count: 1}))
	awaitTrue(t, func() bool { _, known := h.agent.sizing(stage); return known })
	out, _ := h.done(t, order{Do: "environment"})
	if !slices.Contains(out.Env, "CUDA_VISIBLE_DEVICES=GPU-0") {
		t.Errorf("%v", out.Env)
	}
}

func TestWhoAsksForPartsOfGPUsGetsWholeOnes(t *testing.T) {
	t.Parallel()
	part := quantity.Size{CPU: 1, GPU: 1500, GPUMemory: quantity.GiB, DeviceClass: "h100"}
	if got := rounded(part); got.GPU != 2*quantity.Core || got.GPUMemory != quantity.GiB {
		t.Errorf("%s", got)
	}
	part.GPU = 0
	if got := rounded(part); got != (quantity.Size{CPU: 1}) {
		t.Errorf("without a GPU: %s", got)
	}
}

// What attempts took with head-room is more than a GPU has: the next ones run as those did.
func TestWhatIsLearnedOfAGPUIsNoMoreThanItHas(t *testing.T) {
	t.Parallel()
	h := start(t, 1, newCards(1, 80*quantity.GiB).on)
	sizing := asking(quantity.GPUs{Count: 1, Memory: 84 * quantity.GiB})
	sizing.Learned = true
	h.plans <- placement(1, sizing)
	awaitTrue(t, func() bool { held, _ := h.agent.sizing(stage); return held == sizing })
	h.done(t, order{Do: "report"})
}

// An attempt that waits for a GPU that is lost pays nothing, keeps nobody waiting, and runs when it works again.
func TestALostGPUIsWaitedForInTheLine(t *testing.T) {
	t.Parallel()
	driver := newCards(1, 80*quantity.GiB)
	h := start(t, 2, driver.on)
	driver.lose(0)
	if err := h.agent.gpus.look(t.Context()); err != nil {
		t.Fatal(err)
	}
	waiting := func() int {
		h.agent.admission.mu.Lock()
		defer h.agent.admission.mu.Unlock()
		return len(h.agent.admission.waiting)
	}
	h.obeyed(placement(2, asking(quantity.GPUs{Count: 1})))
	first := h.submit(t, order{Do: "environment"}, func(task *wire.Task) { task.ID = "score-gpu" })
	awaitTrue(t, func() bool { return waiting() == 1 })
	h.obeyed(placement(2, predictor.Sizing{Stage: stage, Base: of(1, 64)}))
	if out, _ := h.done(t, order{Do: "environment"}); !slices.Contains(out.Env, "CUDA_VISIBLE_DEVICES=") {
		t.Errorf("%v", out.Env)
	}
	if n, records := waiting(), h.records(); n != 1 || len(records) != 1 || records[0].Outcome != predictor.Succeeded {
		t.Errorf("%d wait; %+v", n, records)
	}
	driver.mend(0)
	if out, _ := decoded(t, h, first); !slices.Contains(out.Env, "CUDA_VISIBLE_DEVICES=GPU-0") {
		t.Errorf("%v", out.Env)
	}
}

// A host whose GPUs do not work keeps who wants them for a while only.
func TestWhoWantsMoreGPUsThanWorkIsGivenBackAfterAWhile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		capacity := of(4, 100).WithGPUs(quantity.GPUs{Count: 2})
		a := &admission{capacity: capacity, changed: func() {}}
		one, two := of(1, 10).WithGPUs(quantity.GPUs{Count: 1}), of(1, 90).WithGPUs(quantity.GPUs{Count: 2})
		first, err := a.reserve(t.Context(), one)
		if err != nil {
			t.Fatal(err)
		}
		go func() { // it works again in time
			time.Sleep(gpuPatience)
			a.limit(capacity, 2)
			time.Sleep(2 * gpuPatience)
			first.release()
		}()
		less := capacity
		less.GPU = quantity.Core
		a.limit(less, 1)
		began := time.Now()
		second, err := a.reserve(t.Context(), two)
		if waited := time.Since(began); err != nil || waited != 3*gpuPatience {
			t.Fatalf("after %s: %v", waited, err)
		}
		second.release()
		a.limit(less, 3)
		began = time.Now()
		_, err = a.reserve(t.Context(), two)
		if waited := time.Since(began); !errors.Is(err, errNoGPU) || waited < gpuPatience || waited > 2*gpuPatience {
			t.Errorf("after %s: %v", waited, err)
		}
		if a.held != (quantity.Size{}) || len(a.waiting) > 0 {
			t.Errorf("%s is held, and %d wait", a.held, len(a.waiting))
		}
	})
}

// A program of somebody else that starts on the GPU of an attempt, later than it, is no part of what the attempt takes.
func TestStrangersThatStartLaterDoNotCountInPeaks(t *testing.T) {
	t.Parallel()
	driver := newCards(1, 80*quantity.GiB)
	h, _, _ := startWithStore(t, 1, driver.on)
	h.obeyed(placement(1, asking(quantity.GPUs{Count: 1})))
	dir := t.TempDir()
	task := h.command(t, "a", shell(`echo $$ >"`+dir+`/new"; mv "`+dir+`/new" "`+dir+`/pid"
		until [ -e "`+dir+`/enough" ]; do sleep 0.01; done`), nil)
	pid := awaitPID(t, filepath.Join(dir, "pid"))
	driver.hold(0, pid, 3*quantity.GiB)
	awaitTrue(t, func() bool { return h.agent.Host().GPUs[0].Used == 3*quantity.GiB })
	driver.hold(0, os.Getpid(), 30*quantity.GiB)
	awaitTrue(t, func() bool { return h.agent.Host().GPUs[0].Used == 33*quantity.GiB })
	driver.hold(0, pid, 0)
	release(t, filepath.Join(dir, "enough"))
	if _, err := task.Wait(t); err != nil {
		t.Fatal(err)
	}
	if peak := h.records()[0].Usage.GPUPeakMemory; peak != 3*quantity.GiB {
		t.Errorf("a peak of %s, want its own 3 GiB", peak)
	}
}

// release makes the file that a program waits for.
func release(t *testing.T, file string) {
	t.Helper()
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// awaitPID waits until a program has written its process ID to a file.
func awaitPID(t *testing.T, file string) (pid int) {
	t.Helper()
	awaitTrue(t, func() bool {
		text, err := os.ReadFile(file)
		if err != nil {
			return false
		}
		pid, err = strconv.Atoi(strings.TrimSpace(string(text)))
		return err == nil
	})
	return pid
}

// What an attempt may take of a GPU is what others leave of it: a lack of memory says that so much was not enough.
func TestAnAttemptIsGrantedWhatIsFreeOfItsGPU(t *testing.T) {
	t.Parallel()
	driver := newCards(1, 80*quantity.GiB)
	driver.hold(0, 4242, 30*quantity.GiB)
	h := start(t, 1, driver.on)
	sizing := asking(quantity.GPUs{Count: 1, Memory: 40 * quantity.GiB})
	h.obeyed(placement(1, sizing))
	h.done(t, order{Do: "report"})
	if grant := h.records()[0].Grant; grant.GPUMemory != 50*quantity.GiB {
		t.Errorf("granted %s", grant)
	}
	if host := h.agent.Host(); host.Free != host.Capacity {
		t.Errorf("after it: %s of %s", host.Free, host.Capacity)
	}
}

func TestGPUsThatAreHiddenFromTheEngineAreHiddenFromStages(t *testing.T) {
	t.Parallel()
	hidden := device.Filter{Set: true}
	h := start(t, 1, func(o *Options) { o.GPUs, o.OfferGPUs = newCards(2, quantity.GiB), hidden.Offer })
	if out, _ := h.done(t, order{Do: "environment"}); !slices.Contains(out.Env, "CUDA_VISIBLE_DEVICES=") {
		t.Errorf("%v", out.Env)
	}
}

// A reading that took long is older than those that began after it: what it tells is of whoever had the GPU before.
func TestASlowReadingIsNotAppliedAfterANewerOne(t *testing.T) {
	t.Parallel()
	driver := newCards(1, 80*quantity.GiB)
	g := known(t, driver)
	driver.hold(0, 100, 70*quantity.GiB)
	g.asked++
	slow, number := device.Reading{Devices: slices.Clone(driver.states)}, g.asked
	driver.hold(0, 100, 0)
	hold, err := g.take(t.Context(), device.Need{Count: 1}, predictor.GPUHolder{})
	if err != nil {
		t.Fatal(err)
	}
	g.apply(t.Context(), slow, number, time.Now())
	if peak := hold.peak; peak != 0 {
		t.Errorf("a peak of %s, which was another's", peak)
	}
}

// A look that began earlier and came later told of a GPU that was lost since, and the host admitted attempts to it
// until the next change.
func TestACapacityIsNotOverwrittenByAnEarlierOne(t *testing.T) {
	t.Parallel()
	driver := newCards(2, 80*quantity.GiB)
	g := known(t, driver)
	a := &admission{changed: func() {}}
	both, early := g.usable(of(4, 100))
	driver.replace(driver.states[:1])
	if err := g.look(t.Context()); err != nil {
		t.Fatal(err)
	}
	one, late := g.usable(of(4, 100))
	a.limit(one, late)
	a.limit(both, early)
	if both.GPU != 2*quantity.Core || one.GPU != quantity.Core || a.capacity != one {
		t.Errorf("the capacity is %s, want %s, which was told later than %s", a.capacity, one, both)
	}
}
